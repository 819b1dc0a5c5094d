//! Where a new volume is made: a choice among all pools of all storage hosts. Pure.
//!
//! A pool takes a thick volume when all of it fits into what is left, once what was promised to others
//! and is not in ZFS yet is taken off. It takes a thin volume when anything is left, and when the volume
//! is no larger than the whole pool: thin volumes together may be larger than the pool, one alone that
//! can never be filled is a mistake. Of the pools that can take it, the one with the most that no volume
//! lays claim to is chosen, thin volumes counted as if they were full: so they spread before they are
//! written.

use std::cmp::Reverse;

use super::parameters::{DEFAULT_BLOCK, block_bytes};
use super::storage_node::{PoolStatus, StorageNode};
use super::volume::{Provisioning, State, Volume};

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// The only host that will do, when there is one.
    pub node: Option<&'a str>,
    /// The pools to choose from; none is any.
    pub pools: &'a [String],
    /// Its size in bytes.
    pub bytes: u64,
    /// `volblocksize` in bytes.
    pub block: u64,
    /// Whether all of its space is reserved.
    pub provisioning: Provisioning,
}

/// Where it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// CSI node ID of the storage host.
    pub node: String,
    /// The pool's name.
    pub pool: String,
    /// `ONLINE` or `DEGRADED`.
    pub health: String,
}

/// A volume's claim on a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The volume's handle.
    pub volume: String,
    /// CSI node ID of its storage host.
    pub node: String,
    /// The pool's name.
    pub pool: String,
    /// `volblocksize` in bytes.
    pub block: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether all of its space is reserved.
    pub provisioning: Provisioning,
    /// How far it is.
    pub seen: Seen,
}

/// What of a claim the pool's `available` shows already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: it is not made yet.
    Nothing,
    /// What it had, in bytes, if the pool was looked at after this moment (RFC 3339, UTC).
    Until(u64, String),
}

impl Claim {
    /// What a volume lays claim to.
    pub fn of(volume: &Volume) -> Self {
        let (spec, status) = (&volume.spec, &volume.status);
        let actual = status.actual_capacity.unwrap_or(0);
        let mut bytes = spec.capacity.max(actual);
        let mut seen = Seen::Nothing;
        if status.was_ready {
            // What ZFS has refused is not promised.
            if volume.refusal().is_some() {
                bytes = actual;
            }
            let becomes_thick = status.observed_generation < volume.metadata.generation
                && spec
                    .tuning_before
                    .as_ref()
                    .is_some_and(|before| before.provisioning == Provisioning::Thin);
            let since = volume
                .condition("Ready")
                .map_or("", |ready| &ready.last_transition_time);
            seen = match becomes_thick {
                true => Seen::Nothing,
                false => Seen::Until(actual, since.to_owned()),
            };
        } else if status.state == State::Error {
            // It could not be made, and is taken back.
            bytes = 0;
        }
        Self {
            volume: volume.metadata.name.clone(),
            node: spec.owner_node.clone(),
            pool: spec.pool.clone(),
            block: block_bytes(&spec.vol_block_size).unwrap_or(DEFAULT_BLOCK),
            bytes,
            provisioning: spec.tuning.provisioning,
            seen,
        }
    }

    /// The bytes that are promised, and that a pool as it was at `observed_at` does not show as taken.
    fn promised(&self, observed_at: &str) -> u64 {
        match (&self.seen, self.provisioning) {
            (_, Provisioning::Thin) => 0,
            // The same host wrote both, to the second.
            (Seen::Until(bytes, since), _) if since.as_str() < observed_at => {
                self.bytes.saturating_sub(*bytes)
            }
            _ => self.bytes,
        }
    }
}

/// Why there is no place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoPlace {
    /// None of the pools is there.
    #[error("no storage host has pool {asked}: there is {known}")]
    UnknownPool {
        /// Those that were asked for.
        asked: String,
        /// Those that are there.
        known: String,
    },
    /// They are there, but take no volumes now.
    #[error("no pool can take a volume now: {0}; see `zpool status`")]
    Unusable(String),
    /// It is larger than each of them.
    #[error("{bytes} bytes are more than a pool can hold, were it empty: {wholes}; ask for less")]
    TooLarge {
        /// The volume's size.
        bytes: u64,
        /// What each could hold.
        wholes: String,
    },
    /// They have no room for it now.
    #[error("no pool has room for {bytes} bytes: {rooms}; free some space, or ask for less")]
    Full {
        /// The volume's size.
        bytes: u64,
        /// What each has left.
        rooms: String,
    },
}

/// A pool as it is for a demand.
#[derive(Debug)]
struct Candidate<'a> {
    node: &'a str,
    pool: &'a PoolStatus,
    /// The largest thick volume that it can take, in bytes.
    room: u64,
    /// The largest volume that it could take, were it empty, in bytes.
    whole: u64,
    /// What no volume lays claim to, in bytes of the pool; below zero when it is promised twice.
    unclaimed: i128,
}

impl Candidate<'_> {
    fn takes(&self, demand: &Demand<'_>) -> bool {
        match demand.provisioning {
            Provisioning::Thick => self.room >= demand.bytes,
            Provisioning::Thin => self.room > 0,
        }
    }
}

/// Chooses a place for the demand.
pub fn place(
    nodes: &[StorageNode],
    claims: &[Claim],
    demand: &Demand<'_>,
) -> Result<Place, NoPlace> {
    let mut candidates = candidates(nodes, claims, demand);
    if candidates.is_empty() {
        return Err(NoPlace::UnknownPool {
            asked: demand.pools.join(" or "),
            known: known(nodes),
        });
    }
    if !candidates.iter().any(|c| c.pool.is_usable()) {
        return Err(NoPlace::Unusable(listed(&candidates, |c| {
            format!("is {}", c.pool.health)
        })));
    }
    candidates.retain(|c| c.pool.is_usable());
    if !candidates.iter().any(|c| demand.bytes <= c.whole) {
        return Err(NoPlace::TooLarge {
            bytes: demand.bytes,
            wholes: listed(&candidates, |c| format!("could hold {}", c.whole)),
        });
    }
    let chosen = candidates
        .iter()
        .filter(|c| demand.bytes <= c.whole && c.takes(demand))
        .min_by_key(|c| (Reverse(c.unclaimed), c.node, &c.pool.name));
    chosen.map_or_else(
        || {
            Err(NoPlace::Full {
                bytes: demand.bytes,
                rooms: listed(&candidates, |c| format!("has {} left", c.room)),
            })
        },
        |chosen| {
            Ok(Place {
                node: chosen.node.to_owned(),
                pool: chosen.pool.name.clone(),
                health: chosen.pool.health.clone(),
            })
        },
    )
}

/// What there is to give.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Supply {
    /// Bytes that all pools together have left.
    pub available: u64,
    /// The largest single volume, in bytes.
    pub largest: u64,
}

/// What the pools can give to such a demand; its size does not count.
pub fn supply(nodes: &[StorageNode], claims: &[Claim], demand: &Demand<'_>) -> Supply {
    let mut supply = Supply::default();
    for candidate in candidates(nodes, claims, demand) {
        if !candidate.pool.is_usable() {
            continue;
        }
        supply.available = supply.available.saturating_add(candidate.room);
        let largest = match demand.provisioning {
            Provisioning::Thick => candidate.room,
            Provisioning::Thin if candidate.room > 0 => candidate.whole,
            Provisioning::Thin => 0,
        };
        supply.largest = supply.largest.max(largest);
    }
    supply
}

/// The pools that the demand is for.
fn candidates<'a>(
    nodes: &'a [StorageNode],
    claims: &[Claim],
    demand: &Demand<'_>,
) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for node in nodes {
        let name = node.spec.node_name.as_str();
        if demand.node.is_some_and(|only| only != name) {
            continue;
        }
        for pool in &node.status.pools {
            if !demand.pools.is_empty() && !demand.pools.contains(&pool.name) {
                continue;
            }
            let here = |claim: &&Claim| claim.node == name && claim.pool == pool.name;
            let (mut promised, mut claimed) = (0_u64, 0_i128);
            for claim in claims.iter().filter(here) {
                let bytes = claim.promised(&node.status.observed_at);
                promised = promised.saturating_add(pool.cost(bytes, claim.block));
                claimed += i128::from(pool.cost(claim.bytes, claim.block));
            }
            let left = pool.available.saturating_sub(promised);
            candidates.push(Candidate {
                node: name,
                pool,
                room: pool.filled_by(left, demand.block),
                whole: pool.filled_by(pool.whole(), demand.block),
                unclaimed: i128::from(pool.whole()) - claimed,
            });
        }
    }
    candidates
}

/// The pools of all hosts, for messages.
pub fn known(nodes: &[StorageNode]) -> String {
    let pools = nodes.iter().flat_map(|node| {
        let name = &node.spec.node_name;
        node.status
            .pools
            .iter()
            .map(move |pool| format!("{} on {name}", pool.name))
    });
    let all: Vec<_> = pools.collect();
    match all.is_empty() {
        true => "none".to_owned(),
        false => all.join(", "),
    }
}

fn listed(candidates: &[Candidate<'_>], say: impl Fn(&Candidate<'_>) -> String) -> String {
    let all: Vec<_> = candidates
        .iter()
        .map(|c| format!("{} on {} {}", c.pool.name, c.node, say(c)))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests;
