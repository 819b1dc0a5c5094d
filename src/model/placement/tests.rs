//! Choices among pools, and what volumes lay claim to.

use std::collections::BTreeMap;

use super::*;
use crate::model::object::{Condition, Metadata};
use crate::model::storage_node::{StorageNodeSpec, StorageNodeStatus};
use crate::model::volume::Tuning;

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
        Err(NoPlace::TooLarge { wholes, .. }) if wholes.contains(&(4 * GIB).to_string())
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
