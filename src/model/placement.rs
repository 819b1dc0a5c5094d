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
    #[error("{bytes} bytes are more than any of the pools can hold, were it empty: {most} at most")]
    TooLarge {
        /// The volume's size.
        bytes: u64,
        /// What the largest pool could hold.
        most: u64,
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
    let most = candidates.iter().map(|c| c.whole).max().unwrap_or(0);
    if demand.bytes > most {
        return Err(NoPlace::TooLarge {
            bytes: demand.bytes,
            most,
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

fn known(nodes: &[StorageNode]) -> String {
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
mod tests {
    use std::collections::BTreeMap;

    use super::super::object::{Condition, Metadata};
    use super::super::storage_node::{StorageNodeSpec, StorageNodeStatus};
    use super::super::volume::Tuning;
    use super::*;

    const GIB: u64 = 1 << 30;
    const BLOCK: u64 = 16 << 10;
    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:00:09Z";

    fn pool(name: &str, available: u64, used: u64) -> PoolStatus {
        PoolStatus {
            name: name.into(),
            guid: "1".into(),
            health: "ONLINE".into(),
            available,
            used,
            cost_of_gib: BTreeMap::new(),
        }
    }

    fn node(name: &str, pools: Vec<PoolStatus>) -> StorageNode {
        StorageNode {
            metadata: Metadata::default(),
            spec: StorageNodeSpec {
                node_name: name.into(),
            },
            status: StorageNodeStatus {
                pools,
                observed_at: LATE.into(),
            },
        }
    }

    fn demand(bytes: u64, provisioning: Provisioning) -> Demand<'static> {
        Demand {
            node: None,
            pools: &[],
            bytes,
            block: BLOCK,
            provisioning,
        }
    }

    fn thick(bytes: u64) -> Demand<'static> {
        demand(bytes, Provisioning::Thick)
    }

    fn thin(bytes: u64) -> Demand<'static> {
        demand(bytes, Provisioning::Thin)
    }

    fn claim(volume: &str, pool: &str, bytes: u64, provisioning: Provisioning) -> Claim {
        Claim {
            volume: volume.into(),
            node: "storage0".into(),
            pool: pool.into(),
            block: BLOCK,
            bytes,
            provisioning,
            seen: Seen::Nothing,
        }
    }

    #[test]
    fn the_pool_with_the_most_unclaimed_room_is_chosen_and_ties_go_by_name() {
        let nodes = [node(
            "storage0",
            vec![
                pool("b", 10 * GIB, 0),
                pool("a", 10 * GIB, 0),
                pool("c", 9 * GIB, 0),
            ],
        )];
        assert_eq!(place(&nodes, &[], &thin(GIB)).unwrap().pool, "a");
        let claims = [claim("v", "a", GIB, Provisioning::Thin)];
        assert_eq!(place(&nodes, &claims, &thin(GIB)).unwrap().pool, "b");
        let only = ["c".to_owned()];
        let named = Demand {
            pools: &only,
            ..thin(GIB)
        };
        assert_eq!(place(&nodes, &claims, &named).unwrap().pool, "c");
    }

    #[test]
    fn hosts_are_one_more_level() {
        let nodes = [
            node("storage0", vec![pool("tank", 5 * GIB, 0)]),
            node("storage1", vec![pool("tank", 6 * GIB, 0)]),
        ];
        assert_eq!(place(&nodes, &[], &thick(GIB)).unwrap().node, "storage1");
        let claims = [claim("v", "tank", 4 * GIB, Provisioning::Thick)];
        assert!(
            matches!(
                place(&nodes, &claims, &Demand { node: Some("storage0"), ..thick(2 * GIB) }),
                Err(NoPlace::Full { rooms, .. }) if rooms.contains("storage0") && !rooms.contains("storage1")
            ),
            "a claim counts on its own host"
        );
        assert_eq!(
            supply(&nodes, &claims, &thick(0)),
            Supply {
                available: 7 * GIB,
                largest: 6 * GIB
            }
        );
    }

    #[test]
    fn thick_volumes_are_never_promised_the_same_room_twice() {
        let nodes = [node("storage0", vec![pool("tank", 3 * GIB, GIB)])];
        let claims = [claim("v", "tank", 2 * GIB, Provisioning::Thick)];
        assert!(place(&nodes, &claims, &thick(GIB)).is_ok());
        assert!(matches!(
            place(&nodes, &claims, &thick(GIB + BLOCK)),
            Err(NoPlace::Full { .. })
        ));
        assert!(matches!(
            place(&nodes, &[], &thick(5 * GIB)),
            Err(NoPlace::TooLarge { most, .. }) if most == 4 * GIB
        ));
    }

    #[test]
    fn thin_volumes_may_be_more_than_the_pool_together_but_not_one_alone() {
        let nodes = [node("storage0", vec![pool("tank", GIB, 3 * GIB)])];
        let claims = [claim("v", "tank", 9 * GIB, Provisioning::Thin)];
        assert!(place(&nodes, &claims, &thin(4 * GIB)).is_ok());
        assert!(matches!(
            place(&nodes, &claims, &thin(4 * GIB + BLOCK)),
            Err(NoPlace::TooLarge { .. })
        ));
        assert_eq!(
            supply(&nodes, &claims, &thin(0)),
            Supply {
                available: GIB,
                largest: 4 * GIB
            }
        );
        let full = [node("storage0", vec![pool("tank", 0, 4 * GIB)])];
        assert!(matches!(
            place(&full, &[], &thin(GIB)),
            Err(NoPlace::Full { .. })
        ));
        assert_eq!(supply(&full, &[], &thin(0)), Supply::default());
    }

    #[test]
    fn bug_c_81_what_raidz_adds_is_counted() {
        let mut raidz = pool("tank", 3 * GIB, 0);
        raidz.cost_of_gib.insert(BLOCK, 3 * GIB / 2);
        let nodes = [node("storage0", vec![raidz])];
        assert!(place(&nodes, &[], &thick(2 * GIB)).is_ok());
        assert!(place(&nodes, &[], &thick(2 * GIB + BLOCK)).is_err());
        let claims = [claim("v", "tank", GIB, Provisioning::Thick)];
        assert_eq!(supply(&nodes, &claims, &thick(0)).available, GIB);
    }

    #[test]
    fn a_degraded_pool_serves_and_a_suspended_one_does_not() {
        let (mut one, mut other) = (pool("a", GIB, 0), pool("b", 2 * GIB, 0));
        one.health = "DEGRADED".into();
        other.health = "SUSPENDED".into();
        let nodes = [node("storage0", vec![one, other])];
        let place_of = place(&nodes, &[], &thin(GIB)).unwrap();
        assert_eq!(
            (place_of.pool.as_str(), place_of.health.as_str()),
            ("a", "DEGRADED")
        );
        assert_eq!(supply(&nodes, &[], &thin(0)).largest, GIB);
        let only = ["b".to_owned()];
        let named = Demand {
            pools: &only,
            ..thin(GIB)
        };
        assert!(
            matches!(place(&nodes, &[], &named), Err(NoPlace::Unusable(why)) if why.contains("SUSPENDED"))
        );
    }

    #[test]
    fn an_unknown_pool_is_told_with_those_that_are_there() {
        let nodes = [node("storage0", vec![pool("tank", GIB, 0)])];
        let only = ["thank".to_owned(), "tanks".to_owned()];
        let named = Demand {
            pools: &only,
            ..thin(GIB)
        };
        let error = place(&nodes, &[], &named).unwrap_err().to_string();
        for word in ["thank or tanks", "tank on storage0"] {
            assert!(error.contains(word), "{error}");
        }
        let some = [only[0].clone(), "tank".to_owned()];
        let named = Demand {
            pools: &some,
            ..named
        };
        assert!(place(&nodes, &[], &named).is_ok(), "one of them will do");
    }

    fn volume(change: impl Fn(&mut Volume)) -> Claim {
        let spec = serde_json::json!({
            "pool": "tank", "capacity": 2 * GIB, "volBlockSize": "16k", "ownerNode": "storage0",
            "volName": "v", "volumeID": "v", "provisioning": "thick",
        });
        let mut volume = Volume {
            metadata: Metadata {
                name: "v".into(),
                generation: 2,
                ..Metadata::default()
            },
            spec: serde_json::from_value(spec).unwrap(),
            status: Default::default(),
        };
        volume.status.observed_generation = 2;
        change(&mut volume);
        Claim::of(&volume)
    }

    fn ready(volume: &mut Volume, since: &str) {
        volume.status.state = State::Ready;
        volume.status.was_ready = true;
        volume.status.actual_capacity = Some(2 * GIB);
        volume.status.conditions = vec![condition("Ready", "True", since)];
    }

    fn condition(kind: &str, status: &str, since: &str) -> Condition {
        Condition {
            kind: kind.into(),
            status: status.into(),
            reason: String::new(),
            message: String::new(),
            last_transition_time: since.into(),
            observed_generation: 2,
        }
    }

    #[test]
    fn what_is_promised_and_not_in_zfs_yet() {
        assert_eq!(volume(|_| ()).promised(LATE), 2 * GIB, "not made yet");
        assert_eq!(volume(|v| ready(v, EARLY)).promised(LATE), 0, "seen");
        assert_eq!(
            volume(|v| ready(v, LATE)).promised(LATE),
            2 * GIB,
            "made after the pool was looked at"
        );
        let failed = volume(|v| v.status.state = State::Error);
        assert_eq!((failed.bytes, failed.promised(LATE)), (0, 0));
        let growing = volume(|v| {
            ready(v, EARLY);
            v.spec.capacity = 5 * GIB;
        });
        assert_eq!(
            (growing.bytes, growing.promised(LATE)),
            (5 * GIB, 3 * GIB),
            "what it is to grow by"
        );
        let refused = volume(|v| {
            ready(v, EARLY);
            v.spec.capacity = 5 * GIB;
            v.status
                .conditions
                .push(condition("Applied", "False", EARLY));
        });
        assert_eq!((refused.bytes, refused.promised(LATE)), (2 * GIB, 0));
        let becomes_thick = volume(|v| {
            ready(v, EARLY);
            v.spec.tuning_before = Some(Tuning::default());
            v.status.observed_generation = 1;
        });
        assert_eq!(becomes_thick.promised(LATE), 2 * GIB);
        let thin = volume(|v| v.spec.tuning.provisioning = Provisioning::Thin);
        assert_eq!((thin.bytes, thin.promised(LATE)), (2 * GIB, 0));
    }
}
