//! Pages of a list. A list is in the order of its tokens, and the token of a page is that of the last entry
//! before it: entries that come and go meanwhile make no other entry come twice or get lost.

use std::cmp::Ordering;

use crate::csi::status::{Kind, Refusal};
use crate::model::names::is_handle;
use crate::model::shown;
use crate::model::snapshot::parse_id;
use crate::model::volume::Volume;

/// Begins every token: another text is none.
const PREFIX: &str = "after:";

/// Which page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    /// The entry before it, if any.
    after: Option<String>,
    /// The most entries, if there is an end.
    most: Option<usize>,
}

/// What a list's entries are called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    Volumes,
    Snapshots,
}

impl Page {
    /// The page that a request asks for.
    pub(super) fn new(
        max_entries: i32,
        starting_token: &str,
        entries: Entries,
    ) -> Result<Self, Refusal> {
        let most = usize::try_from(max_entries).map_err(|_| {
            Refusal::invalid(format!(
                "max_entries is {max_entries}: it cannot be negative"
            ))
        })?;
        let after = match starting_token {
            "" => None,
            token => Some(after(token, entries).ok_or_else(|| {
                Refusal::new(
                    Kind::Aborted,
                    format!(
                        "starting_token is {}, which this list never gives: begin again without one",
                        shown(token)
                    ),
                )
            })?),
        };
        Ok(Self {
            after,
            most: Some(most).filter(|most| *most != 0),
        })
    }

    /// The entries of this page out of all, and the token of the next.
    pub(super) fn of<T>(&self, mut all: Vec<T>, called: impl Fn(&T) -> String) -> (Vec<T>, String) {
        all.sort_by(|one, other| order(&called(one), &called(other)));
        if let Some(after) = &self.after {
            all.retain(|entry| order(&called(entry), after) == Ordering::Greater);
        }
        let most = self.most.unwrap_or(all.len());
        let is_last = all.len() <= most;
        all.truncate(most);
        let next = match all.last() {
            Some(last) if !is_last => format!("{PREFIX}{}", called(last)),
            _ => String::new(),
        };
        (all, next)
    }
}

fn after(token: &str, entries: Entries) -> Option<String> {
    let called = token.strip_prefix(PREFIX)?;
    let is_one = match entries {
        Entries::Volumes => is_handle(called),
        Entries::Snapshots => parse_id(called).is_some(),
    };
    is_one.then(|| called.to_owned())
}

/// By what is after the `@`, then by what is before it: the members of a group stay together.
fn order(one: &str, other: &str) -> Ordering {
    let key = |id: &str| match id.split_once('@') {
        Some((volume, object)) => (object.to_owned(), volume.to_owned()),
        None => (id.to_owned(), String::new()),
    };
    key(one).cmp(&key(other))
}

/// What a volume is called by.
pub(super) fn volume_token(volume: &Volume) -> String {
    volume.metadata.name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn page(most: i32, token: &str) -> Page {
        Page::new(most, token, Entries::Volumes).unwrap()
    }

    #[test]
    fn pages_in_a_row_are_the_whole_list() {
        let all = names(&["c", "a", "e", "b", "d"]);
        let (mut seen, mut token) = (Vec::new(), String::new());
        for expected in [2, 2, 1] {
            let (entries, next) = page(2, &token).of(all.clone(), Clone::clone);
            assert_eq!(entries.len(), expected);
            seen.extend(entries);
            token = next;
        }
        assert_eq!(seen, names(&["a", "b", "c", "d", "e"]));
        assert_eq!(token, "");
        assert_eq!(page(5, "").of(all.clone(), Clone::clone).1, "", "no more");
        assert_eq!(page(0, "after:b").of(all, Clone::clone).0.len(), 3);
    }

    #[test]
    fn what_comes_and_goes_moves_nothing_else() {
        let (_, token) = page(2, "").of(names(&["a", "c", "e"]), Clone::clone);
        let later = names(&["aa", "b", "d", "e"]);
        let (rest, _) = page(0, &token).of(later, Clone::clone);
        assert_eq!(rest, names(&["d", "e"]), "c is gone, and its place is kept");
    }

    #[test]
    fn snapshots_go_by_their_object() {
        let all = names(&["v9@a", "v1@b", "v1@a"]);
        let first = Page::new(2, "", Entries::Snapshots).unwrap();
        let (entries, token) = first.of(all.clone(), Clone::clone);
        assert_eq!(entries, names(&["v1@a", "v9@a"]));
        let rest = Page::new(2, &token, Entries::Snapshots).unwrap();
        assert_eq!(rest.of(all, Clone::clone).0, names(&["v1@b"]));
    }

    #[test]
    fn hostile_tokens_and_counts_are_refused() {
        for token in [
            "invalid-token",
            "after:",
            "after:../x",
            "after:a@b",
            "a",
            "after:A",
        ] {
            let refusal = Page::new(0, token, Entries::Volumes).unwrap_err();
            assert_eq!(refusal.kind, Kind::Aborted, "{token}");
        }
        for token in ["after:a", "after:a@", "after:a@b@c"] {
            let refusal = Page::new(0, token, Entries::Snapshots).unwrap_err();
            assert_eq!(refusal.kind, Kind::Aborted, "{token}");
        }
        for most in [-1, i32::MIN] {
            let refusal = Page::new(most, "", Entries::Volumes).unwrap_err();
            assert_eq!(refusal.kind, Kind::InvalidArgument);
        }
    }
}
