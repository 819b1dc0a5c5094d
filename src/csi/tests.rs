//! The services over a real socket.

use std::path::PathBuf;
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
use zvolt_proto::csi::identity_client::IdentityClient;
use zvolt_proto::csi::node_client::NodeClient;
use zvolt_proto::trace::ListOperationsRequest;
use zvolt_proto::trace::trace_client::TraceClient;

use super::server::{Error, Services, serve};
use super::socket::{Endpoint, Listening};
use crate::node::{Node, NodeConfig};
use crate::ops::Journal;
use crate::store::dir::DirStore;

/// A server with a store in which no agent works.
struct Served {
    channel: Channel,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    server: JoinHandle<Result<(), Error>>,
    _dir: TempDir,
}

async fn served() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::new(16);
    let kubelet_dir = dir.path().to_owned();
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
        roots: Default::default(),
    };
    let services = Services {
        node: Node::start(config, journal.clone()).unwrap(),
        node_id: "storage0".into(),
        kubelet_dir,
        store: Some(Arc::new(DirStore::open(&dir.path().join("store")).unwrap())),
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
    assert_eq!(capabilities.into_inner().capabilities.len(), 1);
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
    assert_eq!(
        code(
            controller
                .get_capacity(csi::GetCapacityRequest::default())
                .await
        ),
        Code::Unimplemented
    );
    assert_eq!(
        code(
            node.node_expand_volume(csi::NodeExpandVolumeRequest::default())
                .await
        ),
        Code::Unimplemented
    );
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
    assert_eq!(operations[0].steps[1].name, "volume.await-ready");
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
