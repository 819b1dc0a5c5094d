//! Waiting for the agent, by watch, until the deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout_at;

use crate::csi::status::{Kind, Refusal};
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::volume::Volume;
use crate::store::{self, Change, Objects, Watch};

/// What an agent makes true.
pub(super) trait Followed: Object {
    /// The storage host whose agent does it.
    fn owner(&self) -> &str;
    /// What that agent says is wrong.
    fn said(&self) -> Option<&str>;
}

impl Followed for Volume {
    fn owner(&self) -> &str {
        &self.spec.owner_node
    }

    fn said(&self) -> Option<&str> {
        let refusal = self.refusal().map(|c| c.message.as_str());
        self.trouble().or(refusal)
    }
}

impl Followed for Snapshot {
    fn owner(&self) -> &str {
        &self.spec.owner_node
    }

    fn said(&self) -> Option<&str> {
        self.trouble().map(|(_, message)| message)
    }
}

/// One call of the store, ended by the deadline.
pub(super) async fn within<T>(
    deadline: Instant,
    act: impl Future<Output = Result<T, store::Error>>,
) -> Result<T, Refusal> {
    match timeout_at(deadline.into(), act).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(Refusal::new(
            Kind::DeadlineExceeded,
            "the store has not answered in time: see whether it is reachable, then try again",
        )),
    }
}

/// Waits until `judge` has an opinion of the object's newest state; `None` is an object that is gone.
/// `what` ends the sentence "volume x … in time" when the deadline comes first.
pub(super) async fn until<T: Followed, R>(
    watch: &mut Watch<T>,
    now: Option<T>,
    deadline: Instant,
    what: &str,
    mut judge: impl FnMut(Option<&T>) -> Option<Result<R, Refusal>>,
) -> Result<R, Refusal> {
    let mut last = now.map(Arc::new);
    let waiting = async {
        loop {
            if let Some(verdict) = judge(last.as_deref()) {
                return verdict;
            }
            match watch.next().await {
                Some(Change::Put(newest)) => last = Some(newest),
                Some(Change::Gone(_)) => last = None,
                None => {
                    return Err(Refusal::new(
                        Kind::Unavailable,
                        "the store's watch has ended: try again",
                    ));
                }
            }
        }
    };
    let outcome = timeout_at(deadline.into(), waiting).await;
    outcome.unwrap_or_else(|_| Err(late(last.as_deref(), what)))
}

/// Asks for the object's deletion and waits until the agent has done it. Every state that is deleted has been judged by
/// `may_go`: what another controller has written since, or made anew by this name, is not lost.
pub(super) async fn gone<T: Followed>(
    objects: &impl Objects<T>,
    watch: &mut Watch<T>,
    object: T,
    may_go: impl Fn(&T) -> Result<(), Refusal>,
    deadline: Instant,
) -> Result<(), Refusal> {
    let uid = object.metadata().uid.clone();
    let Some(doomed) = doomed(objects, object, may_go, deadline).await? else {
        return Ok(());
    };
    until(
        watch,
        Some(doomed),
        deadline,
        "is not gone",
        |object| match object {
            Some(object) if object.metadata().uid == uid => None,
            _ => Some(Ok(())),
        },
    )
    .await
}

/// The object whose deletion is asked for, by this call or another; `None` when it is gone.
async fn doomed<T: Followed>(
    objects: &impl Objects<T>,
    mut object: T,
    may_go: impl Fn(&T) -> Result<(), Refusal>,
    deadline: Instant,
) -> Result<Option<T>, Refusal> {
    while !object.is_deleting() {
        may_go(&object)?;
        let asked = async {
            match objects.delete(&object).await {
                Err(store::Error::NotFound(..)) => Ok(Asked::Gone),
                Err(store::Error::Conflict(..)) => Ok(Asked::Changed),
                asked => asked.map(|()| Asked::Yes),
            }
        };
        match within(deadline, asked).await? {
            Asked::Yes => break,
            Asked::Gone => return Ok(None),
            Asked::Changed => {}
        }
        let metadata = object.metadata();
        match within(deadline, objects.get(&metadata.name)).await? {
            Some(newest) if newest.metadata().uid == metadata.uid => object = newest,
            _ => return Ok(None),
        }
    }
    Ok(Some(object))
}

enum Asked {
    Yes,
    Gone,
    /// Somebody else has written it meanwhile.
    Changed,
}

fn late<T: Followed>(object: Option<&T>, what: &str) -> Refusal {
    let kind = T::KIND;
    let Some(object) = object else {
        return Refusal::new(
            Kind::DeadlineExceeded,
            format!("the {kind} {what} in time: try again"),
        );
    };
    let owner = object.owner();
    let why = match object.said() {
        Some(said) => format!("its agent on {owner} says: {said}"),
        None => format!("see whether the agent on {owner} is running, then try again"),
    };
    Refusal::new(
        Kind::DeadlineExceeded,
        format!("{kind} {} {what} in time; {why}", object.metadata().name),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[tokio::test]
    async fn a_store_that_goes_away_ends_the_wait() {
        let (changes, from) = unbounded_channel();
        drop(changes);
        let outcome = until(&mut Watch::<Volume>(from), None, soon(), "is", |_| {
            None::<Result<(), _>>
        })
        .await;
        assert_eq!(outcome.unwrap_err().kind, Kind::Unavailable);
    }

    #[tokio::test]
    async fn rule_10_a_store_that_does_not_answer_ends_the_call() {
        let late = Instant::now() + Duration::from_millis(20);
        let outcome = within(late, std::future::pending::<Result<(), store::Error>>()).await;
        assert_eq!(outcome.unwrap_err().kind, Kind::DeadlineExceeded);
    }

    #[tokio::test]
    async fn what_is_true_already_needs_no_change() {
        let (_changes, from) = unbounded_channel();
        let gone = |volume: Option<&Volume>| volume.is_none().then_some(Ok(()));
        assert_eq!(
            until(&mut Watch(from), None, Instant::now(), "is", gone).await,
            Ok(())
        );
    }
}
