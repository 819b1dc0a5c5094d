//! The Node service: the kernel's work runs on blocking threads, with the volume's lock held.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tonic::{Request, Response, Status};
use tracing::Span;
use zvolt_kernel::mount::Amount;
use zvolt_proto::csi;
use zvolt_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use zvolt_proto::csi::node_service_capability::rpc::Type as Rpc;
use zvolt_proto::csi::node_service_capability::{self, Type};
use zvolt_proto::csi::volume_health::VolumeHealthEntry;
use zvolt_proto::csi::volume_usage::Unit;

use super::calls::{self, Calls, Work};
use super::check;
use super::status::Refusal;
use crate::node::health::{Severity, Trouble};
use crate::node::{self, Node, Stats};

/// What is advertised is what holds.
const CAPABILITIES: [Rpc; 6] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetVolumeHealth,
    Rpc::GetStorageHealth,
];

/// The Node service's gRPC face.
#[derive(Debug)]
pub(super) struct NodeService {
    pub(super) node: Arc<Node>,
    pub(super) node_id: String,
    pub(super) kubelet_dir: PathBuf,
    pub(super) calls: Calls,
}

impl NodeService {
    /// Work on a volume by the node.
    fn work<T: Send + 'static>(
        &self,
        volume: String,
        act: impl FnOnce(&Node, Instant) -> Result<T, node::Error> + Send + 'static,
    ) -> Work<T> {
        let node = self.node.clone();
        Work::on(volume, |deadline| blocking(node, deadline, act))
    }

    /// A look of the node, which others need not wait for.
    fn look<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Node, Instant) -> Result<T, node::Error> + Send + 'static,
    ) -> Work<T> {
        let node = self.node.clone();
        Work::reading(|deadline| blocking(node, deadline, act))
    }

    fn base(&self) -> &Path {
        &self.kubelet_dir
    }
}

async fn blocking<T: Send + 'static>(
    node: Arc<Node>,
    deadline: Instant,
    act: impl FnOnce(&Node, Instant) -> Result<T, node::Error> + Send + 'static,
) -> Result<T, Refusal> {
    let span = Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(|| act(&node, deadline)));
    Ok(done.await.map_err(|error| calls::panicked(&error))??)
}

/// Bytes as CSI counts them.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn usage(stats: Stats) -> Vec<csi::VolumeUsage> {
    let of = |unit: Unit, amount: Amount| csi::VolumeUsage {
        available: count(amount.available),
        total: count(amount.total),
        used: count(amount.used),
        unit: unit.into(),
    };
    match stats {
        Stats::Filesystem(usage) => {
            vec![of(Unit::Bytes, usage.bytes), of(Unit::Inodes, usage.inodes)]
        }
        Stats::Device(bytes) => vec![csi::VolumeUsage {
            total: count(bytes),
            unit: Unit::Bytes.into(),
            ..Default::default()
        }],
    }
}

fn volume_health(volume_id: String, troubles: Vec<Trouble>) -> csi::VolumeHealth {
    let entries = troubles.into_iter().map(|trouble| VolumeHealthEntry {
        status: match trouble.severity {
            Severity::Degraded => csi::VolumeHealthErrorType::Degraded,
            Severity::Inaccessible => csi::VolumeHealthErrorType::Inaccessible,
        }
        .into(),
        reason: trouble.reason,
        message: trouble.message,
    });
    csi::VolumeHealth {
        volume_id,
        health_statuses: entries.collect(),
    }
}

fn backend_health(trouble: Trouble) -> StorageBackendHealth {
    StorageBackendHealth {
        status: match trouble.severity {
            Severity::Degraded => csi::StorageHealthErrorType::StorageDegraded,
            Severity::Inaccessible => csi::StorageHealthErrorType::StorageUnreachable,
        }
        .into(),
        reason: trouble.reason,
        message: trouble.message,
        volume_capability: None, // any volume of ours takes the same way
    }
}

#[tonic::async_trait]
impl csi::node_server::Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        self.calls
            .serve(
                "NodeStageVolume",
                request,
                |m| &m.volume_id,
                |message| {
                    let stage = check::stage(&message, self.base())?;
                    Ok(self.work(stage.volume.clone(), move |node, deadline| {
                        node.stage(&stage, deadline)?;
                        Ok(csi::NodeStageVolumeResponse {})
                    }))
                },
            )
            .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        self.calls
            .serve(
                "NodeUnstageVolume",
                request,
                |m| &m.volume_id,
                |message| {
                    let volume = check::handle(&message.volume_id)?;
                    let path = check::path(
                        "staging_target_path",
                        &message.staging_target_path,
                        self.base(),
                    )?;
                    Ok(self.work(volume.clone(), move |node, deadline| {
                        node.unstage(&volume, &path, deadline)?;
                        Ok(csi::NodeUnstageVolumeResponse {})
                    }))
                },
            )
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        self.calls
            .serve(
                "NodePublishVolume",
                request,
                |m| &m.volume_id,
                |message| {
                    let publish = check::publish(&message, self.base())?;
                    Ok(self.work(publish.volume.clone(), move |node, deadline| {
                        node.publish(&publish, deadline)?;
                        Ok(csi::NodePublishVolumeResponse {})
                    }))
                },
            )
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        self.calls
            .serve(
                "NodeUnpublishVolume",
                request,
                |m| &m.volume_id,
                |message| {
                    let volume = check::handle(&message.volume_id)?;
                    let path = check::path("target_path", &message.target_path, self.base())?;
                    Ok(self.work(volume.clone(), move |node, deadline| {
                        node.unpublish(&volume, &path, deadline)?;
                        Ok(csi::NodeUnpublishVolumeResponse {})
                    }))
                },
            )
            .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        self.calls
            .serve(
                "NodeExpandVolume",
                request,
                |m| &m.volume_id,
                |message| {
                    let expand = check::expand(&message)?;
                    Ok(self.work(expand.volume.clone(), move |node, deadline| {
                        let capacity_bytes = count(node.expand(&expand, deadline)?);
                        Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
                    }))
                },
            )
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        self.calls
            .serve(
                "NodeGetVolumeStats",
                request,
                |m| &m.volume_id,
                |message| {
                    let volume = check::known_handle(&message.volume_id)?;
                    let path = check::any_path("volume_path", &message.volume_path)?;
                    let staging =
                        check::optional_path("staging_target_path", &message.staging_target_path)?;
                    Ok(self.look(move |node, deadline| {
                        let stats = node.stats(&volume, &path, staging.as_deref(), deadline)?;
                        Ok(csi::NodeGetVolumeStatsResponse {
                            usage: usage(stats),
                        })
                    }))
                },
            )
            .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        self.calls
            .serve(
                "NodeGetVolumeHealth",
                request,
                |m| &m.volume_id,
                |message| {
                    let volume = check::known_handle(&message.volume_id)?;
                    let publish =
                        check::optional_path("volume_publish_path", &message.volume_publish_path)?;
                    let staging =
                        check::optional_path("staging_target_path", &message.staging_target_path)?;
                    Ok(self.look(move |node, _| {
                        let troubles =
                            node.health(&volume, publish.as_deref(), staging.as_deref())?;
                        Ok(csi::NodeGetVolumeHealthResponse {
                            volume_health: Some(volume_health(volume, troubles)),
                        })
                    }))
                },
            )
            .await
    }

    async fn node_get_storage_health(
        &self,
        request: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        self.calls
            .serve(
                "NodeGetStorageHealth",
                request,
                |_| "",
                |_| {
                    Ok(self.look(move |node, _| {
                        let troubles = node.storage_health()?;
                        Ok(csi::NodeGetStorageHealthResponse {
                            backend_health: troubles.into_iter().map(backend_health).collect(),
                        })
                    }))
                },
            )
            .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        self.calls
            .serve(
                "NodeGetCapabilities",
                request,
                |_| "",
                |_| {
                    let capabilities = CAPABILITIES
                        .into_iter()
                        .map(|rpc| csi::NodeServiceCapability {
                            r#type: Some(Type::Rpc(node_service_capability::Rpc {
                                r#type: rpc.into(),
                            })),
                        })
                        .collect();
                    Ok(Work::Done(csi::NodeGetCapabilitiesResponse {
                        capabilities,
                    }))
                },
            )
            .await
    }

    /// No topology: every node reaches every storage host over the network, and a pool's host reaches its volumes
    /// without one, so nothing that a scheduler could choose would keep a volume away (C-105).
    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let answer = csi::NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: self.node.max_volumes().into(),
            accessible_topology: None,
        };
        self.calls
            .serve("NodeGetInfo", request, |_| "", |_| Ok(Work::Done(answer)))
            .await
    }
}
