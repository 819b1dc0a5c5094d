//! ListVolumes and ControllerGetVolume: what the store says of every volume, whatever its state.

use std::time::Instant;

use zvolt_proto::csi;

use super::Controller;
use super::follow::within;
use super::holders::published_nodes;
use super::page::{Page, volume_token};
use super::source::Source;
use crate::csi::status::{Kind, Refusal};
use crate::model::volume::Volume;
use crate::store::{Objects, Store};

/// The bytes that a volume has, or will have.
pub(super) fn capacity_of(volume: &Volume) -> u64 {
    volume
        .status
        .actual_capacity
        .unwrap_or(volume.spec.capacity)
}

/// A volume as CSI has it.
pub(super) fn to_csi(volume: &Volume) -> Result<csi::Volume, Refusal> {
    Ok(csi::Volume {
        capacity_bytes: to_i64(&volume.metadata.name, capacity_of(volume))?,
        volume_id: volume.metadata.name.clone(),
        content_source: Source::of(&volume.spec).map(Source::into_csi),
        ..csi::Volume::default()
    })
}

/// A count of bytes as CSI has it.
pub(super) fn to_i64(name: &str, bytes: u64) -> Result<i64, Refusal> {
    i64::try_from(bytes).map_err(|_| {
        Refusal::new(
            Kind::Internal,
            format!("{name} has {bytes} bytes, more than CSI can say"),
        )
    })
}

impl<S: Store> Controller<S> {
    /// All volumes, by their handle, a page at a time.
    pub(super) async fn list(
        &self,
        page: Page,
        deadline: Instant,
    ) -> Result<csi::ListVolumesResponse, Refusal> {
        let volumes = within(deadline, self.store.volumes().list()).await?;
        let (volumes, next_token) = page.of(volumes, volume_token);
        let entry = |volume: &Volume| {
            Ok(csi::list_volumes_response::Entry {
                volume: Some(to_csi(volume)?),
                status: Some(csi::list_volumes_response::VolumeStatus {
                    published_node_ids: published_nodes(volume),
                }),
            })
        };
        Ok(csi::ListVolumesResponse {
            entries: volumes.iter().map(entry).collect::<Result<_, Refusal>>()?,
            next_token,
        })
    }

    /// One volume.
    pub(super) async fn get(
        &self,
        handle: &str,
        deadline: Instant,
    ) -> Result<csi::ControllerGetVolumeResponse, Refusal> {
        let volume = self.existing(handle, deadline).await?;
        Ok(csi::ControllerGetVolumeResponse {
            volume: Some(to_csi(&volume)?),
            status: Some(csi::controller_get_volume_response::VolumeStatus {
                published_node_ids: published_nodes(&volume),
            }),
        })
    }
}
