//! The driver killed after every step of every call that changes something, by step name, started again,
//! and called again.
//!
//! The names come from the driver's own timelines: a step that is added is killed at as well. After a step that only
//! looks or waits the machine is as it was before it.

mod changes;

use tonic::Status;
use zvolt_lab::fleet::disconnect_pooled;
use zvolt_lab::orchestrator::{Csi, Wanted};

use crate::fleet::{Fleet, Journey};

/// The calls of a volume's life, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Create,
    Attach,
    Stage,
    Publish,
    Unpublish,
    Unstage,
    Detach,
    Delete,
}

use Call::{Attach, Create, Delete, Detach, Publish, Stage, Unpublish, Unstage};

const LIFE: [Call; 8] = [
    Create, Attach, Stage, Publish, Unpublish, Unstage, Detach, Delete,
];

impl Call {
    fn is_on_node(self) -> bool {
        matches!(self, Stage | Publish | Unpublish | Unstage)
    }
}

fn act(volume: &Journey<'_>, call: Call) -> Result<(), Status> {
    let context = || volume.attach("node0");
    match call {
        Create => volume
            .fleet
            .controller
            .create(&Wanted::named(&volume.id))
            .map(drop),
        Attach => context().map(drop),
        Stage => volume.stage("node0", &context()?),
        Publish => volume.publish("node0", &context()?, false),
        Unpublish => volume.unpublish("node0"),
        Unstage => volume.unstage("node0"),
        Detach => volume.detach("node0"),
        Delete => volume.fleet.controller.delete(&volume.id),
    }
}

fn volume<'a>(fleet: &'a Fleet, id: &str) -> Journey<'a> {
    Journey {
        fleet,
        id: id.into(),
        fs_type: "ext4".into(),
    }
}

/// The names of the steps that a call runs in the process to kill, in the order in which they end.
fn steps_of(fleet: &Fleet, call: Call) -> Vec<String> {
    let volume = volume(fleet, "pvc-dry-run");
    let socket = if call.is_on_node() {
        &fleet.nodes["node0"]
    } else {
        &fleet.controller
    };
    for before in LIFE.iter().filter(|c| **c < call) {
        act(&volume, *before).unwrap();
    }
    let steps = step_names(socket, &volume.id, || act(&volume, call).unwrap());
    for after in LIFE.iter().filter(|c| **c > call) {
        act(&volume, *after).unwrap();
    }
    steps
}

/// The names of the steps that `act` makes a driver run for a volume, in the order in which they end.
fn step_names(socket: &Csi, volume: &str, act: impl FnOnce()) -> Vec<String> {
    let seen = socket.operations(volume).unwrap().len();
    act();
    let mut steps = Vec::new();
    for step in socket.operations(volume).unwrap()[seen..]
        .iter()
        .flat_map(|o| &o.steps)
    {
        if !steps.contains(&step.name) {
            steps.push(step.name.clone());
        }
    }
    steps
}

/// One volume, at most one controller and one staged mount: what a finished call may show.
fn assert_single(fleet: &Fleet, id: &str) {
    let datasets = fleet
        .vm("storage0")
        .ok("zfs list -H -o name -r tank | grep -c ^tank/csi/block/ || true");
    assert!(
        datasets.unwrap().trim().parse::<u32>().unwrap() <= 1,
        "one dataset"
    );
    let controllers = fleet.vm("node0").ok("ls /sys/class/nvme | wc -l").unwrap();
    assert!(
        controllers.trim().parse::<u32>().unwrap() <= 1,
        "one controller"
    );
    let mounts = fleet
        .vm("node0")
        .ok(&format!(
            "grep -c '/{id}/globalmount ' /proc/self/mountinfo || true"
        ))
        .unwrap();
    assert!(
        mounts.trim().parse::<u32>().unwrap() <= 1,
        "one staged mount"
    );
}

/// Kills at `point` during `call`, then finishes the volume's life and compares its bytes.
fn killed_at(fleet: &Fleet, call: Call, point: &str, id: &str) {
    let volume = volume(fleet, id);
    let member = if call.is_on_node() {
        &fleet.node0
    } else {
        &fleet.storage
    };
    let mut sum = None;
    for before in LIFE.iter().filter(|c| **c < call) {
        act(&volume, *before).unwrap();
        if *before == Publish && call < Delete {
            sum = Some(volume.write("node0"));
        }
    }
    member.kill().unwrap();
    if call == Stage {
        // A pooled volume is reached by a connection of the round before, where there is one.
        disconnect_pooled(member.vm()).unwrap();
    }
    member.start_with(&[("ZVOLT_KILL_AT", point)]).unwrap();
    let outcome = act(&volume, call);
    if !member.ends().unwrap() {
        member.kill().unwrap(); // no later test may meet the kill point
        panic!("{call:?} never reached {point}: {outcome:?}");
    }
    member.start().unwrap();
    act(&volume, call)
        .unwrap_or_else(|s| panic!("{call:?} after a kill at {point}: {}", s.message()));
    assert_single(fleet, id);
    for after in LIFE.iter().filter(|c| **c > call && **c < Delete) {
        act(&volume, *after)
            .unwrap_or_else(|s| panic!("{after:?} after a kill at {point}: {}", s.message()));
        if *after == Publish {
            let written = volume.write("node0");
            assert_eq!(volume.read("node0"), written, "after a kill at {point}");
        }
    }
    // What was written before the kill is read through another node.
    if let Some(sum) = sum {
        volume.bring_to("node1");
        assert_eq!(volume.read("node1"), sum, "after a kill at {point}");
        volume.take_from("node1");
    }
    if call < Delete {
        volume.delete();
    }
    fleet.assert_clean();
}

/// Steps that change nothing.
pub(crate) const LOOKS_OR_WAITS: [&str; 14] = [
    "observe",
    "pool.turn",
    "nvmet.observe",
    "zfs.observe",
    "zvol.appear",
    "zvol.mend",
    "controller.await",
    "namespace.await",
    "device.verify",
    "device.released",
    "volume.await-ready",
    "snapshot.await-ready",
    "volume.await-admitted",
    "volume.await-fenced",
];

fn sweep(call: Call) {
    let fleet = Fleet::fresh();
    let mut steps = steps_of(&fleet, call);
    steps.retain(|step| !LOOKS_OR_WAITS.contains(&step.as_str()));
    assert!(!steps.is_empty(), "{call:?} has steps");
    for (number, step) in steps.iter().enumerate() {
        eprintln!("{call:?}: killed after {step}");
        killed_at(
            &fleet,
            call,
            &format!("{step}:after"),
            &format!("pvc-{number}"),
        );
    }
}

#[test]
fn crash_at_every_step_of_create() {
    sweep(Create);
}

#[test]
fn crash_at_every_step_of_controller_publish() {
    sweep(Attach);
}

#[test]
fn crash_at_every_step_of_stage() {
    sweep(Stage);
}

#[test]
fn crash_at_every_step_of_publish() {
    sweep(Publish);
}

#[test]
fn crash_at_every_step_of_unpublish() {
    sweep(Unpublish);
}

#[test]
fn crash_at_every_step_of_unstage() {
    sweep(Unstage);
}

#[test]
fn crash_at_every_step_of_controller_unpublish() {
    sweep(Detach);
}

#[test]
fn crash_at_every_step_of_delete() {
    sweep(Delete);
}

#[test]
fn crash_rule_04_in_the_fence_of_a_volume_with_a_subsystem_of_its_own() {
    die_in_a_fence(
        "per-volume",
        &[
            "nvmet.disallow-host:after",
            "nvmet.cut:before",
            "nvmet.cut:after",
        ],
    );
}

#[test]
fn crash_rule_04_in_the_fence_of_a_pooled_volume() {
    die_in_a_fence(
        "pooled",
        &[
            "nvmet.remove-namespace:before",
            "nvmet.remove-namespace:after",
            "store.status:before",
        ],
    );
}

/// Rule 4 through a crash: the agent dies in the middle of a fence, with the old node's mount still
/// there. After its restart, and before anybody is admitted, the old node is cut.
fn die_in_a_fence(attach: &str, points: &[&str]) {
    for point in points {
        let fleet = Fleet::fresh();
        let wanted = Wanted::named("pvc-half-fenced").parameter("attach", attach);
        let volume = fleet.create(&wanted);
        volume.bring_to("node0");
        let sum = volume.write("node0");
        fleet.storage.stop().unwrap();
        fleet
            .storage
            .start_with(&[("ZVOLT_KILL_AT", point)])
            .unwrap();
        volume
            .detach("node0")
            .expect_err("the process dies in the fence");
        fleet.storage.start().unwrap();
        volume.detach("node0").unwrap();
        let late = fleet.vm("node0").run(&format!(
            "timeout 30 dd if=/dev/zero of={}/late bs=4k count=1 oflag=direct status=none",
            volume.target()
        ));
        assert_ne!(
            late.unwrap().status,
            0,
            "{point}: a write after the fence must fail"
        );
        volume.bring_to("node1");
        assert_eq!(volume.read("node1"), sum, "{point}");
        volume.take_from("node1");
        volume.unpublish("node0").unwrap();
        volume.unstage("node0").unwrap();
        volume.delete();
        fleet.assert_clean();
    }
}
