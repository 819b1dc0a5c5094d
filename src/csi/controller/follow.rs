//! Waiting for the agent, by watch, until the deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout_at;

use crate::csi::status::{Kind, Refusal};
use crate::model::volume::Volume;
use crate::store::{self, Change, Watch};

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

/// Waits until `judge` has an opinion of the volume's newest state; `None` is a volume that is gone.
/// `what` ends the sentence "volume x … in time" when the deadline comes first.
pub(super) async fn until<T>(
    watch: &mut Watch<Volume>,
    now: Option<Volume>,
    deadline: Instant,
    what: &str,
    mut judge: impl FnMut(Option<&Volume>) -> Option<Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let mut last = now.map(Arc::new);
    let waiting = async {
        loop {
            if let Some(verdict) = judge(last.as_deref()) {
                return verdict;
            }
            match watch.next().await {
                Some(Change::Put(volume)) => last = Some(volume),
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

fn late(volume: Option<&Volume>, what: &str) -> Refusal {
    let Some(volume) = volume else {
        return Refusal::new(
            Kind::DeadlineExceeded,
            format!("the volume {what} in time: try again"),
        );
    };
    let why = match volume.trouble() {
        Some(trouble) => format!("its agent on {} says: {trouble}", volume.spec.owner_node),
        None => format!(
            "see whether the agent on {} is running, then try again",
            volume.spec.owner_node
        ),
    };
    Refusal::new(
        Kind::DeadlineExceeded,
        format!("volume {} {what} in time; {why}", volume.metadata.name),
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
        let outcome = until(&mut Watch(from), None, soon(), "is", |_| {
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
