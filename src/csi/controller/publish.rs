//! ControllerPublishVolume and its reverse: who has a volume is never displaced silently (rule 4).

use std::collections::HashMap;
use std::time::Instant;

use super::Controller;
use super::follow::{until, within};
use super::holders::{
    Consumer, has, is_mapped, is_published, may_publish, not_ready, target, unknown,
};
use crate::csi::status::{Kind, Refusal};
use crate::model::names;
use crate::model::shown;
use crate::model::volume::{State, Volume};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch};

impl<S: Store> Controller<S> {
    /// Admits the node and gives what it needs to find the volume. For a node that may not write, the agent
    /// has the target refuse writes before it admits it (rule 5).
    pub(super) async fn publish(
        &self,
        handle: &str,
        consumer: &Consumer,
        deadline: Instant,
    ) -> Result<HashMap<String, String>, Refusal> {
        let mut timeline = Timeline::start("ControllerPublishVolume", handle, Some(&self.journal));
        let mut watch = self.store.volumes().watch(Some(handle));
        let outcome = self
            .published(&mut timeline, &mut watch, handle, consumer, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        Ok(target(&outcome?, consumer)?.to_context())
    }

    async fn published(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Volume>,
        handle: &str,
        consumer: &Consumer,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let (node, host) = (&consumer.node, &consumer.host);
        let mut volume = self.existing(handle, deadline).await?;
        if !self.site.has_consumer(node) {
            return Err(Refusal::new(
                Kind::NotFound,
                format!(
                    "node {} is not among the consumers of this storage: add it by --consumer",
                    shown(node)
                ),
            ));
        }
        may_publish(&volume, consumer)?;
        if !is_mapped(&volume, host) && is_published(&volume, host) {
            // An unpublish of this node gave up waiting: its fence ends before the node comes back.
            let what = format!("has not been taken from node {node}, which is still being fenced,");
            let fenced = until(
                watch,
                Some(volume),
                deadline,
                &what,
                |volume| match volume {
                    Some(volume) => (!is_published(volume, host)).then(|| Ok(volume.clone())),
                    None => Some(Err(unknown(handle))),
                },
            );
            volume = timeline.wait("volume.await-fenced", fenced).await?;
        }
        let is_new = !is_mapped(&volume, host);
        if is_new {
            volume = timeline
                .wait("volume.map", self.map(volume, consumer, deadline))
                .await?;
        }
        let what = format!("has not been opened for node {node}");
        let admitted = until(watch, Some(volume), deadline, &what, |volume| {
            let Some(volume) = volume else {
                return Some(Err(unknown(handle)));
            };
            // An older state, or one in which somebody has taken the node out again, says nothing.
            if !is_mapped(volume, host) {
                return None;
            }
            match volume.status.state {
                State::Error => Some(Err(not_ready(volume))),
                _ if volume.is_deleting() => Some(Err(not_ready(volume))),
                _ => is_published(volume, host).then(|| Ok(volume.clone())),
            }
        });
        let outcome = timeline.wait("volume.await-admitted", admitted).await;
        match outcome {
            Err(refusal) if is_new && refusal.kind == Kind::FailedPrecondition => {
                // Nobody was admitted: another node must not be refused because of a wish that came to nothing.
                if let Err(error) = self.take_back(handle, host, deadline).await {
                    tracing::warn!(volume = handle, node, %error, "could not be unmapped: ControllerUnpublishVolume does it");
                }
                Err(refusal)
            }
            outcome => outcome,
        }
    }

    /// Takes the node out, or all nodes, and waits until the agent has fenced them.
    pub(super) async fn unpublish(
        &self,
        handle: &str,
        node: Option<&str>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let mut timeline =
            Timeline::start("ControllerUnpublishVolume", handle, Some(&self.journal));
        let mut watch = self.store.volumes().watch(Some(handle));
        let outcome = self
            .unpublished(&mut timeline, &mut watch, handle, node, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    async fn unpublished(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Volume>,
        handle: &str,
        node: Option<&str>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let host = node.map(names::host_nqn);
        let host = host.as_deref();
        let Some(mut volume) = within(deadline, self.store.volumes().get(handle)).await? else {
            return Ok(());
        };
        if has(&volume, host, is_mapped) {
            match timeline
                .wait("volume.unmap", self.unmap(handle, host, deadline))
                .await?
            {
                Some(unmapped) => volume = unmapped,
                None => return Ok(()),
            }
        } else if !has(&volume, host, is_published) {
            return Ok(());
        }
        let what = format!("has not been taken from node {}", node.unwrap_or("any"));
        let fenced = until(
            watch,
            Some(volume),
            deadline,
            &what,
            |volume| match volume {
                Some(volume) if has(volume, host, is_mapped) || has(volume, host, is_published) => {
                    None
                }
                _ => Some(Ok(())),
            },
        );
        timeline.wait("volume.await-fenced", fenced).await
    }

    /// Writes the node into `mappedInitiators`. Every state that is written on has been judged.
    pub(super) async fn map(
        &self,
        mut volume: Volume,
        consumer: &Consumer,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let handle = volume.metadata.name.clone();
        loop {
            may_publish(&volume, consumer)?;
            if is_mapped(&volume, &consumer.host) {
                return Ok(volume);
            }
            volume.status.mapped_initiators.push(consumer.mapping());
            match self.write(volume, deadline).await? {
                Some(written) => return Ok(written),
                None => volume = self.existing(&handle, deadline).await?,
            }
        }
    }

    /// Takes a host that is not admitted out of `mappedInitiators`. One that is admitted meanwhile stays: another
    /// controller, asked for the same, may have said so.
    pub(super) async fn take_back(
        &self,
        handle: &str,
        host: &str,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        loop {
            let found = within(deadline, self.store.volumes().get(handle)).await?;
            let Some(mut volume) = found.filter(|v| is_mapped(v, host) && !is_published(v, host))
            else {
                return Ok(());
            };
            let mapped = &mut volume.status.mapped_initiators;
            mapped.retain(|initiator| initiator.initiator_id != host);
            if self.write(volume, deadline).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Takes the host, or all, out of `mappedInitiators`; `None` when the volume is gone.
    async fn unmap(
        &self,
        handle: &str,
        host: Option<&str>,
        deadline: Instant,
    ) -> Result<Option<Volume>, Refusal> {
        loop {
            let Some(mut volume) = within(deadline, self.store.volumes().get(handle)).await? else {
                return Ok(None);
            };
            if !has(&volume, host, is_mapped) {
                return Ok(Some(volume));
            }
            let mapped = &mut volume.status.mapped_initiators;
            mapped.retain(|initiator| host.is_some_and(|host| initiator.initiator_id != host));
            if let Some(written) = self.write(volume, deadline).await? {
                return Ok(Some(written));
            }
        }
    }

    /// Writes the status; `None` when somebody else was faster.
    async fn write(&self, volume: Volume, deadline: Instant) -> Result<Option<Volume>, Refusal> {
        let write = async {
            match self.store.volumes().update_status(volume).await {
                Ok(written) => Ok(Some(written)),
                Err(store::Error::Conflict(..)) => Ok(None),
                Err(error) => Err(error),
            }
        };
        within(deadline, write).await
    }
}
