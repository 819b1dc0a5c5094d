//! The services over a real socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Request, Status};
use zvolt_proto::csi;
use zvolt_proto::csi::controller_client::ControllerClient;
use zvolt_proto::csi::group_controller_client::GroupControllerClient;
use zvolt_proto::csi::identity_client::IdentityClient;
use zvolt_proto::csi::node_client::NodeClient;
use zvolt_proto::trace::ListOperationsRequest;
use zvolt_proto::trace::trace_client::TraceClient;

use super::server::{ControllerSide, Error, NodeSide, Services, serve};
use super::socket::{Endpoint, Listening};
use crate::node::{Node, NodeConfig};
use crate::ops::Journal;
use crate::store::dir::DirStore;

/// A server.
struct Served {
    channel: Channel,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    server: JoinHandle<Result<(), Error>>,
    _dir: TempDir,
}

/// All that there is, with a store in which no agent works.
async fn served() -> Served {
    serving(|dir, journal| {
        let kubelet_dir = dir.to_owned();
        let config = NodeConfig {
            node_id: "storage0".into(),
            kubelet_dir: kubelet_dir.clone(),
            nr_io_queues: None,
            fast_io_fail_tmo: -1,
            keep_alive_tmo: 5,
            reconnect_delay: 2,
            host_traddr: None,
            host_iface: None,
            max_volumes: Some(77),
            udev_rules: None,
            roots: Default::default(),
        };
        let node = NodeSide {
            node: Node::start(config, journal).unwrap(),
            node_id: "storage0".into(),
            kubelet_dir,
        };
        (Some(controller(dir, Some("storage0"))), Some(node))
    })
    .await
}

fn controller(dir: &Path, owner: Option<&str>) -> ControllerSide<DirStore> {
    ControllerSide {
        store: Arc::new(DirStore::open(&dir.join("store")).unwrap()),
        owner: owner.map(str::to_owned),
        consumers: Vec::new(),
    }
}

type Sides = (Option<ControllerSide<DirStore>>, Option<NodeSide>);

async fn serving(sides: impl FnOnce(&Path, Journal) -> Sides) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::new(16);
    let (controller, node) = sides(dir.path(), journal.clone());
    let services = Services {
        controller,
        node,
        journal,
        deadline: Duration::from_secs(60),
        grace: Duration::from_secs(5),
    };
    let socket = dir.path().join("csi.sock");
    let endpoint: Endpoint = socket.to_str().unwrap().parse().unwrap();
    let listening = Listening::bind(&endpoint).unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(serve(services, listening, stopped));
    let path = socket.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Channel::from_static("http://x")
        .connect_with_connector(connector)
        .await
        .unwrap();
    Served {
        channel,
        socket,
        stop,
        server,
        _dir: dir,
    }
}

fn within<T>(patience: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(patience);
    request
}

fn create(name: &str) -> csi::CreateVolumeRequest {
    use csi::volume_capability::access_mode::Mode;
    use csi::volume_capability::{AccessMode, AccessType, MountVolume};
    csi::CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        parameters: [("pool".to_owned(), "tank".to_owned())].into(),
        ..Default::default()
    }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.expect_err("must be refused").code()
}

#[tokio::test]
async fn says_who_it_is_and_only_what_holds() {
    let served = served().await;
    let mut identity = IdentityClient::new(served.channel.clone());
    let info = identity
        .get_plugin_info(csi::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, "zfs.csi.randomvariable.co.uk");
    let capabilities = identity
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    let capabilities = capabilities.into_inner().capabilities;
    assert_eq!(
        capabilities.len(),
        3,
        "two services, and expanding: {capabilities:?}"
    );
    let probe = identity
        .probe(csi::ProbeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(probe.ready, Some(true));
    let mut node = NodeClient::new(served.channel.clone());
    let info = node
        .node_get_info(csi::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.node_id, "storage0");
    let mut controller = ControllerClient::new(served.channel.clone());
    let capabilities = controller
        .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner()
        .capabilities;
    assert_eq!(capabilities.len(), 16, "{capabilities:?}");
    controller
        .get_capacity(csi::GetCapacityRequest::default())
        .await
        .expect("what is advertised is there");
    let mut group = GroupControllerClient::new(served.channel.clone());
    let capabilities = group
        .group_controller_get_capabilities(csi::GroupControllerGetCapabilitiesRequest {})
        .await
        .unwrap();
    assert_eq!(capabilities.into_inner().capabilities.len(), 1);
    assert_eq!(
        code(
            node.node_expand_volume(csi::NodeExpandVolumeRequest::default())
                .await
        ),
        Code::InvalidArgument,
        "served, and nothing was said"
    );
}

#[tokio::test]
async fn a_controller_alone_is_no_node_and_waits_for_an_agent() {
    let served = serving(|dir, _| (Some(controller(dir, None)), None)).await;
    let mut identity = IdentityClient::new(served.channel.clone());
    let capabilities = identity
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner()
        .capabilities;
    assert_eq!(capabilities.len(), 3, "{capabilities:?}");
    let mut node = NodeClient::new(served.channel.clone());
    let outcome = node.node_get_info(csi::NodeGetInfoRequest {}).await;
    assert_eq!(code(outcome), Code::Unimplemented);
    let mut controller = ControllerClient::new(served.channel.clone());
    let status = controller
        .create_volume(create("pvc-early"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("zvolt agent"),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn an_agents_socket_has_the_trace_and_no_csi() {
    let served = serving(|_, _| (None, None)).await;
    let mut trace = TraceClient::new(served.channel.clone());
    trace
        .list_operations(ListOperationsRequest::default())
        .await
        .expect("its operations are told");
    let mut identity = IdentityClient::new(served.channel.clone());
    let outcome = identity.probe(csi::ProbeRequest {}).await;
    assert_eq!(code(outcome), Code::Unimplemented);
    let mut controller = ControllerClient::new(served.channel.clone());
    let outcome = controller.create_volume(create("pvc-none")).await;
    assert_eq!(code(outcome), Code::Unimplemented);
}

#[tokio::test]
async fn hostile_and_unknown_ids_get_their_codes() {
    let served = served().await;
    let mut controller = ControllerClient::new(served.channel.clone());
    let mut node = NodeClient::new(served.channel.clone());
    for id in ["", "a/b", "..", "a\0b", "a\nb", &"x".repeat(129)] {
        let delete = csi::DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        };
        assert_eq!(
            code(controller.delete_volume(delete).await),
            Code::InvalidArgument,
            "{id:?}"
        );
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: served.socket.with_file_name("x").to_str().unwrap().into(),
        };
        assert_eq!(
            code(node.node_unstage_volume(unstage).await),
            Code::InvalidArgument,
            "{id:?}"
        );
    }
    for id in ["pvc-unknown", "Some_Other:Driver's id"] {
        let delete = csi::DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        };
        controller
            .delete_volume(delete)
            .await
            .expect("nothing to delete");
        let validate = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities: create("x").volume_capabilities,
            ..Default::default()
        };
        assert_eq!(
            code(controller.validate_volume_capabilities(validate).await),
            Code::NotFound
        );
    }
}

#[tokio::test]
async fn every_call_checks_its_ids_and_says_what_is_not_there() {
    let served = served().await;
    let mut controller = ControllerClient::new(served.channel.clone());
    let mut group = GroupControllerClient::new(served.channel.clone());
    let range = Some(csi::CapacityRange {
        required_bytes: 1,
        limit_bytes: 0,
    });
    let changes = [("sync".to_owned(), "always".to_owned())];
    for (id, expected) in [
        ("", Code::InvalidArgument),
        ("a/b", Code::InvalidArgument),
        ("..", Code::InvalidArgument),
        ("a\nb", Code::InvalidArgument),
        ("pvc-unknown", Code::NotFound),
        ("Some_Other:Driver's id", Code::NotFound),
    ] {
        let volume_id = id.to_owned();
        let expand = csi::ControllerExpandVolumeRequest {
            volume_id: volume_id.clone(),
            capacity_range: range,
            ..Default::default()
        };
        let modify = csi::ControllerModifyVolumeRequest {
            volume_id: volume_id.clone(),
            mutable_parameters: changes.clone().into(),
            ..Default::default()
        };
        let get = csi::ControllerGetVolumeRequest {
            volume_id: volume_id.clone(),
        };
        let health = csi::ControllerGetVolumeHealthRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let snapshot = csi::CreateSnapshotRequest {
            source_volume_id: volume_id.clone(),
            name: "s".into(),
            ..Default::default()
        };
        let of_group = csi::CreateVolumeGroupSnapshotRequest {
            source_volume_ids: vec![volume_id.clone()],
            name: "g".into(),
            ..Default::default()
        };
        let get_group = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: volume_id,
            ..Default::default()
        };
        let codes = [
            code(controller.controller_expand_volume(expand).await),
            code(controller.controller_modify_volume(modify).await),
            code(controller.controller_get_volume(get).await),
            code(controller.controller_get_volume_health(health).await),
            code(controller.create_snapshot(snapshot).await),
            code(group.create_volume_group_snapshot(of_group).await),
            code(group.get_volume_group_snapshot(get_group).await),
        ];
        assert_eq!(codes, [expected; 7], "{id:?}");
    }
}

#[tokio::test]
async fn what_is_required_is_missed_and_what_is_gone_is_deleted() {
    let served = served().await;
    let mut controller = ControllerClient::new(served.channel.clone());
    let mut group = GroupControllerClient::new(served.channel.clone());
    for capacity_range in [None, Some(csi::CapacityRange::default())] {
        let expand = csi::ControllerExpandVolumeRequest {
            volume_id: "v".into(),
            capacity_range,
            ..Default::default()
        };
        let outcome = controller.controller_expand_volume(expand).await;
        assert_eq!(code(outcome), Code::InvalidArgument);
    }
    for (key, value) in
        [None, Some(("pool", "tank")), Some(("colour", "blue"))].map(Option::unwrap_or_default)
    {
        let mut modify = csi::ControllerModifyVolumeRequest {
            volume_id: "v".into(),
            ..Default::default()
        };
        if !key.is_empty() {
            modify.mutable_parameters.insert(key.into(), value.into());
        }
        let outcome = controller.controller_modify_volume(modify).await;
        assert_eq!(code(outcome), Code::InvalidArgument, "{key:?}");
    }
    for (token, most, expected) in [
        ("invalid-token", 0, Code::Aborted),
        ("", -1, Code::InvalidArgument),
    ] {
        let volumes = csi::ListVolumesRequest {
            max_entries: most,
            starting_token: token.into(),
        };
        let snapshots = csi::ListSnapshotsRequest {
            max_entries: most,
            starting_token: token.into(),
            ..Default::default()
        };
        let health = csi::ControllerListVolumeHealthRequest {
            max_entries: most,
            starting_token: token.into(),
            ..Default::default()
        };
        let codes = [
            code(controller.list_volumes(volumes).await),
            code(controller.list_snapshots(snapshots).await),
            code(controller.controller_list_volume_health(health).await),
        ];
        assert_eq!(codes, [expected; 3], "{token:?}");
    }
    for snapshot_id in ["reallyfakesnapshotid", "pvc-1@none"] {
        let delete = csi::DeleteSnapshotRequest {
            snapshot_id: snapshot_id.into(),
            ..Default::default()
        };
        controller.delete_snapshot(delete).await.expect(snapshot_id);
    }
    for group_snapshot_id in ["none", "No Handle"] {
        let delete = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group_snapshot_id.into(),
            ..Default::default()
        };
        group
            .delete_volume_group_snapshot(delete)
            .await
            .expect(group_snapshot_id);
    }
    let nothing = csi::DeleteSnapshotRequest::default();
    assert_eq!(
        code(controller.delete_snapshot(nothing).await),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn rule_10_the_answer_comes_before_the_clients_deadline_and_the_trace_tells() {
    let served = served().await;
    let mut controller = ControllerClient::new(served.channel.clone());
    let status = controller
        .create_volume(within(Duration::from_millis(800), create("pvc-slow")))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(
        status.message().contains("agent on storage0"),
        "{}",
        status.message()
    );
    let mut trace = TraceClient::new(served.channel.clone());
    let request = ListOperationsRequest {
        volume: "pvc-slow".into(),
        limit: 1,
    };
    let operations = trace
        .list_operations(request)
        .await
        .unwrap()
        .into_inner()
        .operations;
    assert_eq!(operations[0].name, "CreateVolume");
    assert_eq!(operations[0].steps[2].name, "volume.await-ready");
    assert!(!operations[0].error.is_empty());
}

#[tokio::test]
async fn two_calls_for_one_volume_make_one_aborted() {
    let served = served().await;
    let mut first = ControllerClient::new(served.channel.clone());
    let mut second = first.clone();
    let patience = Duration::from_millis(800);
    let (one, other) = tokio::join!(
        first.create_volume(within(patience, create("pvc-race"))),
        second.create_volume(within(patience, create("pvc-race"))),
    );
    let mut codes = [code(one), code(other)];
    codes.sort_by_key(|code| i32::from(*code));
    assert_eq!(codes, [Code::DeadlineExceeded, Code::Aborted]);
}

#[tokio::test]
async fn a_stop_lets_the_running_call_end_and_takes_the_socket_away() {
    let served = served().await;
    let mut controller = ControllerClient::new(served.channel.clone());
    let begin = Instant::now();
    let running = tokio::spawn(async move {
        controller
            .create_volume(within(Duration::from_millis(1500), create("pvc-stop")))
            .await
    });
    // The call has begun once its object is there.
    let object = served.socket.with_file_name("store").join("volumes");
    while std::fs::read_dir(&object).unwrap().next().is_none() {
        tokio::task::yield_now().await;
    }
    served.stop.send_replace(true);
    let status = running.await.unwrap().unwrap_err();
    assert_eq!(
        status.code(),
        Code::DeadlineExceeded,
        "its own end, not a broken connection: {status:?}"
    );
    served.server.await.unwrap().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    assert!(!served.socket.exists());
}
