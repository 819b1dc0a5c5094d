//! Choosing a place: one create after another, so that two are never promised the same room. What other
//! controllers promise meanwhile is the agent's to refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::time::timeout_at;

use super::Controller;
use super::follow::within;
use crate::csi::status::{Kind, Refusal};
use crate::model::placement::{self, Claim, Demand, Place, Seen};
use crate::model::storage_node::{PoolStatus, StorageNode};
use crate::model::volume::Volume;
use crate::store::{Objects, Store};

/// The places that were chosen for volumes that are not in the store yet.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Held while one create chooses: never while anybody waits for an agent or for the disk's cache.
    turn: tokio::sync::Mutex<()>,
    chosen: Chosen,
}

type Chosen = Arc<Mutex<BTreeMap<String, Claim>>>;

/// A chosen place, kept from others until this is dropped: then the volume is in the store, or never will be.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) place: Place,
    chosen: Chosen,
    volume: String,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.remove(&self.volume);
    }
}

impl<S: Store> Controller<S> {
    /// Chooses a place for the volume.
    pub(super) async fn place(
        &self,
        volume: &str,
        demand: &Demand<'_>,
        deadline: Instant,
    ) -> Result<Kept, Refusal> {
        let Ok(_turn) = timeout_at(deadline.into(), self.places.turn.lock()).await else {
            return Err(Refusal::new(
                Kind::DeadlineExceeded,
                "other volumes are still being placed: try again",
            ));
        };
        let (nodes, claims) = self.stock(deadline).await?;
        let has_spoken = |node: &StorageNode| !node.status.observed_at.is_empty();
        if self.site.owner.is_none() && !nodes.iter().any(has_spoken) {
            return Err(no_agent());
        }
        let place = match self.unseen(&nodes, demand) {
            Some(place) => place,
            None => placement::place(&nodes, &claims, demand).map_err(|error| {
                let refusal = Refusal::from(error);
                match demand.node {
                    // Not the caller's mistake: its source is there.
                    Some(_) if refusal.kind == Kind::InvalidArgument => {
                        Refusal::new(Kind::Unavailable, refusal.message)
                    }
                    _ => refusal,
                }
            })?,
        };
        if place.health == "DEGRADED" {
            tracing::warn!(
                volume,
                pool = place.pool,
                node = place.node,
                "the pool is DEGRADED: it serves, but see `zpool status`"
            );
        }
        let claim = Claim {
            volume: volume.to_owned(),
            node: place.node.clone(),
            pool: place.pool.clone(),
            block: demand.block,
            bytes: demand.bytes,
            provisioning: demand.provisioning,
            seen: Seen::Nothing,
        };
        let chosen = self.places.chosen.clone();
        chosen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(volume.to_owned(), claim);
        Ok(Kept {
            place,
            chosen,
            volume: volume.to_owned(),
        })
    }

    /// What there is, and who lays claim to it.
    pub(super) async fn stock(
        &self,
        deadline: Instant,
    ) -> Result<(Vec<StorageNode>, Vec<Claim>), Refusal> {
        // Before the list: whoever is not among these any more is in it.
        let chosen = {
            let chosen = &self.places.chosen;
            chosen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        };
        let nodes = within(deadline, self.store.storage_nodes().list()).await?;
        let volumes = within(deadline, self.store.volumes().list()).await?;
        let mut claims: Vec<_> = volumes.iter().map(Claim::of).collect();
        let written: BTreeSet<_> = volumes.iter().map(|v| v.metadata.name.as_str()).collect();
        claims.extend(
            chosen
                .into_values()
                .filter(|claim| !written.contains(claim.volume.as_str())),
        );
        Ok((nodes, claims))
    }

    /// The first pool that is asked for, on the owner, when nobody has said that there is any of them: it may be
    /// newer than what its agent has said, which has the last word.
    fn unseen(&self, nodes: &[StorageNode], demand: &Demand<'_>) -> Option<Place> {
        let owner = self.site.owner.as_deref()?;
        let is_seen = |node: &StorageNode| {
            let mut pools = node.status.pools.iter();
            pools.any(|pool| demand.pools.contains(&pool.name))
        };
        let is_ours = nodes.is_empty() || nodes.iter().any(|n| n.spec.node_name == owner);
        let is_new = nodes.is_empty() || (demand.node.is_none() && !nodes.iter().any(is_seen));
        (is_ours && is_new).then_some(())?;
        Some(Place {
            node: demand.node.unwrap_or(owner).to_owned(),
            pool: demand.pools.first()?.clone(),
            health: String::new(),
        })
    }

    /// The refusal of a pool that is not there, with those that are.
    pub(super) async fn with_known_pools(&self, refusal: Refusal, deadline: Instant) -> Refusal {
        match within(deadline, self.store.storage_nodes().list()).await {
            Ok(nodes) => Refusal::new(
                refusal.kind,
                format!("{refusal}; there is {}", placement::known(&nodes)),
            ),
            Err(_) => refusal,
        }
    }

    /// The volume's pool, as its storage host saw it last.
    pub(super) async fn pool_of(
        &self,
        volume: &Volume,
        deadline: Instant,
    ) -> Result<Option<PoolStatus>, Refusal> {
        let nodes = within(deadline, self.store.storage_nodes().list()).await?;
        Ok(pool_in(&nodes, volume).cloned())
    }
}

fn no_agent() -> Refusal {
    Refusal::new(
        Kind::Unavailable,
        "no agent has said which pools there are: start `zvolt agent` on a storage host, in this controller's namespace, \
         and see its log",
    )
}

/// The volume's pool, when its host has it: by its GUID, once the volume is made.
pub(super) fn pool_in<'a>(nodes: &'a [StorageNode], volume: &Volume) -> Option<&'a PoolStatus> {
    let node = nodes
        .iter()
        .find(|node| node.spec.node_name == volume.spec.owner_node)?;
    node.status
        .pools
        .iter()
        .find(|pool| match &volume.status.pool_guid {
            Some(guid) => pool.guid == *guid,
            None => pool.name == volume.spec.pool,
        })
}
