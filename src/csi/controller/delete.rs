//! DeleteVolume. What has snapshots or clones is deleted as well: the agent keeps their data.

use std::time::Instant;

use super::Controller;
use super::follow::{gone, within};
use super::holders::holders;
use crate::csi::status::{Kind, Refusal};
use crate::model::volume::Volume;
use crate::ops::Timeline;
use crate::store::{Objects, Store};

impl<S: Store> Controller<S> {
    /// Deletes the volume and waits until it is gone; fine when it is gone already.
    pub(super) async fn delete(&self, handle: &str, deadline: Instant) -> Result<(), Refusal> {
        let mut timeline = Timeline::start("DeleteVolume", handle, Some(&self.journal));
        let outcome = self.deleted(&mut timeline, handle, deadline).await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    async fn deleted(
        &self,
        timeline: &mut Timeline,
        handle: &str,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let volumes = self.store.volumes();
        let mut watch = volumes.watch(Some(handle));
        let Some(volume) = within(deadline, volumes.get(handle)).await? else {
            return Ok(());
        };
        timeline
            .wait(
                "volume.delete",
                gone(volumes, &mut watch, volume, is_held_by_none, deadline),
            )
            .await
    }
}

/// Refuses while a node has the volume, or may still have it.
pub(super) fn is_held_by_none(volume: &Volume) -> Result<(), Refusal> {
    match holders(volume).first() {
        None => Ok(()),
        Some(node) => Err(Refusal::new(
            Kind::FailedPrecondition,
            format!(
                "volume {} is published to node {node}: call ControllerUnpublishVolume first",
                volume.metadata.name
            ),
        )),
    }
}
