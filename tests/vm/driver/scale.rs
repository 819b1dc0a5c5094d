//! Many volumes at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tonic::Status;
use zvolt_lab::fleet::KUBELET;
use zvolt_lab::orchestrator::Csi;
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume};

use crate::fleet::Fleet;

/// How long a call may wait inside: an orchestrator that boots has patience.
const PATIENCE: Duration = Duration::from_secs(900);

/// What is done with each volume.
type Act<'a> = &'a (dyn Fn(usize) -> Result<(), Status> + Sync);

/// Does `act` for every number below `count`, all at once; any failure fails the test.
fn at_once(what: &str, count: usize, act: Act<'_>) {
    let begin = Instant::now();
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..count {
            let failed = &failed;
            scope.spawn(move || {
                if let Err(status) = act(number) {
                    eprintln!("{what} {number}: {:?}: {}", status.code(), status.message());
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    eprintln!("{count} × {what}: {:.1} s", begin.elapsed().as_secs_f64());
    assert_eq!(
        failed.load(Ordering::Relaxed),
        0,
        "{what}: some calls failed"
    );
}

fn raw() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// A third of them on each machine, the storage host's own by local attach.
const NODES: [&str; 3] = ["node0", "node1", "storage0"];

/// So many by default; the 300 of a whole rack's boot take half an hour to make under emulation:
/// `ZVOLT_STORM=300 cargo lab test vm bug_c_58`.
const STORM: usize = 64;

/// Every one of many stages that come at the same moment waits for its turn inside its call and succeeds
/// (C-58), and 64 of the volumes are published and torn down at the same moment too.
#[test]
fn bug_c_58_a_storm_of_stages_waits_inside_the_calls() {
    let volumes = std::env::var("ZVOLT_STORM").map_or(STORM, |n| n.parse().expect("a count"));
    let published = volumes.min(64);
    eprintln!("{volumes} volumes");
    let fleet = Fleet::fresh();
    let controller = fleet.controller.within(PATIENCE);
    let mut nodes: HashMap<&str, Csi> = HashMap::new();
    for name in NODES {
        let csi = match fleet.nodes.get(name) {
            Some(csi) => csi.clone(),
            None => fleet.controller.clone(),
        };
        nodes.insert(name, csi.within(PATIENCE));
    }
    let id = |number: usize| format!("pvc-storm-{number}");
    let node = |number: usize| NODES[number % NODES.len()];
    let staging = |number: usize| format!("{KUBELET}/plugins/{}", id(number));
    let target = |number: usize| format!("{KUBELET}/pods/{}", id(number));
    at_once("create", volumes, &|number| {
        let request = csi::CreateVolumeRequest {
            name: id(number),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: 16 << 20,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![raw()],
            parameters: HashMap::from([("pool".into(), "tank".into())]),
            ..Default::default()
        };
        controller.create_raw(request).map(drop)
    });
    let attach = |number: usize| {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: id(number),
            node_id: node(number).into(),
            volume_capability: Some(raw()),
            ..Default::default()
        };
        let mut client = controller.controller();
        let reply =
            controller.call(client.controller_publish_volume(controller.request(request)))?;
        Ok::<_, Status>(reply.publish_context)
    };
    at_once("controller publish", volumes, &|number| {
        attach(number).map(drop)
    });
    at_once("stage", volumes, &|number| {
        let request = csi::NodeStageVolumeRequest {
            volume_id: id(number),
            publish_context: attach(number)?,
            staging_target_path: staging(number),
            volume_capability: Some(raw()),
            ..Default::default()
        };
        let csi = &nodes[node(number)];
        let mut client = csi.node();
        csi.call(client.node_stage_volume(csi.request(request)))
            .map(drop)
    });
    at_once("publish", published, &|number| {
        let request = csi::NodePublishVolumeRequest {
            volume_id: id(number),
            publish_context: attach(number)?,
            staging_target_path: staging(number),
            target_path: target(number),
            volume_capability: Some(raw()),
            ..Default::default()
        };
        let csi = &nodes[node(number)];
        let mut client = csi.node();
        csi.call(client.node_publish_volume(csi.request(request)))
            .map(drop)
    });
    at_once("unpublish", published, &|number| {
        nodes[node(number)].unpublish(&id(number), &target(number))
    });
    at_once("unstage", volumes, &|number| {
        nodes[node(number)].unstage(&id(number), &staging(number))
    });
    at_once("controller unpublish", volumes, &|number| {
        controller.controller_unpublish(&id(number), node(number))
    });
    at_once("delete", volumes, &|number| controller.delete(&id(number)));
    fleet.assert_clean();
}
