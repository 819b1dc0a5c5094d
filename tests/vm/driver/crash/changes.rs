//! The driver killed after every step of the calls that change a volume which a pod has mounted: it grows and is
//! tuned all the same, and the pod's bytes stay.

use std::collections::HashMap;

use tonic::Status;
use zvolt_lab::fleet::Member;
use zvolt_lab::orchestrator::{Wanted, single_writer};
use zvolt_proto::csi;

use super::{LOOKS_OR_WAITS, step_names};
use crate::fleet::{Fleet, Journey};

const MIB: i64 = 1 << 20;

/// What is changed: each time to something else, by the number of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// ControllerExpandVolume.
    Expand,
    /// NodeExpandVolume.
    GrowFilesystem,
    /// ControllerModifyVolume.
    Modify,
}

use Change::{Expand, GrowFilesystem, Modify};

fn range(turn: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes: (128 + 16 * turn) * MIB,
        limit_bytes: 0,
    })
}

fn level(turn: i64) -> String {
    format!("zstd-{}", 2 + turn % 8)
}

fn act(volume: &Journey<'_>, change: Change, turn: i64) -> Result<(), Status> {
    let (controller, node) = (&volume.fleet.controller, &volume.fleet.nodes["node0"]);
    match change {
        Expand => {
            let request = csi::ControllerExpandVolumeRequest {
                volume_id: volume.id.clone(),
                capacity_range: range(turn),
                ..Default::default()
            };
            let mut client = controller.controller();
            controller
                .call(client.controller_expand_volume(controller.request(request)))
                .map(drop)
        }
        GrowFilesystem => {
            let request = csi::NodeExpandVolumeRequest {
                volume_id: volume.id.clone(),
                volume_path: volume.target(),
                staging_target_path: volume.staging(),
                capacity_range: range(turn),
                volume_capability: Some(single_writer(&volume.fs_type)),
                ..Default::default()
            };
            let mut client = node.node();
            node.call(client.node_expand_volume(node.request(request)))
                .map(drop)
        }
        Modify => {
            let request = csi::ControllerModifyVolumeRequest {
                volume_id: volume.id.clone(),
                mutable_parameters: HashMap::from([("compression".into(), level(turn))]),
                ..Default::default()
            };
            let mut client = controller.controller();
            controller
                .call(client.controller_modify_volume(controller.request(request)))
                .map(drop)
        }
    }
}

/// What a finished change shows outside of the driver.
fn assert_done(volume: &Journey<'_>, change: Change, turn: i64, when: &str) {
    let ask = |vm: &str, command: String| {
        let out = volume.fleet.vm(vm).ok(&command).unwrap();
        out.trim().to_owned()
    };
    let property = |name: &str| {
        let dataset = format!("tank/csi/block/{}", volume.id);
        ask("storage0", format!("zfs get -Hp -o value {name} {dataset}"))
    };
    let wanted = (128 + 16 * turn) * MIB;
    match change {
        Expand => assert_eq!(property("volsize"), wanted.to_string(), "{when}"),
        Modify => assert_eq!(property("compression"), level(turn), "{when}"),
        GrowFilesystem => {
            let superblock = format!(
                "dumpe2fs -h $(findmnt -n -o SOURCE {}) 2>/dev/null | \
                 sed -n 's/^Block count: *//p; s/^Block size: *//p'",
                volume.target()
            );
            let size: i64 = ask("node0", superblock)
                .split_whitespace()
                .map(|n| n.parse::<i64>().unwrap())
                .product();
            assert_eq!(size, wanted, "{when}: blocks of the filesystem");
        }
    }
}

/// A change, and what has to be before it.
fn sweep(change: Change) {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-changed").size(128 * MIB));
    volume.bring_to("node0");
    let sum = volume.write("node0");
    let (member, socket) = if change == GrowFilesystem {
        (&fleet.node0, &fleet.nodes["node0"])
    } else {
        (&fleet.storage, &fleet.controller)
    };
    let prepare = |turn| {
        if change == GrowFilesystem {
            act(&volume, Expand, turn).unwrap();
        }
    };
    prepare(1);
    let mut steps = step_names(socket, &volume.id, || act(&volume, change, 1).unwrap());
    steps.retain(|step| !LOOKS_OR_WAITS.contains(&step.as_str()));
    assert!(!steps.is_empty(), "{change:?} has steps");
    assert_done(&volume, change, 1, "without a kill");
    for (turn, step) in (2..).zip(&steps) {
        eprintln!("{change:?}: killed after {step}");
        prepare(turn);
        killed_at(member, step, || act(&volume, change, turn));
        act(&volume, change, turn)
            .unwrap_or_else(|s| panic!("{change:?}, killed after {step}: {}", s.message()));
        assert_done(&volume, change, turn, step);
        assert_eq!(volume.read("node0"), sum, "after a kill at {step}");
    }
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

/// Starts the driver so that it dies after `step`, sees it die in `call`, and starts it again.
fn killed_at(member: &Member<'_>, step: &str, call: impl FnOnce() -> Result<(), Status>) {
    let point = format!("{step}:after");
    member.kill().unwrap();
    member.start_with(&[("ZVOLT_KILL_AT", &point)]).unwrap();
    let outcome = call();
    if !member.ends().unwrap() {
        member.kill().unwrap(); // no later test may meet the kill point
        panic!("{point} was never reached: {outcome:?}");
    }
    member.start().unwrap();
}

#[test]
fn crash_at_every_step_of_controller_expand() {
    sweep(Expand);
}

#[test]
fn crash_at_every_step_of_node_expand() {
    sweep(GrowFilesystem);
}

#[test]
fn crash_at_every_step_of_modify() {
    sweep(Modify);
}
