//! The gRPC face of the controller: each call checks its request and says what is to be done.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zvolt_proto::csi;
use zvolt_proto::csi::controller_service_capability::rpc::Type as Rpc;
use zvolt_proto::csi::controller_service_capability::{self, Type};

use super::create::Wanted;
use super::holders::{Consumer, unknown};
use super::page::{Entries, Page};
use super::snapshot::{Filter, SnapshotWanted};
use super::supply::Inquiry;
use super::{Controller, validate};
use crate::csi::calls::{Calls, Work};
use crate::csi::check::{self, VolumeId};
use crate::csi::status::Refusal;
use crate::model::capacity::Range;
use crate::model::parameters::Changes;
use crate::model::shown;
use crate::model::snapshot::parse_id;
use crate::store::Store;

/// What is advertised is what holds.
const CAPABILITIES: [Rpc; 16] = [
    Rpc::CreateDeleteVolume,
    Rpc::PublishUnpublishVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::PublishReadonly,
    Rpc::ExpandVolume,
    Rpc::ListVolumesPublishedNodes,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::ModifyVolume,
    Rpc::GetSnapshot,
    Rpc::GetVolumeHealth,
    Rpc::ListVolumeHealth,
];

/// The controller and what its calls share.
#[derive(Debug)]
pub(in crate::csi) struct ControllerService<S> {
    controller: Arc<Controller<S>>,
    calls: Calls,
}

impl<S: Store> ControllerService<S> {
    pub(in crate::csi) fn new(controller: Arc<Controller<S>>, calls: Calls) -> Self {
        Self { controller, calls }
    }
}

#[tonic::async_trait]
impl<S: Store> csi::controller_server::Controller for ControllerService<S> {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::CreateVolumeRequest| {
            let wanted = Wanted::parse(&message)?;
            Ok(Work::on(
                wanted.handle.clone(),
                move |deadline| async move { controller.create(wanted, deadline).await },
            ))
        };
        self.calls
            .serve("CreateVolume", request, |m| &m.name, begin)
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::DeleteVolumeRequest| {
            let VolumeId::Handle(handle) = check::volume_id(&message.volume_id)? else {
                return Ok(Work::Done(csi::DeleteVolumeResponse {}));
            };
            Ok(Work::on(handle.clone(), move |deadline| async move {
                controller.delete(&handle, deadline).await?;
                Ok(csi::DeleteVolumeResponse {})
            }))
        };
        self.calls
            .serve("DeleteVolume", request, |m| &m.volume_id, begin)
            .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerPublishVolumeRequest| {
            let volume = check::volume_id(&message.volume_id)?;
            check::node_id(&message.node_id)?;
            let capability = check::capability(message.volume_capability.as_ref())?;
            let consumer = Consumer::new(&message.node_id, capability, message.readonly);
            let handle = known(volume)?;
            Ok(Work::on(handle.clone(), move |deadline| async move {
                let publish_context = controller.publish(&handle, &consumer, deadline).await?;
                Ok(csi::ControllerPublishVolumeResponse { publish_context })
            }))
        };
        self.calls
            .serve("ControllerPublishVolume", request, |m| &m.volume_id, begin)
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerUnpublishVolumeRequest| {
            let volume = check::volume_id(&message.volume_id)?;
            // Empty is every node (CSI, ControllerUnpublishVolume).
            let node = Some(message.node_id).filter(|id| !id.is_empty());
            node.as_deref().map_or(Ok(()), check::node_id)?;
            let VolumeId::Handle(handle) = volume else {
                return Ok(Work::Done(csi::ControllerUnpublishVolumeResponse {}));
            };
            Ok(Work::on(handle.clone(), move |deadline| async move {
                controller
                    .unpublish(&handle, node.as_deref(), deadline)
                    .await?;
                Ok(csi::ControllerUnpublishVolumeResponse {})
            }))
        };
        self.calls
            .serve(
                "ControllerUnpublishVolume",
                request,
                |m| &m.volume_id,
                begin,
            )
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ValidateVolumeCapabilitiesRequest| {
            let volume = check::volume_id(&message.volume_id)?;
            if message.volume_capabilities.is_empty() {
                return Err(Refusal::invalid(
                    "volume_capabilities is missing: name what is to be validated",
                ));
            }
            let handle = known(volume)?;
            Ok(Work::reading(move |deadline| async move {
                let volume = controller.existing(&handle, deadline).await?;
                Ok(validate::validated(&message, &volume))
            }))
        };
        self.calls
            .serve(
                "ValidateVolumeCapabilities",
                request,
                |m| &m.volume_id,
                begin,
            )
            .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerExpandVolumeRequest| {
            let volume = check::volume_id(&message.volume_id)?;
            let asked = message
                .capacity_range
                .ok_or_else(|| Refusal::invalid("capacity_range is missing"))?;
            let range = Range::new(asked.required_bytes, asked.limit_bytes)?;
            if range == Range::default() {
                return Err(Refusal::invalid(
                    "capacity_range is empty: say how large the volume is to be",
                ));
            }
            let capability = match &message.volume_capability {
                None => None,
                given => Some(check::capability(given.as_ref())?),
            };
            let handle = known(volume)?;
            Ok(Work::on(handle.clone(), move |deadline| async move {
                controller
                    .expand(&handle, range, capability, deadline)
                    .await
            }))
        };
        self.calls
            .serve("ControllerExpandVolume", request, |m| &m.volume_id, begin)
            .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerModifyVolumeRequest| {
            let volume = check::volume_id(&message.volume_id)?;
            let changes = Changes::parse(&message.mutable_parameters)?;
            if changes.is_empty() {
                return Err(Refusal::invalid(
                    "mutable_parameters is missing: name what is to be changed",
                ));
            }
            let handle = known(volume)?;
            Ok(Work::on(handle.clone(), move |deadline| async move {
                controller.modify(&handle, changes, deadline).await?;
                Ok(csi::ControllerModifyVolumeResponse {})
            }))
        };
        self.calls
            .serve("ControllerModifyVolume", request, |m| &m.volume_id, begin)
            .await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::GetCapacityRequest| {
            let Some(inquiry) = Inquiry::parse(&message)? else {
                return Ok(Work::Done(csi::GetCapacityResponse::default()));
            };
            Ok(Work::reading(move |deadline| async move {
                controller.supply(inquiry, deadline).await
            }))
        };
        self.calls
            .serve("GetCapacity", request, |_| "", begin)
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ListVolumesRequest| {
            let page = Page::new(
                message.max_entries,
                &message.starting_token,
                Entries::Volumes,
            )?;
            Ok(Work::reading(move |deadline| async move {
                controller.list(page, deadline).await
            }))
        };
        self.calls
            .serve("ListVolumes", request, |_| "", begin)
            .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerGetVolumeRequest| {
            let handle = known(check::volume_id(&message.volume_id)?)?;
            Ok(Work::reading(move |deadline| async move {
                controller.get(&handle, deadline).await
            }))
        };
        self.calls
            .serve("ControllerGetVolume", request, |m| &m.volume_id, begin)
            .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerListVolumeHealthRequest| {
            let page = Page::new(
                message.max_entries,
                &message.starting_token,
                Entries::Volumes,
            )?;
            Ok(Work::reading(move |deadline| async move {
                controller.list_health(page, deadline).await
            }))
        };
        self.calls
            .serve("ControllerListVolumeHealth", request, |_| "", begin)
            .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeHealthResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ControllerGetVolumeHealthRequest| {
            let handle = known(check::volume_id(&message.volume_id)?)?;
            Ok(Work::reading(move |deadline| async move {
                controller.health(&handle, deadline).await
            }))
        };
        self.calls
            .serve(
                "ControllerGetVolumeHealth",
                request,
                |m| &m.volume_id,
                begin,
            )
            .await
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::CreateSnapshotRequest| {
            let wanted = SnapshotWanted::single(&message)?;
            let object = wanted.object.clone();
            Ok(Work::on_snapshot(&object, move |deadline| async move {
                controller.create_snapshot(wanted, deadline).await
            }))
        };
        self.calls
            .serve("CreateSnapshot", request, |m| &m.source_volume_id, begin)
            .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::DeleteSnapshotRequest| {
            check::string("snapshot_id", &message.snapshot_id)?;
            let Some((volume, object)) = parse_id(&message.snapshot_id) else {
                return Ok(Work::Done(csi::DeleteSnapshotResponse {}));
            };
            let (volume, object) = (volume.to_owned(), object.to_owned());
            Ok(Work::on_snapshot(
                &object.clone(),
                move |deadline| async move {
                    controller
                        .delete_snapshot((&volume, &object), deadline)
                        .await?;
                    Ok(csi::DeleteSnapshotResponse {})
                },
            ))
        };
        self.calls
            .serve("DeleteSnapshot", request, |m| &m.snapshot_id, begin)
            .await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::ListSnapshotsRequest| {
            let filter = Filter {
                volume: filter("source_volume_id", message.source_volume_id)?,
                snapshot: filter("snapshot_id", message.snapshot_id)?,
            };
            let page = Page::new(
                message.max_entries,
                &message.starting_token,
                Entries::Snapshots,
            )?;
            Ok(Work::reading(move |deadline| async move {
                controller.list_snapshots(filter, page, deadline).await
            }))
        };
        self.calls
            .serve("ListSnapshots", request, |m| &m.source_volume_id, begin)
            .await
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::GetSnapshotRequest| {
            check::string("snapshot_id", &message.snapshot_id)?;
            Ok(Work::reading(move |deadline| async move {
                controller
                    .get_snapshot(&message.snapshot_id, deadline)
                    .await
            }))
        };
        self.calls
            .serve("GetSnapshot", request, |m| &m.snapshot_id, begin)
            .await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(controller_service_capability::Rpc {
                r#type: rpc.into(),
            })),
        };
        let answer = csi::ControllerGetCapabilitiesResponse {
            capabilities: CAPABILITIES.into_iter().map(capability).collect(),
        };
        self.calls
            .serve(
                "ControllerGetCapabilities",
                request,
                |_| "",
                |_| Ok(Work::Done(answer)),
            )
            .await
    }
}

/// A call that needs the volume.
fn known(volume: VolumeId) -> Result<String, Refusal> {
    match volume {
        VolumeId::Handle(handle) => Ok(handle),
        VolumeId::Foreign(id) => Err(unknown(&shown(&id))),
    }
}

/// What a list is narrowed to, when it is.
fn filter(field: &str, given: String) -> Result<Option<String>, Refusal> {
    if given.is_empty() {
        return Ok(None);
    }
    check::string(field, &given)?;
    Ok(Some(given))
}
