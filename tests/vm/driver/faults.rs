//! Faults that an operator meets: each call answers with what to do, and leaves nothing behind.

use std::thread;
use std::time::{Duration, Instant};

use tonic::Code;
use zvolt_lab::orchestrator::Wanted;

use crate::fleet::{Fleet, assert_refused};

#[test]
fn fault_a_pool_that_does_not_exist() {
    let fleet = Fleet::fresh();
    let wanted = Wanted::named("pvc-nopool").parameter("pool", "nope");
    assert_refused(
        fleet.controller.create(&wanted),
        Code::InvalidArgument,
        &["nope", "storage0"],
    );
    fleet.assert_clean();
}

#[test]
fn fault_a_full_pool() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("truncate -s 128M /var/tmp/tiny.img && zpool create -f tiny /var/tmp/tiny.img && \
             dd if=/dev/urandom of=/tiny/fill bs=1M conv=fsync status=none || true; zpool sync tiny")
        .unwrap();
    let outcome = fleet
        .controller
        .create(&Wanted::named("pvc-full").parameter("pool", "tiny"));
    let left = storage.ok("zfs list -H -o name -r tiny").unwrap();
    storage
        .ok("zpool destroy tiny; rm /var/tmp/tiny.img")
        .unwrap();
    assert_refused(outcome, Code::ResourceExhausted, &["tiny"]);
    assert!(!left.contains("pvc-full"), "{left}");
    fleet.assert_clean();
}

#[test]
fn fault_a_quota_that_is_reached() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("zfs create -p -o mountpoint=none tank/csi/block 2>/dev/null; zfs set quota=64K tank/csi/block")
        .unwrap();
    let outcome = fleet.controller.create(&Wanted::named("pvc-quota"));
    storage.ok("zfs set quota=none tank/csi/block").unwrap();
    assert_refused(outcome, Code::ResourceExhausted, &["tank"]);
    fleet.assert_clean();
    // It looks at its pools now and then: the next test would meet what it saw last.
    fleet.storage.stop().unwrap();
}

#[test]
fn fault_a_dataset_of_that_name_is_somebody_elses() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("zfs create -p -o mountpoint=none tank/csi/block; zfs create -s -V 1G tank/csi/block/pvc-theirs; \
             until [ -e /dev/zvol/tank/csi/block/pvc-theirs ]; do :; done; \
             echo precious | dd of=/dev/zvol/tank/csi/block/pvc-theirs bs=4k count=1 conv=sync,fsync status=none")
        .unwrap();
    let outcome = fleet.controller.create(&Wanted::named("pvc-theirs"));
    assert_refused(outcome, Code::FailedPrecondition, &["pvc-theirs"]);
    let head = storage
        .ok("dd if=/dev/zvol/tank/csi/block/pvc-theirs bs=4k count=1 status=none | tr -d '\\0'")
        .unwrap();
    assert_eq!(
        head.trim(),
        "precious",
        "rule 1: what is not ours is never formatted"
    );
    storage.ok("zfs destroy tank/csi/block/pvc-theirs").unwrap();
    fleet.assert_clean();
}

/// The target's network is gone when a node stages: the call ends in time and leaves no controller.
#[test]
fn fault_a_dead_target_at_stage() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-away"));
    let context = volume.attach("node0").unwrap();
    volume
        .fleet
        .vm("node0")
        .ok(&format!("mkdir -p {}", volume.staging()))
        .unwrap();
    fleet.vm("storage0").cut_network().unwrap();
    let begin = Instant::now();
    let outcome = fleet.nodes["node0"].within(Duration::from_secs(6)).stage(
        &volume.id,
        &context,
        &volume.staging(),
        "ext4",
    );
    let took = begin.elapsed();
    fleet.vm("storage0").restore_network().unwrap();
    let status = outcome.expect_err("nobody answers");
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable),
        "{status:?}"
    );
    assert!(took < Duration::from_secs(9), "took {took:?}");
    // The kernel's own connect may still be trying: the volume is busy until it gives up.
    let deadline = Instant::now() + Duration::from_secs(120);
    while let Err(status) = volume.stage("node0", &context) {
        assert!(Instant::now() < deadline, "{status:?}");
        assert!(
            matches!(status.code(), Code::Aborted | Code::Unavailable),
            "{status:?}"
        );
    }
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn fault_a_node_that_was_not_admitted() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-stranger"));
    let context = volume.attach("node0").unwrap();
    assert_refused(
        volume.stage("node1", &context),
        Code::Unavailable,
        &["refused this host", "ControllerPublishVolume"],
    );
    let left = fleet.vm("node1").ok("ls /sys/class/nvme").unwrap();
    assert_eq!(left, "");
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn fault_two_calls_for_one_volume_at_once() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-race").per_volume());
    let context = volume.attach("node0").unwrap();
    let enable = format!(
        "/sys/kernel/config/nvmet/subsystems/{}/namespaces/1/enable",
        context["nqn"]
    );
    // The first call is held where it waits for its namespace.
    fleet
        .vm("storage0")
        .ok(&format!("echo 0 > {enable}"))
        .unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| volume.stage("node0", &context));
        fleet
            .vm("node0")
            .ok("until grep -qs live /sys/class/nvme/nvme*/state; do :; done")
            .unwrap();
        assert_refused(
            volume.stage("node0", &context),
            Code::Aborted,
            &["pvc-race"],
        );
        assert_refused(volume.unstage("node0"), Code::Aborted, &["pvc-race"]);
        fleet
            .vm("storage0")
            .ok(&format!("echo 1 > {enable}"))
            .unwrap();
        first.join().unwrap().unwrap();
    });
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn fault_an_option_that_the_filesystem_does_not_take() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-option").per_volume());
    let context = volume.attach("node0").unwrap();
    fleet
        .vm("node0")
        .ok(&format!("mkdir -p {}", volume.staging()))
        .unwrap();
    let outcome = fleet.nodes["node0"].stage_with_flags(
        &volume.id,
        &context,
        &volume.staging(),
        "ext4",
        &["no_such_option"],
    );
    assert_refused(outcome, Code::InvalidArgument, &["no_such_option"]);
    assert_eq!(fleet.vm("node0").ok("ls /sys/class/nvme").unwrap(), "");
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

/// A stop by SIGTERM lets the running call finish.
#[test]
fn fault_a_stop_in_the_middle_of_a_call() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-stop"));
    let context = volume.attach("node0").unwrap();
    thread::scope(|scope| {
        let stage = scope.spawn(|| volume.stage("node0", &context));
        fleet
            .vm("node0")
            .ok("until grep -qs . /sys/class/nvme/nvme*/state; do :; done; systemctl stop zvolt")
            .unwrap();
        stage
            .join()
            .unwrap()
            .expect("the running call is finished, not cut");
    });
    fleet.node0.start().unwrap();
    volume.stage("node0", &context).unwrap();
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}
