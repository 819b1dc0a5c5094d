//! The storage side: what of a volume reaches ZFS and its filesystem, and pools and addresses that come late.

use std::collections::HashMap;

use tonic::{Code, Status};
use zvolt_lab::Vm;
use zvolt_lab::orchestrator::{Wanted, single_writer};
use zvolt_proto::csi;

use crate::fleet::{Fleet, assert_refused};

const MIB: i64 = 1 << 20;

fn get(vm: &Vm, property: &str, dataset: &str) -> String {
    let value = vm.ok(&format!("zfs get -Hp -o value {property} {dataset}"));
    value.unwrap().trim().to_owned()
}

/// Where a property comes from: `local`, `inherited from …`, `default`.
fn source(vm: &Vm, property: &str, dataset: &str) -> String {
    let value = vm.ok(&format!("zfs get -Hp -o source {property} {dataset}"));
    value.unwrap().trim().to_owned()
}

/// What ZFS itself reserves for a thick zvol of this size.
fn reservation(vm: &Vm, mib: i64) -> String {
    vm.ok(&format!("zfs create -V {mib}M -b 16k tank/reference"))
        .unwrap();
    let value = get(vm, "refreservation", "tank/reference");
    vm.ok("udevadm settle; zfs destroy tank/reference").unwrap();
    value
}

fn modify(fleet: &Fleet, id: &str, key: &str, value: &str) -> Result<(), Status> {
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: id.into(),
        mutable_parameters: HashMap::from([(key.into(), value.into())]),
        ..Default::default()
    };
    let mut client = fleet.controller.controller();
    let call = client.controller_modify_volume(fleet.controller.request(request));
    fleet.controller.call(call).map(drop)
}

fn expand(fleet: &Fleet, id: &str, bytes: i64) -> Result<i64, Status> {
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let mut client = fleet.controller.controller();
    let call = client.controller_expand_volume(fleet.controller.request(request));
    Ok(fleet.controller.call(call)?.capacity_bytes)
}

#[test]
fn bug_c_81_thick_thin_and_tuning_are_what_zfs_has() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let wanted = Wanted::named("pvc-tuned")
        .size(64 * MIB)
        .parameter("provisioning", "thick")
        .parameter("compression", "zstd-3-fast")
        .parameter("sync", "always");
    let volume = fleet.create(&wanted);
    let dataset = "tank/csi/block/pvc-tuned";
    assert_eq!(
        get(storage, "refreservation", dataset),
        reservation(storage, 64)
    );
    assert_eq!(get(storage, "compression", dataset), "zstd-fast-3");
    assert_eq!(get(storage, "sync", dataset), "always");
    assert_ne!(source(storage, "logbias", dataset), "local");

    for (value, found) in [
        ("zstd", "zstd"),
        ("zstd-9", "zstd-9"),
        ("zstd-1-fast", "zstd-fast"),
        ("zstd-9-fast", "zstd-fast-9"),
        ("gzip", "gzip"),
        ("on", "on"),
        ("off", "off"),
        ("lz4", "lz4"),
    ] {
        modify(&fleet, &volume.id, "compression", value).unwrap();
        assert_eq!(get(storage, "compression", dataset), found);
    }
    modify(&fleet, &volume.id, "logbias", "throughput").unwrap();
    assert_eq!(get(storage, "logbias", dataset), "throughput");
    // The reservation goes with the size, goes, and comes back.
    assert_eq!(expand(&fleet, &volume.id, 128 * MIB).unwrap(), 128 * MIB);
    let thick = reservation(storage, 128);
    assert_eq!(get(storage, "refreservation", dataset), thick);
    modify(&fleet, &volume.id, "refreservation", "none").unwrap();
    assert_eq!(get(storage, "refreservation", dataset), "0");
    modify(&fleet, &volume.id, "refreservation", "auto").unwrap();
    assert_eq!(get(storage, "refreservation", dataset), thick);
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn fault_a_thick_volume_that_its_pool_cannot_hold_stays_as_it_is_and_serves() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("truncate -s 256M /var/tmp/tight.img && zpool create -f tight /var/tmp/tight.img")
        .unwrap();
    let wanted = Wanted::named("pvc-tight")
        .size(64 * MIB)
        .parameter("pool", "tight")
        .parameter("provisioning", "thick");
    let volume = fleet.create(&wanted);
    volume.bring_to("node0");
    let sum = volume.write("node0");
    assert_refused(
        expand(&fleet, &volume.id, 1024 * MIB),
        Code::OutOfRange,
        &["tight"],
    );
    let dataset = "tight/csi/block/pvc-tight";
    assert_eq!(get(storage, "volsize", dataset), (64 * MIB).to_string());
    assert_eq!(volume.read("node0"), sum);
    assert_eq!(expand(&fleet, &volume.id, 80 * MIB).unwrap(), 80 * MIB);
    volume.take_from("node0");
    volume.delete();
    storage
        .ok("zpool destroy tight; rm /var/tmp/tight.img")
        .unwrap();
    fleet.assert_clean();
}

#[test]
fn options_of_mkfs_reach_the_filesystem() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let ext4 = Wanted::named("pvc-mkfs").parameter("mkfsOptions", "-m 2 -I 512 -O large_dir");
    let volume = fleet.create(&ext4);
    let shown = storage
        .ok("dumpe2fs -h /dev/zvol/tank/csi/block/pvc-mkfs 2>/dev/null")
        .unwrap();
    for line in ["Reserved block count:     5242", "512", "large_dir"] {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
    volume.bring_to("node0");
    let sum = volume.write("node0");
    volume.take_from("node0");
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum);
    volume.take_from("node1");
    volume.delete();
    let xfs = Wanted::named("pvc-mkfs-xfs")
        .fs("xfs")
        .parameter("mkfsOptions", "-m reflink=0 -i size=1024");
    let volume = fleet.create(&xfs);
    let shown = storage
        .ok("xfs_db -r -c info /dev/zvol/tank/csi/block/pvc-mkfs-xfs")
        .unwrap();
    assert!(
        shown.contains("isize=1024") && shown.contains("reflink=0"),
        "{shown}"
    );
    volume.delete();
    for (fs_type, text) in [
        ("xfs", "-l logdev=/dev/vdb"),
        ("xfs", "-m 2"),
        ("ext4", "-J device=vdb"),
        ("ext4", "-m 99"),
    ] {
        let wanted = Wanted::named("pvc-hostile")
            .fs(fs_type)
            .parameter("mkfsOptions", text);
        assert_refused(
            fleet.controller.create(&wanted),
            Code::InvalidArgument,
            &["mkfsOptions"],
        );
    }
    fleet.assert_clean();
}

#[test]
fn fault_a_degraded_pool_still_serves() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("cd /var/tmp && truncate -s 512M m0.img m1.img && zpool create -f pair mirror /var/tmp/m0.img /var/tmp/m1.img")
        .unwrap();
    let volume = fleet.create(
        &Wanted::named("pvc-pair")
            .size(64 * MIB)
            .parameter("pool", "pair"),
    );
    volume.bring_to("node0");
    let sum = volume.write("node0");
    storage.ok("zpool offline pair /var/tmp/m1.img").unwrap();
    let health = storage.ok("zpool list -H -o health pair").unwrap();
    assert_eq!(health.trim(), "DEGRADED");
    assert_eq!(volume.read("node0"), sum);
    volume.take_from("node0");
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum);
    assert_eq!(expand(&fleet, &volume.id, 96 * MIB).unwrap(), 96 * MIB);
    // A restarted agent converges it as any other.
    fleet.storage.kill().unwrap();
    fleet.storage.start().unwrap();
    volume.write("node1");
    volume.take_from("node1");
    volume.delete();
    storage
        .ok("zpool destroy pair; rm /var/tmp/m0.img /var/tmp/m1.img")
        .unwrap();
    fleet.assert_clean();
}

#[test]
fn fault_a_pool_that_comes_late() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("truncate -s 256M /var/tmp/late.img && zpool create -f late /var/tmp/late.img")
        .unwrap();
    let volume = fleet.create(
        &Wanted::named("pvc-late")
            .per_volume()
            .size(64 * MIB)
            .parameter("pool", "late"),
    );
    fleet.storage.stop().unwrap();
    storage
        .ok("cd /sys/kernel/config/nvmet && rm ports/*/subsystems/*pvc-late && \
             echo 0 > $(echo subsystems/*pvc-late/namespaces/1/enable) && udevadm settle && zpool export late")
        .unwrap();
    fleet.storage.start().unwrap();
    assert_refused(
        volume.attach("node0"),
        Code::FailedPrecondition,
        &["late", "not imported"],
    );
    // By now the retries have become so rare that only the kernel's word can be as fast as this.
    storage.ok("sleep 20").unwrap();
    storage
        .ok(
            "zpool import -d /var/tmp late && cd /sys/kernel/config/nvmet && \
             timeout 5 sh -c 'until [ -e ports/1/subsystems/*pvc-late ]; do :; done'",
        )
        .unwrap();
    volume.bring_to("node0");
    volume.write("node0");
    volume.take_from("node0");
    volume.delete();
    storage
        .ok("udevadm settle; zpool destroy late; rm /var/tmp/late.img")
        .unwrap();
    fleet.assert_clean();
}

#[test]
fn fault_an_address_that_comes_late() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let ipv6 = storage.ipv6();
    fleet.storage.stop().unwrap();
    storage
        .ok(&format!("ip -6 address del {ipv6}/64 dev lan0"))
        .unwrap();
    // It is ready without, and serves by the other portal.
    let started = fleet.storage.start();
    let controller = started.and_then(|()| fleet.storage.csi());
    let outcome = controller.map(|socket| {
        let made = socket.create(&Wanted::named("pvc-address").per_volume().size(64 * MIB));
        let linked = storage.ok("ls /sys/kernel/config/nvmet/ports/*/subsystems");
        (made, linked)
    });
    storage
        .ok(&format!("ip -6 address add {ipv6}/64 dev lan0 nodad"))
        .unwrap();
    let (made, linked) = outcome.unwrap();
    made.unwrap();
    assert_eq!(linked.unwrap().matches("pvc-address").count(), 1);
    storage
        .ok("cd /sys/kernel/config/nvmet/ports && \
             timeout 10 sh -c 'until [ $(ls -d */subsystems/*pvc-address | wc -l) = 2 ]; do :; done'")
        .unwrap();
    let listening = storage.ok("ss -H -l -t -n 'sport = :4420'").unwrap();
    assert!(listening.contains(ipv6), "{listening}");
    let socket = fleet.storage.csi().unwrap();
    socket.delete("pvc-address").unwrap();
    fleet.assert_clean();
}

/// The agent dies in the midst of making a volume read-only at the target: the next one finishes, and neither the
/// loop port nor the agent itself stays among the volume's ways in.
#[test]
fn crash_rule_05_in_the_midst_of_a_switch() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-switch"));
    let storage = fleet.vm("storage0");
    let attach = |readonly| {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: "node0".into(),
            volume_capability: Some(single_writer("ext4")),
            readonly,
            ..Default::default()
        };
        let socket = fleet.storage.csi().unwrap();
        let mut client = socket.controller();
        let call = client.controller_publish_volume(socket.request(request));
        socket.call(call)
    };
    for point in [
        "nvmet.loop-open:after",
        "nvme.write-protect:after",
        "nvmet.loop-close:after",
    ] {
        fleet.storage.stop().unwrap();
        fleet
            .storage
            .start_with(&[("ZVOLT_KILL_AT", point)])
            .unwrap();
        attach(true).expect_err(point);
        fleet.storage.wait_dead().unwrap();
        fleet.storage.start().unwrap();
        let context = attach(true).unwrap().publish_context;
        volume.stage("node0", &context).unwrap();
        let read_only = fleet
            .vm("node0")
            .ok("cat /sys/block/nvme*n1/ro | sort -u")
            .unwrap();
        assert_eq!(read_only.trim(), "1", "{point}");
        let ways = storage
            .ok("cd /sys/kernel/config/nvmet && ls ports/*/subsystems subsystems/*pvc-switch/allowed_hosts && \
                 cat /sys/class/nvme/nvme*/transport 2>/dev/null || true")
            .unwrap();
        assert!(!ways.contains(".agent:"), "{point}: {ways}");
        assert!(!ways.contains("loop"), "{point}: {ways}");
        assert_eq!(
            ways.matches("pvc-switch").count(),
            3,
            "{point}: two links and a title: {ways}"
        );
        volume.unstage("node0").unwrap();
        let socket = fleet.storage.csi().unwrap();
        socket.controller_unpublish(&volume.id, "node0").unwrap();
        // A writer is next, so that every round switches anew.
        attach(false).unwrap();
        socket.controller_unpublish(&volume.id, "node0").unwrap();
    }
    fleet.storage.csi().unwrap().delete(&volume.id).unwrap();
    fleet.assert_clean();
}
