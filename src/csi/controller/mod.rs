//! The Controller service: writes intent into the store and waits for the agent. Touches no kernel.

mod create;
mod delete;
mod follow;
mod publish;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tonic::{Request, Response, Status};
use zvolt_proto::csi;
use zvolt_proto::csi::controller_service_capability::rpc::Type as Rpc;
use zvolt_proto::csi::controller_service_capability::{self, Type};

use self::create::Wanted;
use super::calls::{Calls, Work};
use super::check::{self, VolumeId};
use super::status::{Kind, Refusal};
use crate::model::parameters::{DEFAULT_BLOCK, Parameters, vol_block_size};
use crate::ops::Journal;
use crate::store::Store;

/// What is advertised is what holds.
const CAPABILITIES: [Rpc; 2] = [Rpc::CreateDeleteVolume, Rpc::PublishUnpublishVolume];

/// The controller over one store.
#[derive(Debug)]
pub(super) struct Controller<S> {
    store: Arc<S>,
    /// Where new volumes live.
    owner: String,
    journal: Journal,
}

/// Its gRPC face.
#[derive(Debug)]
pub(super) struct ControllerService<S> {
    controller: Arc<Controller<S>>,
    calls: Calls,
}

impl<S: Store> ControllerService<S> {
    /// New volumes live on `owner`.
    pub(super) fn new(store: Arc<S>, owner: String, journal: Journal, calls: Calls) -> Self {
        Self {
            controller: Arc::new(Controller {
                store,
                owner,
                journal,
            }),
            calls,
        }
    }
}

#[tonic::async_trait]
impl<S: Store> csi::controller_server::Controller for ControllerService<S> {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let controller = self.controller.clone();
        self.calls
            .serve(
                "CreateVolume",
                request,
                |m| &m.name,
                move |message| {
                    let wanted = Wanted::parse(&message, &controller.owner)?;
                    Ok(Work::on(
                        wanted.volume.metadata.name.clone(),
                        move |deadline| async move { controller.create(wanted, deadline).await },
                    ))
                },
            )
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let controller = self.controller.clone();
        self.calls
            .serve(
                "DeleteVolume",
                request,
                |m| &m.volume_id,
                move |message| {
                    let VolumeId::Handle(handle) = check::volume_id(&message.volume_id)? else {
                        return Ok(Work::Done(csi::DeleteVolumeResponse {}));
                    };
                    Ok(Work::on(handle.clone(), move |deadline| async move {
                        controller.delete(&handle, deadline).await?;
                        Ok(csi::DeleteVolumeResponse {})
                    }))
                },
            )
            .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let controller = self.controller.clone();
        self.calls
            .serve("ControllerPublishVolume", request, |m| &m.volume_id, move |message| {
                let volume = check::volume_id(&message.volume_id)?;
                check::node_id(&message.node_id)?;
                let capability = check::capability(message.volume_capability.as_ref())?;
                if message.readonly {
                    return Err(Refusal::invalid(
                        "readonly is not supported here yet: publish for writing, and let NodePublishVolume be readonly",
                    ));
                }
                let handle = known(volume)?;
                Ok(Work::on(handle.clone(), move |deadline| async move {
                    let publish_context = controller
                        .publish(&handle, &message.node_id, capability.fs_type, deadline)
                        .await?;
                    Ok(csi::ControllerPublishVolumeResponse { publish_context })
                }))
            })
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let controller = self.controller.clone();
        self.calls
            .serve(
                "ControllerUnpublishVolume",
                request,
                |m| &m.volume_id,
                move |message| {
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
                },
            )
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let controller = self.controller.clone();
        self.calls
            .serve(
                "ValidateVolumeCapabilities",
                request,
                |m| &m.volume_id,
                move |message| {
                    let volume = check::volume_id(&message.volume_id)?;
                    if message.volume_capabilities.is_empty() {
                        return Err(Refusal::invalid(
                            "volume_capabilities is missing: name what is to be validated",
                        ));
                    }
                    let handle = known(volume)?;
                    Ok(Work::on(handle.clone(), move |deadline| async move {
                        let volume = controller.existing(&handle, deadline).await?;
                        Ok(validated(&message, &volume))
                    }))
                },
            )
            .await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        self.calls
            .serve(
                "ControllerGetCapabilities",
                request,
                |_| "",
                |_| {
                    let capabilities = CAPABILITIES
                        .into_iter()
                        .map(|rpc| csi::ControllerServiceCapability {
                            r#type: Some(Type::Rpc(controller_service_capability::Rpc {
                                r#type: rpc.into(),
                            })),
                        })
                        .collect();
                    Ok(Work::Done(csi::ControllerGetCapabilitiesResponse {
                        capabilities,
                    }))
                },
            )
            .await
    }
}

/// A call that needs the volume.
fn known(volume: VolumeId) -> Result<String, Refusal> {
    match volume {
        VolumeId::Handle(handle) => Ok(handle),
        VolumeId::Foreign(id) => Err(Refusal::new(
            Kind::NotFound,
            format!("volume {} does not exist", crate::model::shown(&id)),
        )),
    }
}

/// Confirms what was asked for, or says what does not hold.
fn validated(
    request: &csi::ValidateVolumeCapabilitiesRequest,
    volume: &crate::model::volume::Volume,
) -> csi::ValidateVolumeCapabilitiesResponse {
    use csi::validate_volume_capabilities_response::Confirmed;

    let judge = || {
        let capability = check::capabilities(&request.volume_capabilities)?;
        let mut fs_type = capability.fs_type;
        if !request.parameters.is_empty() {
            let parameters = Parameters::parse(&request.parameters)?;
            fs_type = create::one_fs_type(fs_type, parameters.fs_type)?;
            let spec = &volume.spec;
            let block = parameters.block.unwrap_or(DEFAULT_BLOCK);
            if !parameters.pools.contains(&spec.pool)
                || vol_block_size(block) != spec.vol_block_size
                || parameters.tuning != spec.tuning
            {
                return Err(Refusal::invalid(
                    "pool, volBlockSize or compression is another than the volume's",
                ));
            }
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Refusal::invalid("mutable_parameters are not supported yet"));
        }
        match fs_type.filter(|asked| *asked != volume.spec.fs_type) {
            Some(_) => Err(Refusal::invalid(format!(
                "the volume's filesystem is {}",
                volume.spec.fs_type.as_str()
            ))),
            None => Ok(()),
        }
    };
    match judge() {
        Ok(()) => csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context.clone(),
                volume_capabilities: request.volume_capabilities.clone(),
                parameters: request.parameters.clone(),
                ..Confirmed::default()
            }),
            message: String::new(),
        },
        Err(refusal) => csi::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: refusal.message,
        },
    }
}
