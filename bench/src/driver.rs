//! The driver, called over its socket as an orchestrator calls it: one call after the other, each answered before the
//! next. Its own timeline gives the steps.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status};
use zvolt_proto::csi::controller_client::ControllerClient;
use zvolt_proto::csi::identity_client::IdentityClient;
use zvolt_proto::csi::node_client::NodeClient;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use zvolt_proto::csi::{self, VolumeCapability};
use zvolt_proto::trace::trace_client::TraceClient;
use zvolt_proto::trace::{ListOperationsRequest, Operation};

use crate::job::{RAW, Volume};
use crate::sample::{Sample, Side, Watch};

/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the agent's operations begin with: which one it takes depends on what there was.
const AGENT: &str = "agent.";

/// One driver.
#[derive(Debug)]
pub struct Driver {
    /// On the caller's own thread: a hop to another is not the driver's time.
    runtime: Runtime,
    channel: Channel,
}

fn capability(fs_type: &str) -> Option<VolumeCapability> {
    let access_type = match fs_type {
        RAW => AccessType::Block(BlockVolume {}),
        _ => AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            ..MountVolume::default()
        }),
    };
    Some(VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(access_type),
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
            Err(status) => Err(failed(status)),
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
        let sample = self.runtime.block_on(attach(self.node(), volume.clone()))?;
        let calls = ["NodeStageVolume", "NodePublishVolume"];
        self.with_steps(sample, &volume.id, &calls)
    }

    /// The same of all these at once; a sample for each.
    pub fn attach_all(&self, volumes: &[Volume]) -> Result<Vec<Sample>> {
        let mut calls = JoinSet::new();
        for volume in volumes {
            calls.spawn_on(attach(self.node(), volume.clone()), self.runtime.handle());
        }
        self.runtime.block_on(async {
            let mut samples = Vec::new();
            while let Some(done) = calls.join_next().await {
                samples.push(done??);
            }
            Ok(samples)
        })
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
        let calls = ["NodeUnpublishVolume", "NodeUnstageVolume"];
        self.with_steps(watch.stop(Side::Driver, "detach"), &volume.id, &calls)
    }

    /// Probe: what a call costs that does nothing.
    pub fn probe(&self) -> Result<Sample> {
        let mut client = IdentityClient::new(self.channel.clone());
        let watch = Watch::start();
        self.call(client.probe(request(csi::ProbeRequest {})))?;
        Ok(watch.stop(Side::Driver, "empty call"))
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
        let calls = ["ControllerPublishVolume", AGENT];
        self.with_steps(watch.stop(Side::Driver, "admit"), &volume.id, &calls)
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
        let calls = ["ControllerUnpublishVolume", AGENT];
        self.with_steps(watch.stop(Side::Driver, "expel"), &volume.id, &calls)
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
        let calls = ["CreateVolume", AGENT];
        Ok((self.with_steps(sample, &id, &calls)?, id))
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
        let calls = ["DeleteVolume", AGENT];
        self.with_steps(watch.stop(Side::Driver, "delete"), id, &calls)
    }

    /// Adds what the driver's timeline says of these operations of a volume since the sample began: their steps, what
    /// the calls took beside their steps, and the rest, which is the socket's and the orchestrator's.
    fn with_steps(&self, mut sample: Sample, volume: &str, names: &[&str]) -> Result<Sample> {
        let operations = self.operations(volume, names, sample.began)?;
        let (mut in_calls, mut beside) = (0, 0);
        for operation in &operations {
            let steps = operation.steps.iter();
            sample.steps.extend(
                steps.map(|s| (format!("{} {}", operation.name, s.name), s.duration_nanos)),
            );
            // The agent works while a call waits for it.
            if !operation.name.starts_with(AGENT) {
                let steps: u64 = operation.steps.iter().map(|s| s.duration_nanos).sum();
                in_calls += operation.total_nanos;
                beside += operation.total_nanos.saturating_sub(steps);
            }
        }
        sample.steps.push(("beside the steps".into(), beside));
        let rest = sample.nanos.saturating_sub(in_calls);
        sample.steps.push(("socket and caller".into(), rest));
        Ok(sample)
    }

    /// The newest operation of each name or kind. The agent may answer a call before it has kept its own: it is asked
    /// again.
    fn operations(&self, volume: &str, names: &[&str], since: u64) -> Result<Vec<Operation>> {
        let mut client = TraceClient::new(self.channel.clone());
        let mut missing = String::new();
        for _ in 0..100 {
            let request = request(ListOperationsRequest {
                volume: volume.into(),
                limit: 16,
            });
            let kept = self.call(client.list_operations(request))?.operations;
            let newest = |name: &&str| {
                let mut since_then = kept.iter().filter(|o| o.started_unix_nanos >= since);
                since_then.rfind(|o| o.name.starts_with(*name)).cloned()
            };
            match names.iter().find(|name| newest(name).is_none()) {
                None => return Ok(names.iter().filter_map(newest).collect()),
                Some(name) => missing = format!("{name} of {volume}"),
            }
        }
        bail!("the driver's journal has no {missing}, which it has just done")
    }
}

async fn attach(mut client: NodeClient<Channel>, volume: Volume) -> Result<Sample> {
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
    let watch = Watch::start();
    client.node_stage_volume(stage).await.map_err(failed)?;
    client.node_publish_volume(publish).await.map_err(failed)?;
    Ok(watch.stop(Side::Driver, "attach"))
}

fn failed(status: Status) -> anyhow::Error {
    anyhow!("{:?}: {}", status.code(), status.message())
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}
