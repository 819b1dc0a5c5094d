//! DeleteVolume.

use std::time::Instant;

use super::Controller;
use super::follow::{until, within};
use super::publish::holders;
use crate::csi::status::{Kind, Refusal};
use crate::model::volume::Volume;
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch};

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
        let mut watch = self.store.volumes().watch(Some(handle));
        let Some(volume) = within(deadline, self.store.volumes().get(handle)).await? else {
            return Ok(());
        };
        if let Some(node) = holders(&volume).next().filter(|_| !volume.is_deleting()) {
            return Err(Refusal::new(
                Kind::FailedPrecondition,
                format!(
                    "volume {handle} is published to node {node}: call ControllerUnpublishVolume first"
                ),
            ));
        }
        timeline
            .wait("volume.delete", self.gone(&mut watch, volume, deadline))
            .await
    }

    /// Asks for the deletion and waits until the agent has done it.
    pub(super) async fn gone(
        &self,
        watch: &mut Watch<Volume>,
        volume: Volume,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let asked = async {
            match self.store.volumes().delete(&volume.metadata.name).await {
                Err(store::Error::NotFound(..)) => Ok(()),
                asked => asked,
            }
        };
        within(deadline, asked).await?;
        let uid = volume.metadata.uid.clone();
        until(
            watch,
            Some(volume),
            deadline,
            "is not gone",
            |volume| match volume {
                Some(volume) if volume.metadata.uid == uid => None,
                _ => Some(Ok(())),
            },
        )
        .await
    }
}
