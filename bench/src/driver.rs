//! The driver, called over its socket as an orchestrator calls it: one call after the other, each answered before the
//! next. Its own timeline gives the steps.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status};
use zvolt_proto::csi::controller_client::ControllerClient;
use zvolt_proto::csi::node_client::NodeClient;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use zvolt_proto::csi::{self, VolumeCapability};
use zvolt_proto::trace::ListOperationsRequest;
use zvolt_proto::trace::trace_client::TraceClient;

use crate::job::Volume;
use crate::sample::{Sample, Side, Watch};

/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// One driver.
#[derive(Debug)]
pub struct Driver {
    /// On the caller's own thread: a hop to another is not the driver's time.
    runtime: Runtime,
    channel: Channel,
}

fn capability(fs_type: &str) -> Option<VolumeCapability> {
    Some(VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            ..MountVolume::default()
        })),
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Driver {
    /// Connects to its socket.
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let path: PathBuf = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = runtime
            .block_on(endpoint.connect_with_connector(connector))
            .with_context(|| format!("no driver answers at {}", socket.display()))?;
        Ok(Self { runtime, channel })
    }

    fn call<T>(&self, reply: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
        match self.runtime.block_on(reply) {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => bail!("{:?}: {}", status.code(), status.message()),
        }
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    /// NodeStageVolume, NodePublishVolume.
    pub fn attach(&self, volume: &Volume) -> Result<Sample> {
        let stage = request(csi::NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context.clone(),
            staging_target_path: text(&volume.staging()),
            volume_capability: capability(&volume.fs_type),
            ..Default::default()
        });
        let publish = request(csi::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context.clone(),
            staging_target_path: text(&volume.staging()),
            target_path: text(&volume.target()),
            volume_capability: capability(&volume.fs_type),
            ..Default::default()
        });
        let mut client = self.node();
        let watch = Watch::start();
        self.call(client.node_stage_volume(stage))?;
        self.call(client.node_publish_volume(publish))?;
        self.with_steps(watch.stop(Side::Driver, "attach"), &volume.id, 2)
    }

    /// NodeUnpublishVolume, NodeUnstageVolume.
    pub fn detach(&self, volume: &Volume) -> Result<Sample> {
        let unpublish = request(csi::NodeUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            target_path: text(&volume.target()),
        });
        let unstage = request(csi::NodeUnstageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: text(&volume.staging()),
        });
        let mut client = self.node();
        let watch = Watch::start();
        self.call(client.node_unpublish_volume(unpublish))?;
        self.call(client.node_unstage_volume(unstage))?;
        self.with_steps(watch.stop(Side::Driver, "detach"), &volume.id, 2)
    }

    /// ControllerPublishVolume.
    pub fn admit(&self, volume: &Volume, node: &str) -> Result<Sample> {
        let publish = request(csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: node.into(),
            volume_capability: capability(&volume.fs_type),
            ..Default::default()
        });
        let mut client = self.controller();
        let watch = Watch::start();
        self.call(client.controller_publish_volume(publish))?;
        self.with_steps(watch.stop(Side::Driver, "admit"), &volume.id, 2)
    }

    /// ControllerUnpublishVolume.
    pub fn expel(&self, volume: &Volume, node: &str) -> Result<Sample> {
        let unpublish = request(csi::ControllerUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: node.into(),
            ..Default::default()
        });
        let mut client = self.controller();
        let watch = Watch::start();
        self.call(client.controller_unpublish_volume(unpublish))?;
        Ok(watch.stop(Side::Driver, "expel"))
    }

    /// CreateVolume; gives its ID too.
    pub fn create(
        &self,
        name: &str,
        pool: &str,
        size: u64,
        fs_type: &str,
    ) -> Result<(Sample, String)> {
        let create = request(csi::CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: i64::try_from(size)?,
                limit_bytes: 0,
            }),
            volume_capabilities: capability(fs_type).into_iter().collect(),
            parameters: HashMap::from([("pool".into(), pool.into())]),
            ..Default::default()
        });
        let mut client = self.controller();
        let watch = Watch::start();
        let reply = self.call(client.create_volume(create))?;
        let sample = watch.stop(Side::Driver, "create");
        let id = reply.volume.context("the reply has no volume")?.volume_id;
        Ok((self.with_steps(sample, &id, 2)?, id))
    }

    /// DeleteVolume.
    pub fn delete(&self, id: &str) -> Result<Sample> {
        let delete = request(csi::DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        });
        let mut client = self.controller();
        let watch = Watch::start();
        self.call(client.delete_volume(delete))?;
        Ok(watch.stop(Side::Driver, "delete"))
    }

    /// Adds what the driver's timeline says of the last `operations` of a volume.
    fn with_steps(&self, mut sample: Sample, volume: &str, operations: usize) -> Result<Sample> {
        let request = request(ListOperationsRequest {
            volume: volume.into(),
            limit: 8,
        });
        let mut client = TraceClient::new(self.channel.clone());
        let reply = self.call(client.list_operations(request))?;
        let first = reply.operations.len().saturating_sub(operations);
        for operation in &reply.operations[first..] {
            let steps = operation.steps.iter();
            sample.steps.extend(
                steps.map(|s| (format!("{} {}", operation.name, s.name), s.duration_nanos)),
            );
        }
        Ok(sample)
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}
