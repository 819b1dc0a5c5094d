//! The Identity service.

use tonic::{Request, Response, Status};
use zvolt_proto::csi;
use zvolt_proto::csi::plugin_capability::{
    Service, Type, VolumeExpansion, service, volume_expansion,
};

use super::calls::{Calls, Work};
use crate::model::DRIVER_NAME;

/// Whether this process serves the Controller service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    /// It does.
    Served,
    /// It does not.
    Elsewhere,
}

/// Who this plugin is.
#[derive(Debug)]
pub(super) struct IdentityService {
    pub(super) controller: Controller,
    pub(super) calls: Calls,
}

#[tonic::async_trait]
impl csi::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        request: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let answer = csi::GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        };
        self.calls
            .serve("GetPluginInfo", request, |_| "", |_| Ok(Work::Done(answer)))
            .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let capabilities = match self.controller {
            Controller::Served => controller_capabilities(),
            Controller::Elsewhere => Vec::new(),
        };
        let answer = csi::GetPluginCapabilitiesResponse { capabilities };
        self.calls
            .serve(
                "GetPluginCapabilities",
                request,
                |_| "",
                |_| Ok(Work::Done(answer)),
            )
            .await
    }

    /// The socket is only there once everything else is, so whoever asks gets a yes.
    async fn probe(
        &self,
        request: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        let answer = csi::ProbeResponse { ready: Some(true) };
        self.calls
            .serve("Probe", request, |_| "", |_| Ok(Work::Done(answer)))
            .await
    }
}

/// What a process with the Controller services can do.
fn controller_capabilities() -> Vec<csi::PluginCapability> {
    let service = |service: service::Type| {
        Type::Service(Service {
            r#type: service.into(),
        })
    };
    let all = [
        service(service::Type::ControllerService),
        service(service::Type::GroupControllerService),
        Type::VolumeExpansion(VolumeExpansion {
            r#type: volume_expansion::Type::Online.into(),
        }),
    ];
    let capability = |r#type| csi::PluginCapability {
        r#type: Some(r#type),
    };
    all.into_iter().map(capability).collect()
}
