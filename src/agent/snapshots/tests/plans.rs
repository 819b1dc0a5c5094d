//! The rules of a Snapshot object, one by one.

use zvolt_kernel::zfs::{self, Pool};

use crate::agent::observe::{Class, Dataset, Failure, Format, property};
use crate::agent::plan::Site;
use crate::agent::sim::zfs::snapshot;
use crate::agent::snapshots::plan::{Member, Plan, Seen, failed, plan};
use crate::agent::steps::{Act, Step};
use crate::model::snapshot::{Snapshot, SnapshotState, SnapshotStatus};
use crate::model::volume::reason;
use crate::ops::Step as _;
use crate::store::conformance::volume;

const UID: &str = "0f9d2c1e-7a52";

fn site() -> Site {
    Site {
        node: "storage0".into(),
        portal: "192.0.2.1:4420".into(),
        loop_port: 99,
    }
}

/// A Snapshot of these volumes that the agent has not touched.
fn wanted(volumes: &[&str]) -> Snapshot {
    let sources: Vec<_> = volumes
        .iter()
        .map(|name| {
            let mut volume = volume(name);
            volume.metadata.uid = format!("uid of {name}");
            volume
        })
        .collect();
    let mut wanted = snapshot("s", &sources.iter().collect::<Vec<_>>());
    wanted.metadata.uid = UID.into();
    wanted
}

fn source(name: &str) -> Dataset {
    let mut properties = zfs::Properties::new();
    for (key, value) in [
        ("guid", "4711".to_owned()),
        ("volsize", "1073741824".to_owned()),
        (&property("handle"), name.to_owned()),
        (&property("uid"), format!("uid of {name}")),
        (&property("format"), Format::PENDING.to_owned()),
    ] {
        properties.insert(key.to_owned(), value);
    }
    Dataset::from_properties(name, &properties, properties.clone(), |size, _| Ok(size)).unwrap()
}

fn taken(dataset: &str, guid: u64) -> zfs::Snapshot {
    zfs::Snapshot {
        name: format!("{dataset}@s.0f9d2c1e"),
        guid,
        creation: 1_790_000_000,
        volsize: Some(1 << 30),
        user_properties: [(property("uid"), UID.to_owned())].into(),
        ..zfs::Snapshot::default()
    }
}

fn seen(members: Vec<Member>) -> Seen {
    Seen {
        pool: Some(Pool {
            name: "tank".into(),
            guid: 77,
            health: "ONLINE".into(),
            ..Pool::default()
        }),
        members,
        strays: Vec::new(),
        now: "2026-11-01T12:00:00Z".into(),
    }
}

fn untaken(name: &str) -> Member {
    Member {
        found: None,
        source: Some(source(name)),
    }
}

fn found(dataset: &str, guid: u64) -> Member {
    Member {
        found: Some(taken(dataset, guid)),
        source: None,
    }
}

fn steps(plan: Plan) -> (&'static str, Vec<Step<SnapshotStatus>>) {
    plan.expect("something to do")
}

fn names(plan: Plan) -> Vec<&'static str> {
    steps(plan).1.iter().map(|s| s.name()).collect()
}

fn status(plan: Plan) -> SnapshotStatus {
    match steps(plan).1.pop() {
        Some(Step::Status(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// One that is Ready.
fn ready() -> Snapshot {
    let mut ready = wanted(&["v"]);
    let now = seen(vec![found("tank/csi/block/v", 5)]);
    ready.status = status(plan(&ready, &now, &site()).unwrap());
    ready
}

fn deleting(mut snapshot: Snapshot) -> Snapshot {
    snapshot.metadata.deletion_timestamp = Some("2026-11-01T12:00:00Z".into());
    snapshot
}

fn failure(snapshot: &Snapshot, seen: &Seen) -> Failure {
    plan(snapshot, seen, &site()).unwrap_err()
}

#[test]
fn a_group_is_one_act_that_says_whose_it_is() {
    let group = wanted(&["v", "w"]);
    let now = seen(vec![untaken("v"), untaken("w")]);
    let (operation, steps) = steps(plan(&group, &now, &site()).unwrap());
    assert_eq!(operation, "agent.snapshot");
    let [Step::Act(Act::Snapshot { names, properties })] = steps.as_slice() else {
        panic!("{steps:?}");
    };
    assert_eq!(
        names,
        &["tank/csi/block/v@s.0f9d2c1e", "tank/csi/block/w@s.0f9d2c1e"]
    );
    for (key, value) in [
        ("handle", "s"),
        ("uid", UID),
        ("name", "s"),
        ("kind", "group"),
    ] {
        assert!(
            properties.contains(&(property(key), value.to_owned())),
            "{key}"
        );
    }
}

#[test]
fn what_zfs_says_is_what_is_told() {
    let snapshot = ready();
    let status = &snapshot.status;
    assert_eq!(status.state, SnapshotState::Ready);
    let taken = &status.members[0];
    assert_eq!(taken.volume_id, "v");
    assert_eq!(taken.snapshot_path, "tank/csi/block/v@s.0f9d2c1e");
    assert_eq!((taken.guid.as_str(), taken.created), ("5", 1_790_000_000));
    assert_eq!(taken.size, 1 << 30);
    let again = seen(vec![found("tank/csi/block/v", 5)]);
    assert_eq!(plan(&snapshot, &again, &site()), Ok(None));
}

#[test]
fn a_snapshot_that_has_moved_is_told_where_it_is() {
    let snapshot = ready();
    let now = seen(vec![found("tank/csi/deleted/v.00000000", 5)]);
    let (operation, _) = steps(plan(&snapshot, &now, &site()).unwrap());
    assert_eq!(operation, "agent.follow-snapshot");
    let status = status(plan(&snapshot, &now, &site()).unwrap());
    assert_eq!(
        status.members[0].snapshot_path,
        "tank/csi/deleted/v.00000000@s.0f9d2c1e"
    );
}

#[test]
fn rule_02_a_snapshot_that_was_ready_is_never_taken_again() {
    let lost = failure(&ready(), &seen(vec![Member::default()]));
    assert_eq!(
        (lost.reason, lost.class),
        (reason::DATASET_MISSING, Class::Final)
    );
    assert!(lost.message.contains("guid 5"), "{lost}");
    assert_eq!(failed(&ready(), &lost, "now").state, SnapshotState::Error);
    let mut another = seen(vec![untaken("v")]);
    another.pool.as_mut().unwrap().guid = 78;
    assert_eq!(failure(&ready(), &another).reason, reason::POOL_REPLACED);
    another.pool = None;
    assert_eq!(failure(&ready(), &another).reason, reason::POOL_NOT_FOUND);
}

#[test]
fn only_the_volume_that_was_meant_is_taken() {
    let refused = |change: &dyn Fn(&mut Dataset)| {
        let mut found = source("v");
        change(&mut found);
        let member = Member {
            found: None,
            source: Some(found),
        };
        failure(&wanted(&["v"]), &seen(vec![member])).reason
    };
    for change in [
        (&|d: &mut Dataset| d.uid = Some("an earlier one".into())) as &dyn Fn(&mut Dataset),
        &|d| d.handle = None,
        &|d| d.volsize = None,
    ] {
        assert_eq!(refused(change), reason::SOURCE_MISSING);
    }
    let none = seen(vec![Member::default()]);
    assert_eq!(
        failure(&wanted(&["v"]), &none).reason,
        reason::SOURCE_MISSING
    );
    let both = seen(vec![untaken("v"), Member::default()]);
    assert_eq!(
        failure(&wanted(&["v", "w"]), &both).reason,
        reason::SOURCE_MISSING,
        "all or none"
    );
    let mut elsewhere = wanted(&["v"]);
    elsewhere.spec.members[0].dataset_path = "tank/home".into();
    assert_eq!(
        failure(&elsewhere, &seen(vec![untaken("v")])).reason,
        reason::BAD_PROPERTY
    );
}

#[test]
fn half_a_group_goes_before_the_whole_is_taken() {
    let group = wanted(&["v", "w"]);
    let half = seen(vec![found("tank/csi/block/v", 5), untaken("w")]);
    assert_eq!(
        names(plan(&group, &half, &site()).unwrap()),
        ["zfs.destroy-snapshot"]
    );
    let lost = seen(vec![found("tank/csi/block/v", 5), Member::default()]);
    assert_eq!(failure(&group, &lost).reason, reason::SOURCE_MISSING);
}

#[test]
fn deletion_leaves_clones_alone_and_ends_at_once() {
    let snapshot = deleting(ready());
    let there = seen(vec![found("tank/csi/block/v", 5)]);
    assert_eq!(
        names(plan(&snapshot, &there, &site()).unwrap()),
        ["zfs.destroy-snapshot", "store.finalize"]
    );
    let mut deferred = there;
    deferred.members[0].found.as_mut().unwrap().is_deferred = true;
    for done in [deferred, seen(vec![Member::default()])] {
        assert_eq!(
            names(plan(&snapshot, &done, &site()).unwrap()),
            ["store.finalize"]
        );
    }
    let mut others = snapshot;
    others.metadata.finalizers = vec!["example.com/other".into()];
    let there = seen(vec![found("tank/csi/block/v", 5)]);
    assert_eq!(plan(&others, &there, &site()), Ok(None));
}

#[test]
fn deletion_finds_what_nobody_was_told_of() {
    let mut now = seen(vec![Member::default()]);
    now.strays = vec![taken("tank/csi/block/c", 5)];
    let (_, steps) = steps(plan(&deleting(wanted(&["v"])), &now, &site()).unwrap());
    assert!(
        matches!(&steps[0], Step::Act(Act::DestroySnapshot { snapshot, .. })
            if snapshot == "tank/csi/block/c@s.0f9d2c1e"),
        "{steps:?}"
    );
}

#[test]
fn a_deletion_waits_for_the_pool_that_holds_the_snapshot() {
    let mut away = seen(vec![Member::default()]);
    away.pool = None;
    assert_eq!(
        failure(&deleting(ready()), &away).reason,
        reason::POOL_NOT_FOUND
    );
    assert_eq!(
        names(plan(&deleting(wanted(&["v"])), &away, &site()).unwrap()),
        ["store.finalize"],
        "nothing was ever taken there"
    );
    let mut stuck = seen(vec![Member::default()]);
    stuck.pool.as_mut().unwrap().health = "SUSPENDED".into();
    let waiting = failure(&deleting(ready()), &stuck);
    assert_eq!(
        (waiting.reason, waiting.class),
        (reason::KERNEL, Class::Retry)
    );
    assert_eq!(
        failed(&deleting(ready()), &waiting, "now").state,
        SnapshotState::Deleting
    );
}
