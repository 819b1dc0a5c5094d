//! Where snapshots have gone lately: a promotion or a renaming takes them to another dataset.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How many moves are remembered. Who looks for an older one looks everywhere.
const REMEMBERED: usize = 256;

/// The last moves, oldest first: from a dataset, to another.
#[derive(Debug, Default)]
pub(super) struct Moves(Mutex<VecDeque<(String, String)>>);

impl Moves {
    /// Remembers a move.
    pub(super) fn note(&self, from: &str, to: &str) {
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moves.len() == REMEMBERED {
            moves.pop_front();
        }
        moves.push_back((from.to_owned(), to.to_owned()));
    }

    /// The datasets that a snapshot of `dataset` can have gone to, the nearest first.
    pub(super) fn from(&self, dataset: &str) -> Vec<String> {
        let moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reached = vec![dataset.to_owned()];
        for (from, to) in moves.iter() {
            if reached.contains(from) && !reached.contains(to) {
                reached.push(to.clone());
            }
        }
        reached.split_off(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_followed_in_their_order() {
        let moves = Moves::default();
        assert!(moves.from("a").is_empty());
        for (from, to) in [("b", "x"), ("a", "b"), ("b", "c"), ("a", "d"), ("c", "a")] {
            moves.note(from, to);
        }
        assert_eq!(moves.from("a"), ["b", "c", "d"]);
        assert_eq!(moves.from("x"), [""; 0]);
        for n in 0..REMEMBERED {
            moves.note("n", &n.to_string());
        }
        assert!(moves.from("a").is_empty(), "long ago");
    }
}
