//! Volumes with `attach: pooled`: one connection of a node for all of a storage host's volumes, which stays.

use std::time::Duration;

use zvolt_lab::fleet::{Member, warm};
use zvolt_lab::orchestrator::Wanted;

use crate::fleet::{Fleet, Journey, lab};
use crate::outages::Writer;

fn pooled<'a>(fleet: &'a Fleet, name: &str) -> Journey<'a> {
    fleet.create(&Wanted::named(name).parameter("attach", "pooled"))
}

/// The steps of the last call of this name for the volume.
fn steps(volume: &Journey<'_>, node: &str, call: &str) -> Vec<String> {
    let operations = volume.fleet.nodes[node].operations(&volume.id).unwrap();
    let last = operations.iter().rfind(|o| o.name == call).unwrap();
    last.steps.iter().map(|step| step.name.clone()).collect()
}

/// Subsystem and namespace ID of every enabled namespace that is not alone.
fn places(fleet: &Fleet) -> String {
    let script = "cd /sys/kernel/config/nvmet/subsystems && \
        for n in *.pooled:*/namespaces/*; do [ -e $n ] && echo $n $(cat $n/enable $n/device_uuid); done; true";
    fleet.vm("storage0").ok(script).unwrap()
}

fn controllers(fleet: &Fleet, node: &str) -> usize {
    let all = fleet.vm(node).ok("ls /sys/class/nvme").unwrap();
    all.lines().count()
}

/// Three volumes on one node, two of them by one connection; the one of those is fenced under I/O.
#[test]
fn rule_04_a_pooled_volume_is_fenced_under_io_and_its_neighbours_are_not_touched() {
    let fleet = Fleet::fresh();
    let (one, two) = (
        pooled(&fleet, "pvc-pooled-1"),
        pooled(&fleet, "pvc-pooled-2"),
    );
    let alone = fleet.create(&Wanted::named("pvc-alone").per_volume());
    one.bring_to("node0");
    assert!(steps(&one, "node0", "NodeStageVolume").contains(&"fabrics.connect".to_owned()));
    two.bring_to("node0");
    let warm_steps = steps(&two, "node0", "NodeStageVolume");
    assert!(
        !warm_steps.iter().any(|s| s.starts_with("fabrics.")),
        "{warm_steps:?}"
    );
    alone.bring_to("node0");
    assert_eq!(controllers(&fleet, "node0"), 2);
    let bounds = fleet
        .vm("node0")
        .ok("cat /sys/class/nvme/nvme*/nvme*/queue/max_sectors_kb | sort -u")
        .unwrap();
    assert_eq!(bounds.trim(), "1024", "every path is bounded");
    let sum = one.write("node0");
    let writers = [&two, &alone].map(|volume| Writer::start(volume, "node0"));
    let fenced = Writer::start(&one, "node0");
    one.detach("node0").unwrap();
    let last = fenced.acknowledged();
    let late = fleet.vm("node0").run(&format!(
        "timeout 30 dd if=/dev/zero of={}/late bs=4k count=1 oflag=direct conv=fsync status=none",
        one.target()
    ));
    assert_ne!(late.unwrap().status, 0, "a write after the fence must fail");
    one.bring_to("node1");
    assert_eq!(one.read("node1"), sum);
    let log = format!("tail -n 1 {}/log", one.target());
    let kept: u64 = fleet.vm("node1").ok(&log).unwrap().trim().parse().unwrap();
    assert!(
        (last..=last + 1).contains(&kept),
        "what was acknowledged is there, and nothing came later: {last}, {kept}"
    );
    drop(fenced);
    for writer in writers {
        writer.goes_on_from(writer.acknowledged());
        writer.finish();
    }
    one.take_from("node1");
    one.unpublish("node0").unwrap();
    one.unstage("node0").unwrap();
    for volume in [&two, &alone] {
        volume.take_from("node0");
        volume.delete();
    }
    one.delete();
    fleet.assert_clean();
    assert_eq!(
        controllers(&fleet, "node0"),
        1,
        "it is kept for the next one"
    );
}

/// One subsystem is full with one volume: two volumes have two, and their places survive the agent, the node's driver
/// and the storage host's power. What is empty goes when the agent starts.
#[test]
fn outage_pooled_volumes_come_back_where_they_were() {
    let fleet = Fleet::fresh();
    fleet.storage.stop().unwrap();
    let storage = Member::storage(lab()).with_namespaces(1);
    storage.start().unwrap();
    let fleet = Fleet {
        controller: storage.csi().unwrap(),
        ..fleet
    };
    let (one, two) = (
        pooled(&fleet, "pvc-pooled-3"),
        pooled(&fleet, "pvc-pooled-4"),
    );
    one.bring_to("node0");
    two.bring_to("node0");
    assert_eq!(
        controllers(&fleet, "node0"),
        2,
        "a full one is followed by another"
    );
    let writers = [&one, &two].map(|volume| Writer::start(volume, "node0"));
    let were = places(&fleet);
    assert_eq!(were.lines().count(), 2, "{were}");
    // The agent, then the node's driver; and the subsystems have room for more now.
    storage.kill().unwrap();
    fleet.node0.kill().unwrap();
    fleet.storage.start().unwrap();
    fleet.node0.start().unwrap();
    assert_eq!(places(&fleet), were);
    for writer in &writers {
        writer.goes_on_from(writer.acknowledged());
    }
    let vm = fleet.vm("storage0");
    vm.reboot_hard().unwrap();
    vm.wait_ready(Duration::from_secs(300)).unwrap();
    vm.ok("zpool list tank >/dev/null 2>&1 || zpool import -f tank")
        .unwrap();
    fleet.storage.start().unwrap();
    assert_eq!(places(&fleet), were, "the same numbers and identifiers");
    for writer in writers {
        writer.goes_on_from(writer.acknowledged());
        writer.finish();
    }
    // The way to the old process went with the machine.
    let controller = fleet.storage.csi().unwrap();
    for volume in [&one, &two] {
        volume.end_by(&controller, "node0");
    }
    fleet.assert_clean();
    fleet.storage.kill().unwrap();
    fleet.storage.start().unwrap();
    let left = warm(vm).unwrap();
    assert!(
        left.is_empty(),
        "an agent that starts takes them away: {left:?}"
    );
}
