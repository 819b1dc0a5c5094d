//! Who may have a volume at the same time, and what a reader cannot do (rules 4 and 5); growth under load.

use std::collections::HashMap;

use tonic::{Code, Status};
use zvolt_lab::fleet::KUBELET;
use zvolt_lab::orchestrator::{Csi, Wanted, single_writer};
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume};

use crate::fleet::{Fleet, assert_refused};

/// A volume that is used in one mode.
struct Shared<'a> {
    fleet: &'a Fleet,
    id: &'static str,
    capability: csi::VolumeCapability,
}

impl<'a> Shared<'a> {
    fn raw(fleet: &'a Fleet, id: &'static str, mode: Mode) -> Self {
        Self::raw_with(fleet, id, mode, [("pool", "tank")])
    }

    fn raw_with<const N: usize>(
        fleet: &'a Fleet,
        id: &'static str,
        mode: Mode,
        parameters: [(&str, &str); N],
    ) -> Self {
        let capability = csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Block(BlockVolume {})),
        };
        let this = Self {
            fleet,
            id,
            capability,
        };
        let request = csi::CreateVolumeRequest {
            name: id.into(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: 64 << 20,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![this.capability.clone()],
            parameters: HashMap::from(parameters.map(|(k, v)| (k.into(), v.into()))),
            ..Default::default()
        };
        fleet.controller.create_raw(request).unwrap();
        this
    }

    fn socket(&self, node: &str) -> &Csi {
        self.fleet.nodes.get(node).unwrap_or(&self.fleet.controller)
    }

    fn attach(&self, node: &str, readonly: bool) -> Result<HashMap<String, String>, Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.id.into(),
            node_id: node.into(),
            volume_capability: Some(self.capability.clone()),
            readonly,
            ..Default::default()
        };
        let controller = &self.fleet.controller;
        let mut client = controller.controller();
        let reply =
            controller.call(client.controller_publish_volume(controller.request(request)))?;
        Ok(reply.publish_context)
    }

    /// From nothing to a pod's path.
    fn bring_to(&self, node: &str, readonly: bool) {
        let context = self.attach(node, readonly).unwrap();
        let socket = self.socket(node);
        let stage = csi::NodeStageVolumeRequest {
            volume_id: self.id.into(),
            publish_context: context.clone(),
            staging_target_path: self.staging(),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        };
        let mut client = socket.node();
        socket
            .call(client.node_stage_volume(socket.request(stage)))
            .unwrap();
        let publish = csi::NodePublishVolumeRequest {
            volume_id: self.id.into(),
            publish_context: context,
            staging_target_path: self.staging(),
            target_path: self.target(),
            volume_capability: Some(self.capability.clone()),
            readonly,
            ..Default::default()
        };
        let mut client = socket.node();
        socket
            .call(client.node_publish_volume(socket.request(publish)))
            .unwrap();
    }

    fn take_from(&self, node: &str) {
        let socket = self.socket(node);
        socket.unpublish(self.id, &self.target()).unwrap();
        socket.unstage(self.id, &self.staging()).unwrap();
        self.fleet
            .controller
            .controller_unpublish(self.id, node)
            .unwrap();
    }

    /// Writes `word` through `node`; whether that worked.
    fn write(&self, node: &str, word: &str) -> bool {
        let command = format!(
            "echo {word} | dd of={} bs=4k count=1 conv=sync,fsync,notrunc oflag=direct iflag=fullblock status=none",
            self.target()
        );
        self.fleet.vm(node).run(&command).unwrap().status == 0
    }

    fn read(&self, node: &str) -> String {
        let command = format!(
            "dd if={} bs=4k count=1 iflag=direct status=none | tr -d '\\0'",
            self.target()
        );
        self.fleet.vm(node).ok(&command).unwrap().trim().to_owned()
    }

    fn staging(&self) -> String {
        format!("{KUBELET}/plugins/{}", self.id)
    }

    fn target(&self) -> String {
        format!("{KUBELET}/pods/{}", self.id)
    }
}

#[test]
fn many_nodes_write_one_raw_device() {
    let fleet = Fleet::fresh();
    let volume = Shared::raw(&fleet, "pvc-rwx", Mode::MultiNodeMultiWriter);
    volume.bring_to("node0", false);
    volume.bring_to("node1", false);
    volume.bring_to("storage0", false);
    for (writer, reader) in [
        ("node0", "node1"),
        ("node1", "storage0"),
        ("storage0", "node0"),
    ] {
        assert!(volume.write(writer, writer));
        assert_eq!(volume.read(reader), writer);
    }
    volume.take_from("node1");
    assert!(volume.write("node0", "later"), "who stays goes on");
    volume.take_from("node0");
    volume.take_from("storage0");
    fleet.controller.delete(volume.id).unwrap();
    fleet.assert_clean();
}

/// Read-only holds at the target: a node that ignores its own device's flag is refused there.
#[test]
fn rule_05_readers_cannot_write_whatever_they_do() {
    let fleet = Fleet::fresh();
    let volume = Shared::raw(&fleet, "pvc-rox", Mode::SingleNodeWriter);
    volume.bring_to("node0", false);
    assert!(volume.write("node0", "first"));
    volume.take_from("node0");
    let mut readers = volume;
    readers.capability.access_mode = Some(AccessMode {
        mode: Mode::MultiNodeReaderOnly.into(),
    });
    for node in ["node0", "node1"] {
        readers.bring_to(node, true);
        assert_eq!(readers.read(node), "first");
        assert!(!readers.write(node, "no"), "{node} must not write");
        let device = fleet.vm(node).ok("ls -d /sys/block/nvme*n* | head -n 1");
        let flag = format!("cat {}/ro", device.unwrap().trim());
        assert_eq!(
            fleet.vm(node).ok(&flag).unwrap().trim(),
            "1",
            "{node}'s device"
        );
        // Clearing the host's own flag does not help: the target says no.
        fleet
            .vm(node)
            .ok("blockdev --setrw /dev/nvme*n1 || true")
            .unwrap();
        assert!(!readers.write(node, "no"), "{node} must not write");
    }
    let mut writer = Shared {
        fleet: &fleet,
        id: readers.id,
        capability: readers.capability.clone(),
    };
    writer.capability.access_mode = Some(AccessMode {
        mode: Mode::SingleNodeWriter.into(),
    });
    assert_refused(
        writer.attach("storage0", false),
        Code::FailedPrecondition,
        &["node0"],
    );
    readers.take_from("node0");
    readers.take_from("node1");
    writer.bring_to("node1", false);
    assert!(writer.write("node1", "again"), "writers are let in again");
    writer.take_from("node1");
    fleet.controller.delete(writer.id).unwrap();
    fleet.assert_clean();
}

/// A zvol that is mounted on its own host grows while it is written to; some kernels shut the filesystem
/// down then.
#[test]
fn bug_c_32_a_mounted_local_volume_grows_under_load() {
    let fleet = Fleet::fresh();
    grows_under_load(&fleet, "storage0");
    grows_under_load(&fleet, "node0");
    fleet.assert_clean();
}

fn grows_under_load(fleet: &Fleet, node: &str) {
    let id = format!("pvc-grow-{node}");
    let wanted = Wanted::named(&id).size(128 << 20);
    fleet.controller.create(&wanted).unwrap();
    let (staging, target) = (
        format!("{KUBELET}/plugins/{id}"),
        format!("{KUBELET}/pods/{id}"),
    );
    let socket = fleet.nodes.get(node).unwrap_or(&fleet.controller);
    let context = fleet
        .controller
        .controller_publish(&id, node, "ext4")
        .unwrap();
    socket.stage(&id, &context, &staging, "ext4").unwrap();
    socket
        .publish(&id, &context, &staging, &target, "ext4", false)
        .unwrap();
    let vm = fleet.vm(node);
    vm.ok("touch /run/load").unwrap();
    let load = vm
        .spawn(&format!(
            "while [ -e /run/load ]; do dd if=/dev/zero of={target}/load bs=1M count=16 conv=fsync status=none || exit 1; done"
        ))
        .unwrap();
    let range = Some(csi::CapacityRange {
        required_bytes: 512 << 20,
        limit_bytes: 0,
    });
    let mut client = fleet.controller.controller();
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: range,
        ..Default::default()
    };
    let grown = fleet
        .controller
        .call(client.controller_expand_volume(fleet.controller.request(request)))
        .unwrap();
    assert_eq!(grown.capacity_bytes, 512 << 20);
    let request = csi::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        staging_target_path: staging.clone(),
        capacity_range: range,
        volume_capability: Some(single_writer("ext4")),
        ..Default::default()
    };
    let mut client = socket.node();
    socket
        .call(client.node_expand_volume(socket.request(request)))
        .unwrap();
    let size = vm
        .ok(&format!("df -B1M --output=size {target} | tail -n 1"))
        .unwrap();
    let mib: u64 = size.trim().parse().unwrap();
    assert!(mib > 400, "{node}: the filesystem has {mib} MiB");
    vm.ok(&format!(
        "dd if=/dev/zero of={target}/more bs=1M count=200 conv=fsync status=none && rm -f /run/load"
    ))
    .unwrap();
    assert_eq!(load.wait().unwrap().status, 0, "{node}: no write failed");
    socket.unpublish(&id, &target).unwrap();
    socket.unstage(&id, &staging).unwrap();
    fleet.controller.controller_unpublish(&id, node).unwrap();
    fleet.controller.delete(&id).unwrap();
}

/// The same zvol in a subsystem of each of two nodes, and in its own for a reader.
#[test]
fn rule_05_a_pooled_raw_volume_is_shared_by_writers_and_then_read_only() {
    let fleet = Fleet::fresh();
    let parameters = [("pool", "tank"), ("attach", "pooled")];
    let volume = Shared::raw_with(
        &fleet,
        "pvc-pooled-rwx",
        Mode::MultiNodeMultiWriter,
        parameters,
    );
    for node in ["node0", "node1"] {
        volume.bring_to(node, false);
    }
    assert!(volume.write("node0", "zero"));
    assert_eq!(volume.read("node1"), "zero");
    assert!(volume.write("node1", "one"));
    volume.take_from("node1");
    assert_eq!(volume.read("node0"), "one", "one leaves, the other stays");
    volume.take_from("node0");
    volume.bring_to("node1", true);
    assert_eq!(volume.read("node1"), "one");
    assert!(
        !volume.write("node1", "two"),
        "a reader by its own subsystem"
    );
    volume.take_from("node1");
    fleet.controller.delete(volume.id).unwrap();
    fleet.assert_clean();
}
