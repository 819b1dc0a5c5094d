//! The GroupController service: snapshots of several volumes at one moment. All of a group is in one pool of
//! one host: what is not has no common moment, and is refused.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zvolt_proto::csi;
use zvolt_proto::csi::group_controller_service_capability::rpc::Type as Rpc;
use zvolt_proto::csi::group_controller_service_capability::{self, Type};

use super::calls::{Calls, Work};
use super::check::{self, VolumeId};
use super::controller::{Controller, SnapshotWanted};
use crate::store::Store;

/// The controller, and the calls that it shares with the Controller service: one snapshot, one call.
#[derive(Debug)]
pub(super) struct GroupService<S> {
    controller: Arc<Controller<S>>,
    calls: Calls,
}

impl<S: Store> GroupService<S> {
    pub(super) fn new(controller: Arc<Controller<S>>, calls: Calls) -> Self {
        Self { controller, calls }
    }
}

#[tonic::async_trait]
impl<S: Store> csi::group_controller_server::GroupController for GroupService<S> {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::GroupControllerGetCapabilitiesResponse>, Status> {
        let answer = csi::GroupControllerGetCapabilitiesResponse {
            capabilities: vec![csi::GroupControllerServiceCapability {
                r#type: Some(Type::Rpc(group_controller_service_capability::Rpc {
                    r#type: Rpc::CreateDeleteGetVolumeGroupSnapshot.into(),
                })),
            }],
        };
        self.calls
            .serve(
                "GroupControllerGetCapabilities",
                request,
                |_| "",
                |_| Ok(Work::Done(answer)),
            )
            .await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::CreateVolumeGroupSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::CreateVolumeGroupSnapshotRequest| {
            let wanted = SnapshotWanted::group(&message)?;
            let object = wanted.object.clone();
            Ok(Work::on_snapshot(&object, move |deadline| async move {
                controller.create_group(wanted, deadline).await
            }))
        };
        self.calls
            .serve("CreateVolumeGroupSnapshot", request, |m| &m.name, begin)
            .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::DeleteVolumeGroupSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::DeleteVolumeGroupSnapshotRequest| {
            let id = check::id("group_snapshot_id", &message.group_snapshot_id)?;
            let VolumeId::Handle(object) = id else {
                return Ok(Work::Done(csi::DeleteVolumeGroupSnapshotResponse {}));
            };
            Ok(Work::on_snapshot(
                &object.clone(),
                move |deadline| async move {
                    controller
                        .delete_group(&object, &message.snapshot_ids, deadline)
                        .await?;
                    Ok(csi::DeleteVolumeGroupSnapshotResponse {})
                },
            ))
        };
        self.calls
            .serve(
                "DeleteVolumeGroupSnapshot",
                request,
                |m| &m.group_snapshot_id,
                begin,
            )
            .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::GetVolumeGroupSnapshotResponse>, Status> {
        let controller = self.controller.clone();
        let begin = move |message: csi::GetVolumeGroupSnapshotRequest| {
            check::id("group_snapshot_id", &message.group_snapshot_id)?;
            Ok(Work::reading(move |deadline| async move {
                let (id, members) = (&message.group_snapshot_id, &message.snapshot_ids);
                controller.get_group(id, members, deadline).await
            }))
        };
        self.calls
            .serve(
                "GetVolumeGroupSnapshot",
                request,
                |m| &m.group_snapshot_id,
                begin,
            )
            .await
    }
}
