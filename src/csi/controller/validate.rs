//! ValidateVolumeCapabilities: confirms what was asked for, or says what does not hold.

use zvolt_proto::csi;
use zvolt_proto::csi::validate_volume_capabilities_response::Confirmed;

use super::create::one_fs_type;
use super::holders::fits;
use crate::csi::check;
use crate::csi::status::Refusal;
use crate::model::capability::Capability;
use crate::model::parameters::{Changes, Parameters, vol_block_size};
use crate::model::volume::{Volume, VolumeMode};

pub(super) fn validated(
    request: &csi::ValidateVolumeCapabilitiesRequest,
    volume: &Volume,
) -> csi::ValidateVolumeCapabilitiesResponse {
    match holds(request, volume) {
        Ok(()) => csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context.clone(),
                volume_capabilities: request.volume_capabilities.clone(),
                parameters: request.parameters.clone(),
                mutable_parameters: request.mutable_parameters.clone(),
            }),
            message: String::new(),
        },
        Err(refusal) => csi::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: refusal.message,
        },
    }
}

fn holds(request: &csi::ValidateVolumeCapabilitiesRequest, volume: &Volume) -> Result<(), Refusal> {
    let capability = check::capabilities(&request.volume_capabilities)?;
    fits(&capability, volume)?;
    let changes = Changes::parse(&request.mutable_parameters)?;
    let mut tuning = volume.spec.tuning.clone();
    if !request.parameters.is_empty() {
        let parameters = Parameters::parse(&request.parameters)?;
        parameters_fit(&parameters, &capability, volume)?;
        tuning = parameters.said.apply(&tuning);
    }
    if changes.apply(&tuning) != volume.spec.tuning {
        return Err(Refusal::invalid(format!(
            "its properties are {:?}",
            volume.spec.tuning
        )));
    }
    Ok(())
}

/// What parameters do not say may be anything: a copy has it from its source.
fn parameters_fit(
    parameters: &Parameters,
    capability: &Capability,
    volume: &Volume,
) -> Result<(), Refusal> {
    let spec = &volume.spec;
    if !parameters.pools.contains(&spec.pool) {
        return Err(Refusal::invalid(format!("its pool is {}", spec.pool)));
    }
    let block = parameters.block.map(vol_block_size);
    if block.is_some_and(|block| block != spec.vol_block_size) {
        return Err(Refusal::invalid(format!(
            "its volBlockSize is {}",
            spec.vol_block_size
        )));
    }
    if parameters.deletion_policy != spec.deletion_policy {
        return Err(Refusal::invalid(format!(
            "its reclaimPolicy is {:?}",
            spec.deletion_policy
        )));
    }
    if spec.volume_mode == VolumeMode::Block {
        return Ok(());
    }
    match one_fs_type(capability.fs_type, parameters.fs_type)? {
        Some(asked) if asked != spec.fs_type => Err(Refusal::invalid(format!(
            "the volume's filesystem is {}",
            spec.fs_type.as_str()
        ))),
        _ => Ok(()),
    }
}
