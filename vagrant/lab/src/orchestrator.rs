//! Plays the orchestrator: calls a driver's CSI services over its real socket, one call after the
//! other, as a container orchestrator would.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use zvolt_bench::job::RAW;
use zvolt_proto::csi::controller_client::ControllerClient;
use zvolt_proto::csi::identity_client::IdentityClient;
use zvolt_proto::csi::node_client::NodeClient;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use zvolt_proto::csi::{self, VolumeCapability};
use zvolt_proto::trace::ListOperationsRequest;
use zvolt_proto::trace::trace_client::TraceClient;

/// How long a call may take when the test does not say.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// One driver socket. Calls block; several threads may call at once.
#[derive(Debug, Clone)]
pub struct Csi {
    runtime: Arc<Runtime>,
    channel: Channel,
    deadline: Duration,
}

/// The variable that runs tests of the driver with another `attach` than the default: `per-volume` or `pooled`. (Some of
/// them assert what is so for the default alone: that no controller is left on a node.)
pub const ATTACH: &str = "ZVOLT_LAB_ATTACH";

/// What a volume is asked to be.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// CSI name.
    pub name: String,
    /// Bytes.
    pub size: i64,
    /// StorageClass parameters.
    pub parameters: HashMap<String, String>,
    /// `ext4` or `xfs`.
    pub fs_type: String,
}

impl Wanted {
    /// A volume of 1 GiB with ext4 on pool `tank`, which nodes come to as [`ATTACH`] says, or as is the default.
    pub fn named(name: &str) -> Self {
        let wanted = Self {
            name: name.into(),
            size: 1 << 30,
            parameters: HashMap::from([("pool".into(), "tank".into())]),
            fs_type: "ext4".into(),
        };
        match std::env::var(ATTACH) {
            Ok(attach) => wanted.parameter("attach", &attach),
            Err(_) => wanted,
        }
    }

    /// With a subsystem of its own.
    #[must_use]
    pub fn per_volume(self) -> Self {
        self.parameter("attach", "per-volume")
    }

    /// With another filesystem.
    #[must_use]
    pub fn fs(mut self, fs_type: &str) -> Self {
        self.fs_type = fs_type.into();
        self
    }

    /// With another size in bytes.
    #[must_use]
    pub fn size(mut self, bytes: i64) -> Self {
        self.size = bytes;
        self
    }

    /// With a StorageClass parameter.
    #[must_use]
    pub fn parameter(mut self, key: &str, value: &str) -> Self {
        self.parameters.insert(key.into(), value.into());
        self
    }
}

/// The capability of one writer on one node: mounted, or the block device itself ([`RAW`]).
pub fn single_writer(fs_type: &str) -> VolumeCapability {
    let access_type = match fs_type {
        RAW => AccessType::Block(BlockVolume {}),
        _ => AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            ..MountVolume::default()
        }),
    };
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(access_type),
    }
}

/// The request that makes a volume.
pub fn create_request(wanted: &Wanted) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: wanted.name.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: wanted.size,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![single_writer(&wanted.fs_type)],
        parameters: wanted.parameters.clone(),
        ..csi::CreateVolumeRequest::default()
    }
}

impl Csi {
    /// Connects to a driver's socket on this machine (a forwarded one).
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let path: PathBuf = socket.to_owned();
        let channel = runtime
            .block_on(
                Endpoint::from_static("http://localhost").connect_with_connector(
                    tower::service_fn(move |_: Uri| {
                        let path = path.clone();
                        async move { UnixStream::connect(path).await.map(TokioIo::new) }
                    }),
                ),
            )
            .with_context(|| format!("no driver answers at {}", socket.display()))?;
        Ok(Self {
            runtime: Arc::new(runtime),
            channel,
            deadline: DEADLINE,
        })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The same socket with another deadline for each call.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// A request with this socket's deadline.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        request
    }

    /// The Controller service, for calls that have no method here.
    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    /// The Node service, for calls that have no method here.
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    /// Waits for a reply.
    pub fn call<T>(
        &self,
        reply: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        self.runtime
            .block_on(reply)
            .map(tonic::Response::into_inner)
    }

    /// Identity: Probe.
    pub fn probe(&self) -> Result<csi::ProbeResponse, Status> {
        let mut client = IdentityClient::new(self.channel.clone());
        self.call(client.probe(self.request(csi::ProbeRequest {})))
    }

    /// CreateVolume; gives the volume.
    pub fn create(&self, wanted: &Wanted) -> Result<csi::Volume, Status> {
        self.create_raw(create_request(wanted))
    }

    /// CreateVolume as it is.
    pub fn create_raw(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        let reply = self.call(self.controller().create_volume(self.request(request)))?;
        reply
            .volume
            .ok_or_else(|| Status::internal("the reply has no volume"))
    }

    /// DeleteVolume.
    pub fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest {
            volume_id: volume_id.into(),
            ..csi::DeleteVolumeRequest::default()
        };
        self.call(self.controller().delete_volume(self.request(request)))
            .map(drop)
    }

    /// ControllerPublishVolume; gives the publish context.
    pub fn controller_publish(
        &self,
        volume_id: &str,
        node_id: &str,
        fs_type: &str,
    ) -> Result<HashMap<String, String>, Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.into(),
            node_id: node_id.into(),
            volume_capability: Some(single_writer(fs_type)),
            ..csi::ControllerPublishVolumeRequest::default()
        };
        let reply = self.call(
            self.controller()
                .controller_publish_volume(self.request(request)),
        )?;
        Ok(reply.publish_context)
    }

    /// ControllerUnpublishVolume.
    pub fn controller_unpublish(&self, volume_id: &str, node_id: &str) -> Result<(), Status> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume_id.into(),
            node_id: node_id.into(),
            ..csi::ControllerUnpublishVolumeRequest::default()
        };
        self.call(
            self.controller()
                .controller_unpublish_volume(self.request(request)),
        )
        .map(drop)
    }

    /// NodeStageVolume.
    pub fn stage(
        &self,
        volume_id: &str,
        context: &HashMap<String, String>,
        staging_path: &str,
        fs_type: &str,
    ) -> Result<(), Status> {
        self.stage_with_flags(volume_id, context, staging_path, fs_type, &[])
    }

    /// NodeStageVolume with mount flags.
    pub fn stage_with_flags(
        &self,
        volume_id: &str,
        context: &HashMap<String, String>,
        staging_path: &str,
        fs_type: &str,
        flags: &[&str],
    ) -> Result<(), Status> {
        let mut capability = single_writer(fs_type);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = flags.iter().map(|f| (*f).to_owned()).collect();
        }
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume_id.into(),
            publish_context: context.clone(),
            staging_target_path: staging_path.into(),
            volume_capability: Some(capability),
            ..csi::NodeStageVolumeRequest::default()
        };
        self.call(self.node().node_stage_volume(self.request(request)))
            .map(drop)
    }

    /// NodeUnstageVolume.
    pub fn unstage(&self, volume_id: &str, staging_path: &str) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume_id.into(),
            staging_target_path: staging_path.into(),
        };
        self.call(self.node().node_unstage_volume(self.request(request)))
            .map(drop)
    }

    /// NodePublishVolume.
    pub fn publish(
        &self,
        volume_id: &str,
        context: &HashMap<String, String>,
        staging_path: &str,
        target_path: &str,
        fs_type: &str,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume_id.into(),
            publish_context: context.clone(),
            staging_target_path: staging_path.into(),
            target_path: target_path.into(),
            volume_capability: Some(single_writer(fs_type)),
            readonly,
            ..csi::NodePublishVolumeRequest::default()
        };
        self.call(self.node().node_publish_volume(self.request(request)))
            .map(drop)
    }

    /// NodeUnpublishVolume.
    pub fn unpublish(&self, volume_id: &str, target_path: &str) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: volume_id.into(),
            target_path: target_path.into(),
        };
        self.call(self.node().node_unpublish_volume(self.request(request)))
            .map(drop)
    }

    /// The timelines of the last operations, oldest first; only those of `volume` when it is not empty.
    pub fn operations(&self, volume: &str) -> Result<Vec<zvolt_proto::trace::Operation>, Status> {
        let request = ListOperationsRequest {
            volume: volume.into(),
            ..ListOperationsRequest::default()
        };
        let mut client = TraceClient::new(self.channel.clone());
        Ok(self
            .call(client.list_operations(self.request(request)))?
            .operations)
    }
}
