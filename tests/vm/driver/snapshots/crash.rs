//! The driver killed after every step that changes something in ZFS, of every call about snapshots and what is made from
//! them, started again, and called again.

use tonic::Status;
use zvolt_lab::snapshots::From;

use super::Raw;
use crate::crash::LOOKS_OR_WAITS;
use crate::fleet::Fleet;

/// The calls of a small family's life, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// A snapshot of the source.
    Take,
    /// A volume from it.
    Restore,
    /// A volume from that volume.
    Clone,
    /// The source has a snapshot with a clone: that is promoted.
    DeleteSource,
    /// The snapshot is that volume's now, and another has been cloned from it.
    DeleteRestored,
    /// The snapshot is this volume's now, and keeps its zvol.
    DeleteClone,
    /// The last that needs it.
    DeleteSnapshot,
}

const LIFE: [Call; 7] = [
    Call::Take,
    Call::Restore,
    Call::Clone,
    Call::DeleteSource,
    Call::DeleteRestored,
    Call::DeleteClone,
    Call::DeleteSnapshot,
];

/// One family, by the number of its life.
struct Family<'a> {
    fleet: &'a Fleet,
    number: usize,
}

impl Family<'_> {
    fn name(&self, what: &str) -> String {
        format!("pvc-{what}-{}", self.number)
    }

    fn source(&self) -> String {
        self.name("source")
    }

    fn act(&self, call: Call) -> Result<(), Status> {
        let controller = &self.fleet.controller;
        let (source, restored, clone) = (self.source(), self.name("restored"), self.name("clone"));
        let snapshot = format!("snap-{}", self.number);
        let id = format!("{source}@{snapshot}");
        let make = |name: &str, from: From<'_>| {
            let mut request = Raw::request(name);
            request.volume_content_source = Some(from.to_csi());
            controller.create_raw(request).map(drop)
        };
        match call {
            Call::Take => controller.create_snapshot(&snapshot, &source).map(drop),
            Call::Restore => make(&restored, From::Snapshot(&id)),
            Call::Clone => make(&clone, From::Volume(&restored)),
            Call::DeleteSource => controller.delete(&source),
            Call::DeleteRestored => controller.delete(&restored),
            Call::DeleteSnapshot => controller.delete_snapshot(&id),
            Call::DeleteClone => controller.delete(&clone),
        }
    }

    /// What the volumes that are there after `call` hold.
    fn check(&self, call: Call, sum: &str, point: &str) {
        let there = [
            ("restored", Call::Restore, Call::DeleteRestored),
            ("clone", Call::Clone, Call::DeleteClone),
        ];
        for (what, made, deleted) in there {
            if (made..deleted).contains(&call) {
                let volume = Raw {
                    fleet: self.fleet,
                    id: self.name(what),
                };
                assert_eq!(volume.read(), sum, "{what} after {call:?}, {point}");
            }
        }
    }

    /// All steps that a call runs in the driver, in the order in which they end.
    fn steps(&self, call: Call) -> Vec<String> {
        let operations = || self.fleet.controller.operations("").unwrap();
        let seen = operations().len();
        self.act(call).unwrap();
        let mut steps = Vec::new();
        for step in operations()[seen..].iter().flat_map(|o| &o.steps) {
            if !steps.contains(&step.name) && is_of_snapshots(&step.name) {
                steps.push(step.name.clone());
            }
        }
        steps
    }
}

/// What an export and a status go through, the sweeps of a volume's own calls show.
fn is_of_snapshots(step: &str) -> bool {
    step.starts_with("zfs.") && !LOOKS_OR_WAITS.contains(&step)
}

#[test]
fn crash_at_every_step_of_snapshots_and_what_is_made_from_them() {
    let fleet = Fleet::fresh();
    let dry = Family {
        fleet: &fleet,
        number: 0,
    };
    Raw::make(&fleet, &dry.source());
    let points: Vec<(Call, String)> = LIFE
        .into_iter()
        .flat_map(|call| dry.steps(call).into_iter().map(move |step| (call, step)))
        .collect();
    fleet.assert_clean();
    for step in [
        "zfs.snapshot",
        "zfs.clone",
        "zfs.destroy-snapshot",
        "zfs.promote",
        "zfs.rollback",
        "zfs.bury",
        "zfs.destroy",
    ] {
        assert!(
            points.iter().any(|(_, name)| name == step),
            "{step} is missing in {points:?}"
        );
    }
    for (number, (call, step)) in points.into_iter().enumerate() {
        let family = Family {
            fleet: &fleet,
            number: number + 1,
        };
        killed_at(&family, call, &format!("{step}:after"));
    }
}

/// Kills at `point` during `call`, then finishes the family's life and compares bytes all along.
fn killed_at(family: &Family<'_>, call: Call, point: &str) {
    eprintln!("{call:?}: killed at {point}");
    let fleet = family.fleet;
    let source = Raw::make(fleet, &family.source());
    let sum = source.write();
    for before in LIFE.into_iter().filter(|c| *c < call) {
        family.act(before).unwrap();
    }
    fleet.storage.kill().unwrap();
    fleet
        .storage
        .start_with(&[("ZVOLT_KILL_AT", point)])
        .unwrap();
    let outcome = family.act(call);
    if !fleet.storage.ends().unwrap() {
        fleet.storage.kill().unwrap(); // no later test may meet the kill point
        panic!("{call:?} never reached {point}: {outcome:?}");
    }
    fleet.storage.start().unwrap();
    for next in LIFE.into_iter().filter(|c| *c >= call) {
        family
            .act(next)
            .unwrap_or_else(|s| panic!("{next:?}, {call:?} killed at {point}: {}", s.message()));
        if next == call {
            family.check(call, &sum, point);
        }
    }
    fleet.assert_clean();
}
