//! What deletion destroys, and what it leaves.

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
