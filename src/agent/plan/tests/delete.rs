//! What deletion destroys, and what it leaves.

use zvolt_kernel::zfs;

use super::super::super::snapshots::observe::Family;
use super::*;

#[test]
fn rule_04_a_volume_that_is_deleted_is_fenced_first() {
    let volume = deleting(is_ready(&["node0"], &["node0"]));
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(
        run(&volume, &now),
        ("agent.delete", vec!["nvmet.teardown", "store.status"])
    );
    assert!(written(&volume, &now).published_initiators.is_empty());
    assert_eq!(written(&volume, &now).state, State::Deleting);
}

#[test]
fn rule_06_only_its_own_dataset_is_destroyed() {
    let destroys = |volume: Volume, found: Option<Dataset>| {
        let now = seen(None, Some(storage(found)));
        run(&deleting(volume), &now).1
    };
    assert_eq!(
        destroys(is_ready(&[], &[]), Some(dataset())),
        ["zfs.destroy", "store.finalize"]
    );
    assert_eq!(
        destroys(wanted(), Some(dataset())),
        ["zfs.destroy", "store.finalize"]
    );
    assert_eq!(destroys(wanted(), None), ["store.finalize"]);
    assert_eq!(
        destroys(is_ready(&[], &[]), None),
        ["store.finalize"],
        "gone already"
    );
    let foreign = |change: fn(&mut Dataset)| {
        let mut found = dataset();
        change(&mut found);
        Some(found)
    };
    assert_eq!(
        destroys(wanted(), foreign(|d| d.handle = None)),
        ["store.finalize"]
    );
    assert_eq!(
        destroys(wanted(), foreign(|d| d.uid = Some("uid-0".into()))),
        ["store.finalize"]
    );
    assert_eq!(
        destroys(wanted(), foreign(|d| d.volsize = None)),
        ["store.finalize"]
    );
    assert_eq!(
        destroys(is_ready(&[], &[]), foreign(|d| d.guid += 1)),
        ["store.finalize"]
    );
}

#[test]
fn rule_06_what_is_to_be_kept_is_kept() {
    let mut volume = deleting(is_ready(&[], &[]));
    volume.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(run(&volume, &seen(None, None)).1, ["store.finalize"]);
}

#[test]
fn a_deletion_waits_for_the_pool_that_holds_the_data() {
    let mut away = storage(None);
    away.pool = None;
    let now = seen(None, Some(away));
    assert_eq!(
        failure(&deleting(is_ready(&[], &[])), &now).reason,
        reason::POOL_NOT_FOUND
    );
    assert_eq!(
        run(&deleting(wanted()), &now).1,
        ["store.finalize"],
        "nothing was ever made there"
    );
    let mut other = storage(None);
    other.pool.as_mut().unwrap().guid += 1;
    let now = seen(None, Some(other));
    assert_eq!(
        failure(&deleting(is_ready(&[], &[])), &now).reason,
        reason::POOL_REPLACED
    );
}

#[test]
fn a_volume_without_our_finalizer_is_left_to_others() {
    let mut volume = deleting(is_ready(&[], &[]));
    volume.metadata.finalizers = vec!["example.com/other".into()];
    assert_eq!(plan(&volume, &seen(None, None), &site()), Ok(Plan::Nothing));
}

/// What deletion does with a zvol that has these snapshots.
fn with(snapshots: Vec<zfs::Snapshot>, strangers: &[&str]) -> Result<Plan, Failure> {
    let mut now = seen(None, Some(storage(Some(dataset()))));
    now.family = Some(Family {
        snapshots,
        strangers: strangers.iter().map(|s| (*s).to_owned()).collect(),
    });
    plan(&deleting(is_ready(&[], &[])), &now, &site())
}

fn snap(name: &str, owner: &str, clones: &[&str]) -> zfs::Snapshot {
    let property = super::super::super::observe::property(owner);
    zfs::Snapshot {
        name: format!("tank/csi/block/v@{name}"),
        clones: clones.iter().map(|c| (*c).to_owned()).collect(),
        user_properties: [(property, "x".to_owned())].into(),
        ..Default::default()
    }
}

fn first(plan: Result<Plan, Failure>) -> Act {
    match plan {
        Ok(Plan::Run("agent.delete", steps)) => match steps.into_iter().next() {
            Some(Step::Act(act)) => act,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn rule_06_what_hangs_on_a_volume_is_looked_at_first() {
    let mut now = seen(None, Some(storage(Some(dataset()))));
    now.family = None;
    let volume = deleting(is_ready(&[], &[]));
    assert_eq!(plan(&volume, &now, &site()), Ok(Plan::LookAtSnapshots));
}

#[test]
fn rule_06_the_newest_snapshot_with_clones_is_given_to_one_of_ours() {
    let it = first(with(
        vec![
            snap("old", "uid", &["tank/csi/block/a"]),
            snap("new", "uid", &["tank/home/x", "tank/csi/block/b"]),
            snap("newest", "uid", &[]),
        ],
        &["tank/home/x"],
    ));
    assert_eq!(
        it,
        Act::Promote {
            from: "tank/csi/block/v".into(),
            clone: "tank/csi/block/b".into()
        }
    );
}

#[test]
fn bug_c_76_what_somebody_else_has_is_waited_for_by_name() {
    let mut held = snap("held", "clone", &[]);
    held.holds = 1;
    for (snapshots, words) in [
        (
            vec![snap("s", "uid", &["tank/home/x"])],
            "zfs promote tank/home/x",
        ),
        (
            vec![snap("s", "uid", &[]), snap("backup", "example", &[])],
            "zfs destroy tank/csi/block/v@backup",
        ),
        (vec![held], "zfs holds tank/csi/block/v@held"),
    ] {
        let waits = with(snapshots, &["tank/home/x"]).unwrap_err();
        assert_eq!((waits.reason, waits.class), (reason::BUSY, Class::Retry));
        assert!(waits.message.contains(words), "{waits}");
    }
}

#[test]
fn rule_06_what_is_internal_goes_and_what_is_wanted_is_kept() {
    let internal = vec![snap("s", "uid", &[]), snap("clone.x", "clone", &[])];
    assert!(matches!(
        first(with(internal, &[])),
        Act::DestroySnapshot { snapshot, .. } if snapshot == "tank/csi/block/v@clone.x"
    ));
    let wanted = vec![snap("s", "uid", &[]), snap("t", "uid", &[])];
    let plan = with(wanted, &[]).unwrap();
    assert_eq!(
        steps(&plan),
        [
            "zfs.unreserve",
            "zfs.rollback",
            "zfs.bury",
            "store.finalize"
        ]
    );
    let Plan::Run(_, steps) = plan else {
        panic!("{plan:?}");
    };
    assert!(
        matches!(&steps[1], Step::Act(Act::Rollback { snapshot }) if snapshot.ends_with("@t")),
        "the newest"
    );
    assert!(
        matches!(&steps[2], Step::Act(Act::Bury { to, .. }) if to == "tank/csi/deleted/v.uid-1"),
        "{steps:?}"
    );
}
