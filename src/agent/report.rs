//! What this storage host can give, told to the controller: its StorageNode.
//!
//! Written off every path: before the agent is ready, a moment after something was made or destroyed, and every
//! half minute; and only when it is news.

use std::sync::Arc;
use std::time::Duration;

use super::observe::Host;
use super::reconcile::{Reconciler, Stop};
use crate::model::names;
use crate::model::object::Metadata;
use crate::model::storage_node::{PoolStatus, StorageNode, StorageNodeSpec, StorageNodeStatus};
use crate::store::{self, Objects, Store, time};

/// How often pools are looked at when nothing happens here: others use them too.
pub(super) const PERIOD: Duration = Duration::from_secs(30);
/// How long after a change: those that come together are told together.
pub(super) const SOON: Duration = Duration::from_millis(200);
/// Writes that somebody else was faster with.
const TRIES: usize = 8;

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

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Looks at the pools and tells what is news. Gives the names of those that can be used.
    pub(super) async fn report(self: Arc<Self>) -> Result<Vec<String>, Stop> {
        let observed_at = time::now();
        let looking = self.clone();
        let look = tokio::task::spawn_blocking(move || looking.host.pools());
        let mut pools = look
            .await
            .map_err(|e| super::observe::Failure::kernel(format!("a look at the pools: {e}")))??;
        pools.sort_by(|one, other| one.name.cmp(&other.name));
        let usable = pools.iter().filter(|p| p.is_usable());
        let names = usable.map(|p| p.name.clone()).collect();
        let status = StorageNodeStatus { pools, observed_at };
        for _ in 0..TRIES {
            match self.tell(status.clone()).await {
                Err(Stop::Conflict | Stop::Vanished) => {}
                told => return told.map(|()| names),
            }
        }
        Err(Stop::Conflict)
    }

    async fn tell(&self, status: StorageNodeStatus) -> Result<(), Stop> {
        let nodes = self.store.storage_nodes();
        let node = match nodes.get(&names::handle_of(&self.site.node)).await? {
            Some(node) => node,
            None => match nodes.create(self.blank()).await {
                Err(store::Error::Exists(..)) => return Err(Stop::Conflict),
                made => made?,
            },
        };
        let is_first = node.status.observed_at.is_empty();
        if is_first || is_news(&node.status.pools, &status.pools) {
            nodes.update_status(StorageNode { status, ..node }).await?;
        }
        Ok(())
    }

    fn blank(&self) -> StorageNode {
        StorageNode {
            metadata: Metadata {
                name: names::handle_of(&self.site.node),
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
