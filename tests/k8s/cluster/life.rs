//! The main job, over the Kubernetes API.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use zvolt_lab::orchestrator::{Csi, Wanted};
use zvolt_lab::snapshots::From;
use zvolt_proto::csi;

use super::fixture::{Cluster, Controller, FS, names_of};
use crate::plane::{alone, plane};

const GIB: i64 = 1 << 30;

fn expand(csi: &Csi, id: &str, bytes: i64) {
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let mut client = csi.controller();
    let answer = csi.call(client.controller_expand_volume(csi.request(request)));
    assert!(answer.unwrap().capacity_bytes >= bytes);
}

#[test]
fn a_volume_lives_moves_grows_is_copied_and_dies() {
    let cluster = Cluster::fresh();
    let controller = &cluster.controller.csi;
    let volume = cluster.create("pvc-life");
    assert_eq!(alone(names_of("volumes")), ["pvc-life"]);
    volume.bring_to("node0");
    let sum = volume.write("node0");
    volume.take_from("node0");
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum, "what node0 wrote");
    expand(controller, &volume.id, 2 * GIB);
    volume.grow_on("node1");
    assert!(volume.bytes("node1") > 3 << 29);

    let snapshot = controller.create_snapshot("snap-life", &volume.id).unwrap();
    let from_snapshot = Wanted::named("pvc-restored").size(2 * GIB);
    let from_snapshot =
        controller.create_from(&from_snapshot, From::Snapshot(&snapshot.snapshot_id));
    let restored = cluster.volume(&from_snapshot.unwrap().volume_id);
    let clone = Wanted::named("pvc-clone").size(2 * GIB);
    let clone = controller.create_from(&clone, From::Volume(&volume.id));
    let clone = cluster.volume(&clone.unwrap().volume_id);
    for copy in [&restored, &clone] {
        copy.bring_to("node0");
        assert_eq!(copy.read("node0"), sum, "{}", copy.id);
        copy.take_from("node0");
    }
    volume.take_from("node1");
    volume.delete();
    controller.delete_snapshot(&snapshot.snapshot_id).unwrap();
    restored.delete();
    clone.delete();
    cluster.assert_clean();
}

#[test]
fn two_controllers_serve_one_volumes_calls_in_turn() {
    let cluster = Cluster::fresh();
    let second = Controller::start(&cluster.release);
    let both = [&cluster.controller.csi, &second.csi];
    let wanted = Wanted::named("pvc-turns");
    let made = thread::scope(|scope| {
        let calls = both.map(|csi| scope.spawn(|| csi.create(&wanted)));
        calls.map(|call| call.join().unwrap().unwrap().volume_id)
    });
    assert_eq!(made[0], made[1], "both were asked for it at once");
    let id = made[0].as_str();
    let context = second.csi.controller_publish(id, "node0", FS).unwrap();
    let volume = cluster.volume(id);
    assert_eq!(volume.attach("node0").unwrap(), context, "the same again");
    volume.bring_to("node0");
    let sum = volume.write("node0");
    let held = second.csi.controller_publish(id, "node1", FS).unwrap_err();
    assert_eq!(held.code(), tonic::Code::FailedPrecondition, "{held}");
    let held = second.csi.delete(id).unwrap_err();
    assert_eq!(held.code(), tonic::Code::FailedPrecondition, "{held}");
    volume.take_down("node0");
    second.csi.controller_unpublish(id, "node0").unwrap();
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum);
    expand(&second.csi, id, 2 * GIB);
    volume.take_from("node1");
    second.csi.delete(id).unwrap();
    volume.delete();
    cluster.assert_clean();
}

/// What both accounts have asked for so far.
fn asked(cluster: &Cluster) -> Vec<Value> {
    let of = |component| {
        let account = cluster.release.account(component);
        plane().audited(&account).unwrap()
    };
    [of("controller"), of("agent")].concat()
}

fn is_write(event: &Value) -> bool {
    !["get", "list", "watch"].contains(&event["verb"].as_str().unwrap())
}

#[test]
fn a_publish_is_two_writes_of_the_api() {
    let cluster = Cluster::fresh();
    let volume = cluster.create("pvc-writes");
    let settle = Duration::from_secs(3);
    thread::sleep(settle);
    let before = asked(&cluster).len();
    volume.attach("node0").unwrap();
    thread::sleep(settle);
    let all = asked(&cluster);
    let mut writes: Vec<&Value> = all.iter().filter(|event| is_write(event)).collect();
    writes.sort_by_key(|event| event["requestReceivedTimestamp"].as_str().unwrap());
    let since = all.len() - before;
    let said: Vec<String> = writes[writes.len() - 2..]
        .iter()
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            let uri = text("requestURI");
            format!(
                "{} {} {}",
                event["user"]["username"].as_str().unwrap(),
                text("verb"),
                uri.split('?')
                    .next()
                    .unwrap()
                    .rsplit_once("volumes/")
                    .map_or("", |(_, rest)| rest)
            )
        })
        .collect();
    let expected = ["controller", "agent"].map(|component| {
        let account = cluster.release.account(component);
        format!("{account} update pvc-writes/status")
    });
    assert_eq!(said, expected);
    assert!(
        since <= 6,
        "a get, a list, a watch and its end, and two writes: {since}"
    );
    volume.detach("node0");
    volume.delete();
    cluster.assert_clean();
}

#[test]
fn a_quiet_cluster_asks_the_api_nothing() {
    /// Longer than an agent waits before it looks at its pools again.
    const QUIET: Duration = Duration::from_secs(75);
    let cluster = Cluster::fresh();
    let volume = cluster.create("pvc-quiet");
    volume.attach("node0").unwrap();
    thread::sleep(Duration::from_secs(5));
    let before = asked(&cluster).len();
    thread::sleep(QUIET);
    let all = asked(&cluster);
    assert_eq!(all.len(), before, "{:#?}", &all[all.len() - 1]);
    volume.detach("node0");
    volume.delete();
    cluster.assert_clean();
}
