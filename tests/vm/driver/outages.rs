//! Outages under I/O: what a user sees, and that nothing that was acknowledged is lost. `docs/outages.md` has a
//! row for each.

use std::time::{Duration, Instant};

use tonic::Code;
use zvolt_lab::orchestrator::Wanted;
use zvolt_lab::{Running, Vm};

use crate::fleet::{Fleet, Journey, assert_refused};

/// A pod that appends numbers to a file, each synced before the next, and notes the last that was
/// acknowledged.
pub(crate) struct Writer<'a> {
    vm: &'static Vm,
    /// Where its notes are.
    notes: String,
    file: String,
    process: Running<'a>,
}

impl Writer<'_> {
    pub(crate) fn start(volume: &Journey<'_>, node: &str) -> Self {
        let vm = volume.fleet.vm(node);
        let file = format!("{}/log", volume.target());
        let notes = format!("/run/writer-{}", volume.id);
        vm.ok(&format!(
            "mkdir -p {notes} && rm -f {notes}/acknowledged && touch {notes}/writing"
        ))
        .unwrap();
        let process = vm
            .spawn(&format!(
                "cd {notes}; i=0; while [ -e writing ]; do i=$((i+1)); \
                 echo $i >> {file} && sync {file} && echo $i > next && mv next acknowledged || exit 1; \
                 done"
            ))
            .unwrap();
        let writer = Self {
            vm,
            notes,
            file,
            process,
        };
        writer.goes_on_from(0);
        writer
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        let notes = &self.notes;
        let text = self
            .vm
            .ok(&format!("cat {notes}/acknowledged 2>/dev/null || echo 0"));
        text.unwrap().trim().parse().unwrap()
    }

    /// Waits until some more numbers than `before` have been acknowledged.
    pub(crate) fn goes_on_from(&self, before: u64) {
        let deadline = Instant::now() + Duration::from_secs(180);
        while self.acknowledged() < before + 3 {
            assert!(Instant::now() < deadline, "the writer does not go on");
        }
    }

    /// Ends it, and compares what is in the file with what was acknowledged.
    pub(crate) fn finish(self) {
        let notes = self.notes;
        self.vm.ok(&format!("rm -f {notes}/writing")).unwrap();
        let out = self.process.wait().unwrap();
        assert_eq!(out.status, 0, "no write failed: {}", out.stderr);
        let (vm, file) = (self.vm, self.file);
        vm.ok(&format!(
            "a=$(cat {notes}/acknowledged); seq 1 $a | cmp - {file} || {{ tail -n 3 {file}; exit 1; }}"
        ))
        .expect("each acknowledged number is there once, in order");
    }
}

fn bring<'a>(fleet: &'a Fleet, name: &str) -> Journey<'a> {
    let volume = fleet.create(&Wanted::named(name));
    volume.bring_to("node0");
    volume
}

fn end(volume: &Journey<'_>) {
    volume.take_from("node0");
    volume.delete();
    volume.fleet.assert_clean();
}

/// The power of the storage host is cut in the middle of writes: they wait, and go on after its start, though its agent
/// is there before its pool.
#[test]
fn outage_storage_power_cut_under_io() {
    let fleet = Fleet::fresh();
    let volume = bring(&fleet, "pvc-power");
    let writer = Writer::start(&volume, "node0");
    let storage = fleet.vm("storage0");
    storage.reboot_hard().unwrap();
    storage.wait_ready(Duration::from_secs(300)).unwrap();
    let before = writer.acknowledged();
    fleet.storage.start().unwrap();
    let held = storage.ok("ip rule").unwrap();
    assert!(held.contains("blackhole"), "no portal answers yet: {held}");
    storage.ok("zpool import -f tank").unwrap();
    writer.goes_on_from(before);
    writer.finish();
    volume.unpublish("node0").unwrap();
    volume.unstage("node0").unwrap();
    // The way to the old process went with the machine.
    let controller = fleet.storage.csi().unwrap();
    controller
        .controller_unpublish(&volume.id, "node0")
        .unwrap();
    controller.delete(&volume.id).unwrap();
    fleet.assert_clean();
}

/// The network is cut for five minutes: longer than every default time-out of the kernel's connect.
#[test]
#[allow(clippy::disallowed_methods, reason = "an outage takes its time")]
fn outage_network_cut_for_five_minutes() {
    let fleet = Fleet::fresh();
    let volume = bring(&fleet, "pvc-cut");
    let writer = Writer::start(&volume, "node0");
    let storage = fleet.vm("storage0");
    storage.cut_network().unwrap();
    std::thread::sleep(Duration::from_secs(300));
    let before = writer.acknowledged();
    storage.restore_network().unwrap();
    writer.goes_on_from(before);
    writer.finish();
    end(&volume);
}

/// The agent is killed: I/O does not notice, other volumes can be published after its start.
#[test]
fn outage_agent_killed_under_io() {
    let fleet = Fleet::fresh();
    let volume = bring(&fleet, "pvc-agent");
    let writer = Writer::start(&volume, "node0");
    fleet.storage.kill().unwrap();
    writer.goes_on_from(writer.acknowledged());
    fleet.storage.start().unwrap();
    let other = fleet.create(&Wanted::named("pvc-other"));
    other.bring_to("node1");
    writer.goes_on_from(writer.acknowledged());
    other.take_from("node1");
    other.delete();
    writer.finish();
    end(&volume);
}

/// The node's driver is killed: I/O does not notice, and the volume is taken down after its start.
#[test]
fn outage_node_killed_under_io() {
    let fleet = Fleet::fresh();
    let volume = bring(&fleet, "pvc-node");
    let writer = Writer::start(&volume, "node0");
    fleet.node0.kill().unwrap();
    writer.goes_on_from(writer.acknowledged());
    fleet.node0.start().unwrap();
    writer.goes_on_from(writer.acknowledged());
    writer.finish();
    end(&volume);
}

/// A thin volume outgrows its pool: writes fail, what was acknowledged stays, and once there is room the
/// volume is as it was.
#[test]
fn outage_a_pool_that_runs_full() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("truncate -s 256M /var/tmp/small.img && zpool create -f small /var/tmp/small.img")
        .unwrap();
    let volume = fleet.create(&Wanted::named("pvc-outgrown").parameter("pool", "small"));
    volume.bring_to("node0");
    let sum = volume.write("node0");
    let fill = fleet.vm("node0").run(&format!(
        "dd if=/dev/urandom of={}/fill bs=1M count=512 conv=fsync status=none",
        volume.target()
    ));
    assert_ne!(fill.unwrap().status, 0, "the pool has no room for it");
    storage
        .ok("truncate -s 2G /var/tmp/small.img && zpool online -e small /var/tmp/small.img && zpool sync small")
        .unwrap();
    volume.take_from("node0");
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum, "what was acknowledged is there");
    volume.write("node1");
    volume.take_from("node1");
    volume.delete();
    storage
        .ok("zpool destroy small; rm /var/tmp/small.img")
        .unwrap();
    fleet.assert_clean();
}

/// Somebody destroys the zvol of a volume that is in use: the volume is in error for good, is never made
/// again, and can still be taken down.
#[test]
fn outage_a_backend_that_was_destroyed() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-destroyed").per_volume());
    volume.bring_to("node0");
    fleet.storage.stop().unwrap();
    let storage = fleet.vm("storage0");
    storage
        .ok("for e in /sys/kernel/config/nvmet/subsystems/*pvc-destroyed/namespaces/1/enable; do echo 0 > $e; done; \
             zfs destroy tank/csi/block/pvc-destroyed")
        .unwrap();
    fleet.storage.start().unwrap();
    let write = fleet.vm("node0").run(&format!(
        "timeout 30 dd if=/dev/zero of={}/late bs=4k count=1 oflag=direct status=none",
        volume.target()
    ));
    assert_ne!(write.unwrap().status, 0, "a write cannot be acknowledged");
    volume.unpublish("node0").unwrap();
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    assert_refused(
        volume.attach("node1"),
        Code::FailedPrecondition,
        &["tank/csi/block/pvc-destroyed", "missing"],
    );
    let left = storage.ok("zfs list -H -o name -r tank | grep -c pvc-destroyed || true");
    assert_eq!(left.unwrap().trim(), "0", "rule 2: it is not made again");
    volume.delete();
    fleet.assert_clean();
}

/// A target that listens with only some of its subsystems refuses the hosts of the others for good: with many volumes,
/// some of them would lose their mounts in every outage of their storage host.
#[test]
fn outage_of_many_volumes_loses_no_controller() {
    const MANY: usize = 10;
    let fleet = Fleet::fresh();
    let raw = |n: usize| Wanted::named(&format!("pvc-many-{n}")).size(64 << 20);
    let volumes: Vec<Journey<'_>> = (0..MANY).map(|n| fleet.create(&raw(n))).collect();
    for volume in &volumes {
        volume.bring_to("node0");
    }
    let (storage, node) = (fleet.vm("storage0"), fleet.vm("node0"));
    let controllers = || {
        let out = node.ok("ls /sys/class/nvme");
        out.unwrap()
    };
    let before = controllers();
    storage.reboot_hard().unwrap();
    storage.wait_ready(Duration::from_secs(300)).unwrap();
    storage
        .ok("zpool list tank >/dev/null 2>&1 || zpool import -f tank")
        .unwrap();
    fleet.storage.start().unwrap();
    for volume in &volumes {
        node.ok(&format!(
            "timeout 120 sh -c 'echo on > {0}/after && sync {0}/after'",
            volume.target()
        ))
        .unwrap_or_else(|e| panic!("{} does not go on: {e:#}", volume.id));
    }
    assert_eq!(controllers(), before, "the same controllers");
    let rules = storage.ok("ip rule; ip -6 rule").unwrap();
    assert!(!rules.contains("blackhole"), "{rules}");
    let controller = fleet.storage.csi().unwrap();
    for volume in &volumes {
        volume.end_by(&controller, "node0");
    }
    fleet.assert_clean();
}
