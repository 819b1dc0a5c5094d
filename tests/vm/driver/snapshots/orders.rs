//! Rule 6 against the real ZFS: everything is deleted in every order, and what is left keeps what it had.

use std::time::Duration;

use tonic::Code;
use zvolt_lab::snapshots::From;

use super::{Raw, get, places, zvols};
use crate::fleet::{Fleet, assert_refused};

/// What there is to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A volume.
    Source,
    /// A snapshot of it.
    Snapshot,
    /// A volume from that snapshot.
    Restored,
    /// A volume from that volume.
    Cloned,
}

use Part::{Cloned, Restored, Snapshot, Source};

fn orders(parts: &[Part]) -> Vec<Vec<Part>> {
    if parts.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in parts {
        let rest: Vec<Part> = parts.iter().filter(|p| *p != first).copied().collect();
        for mut order in orders(&rest) {
            order.insert(0, *first);
            all.push(order);
        }
    }
    all
}

#[test]
fn rule_06_each_order_of_deletion_keeps_what_is_left() {
    let fleet = Fleet::fresh();
    // Every order is for the simulated host; these have each part go first twice, and last at least once.
    let orders = orders(&[Source, Snapshot, Restored, Cloned]);
    for (number, order) in orders.iter().step_by(3).enumerate() {
        eprintln!("{order:?}");
        deleted_in(&fleet, order, number);
    }
}

fn deleted_in(fleet: &Fleet, order: &[Part], number: usize) {
    let name = |what: &str| format!("pvc-{what}-{number}");
    let source = Raw::make(fleet, &name("source"));
    let first = source.write();
    let snapshot = format!("snap-{number}");
    let taken = fleet
        .controller
        .create_snapshot(&snapshot, &source.id)
        .unwrap();
    let second = source.write();
    let restored = From::Snapshot(&taken.snapshot_id);
    let restored = Raw::make_from(fleet, &name("restored"), restored);
    assert_eq!(restored.read(), first, "{order:?}");
    let third = restored.write();
    let clone = Raw::make_from(fleet, &name("clone"), From::Volume(&restored.id));
    let mut volumes = vec![
        (Source, source, second),
        (Restored, restored, third.clone()),
        (Cloned, clone, third),
    ];
    let storage = fleet.vm("storage0");
    let mut is_taken = true;
    for part in order {
        match volumes.iter().position(|(p, ..)| p == part) {
            Some(at) => volumes.remove(at).1.delete(),
            None => {
                fleet
                    .controller
                    .delete_snapshot(&taken.snapshot_id)
                    .unwrap();
                is_taken = false;
            }
        }
        for (left, volume, sum) in &volumes {
            assert_eq!(volume.read(), *sum, "{left:?} after {part:?} of {order:?}");
        }
        let places = places(storage, &snapshot);
        let listed = fleet.controller.snapshots(10).unwrap();
        if is_taken {
            assert_eq!(listed, [taken.clone()], "after {part:?} of {order:?}");
            assert_eq!(places.len(), 1);
            let created = get(storage, &places[0], "creation");
            let told = taken.creation_time.unwrap().seconds.to_string();
            assert_eq!(created, told, "the same, wherever it is");
            let from = From::Snapshot(&taken.snapshot_id);
            let again = Raw::make_from(fleet, &name("again"), from);
            assert_eq!(again.read(), first, "after {part:?} of {order:?}");
            again.delete();
        } else {
            assert_eq!(listed, [], "after {part:?} of {order:?}");
            let kept = zvols(storage);
            assert_eq!(kept.len(), volumes.len(), "{kept:?}: {order:?}");
        }
    }
    fleet.assert_clean();
}

/// What is not ours is neither destroyed nor taken along: a deletion waits, and says for whom.
#[test]
fn bug_c_76_a_deletion_waits_for_somebody_elses_snapshot_hold_and_clone() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let patience = fleet.controller.within(Duration::from_secs(5));
    for (number, (obstacle, mend, words)) in [
        (
            "zfs snapshot D@backup",
            "zfs destroy D@backup",
            ["zfs destroy", "@backup"],
        ),
        (
            "zfs snapshot D@base && zfs clone D@base tank/mine",
            "zfs destroy tank/mine && zfs destroy D@base",
            ["tank/mine", "zfs promote"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let volume = Raw::make(&fleet, &format!("pvc-theirs-{number}"));
        let dataset = volume.dataset();
        storage.ok(&obstacle.replace('D', &dataset)).unwrap();
        assert_refused(patience.delete(&volume.id), Code::DeadlineExceeded, &words);
        assert_eq!(zvols(storage).first(), Some(&dataset));
        storage.ok(&mend.replace('D', &dataset)).unwrap();
        volume.delete();
        fleet.assert_clean();
    }
}

/// Eight volumes that hang on each other are deleted at once, with all that was taken of them.
#[test]
fn rule_06_a_family_is_deleted_all_at_once() {
    let fleet = Fleet::fresh();
    let mut volumes = vec![Raw::make(&fleet, "pvc-root")];
    volumes[0].write();
    let mut snapshots = Vec::new();
    for n in 0..3 {
        let of = &volumes[n].id;
        let snapshot = fleet
            .controller
            .create_snapshot(&format!("snap-{n}"), of)
            .unwrap();
        let restored = From::Snapshot(&snapshot.snapshot_id);
        let restored = Raw::make_from(&fleet, &format!("pvc-r{n}"), restored);
        let clone = Raw::make_from(&fleet, &format!("pvc-c{n}"), From::Volume(&restored.id));
        volumes.extend([restored, clone]);
        snapshots.push(snapshot.snapshot_id);
    }
    std::thread::scope(|scope| {
        for volume in volumes {
            scope.spawn(|| volume.delete());
        }
        for id in &snapshots {
            scope.spawn(|| fleet.controller.delete_snapshot(id).unwrap());
        }
    });
    fleet.assert_clean();
}
