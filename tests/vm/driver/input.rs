//! Bad input over the real sockets: refused by name with the right code, nothing left behind.

use std::collections::HashMap;

use tonic::Code;
use zvolt_lab::fleet::KUBELET;
use zvolt_lab::orchestrator::{Wanted, create_request};
use zvolt_proto::csi::CapacityRange;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessType, BlockVolume};

use crate::fleet::{Fleet, assert_refused};

/// Identifiers that no call may take.
fn hostile_ids() -> Vec<String> {
    vec![
        String::new(),
        "a/b".into(),
        "..".into(),
        "../../etc".into(),
        "a\0b".into(),
        "a\nb".into(),
        "x".repeat(129),
    ]
}

#[test]
fn hostile_identifiers_are_refused_by_every_call() {
    let fleet = Fleet::fresh();
    let (controller, node) = (&fleet.controller, &fleet.nodes["node0"]);
    let staging = format!("{KUBELET}/plugins/x");
    let target = format!("{KUBELET}/pods/x");
    let context = HashMap::new();
    for id in hostile_ids() {
        let outcomes = [
            controller.delete(&id),
            controller
                .controller_publish(&id, "node0", "ext4")
                .map(drop),
            controller.controller_unpublish(&id, "node0"),
            node.stage(&id, &context, &staging, "ext4"),
            node.unstage(&id, &staging),
            node.publish(&id, &context, &staging, &target, "ext4", false),
            node.unpublish(&id, &target),
        ];
        for (call, outcome) in outcomes.into_iter().enumerate() {
            assert_refused(outcome, Code::InvalidArgument, &["volume_id"]);
            assert!(call < 7);
        }
    }
    for id in ["a/b", "..", "a\0b", "a\nb"] {
        assert_refused(
            controller.controller_publish("pvc-x", id, "ext4"),
            Code::InvalidArgument,
            &["node_id"],
        );
    }
    fleet.assert_clean();
}

#[test]
fn volumes_that_do_not_exist() {
    let fleet = Fleet::fresh();
    let (controller, node) = (&fleet.controller, &fleet.nodes["node0"]);
    controller.delete("pvc-unknown").expect("nothing to delete");
    controller
        .controller_unpublish("pvc-unknown", "node0")
        .expect("nothing to unpublish");
    assert_refused(
        controller.controller_publish("pvc-unknown", "node0", "ext4"),
        Code::NotFound,
        &["pvc-unknown"],
    );
    node.unstage("pvc-unknown", &format!("{KUBELET}/plugins/none"))
        .expect("nothing to unstage");
    node.unpublish("pvc-unknown", &format!("{KUBELET}/pods/none/x"))
        .expect("nothing to unpublish");
    fleet.assert_clean();
}

#[test]
fn hostile_creations_are_refused_and_leave_nothing() {
    let fleet = Fleet::fresh();
    let wanted = || Wanted::named("pvc-bad");
    let refused = [
        (
            wanted().parameter("colour", "blue"),
            Code::InvalidArgument,
            "colour",
        ),
        (
            wanted().parameter("pool", ""),
            Code::InvalidArgument,
            "pool",
        ),
        (
            wanted().parameter("pool", "a/b"),
            Code::InvalidArgument,
            "pool",
        ),
        (
            wanted().parameter("pool", "../x"),
            Code::InvalidArgument,
            "pool",
        ),
        (
            wanted().parameter("volBlockSize", "3k"),
            Code::InvalidArgument,
            "volBlockSize",
        ),
        (
            wanted().parameter("compression", "best"),
            Code::InvalidArgument,
            "compression",
        ),
        (
            wanted().parameter("type", "filesystem"),
            Code::InvalidArgument,
            "type",
        ),
        (wanted().fs("btrfs"), Code::InvalidArgument, "btrfs"),
        (wanted().size(-1), Code::InvalidArgument, "required_bytes"),
        (wanted().size(i64::MAX), Code::OutOfRange, "required_bytes"),
        (wanted().size(4096), Code::OutOfRange, "ext4"),
        (Wanted::named(""), Code::InvalidArgument, "name"),
        (
            Wanted::named(&"x".repeat(129)),
            Code::InvalidArgument,
            "name",
        ),
        (Wanted::named("a\0b"), Code::InvalidArgument, "name"),
        (Wanted::named("a\nb"), Code::InvalidArgument, "name"),
    ];
    for (wanted, code, word) in refused {
        assert_refused(fleet.controller.create(&wanted), code, &[word]);
    }
    let mut limited = create_request(&wanted());
    limited.capacity_range = Some(CapacityRange {
        required_bytes: (1 << 30) + 1,
        limit_bytes: (1 << 30) + 2,
    });
    assert_refused(
        fleet.controller.create_raw(limited),
        Code::OutOfRange,
        &["limit_bytes"],
    );
    let mut none = create_request(&wanted());
    none.volume_capabilities.clear();
    assert_refused(
        fleet.controller.create_raw(none),
        Code::InvalidArgument,
        &["volume_capabilities"],
    );
    let mut both = create_request(&wanted());
    let mut block = both.volume_capabilities[0].clone();
    block.access_type = Some(AccessType::Block(BlockVolume {}));
    both.volume_capabilities.push(block);
    assert_refused(
        fleet.controller.create_raw(both),
        Code::InvalidArgument,
        &["mount and block"],
    );
    let mut many = create_request(&wanted());
    many.volume_capabilities[0]
        .access_mode
        .as_mut()
        .unwrap()
        .mode = Mode::MultiNodeMultiWriter.into();
    assert_refused(
        fleet.controller.create_raw(many),
        Code::InvalidArgument,
        &["MULTI_NODE_MULTI_WRITER"],
    );
    fleet.assert_clean();
}

#[test]
fn hostile_publish_contexts_are_refused_by_key() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-context"));
    let context = volume.attach("node0").unwrap();
    for (key, value) in [
        ("nqn", "nqn.x,hostnqn=nqn.evil"),
        ("nqn", "nqn.x\ntransport=rdma"),
        ("portal", "not-an-address"),
        ("namespaceUUID", "xyz"),
        ("fsType", "../x"),
    ] {
        let mut context = context.clone();
        context.insert(key.into(), value.into());
        assert_refused(
            volume.stage("node0", &context),
            Code::InvalidArgument,
            &[key],
        );
    }
    // Another volume's subsystem is well formed, and refused all the same.
    let other = fleet.create(&Wanted::named("pvc-other"));
    let mut crossed = context.clone();
    crossed.insert("nqn".into(), other.attach("node0").unwrap()["nqn"].clone());
    assert_refused(
        volume.stage("node0", &crossed),
        Code::InvalidArgument,
        &["nqn"],
    );
    assert_eq!(fleet.vm("node0").ok("ls /sys/class/nvme").unwrap(), "");
    for v in [&volume, &other] {
        v.detach("node0").unwrap();
        v.delete();
    }
    fleet.assert_clean();
}
