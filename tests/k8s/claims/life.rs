//! The main job, from a claim to its end, and what each part of it takes.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zvolt::model::names::host_nqn;

use super::fixture::{Cluster, ours};
use super::kubelet::{Pod, make_pod};
use super::objects::{Bound, GROUPS, Objects, SNAPSHOTS, claim_at, volume_at};
use crate::cluster::fixture::lab;

const CLASS: &str = "zvolt-immediate";
const GIB: u64 = 1 << 30;

/// Whether the target lets the pod's node in, and nobody else.
fn admits(pod: &Pod<'_>) -> bool {
    let context = pod.attachment();
    let hosts = format!(
        "/sys/kernel/config/nvmet/subsystems/{}/allowed_hosts",
        context["nqn"]
    );
    let listed = lab().vm("storage0").run(&format!("ls {hosts}")).unwrap();
    listed.stdout.trim() == host_nqn(pod.node)
}

fn property(handle: &str, name: &str) -> String {
    let script = format!("zfs get -H -o value {name} tank/csi/block/{handle}");
    let said = lab().vm("storage0").ok(&script).unwrap();
    said.trim().to_owned()
}

fn grow(objects: &Objects, pod: &Pod<'_>) {
    let wish = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    objects.patch(&claim_at(&pod.volume.claim), &wish);
    objects.until(&volume_at(&pod.volume.volume), "grown", |volume| {
        (volume["spec"]["capacity"]["storage"] == "2Gi").then_some(())
    });
    let volume = objects.get(&ours(&format!("volumes/{}", pod.volume.handle)));
    assert_eq!(volume["spec"]["capacity"], 2 * GIB);
    assert_eq!(
        property(&pod.volume.handle, "-p volsize"),
        (2 * GIB).to_string()
    );
    pod.grow("2Gi");
    assert!(pod.bytes() > 3 * GIB / 2);
}

/// A claim that was made with the class `zvolt-throughput` gets another.
fn modify(objects: &Objects, bound: &Bound) {
    assert_eq!(property(&bound.handle, "logbias"), "throughput");
    assert_eq!(property(&bound.handle, "compression"), "zstd");
    let wish = json!({"spec": {"volumeAttributesClassName": "zvolt-latency"}});
    objects.patch(&claim_at(&bound.claim), &wish);
    objects.until(&claim_at(&bound.claim), "modified", |claim| {
        let now = &claim["status"]["currentVolumeAttributesClassName"];
        (now == "zvolt-latency").then_some(())
    });
    assert_eq!(property(&bound.handle, "logbias"), "latency");
}

fn ready(objects: &Objects, target: &str) {
    objects.until(target, "ready to use", |snapshot| {
        (snapshot["status"]["readyToUse"] == true).then_some(())
    });
}

fn snapshot(objects: &Objects, name: &str, claim: &str) -> String {
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotClassName": "zvolt",
            "source": {"persistentVolumeClaimName": claim},
        },
    });
    objects.create(SNAPSHOTS, &snapshot);
    let target = format!("{SNAPSHOTS}/{name}");
    ready(objects, &target);
    target
}

fn copied_from(group: Option<&str>, kind: &str, name: &str) -> Value {
    let mut source = json!({"kind": kind, "name": name});
    if let Some(group) = group {
        source["apiGroup"] = group.into();
    }
    json!({"dataSource": source, "resources": {"requests": {"storage": "2Gi"}}})
}

#[test]
fn a_claim_is_served_grows_changes_is_copied_and_dies() {
    let cluster = Cluster::fresh(1);
    let objects = &cluster.objects;
    let tuned = json!({"volumeAttributesClassName": "zvolt-throughput"});
    objects.claim("data", CLASS, tuned);
    let bound = objects.bound("data");
    let pod = Pod::run(&cluster, "data", "node0");
    assert!(admits(&pod));
    let sum = pod.write();
    grow(objects, &pod);
    modify(objects, &bound);
    let taken = snapshot(objects, "taken", "data");
    let group = Some("snapshot.storage.k8s.io");
    objects.claim(
        "restored",
        CLASS,
        copied_from(group, "VolumeSnapshot", "taken"),
    );
    objects.claim(
        "clone",
        CLASS,
        copied_from(None, "PersistentVolumeClaim", "data"),
    );
    let copies = ["restored", "clone"].map(|name| objects.bound(name));
    for copy in &copies {
        let pod = Pod::run(&cluster, &copy.claim, "node1");
        assert_eq!(pod.read(), sum, "{}", copy.claim);
        pod.stop();
    }
    let context = pod.attachment();
    pod.stop();
    let moved = Pod::run(&cluster, "data", "node1");
    assert_eq!(moved.read(), sum, "what node0 wrote");
    assert_eq!(moved.attachment()["nqn"], context["nqn"]);
    moved.stop();
    objects.delete_claim(&bound);
    objects.delete_and_wait(&taken);
    for copy in &copies {
        objects.delete_claim(copy);
    }
    cluster.assert_clean();
}

#[test]
fn claims_are_taken_as_a_group_at_one_moment() {
    let cluster = Cluster::fresh(1);
    let objects = &cluster.objects;
    let claims = ["one", "two"];
    for name in claims {
        objects.claim(name, CLASS, json!({}));
    }
    let bound = claims.map(|name| objects.bound(name));
    let group = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "both"},
        "spec": {
            "volumeGroupSnapshotClassName": "zvolt",
            "source": {"selector": {"matchLabels": {"group": "together"}}},
        },
    });
    objects.create(GROUPS, &group);
    let target = format!("{GROUPS}/both");
    ready(objects, &target);
    objects.until(SNAPSHOTS, "of both", |listed| {
        let items = listed["items"].as_array()?;
        let is_ready = |item: &Value| item["status"]["readyToUse"] == true;
        (items.len() == 2 && items.iter().all(is_ready)).then_some(())
    });
    assert_eq!(objects.items(&ours("snapshots")).len(), 1, "one group");
    let list = "zfs list -H -t snapshot -o createtxg -r tank/csi/block";
    let moments = lab().vm("storage0").ok(list).unwrap();
    let moments: Vec<&str> = moments.split_whitespace().collect();
    assert_eq!(moments.len(), 2);
    assert_eq!(moments[0], moments[1], "in one transaction group");
    objects.delete_and_wait(&target);
    objects.until(SNAPSHOTS, "gone with their group", |listed| {
        listed["items"].as_array()?.is_empty().then_some(())
    });
    for one in &bound {
        objects.delete_claim(one);
    }
    cluster.assert_clean();
}

/// What the driver's own calls took, by its timelines, in order.
fn own(cluster: &Cluster, handle: &str, name: &str) -> Vec<Duration> {
    let all = cluster.replicas[0].csi.operations(handle).unwrap();
    let calls = all.iter().filter(|operation| operation.name == name);
    calls
        .map(|call| Duration::from_nanos(call.total_nanos))
        .collect()
}

/// One claim's way to a node.
fn timed(cluster: &Cluster, name: &str) {
    let objects = &cluster.objects;
    let begin = Instant::now();
    objects.claim(name, CLASS, json!({}));
    let volume = objects.bound(name);
    let bound = begin.elapsed();
    let begin = Instant::now();
    make_pod(cluster, name, name, Some("node0"));
    let pod = Pod::attached(cluster, name, name);
    let attached = begin.elapsed();
    let created = own(cluster, &volume.handle, "CreateVolume");
    assert_eq!(created.len(), 1, "asked for once");
    // external-attacher may ask again before it has seen its own writes.
    let published = own(cluster, &volume.handle, "ControllerPublishVolume");
    assert!(created[0] < bound && published[0] < attached);
    // Past the capture: a figure is for whoever runs it.
    let told = writeln!(
        std::io::stderr(),
        "claim to bound {bound:?}, of it CreateVolume {:?}; pod to attached {attached:?}, of it ControllerPublishVolume {published:?}",
        created[0],
    );
    told.unwrap();
    pod.leave();
    objects.delete_claim(&volume);
}

#[test]
fn a_volume_is_asked_for_once_and_the_driver_takes_its_part_of_the_way() {
    let cluster = Cluster::fresh(1);
    for round in 0..5 {
        timed(&cluster, &format!("timed-{round}"));
    }
    cluster.assert_clean();
}
