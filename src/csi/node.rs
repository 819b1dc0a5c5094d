//! The Node service: the kernel's work runs on blocking threads, with the volume's lock held.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tonic::{Request, Response, Status};
use tracing::Span;
use zvolt_proto::csi;
use zvolt_proto::csi::node_service_capability::rpc::Type as Rpc;
use zvolt_proto::csi::node_service_capability::{self, Type};

use super::calls::{self, Calls, Work};
use super::check;
use crate::node::{self, Node};

/// What is advertised is what holds.
const CAPABILITIES: [Rpc; 1] = [Rpc::StageUnstageVolume];

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
    fn work<T: Default + Send + 'static>(
        &self,
        volume: String,
        act: impl FnOnce(&Node, Instant) -> Result<(), node::Error> + Send + 'static,
    ) -> Work<T> {
        let node = self.node.clone();
        Work::on(volume, |deadline| async move {
            let span = Span::current();
            tokio::task::spawn_blocking(move || span.in_scope(|| act(&node, deadline)))
                .await
                .map_err(|error| calls::panicked(&error))??;
            Ok(T::default())
        })
    }

    fn base(&self) -> &Path {
        &self.kubelet_dir
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
                        node.stage(&stage, deadline)
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
                        node.unstage(&volume, &path, deadline)
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
                        node.publish(&publish, deadline)
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
                        node.unpublish(&volume, &path, deadline)
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

    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let answer = csi::NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            ..Default::default()
        };
        self.calls
            .serve("NodeGetInfo", request, |_| "", |_| Ok(Work::Done(answer)))
            .await
    }
}
