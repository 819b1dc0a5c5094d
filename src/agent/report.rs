//! What this storage host can give, told to the controller: its StorageNode.
//!
//! Written off every path: before the agent is ready, a moment after something was made or destroyed or a pool has
//! another state, and now and then; and only when it is news.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::observe::Host;
use super::reconcile::{Reconciler, Stop};
use crate::model::names;
use crate::model::object::Metadata;
use crate::model::storage_node::{PoolStatus, StorageNode, StorageNodeSpec, StorageNodeStatus};
use crate::store::{self, Objects, Store, time};

/// How often pools are looked at that are in use: ZFS has no event for data that is written.
pub(super) const PERIOD: Duration = Duration::from_secs(30);
/// How often those in which nothing moves: a host without work is left asleep.
const LONGEST: Duration = Duration::from_secs(480);
/// How long after a change: those that come together are told together.
pub(super) const SOON: Duration = Duration::from_millis(200);
/// Writes that somebody else was faster with.
const TRIES: usize = 8;

/// How soon the next look is due when nothing is heard of.
#[derive(Debug, Default)]
pub(super) struct Pace {
    seen: Option<Vec<PoolStatus>>,
    wait: Duration,
}

impl Pace {
    /// After a look at the pools, or one that failed: twice as long as before where nothing has moved.
    pub(super) fn after(&mut self, pools: Option<&[PoolStatus]>) -> Duration {
        self.wait = match pools {
            Some(_) if pools == self.seen.as_deref() => (2 * self.wait).min(LONGEST),
            _ => PERIOD,
        };
        self.seen = pools.map(<[_]>::to_vec);
        self.wait
    }
}

/// Whether `new` tells something that matters: another pool, another health, other costs, or space that differs by
/// more than a hundredth.
fn is_news(old: &[PoolStatus], new: &[PoolStatus]) -> bool {
    let differs = |old: u64, new: u64| old.abs_diff(new) > old.max(new) / 100;
    old.len() != new.len()
        || old.iter().zip(new).any(|(old, new)| {
            let without_space = |pool: &PoolStatus| PoolStatus {
                available: 0,
                used: 0,
                ..pool.clone()
            };
            without_space(old) != without_space(new)
                || differs(old.available, new.available)
                || differs(old.used, new.used)
        })
}

/// The StorageNode as this agent has written it last: the store is not asked for it while there is no news. One that
/// somebody else has written since is a conflict.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Option<StorageNode>>);

impl Told {
    fn known(&self) -> Option<StorageNode> {
        self.kept().clone()
    }

    fn keep(&self, node: StorageNode) {
        *self.kept() = Some(node);
    }

    /// It is gone from the store.
    pub(super) fn forget(&self) {
        *self.kept() = None;
    }

    fn kept(&self) -> MutexGuard<'_, Option<StorageNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Looks at the pools and tells what is news. Gives the pools.
    pub(super) async fn report(self: Arc<Self>) -> Result<Vec<PoolStatus>, Stop> {
        let observed_at = time::now();
        let looking = self.clone();
        let look = tokio::task::spawn_blocking(move || looking.host.pools());
        let mut pools = look
            .await
            .map_err(|e| super::observe::Failure::kernel(format!("a look at the pools: {e}")))??;
        pools.sort_by(|one, other| one.name.cmp(&other.name));
        let status = StorageNodeStatus { pools, observed_at };
        for _ in 0..TRIES {
            match self.tell(status.clone()).await {
                Err(Stop::Conflict | Stop::Vanished) => {}
                told => return told.map(|()| status.pools),
            }
        }
        Err(Stop::Conflict)
    }

    async fn tell(&self, status: StorageNodeStatus) -> Result<(), Stop> {
        let nodes = self.store.storage_nodes();
        let node = match self.told.known() {
            Some(node) => node,
            None => {
                let node = self.found(nodes).await?;
                self.told.keep(node.clone());
                node
            }
        };
        let is_first = node.status.observed_at.is_empty();
        if is_first || is_news(&node.status.pools, &status.pools) {
            // Forgotten first: what came of a write that fails is not known.
            self.told.forget();
            let told = nodes.update_status(StorageNode { status, ..node }).await?;
            self.told.keep(told);
        }
        Ok(())
    }

    async fn found(&self, nodes: &impl Objects<StorageNode>) -> Result<StorageNode, Stop> {
        if let Some(node) = nodes.get(&self.report_name()).await? {
            return Ok(node);
        }
        match nodes.create(self.blank()).await {
            Err(store::Error::Exists(..)) => Err(Stop::Conflict),
            made => Ok(made?),
        }
    }

    /// The name of this host's StorageNode.
    pub(super) fn report_name(&self) -> String {
        names::handle_of(&self.site.node)
    }

    fn blank(&self) -> StorageNode {
        StorageNode {
            metadata: Metadata {
                name: self.report_name(),
                ..Metadata::default()
            },
            spec: StorageNodeSpec {
                node_name: self.site.node.clone(),
            },
            status: StorageNodeStatus::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(available: u64, health: &str) -> PoolStatus {
        PoolStatus {
            name: "tank".into(),
            guid: "77".into(),
            health: health.into(),
            available,
            ..PoolStatus::default()
        }
    }

    #[test]
    fn pools_in_which_nothing_moves_are_looked_at_less_and_less() {
        let mut pace = Pace::default();
        let (old, new) = ([pool(100_000, "ONLINE")], [pool(99_999, "ONLINE")]);
        let mut after = |pools: Option<&[PoolStatus]>| pace.after(pools).as_secs();
        assert_eq!(after(Some(&old)), 30);
        let waits: Vec<_> = (0..6).map(|_| after(Some(&old))).collect();
        assert_eq!(waits, [60, 120, 240, 480, 480, 480]);
        assert_eq!(after(Some(&new)), 30);
        assert_eq!(after(Some(&new)), 60);
        assert_eq!(after(None), 30);
        assert_eq!(after(Some(&[])), 30, "the last look failed");
    }

    #[test]
    fn only_what_matters_is_news() {
        let old = [pool(100_000, "ONLINE")];
        assert!(!is_news(&old, &old));
        assert!(!is_news(&old, &[pool(99_500, "ONLINE")]));
        assert!(!is_news(&[pool(0, "ONLINE")], &[pool(0, "ONLINE")]));
        for new in [
            pool(98_000, "ONLINE"),
            pool(102_000, "ONLINE"),
            pool(0, "ONLINE"),
            pool(100_000, "DEGRADED"),
            PoolStatus {
                guid: "78".into(),
                ..pool(100_000, "ONLINE")
            },
            PoolStatus {
                used: 1,
                ..pool(100_000, "ONLINE")
            },
            PoolStatus {
                cost_of_gib: [(4096, 1 << 30)].into(),
                ..pool(100_000, "ONLINE")
            },
        ] {
            assert!(is_news(&old, std::slice::from_ref(&new)), "{new:?}");
        }
        assert!(is_news(&old, &[]) && is_news(&[], &old));
    }
}
