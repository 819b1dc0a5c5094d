//! ControllerPublishVolume and its reverse: one writer, never displaced silently (rule 4).
//!
//! The controller writes `mappedInitiators`, the agent answers in `publishedInitiators`. A node that is
//! in either has the volume, or may still have it.

use std::collections::HashMap;
use std::time::Instant;

use uuid::Uuid;

use super::Controller;
use super::follow::{until, within};
use crate::csi::status::{Kind, Refusal};
use crate::model::access::{AccessMode, ReadOnly};
use crate::model::names::{self, NQN_PREFIX};
use crate::model::publish::{Content, Target};
use crate::model::volume::{FsType, MappedInitiator, State, Volume};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch, time};

impl<S: Store> Controller<S> {
    /// Admits the node and gives what it needs to find the volume.
    pub(super) async fn publish(
        &self,
        handle: &str,
        node: &str,
        fs_type: Option<FsType>,
        deadline: Instant,
    ) -> Result<HashMap<String, String>, Refusal> {
        let mut timeline = Timeline::start("ControllerPublishVolume", handle, Some(&self.journal));
        let mut watch = self.store.volumes().watch(Some(handle));
        let outcome = self
            .published(&mut timeline, &mut watch, (handle, node, fs_type), deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        Ok(target(&outcome?)?.to_context())
    }

    async fn published(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Volume>,
        (handle, node, fs_type): (&str, &str, Option<FsType>),
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let host = names::host_nqn(node);
        let mut volume = self.existing(handle, deadline).await?;
        may_publish(&volume, node, fs_type)?;
        if !is_mapped(&volume, &host) && is_published(&volume, &host) {
            // An unpublish of this node gave up waiting: its fence ends before the node comes back.
            let what = format!("has not been taken from node {node}, which is still being fenced,");
            let fenced = until(
                watch,
                Some(volume),
                deadline,
                &what,
                |volume| match volume {
                    Some(volume) => (!is_published(volume, &host)).then(|| Ok(volume.clone())),
                    None => Some(Err(unknown(handle))),
                },
            );
            volume = timeline.wait("volume.await-fenced", fenced).await?;
        }
        let is_new = !is_mapped(&volume, &host);
        if is_new {
            volume = timeline
                .wait(
                    "volume.map",
                    self.map(volume, node, &host, fs_type, deadline),
                )
                .await?;
        }
        let what = format!("has not been opened for node {node}");
        let admitted = until(watch, Some(volume), deadline, &what, |volume| {
            let Some(volume) = volume else {
                return Some(Err(unknown(handle)));
            };
            // An older state, or one in which somebody has taken the node out again, says nothing.
            if !is_mapped(volume, &host) {
                return None;
            }
            match volume.status.state {
                State::Error => Some(Err(not_ready(volume))),
                _ if volume.is_deleting() => Some(Err(not_ready(volume))),
                _ => is_published(volume, &host).then(|| Ok(volume.clone())),
            }
        });
        let outcome = timeline.wait("volume.await-admitted", admitted).await;
        match outcome {
            Err(refusal) if is_new && refusal.kind == Kind::FailedPrecondition => {
                // Nobody was admitted: another node must not be refused because of a wish that came to nothing.
                if let Err(error) = self.unmap(handle, Some(&host), deadline).await {
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

    pub(super) async fn existing(
        &self,
        handle: &str,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        within(deadline, self.store.volumes().get(handle))
            .await?
            .ok_or_else(|| unknown(handle))
    }

    /// Writes the node into `mappedInitiators`. Every state that is written on has been judged.
    async fn map(
        &self,
        mut volume: Volume,
        node: &str,
        host: &str,
        fs_type: Option<FsType>,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let handle = volume.metadata.name.clone();
        loop {
            may_publish(&volume, node, fs_type)?;
            if is_mapped(&volume, host) {
                return Ok(volume);
            }
            volume.status.mapped_initiators.push(MappedInitiator {
                node_name: node.to_owned(),
                initiator_id: host.to_owned(),
                attached_at: time::now(),
                read_only: false,
                access_mode: AccessMode::default(),
            });
            match self.write(volume, deadline).await? {
                Some(written) => return Ok(written),
                None => volume = self.existing(&handle, deadline).await?,
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

/// Whether the node may have the volume now.
fn may_publish(volume: &Volume, node: &str, fs_type: Option<FsType>) -> Result<(), Refusal> {
    let handle = &volume.metadata.name;
    if let Some(asked) = fs_type.filter(|asked| *asked != volume.spec.fs_type) {
        return Err(Refusal::invalid(format!(
            "volume_capability asks for {}, but the filesystem of volume {handle} is {}",
            asked.as_str(),
            volume.spec.fs_type.as_str()
        )));
    }
    if volume.is_deleting() || !matches!(volume.status.state, State::Ready | State::ReadyToPublish)
    {
        return Err(not_ready(volume));
    }
    match holders(volume).find(|holder| holder != node) {
        None => Ok(()),
        Some(holder) => Err(Refusal::new(
            Kind::FailedPrecondition,
            format!(
                "volume {handle} has one writer at a time, and node {holder} has it: call ControllerUnpublishVolume \
                 for {holder} first"
            ),
        )),
    }
}

fn not_ready(volume: &Volume) -> Refusal {
    let (handle, owner) = (&volume.metadata.name, &volume.spec.owner_node);
    let (kind, why) = match volume.status.state {
        _ if volume.is_deleting() => (Kind::FailedPrecondition, "it is being deleted"),
        State::Error => (
            Kind::FailedPrecondition,
            volume.trouble().unwrap_or("see its Ready condition"),
        ),
        _ => (
            Kind::Unavailable,
            volume
                .trouble()
                .unwrap_or("its agent is still making it: try again"),
        ),
    };
    Refusal::new(
        kind,
        format!("volume {handle} on {owner} is not ready: {why}"),
    )
}

fn unknown(handle: &str) -> Refusal {
    Refusal::new(Kind::NotFound, format!("volume {handle} does not exist"))
}

/// The nodes that have the volume, or may still have it; the first was there first.
pub(super) fn holders(volume: &Volume) -> impl Iterator<Item = String> {
    let status = &volume.status;
    let mapped = status
        .mapped_initiators
        .iter()
        .map(|initiator| initiator.node_name.clone());
    let published = status.published_initiators.iter().map(|host| {
        let node = host
            .strip_prefix(NQN_PREFIX)
            .and_then(|rest| rest.strip_prefix(".node:"));
        node.unwrap_or(host).to_owned()
    });
    published.chain(mapped)
}

fn is_mapped(volume: &Volume, host: &str) -> bool {
    volume
        .status
        .mapped_initiators
        .iter()
        .any(|initiator| initiator.initiator_id == host)
}

fn is_published(volume: &Volume, host: &str) -> bool {
    volume
        .status
        .published_initiators
        .iter()
        .any(|published| published == host)
}

/// Whether the host, or any when none is named, is in one of the lists.
fn has(volume: &Volume, host: Option<&str>, is_in: fn(&Volume, &str) -> bool) -> bool {
    match host {
        Some(host) => is_in(volume, host),
        None => {
            let status = &volume.status;
            let mapped = status
                .mapped_initiators
                .iter()
                .map(|initiator| initiator.initiator_id.as_str());
            let published = status.published_initiators.iter().map(String::as_str);
            mapped.chain(published).any(|host| is_in(volume, host))
        }
    }
}

/// What the node needs to know, out of what the agent says.
fn target(volume: &Volume) -> Result<Target, Refusal> {
    let status = &volume.status;
    let read = || {
        Some(Target {
            nqn: status.target_nqn.clone()?,
            portal: status.portal.as_deref()?.parse().ok()?,
            namespace_uuid: status.device_uuid?,
            nguid: Uuid::try_parse(status.device_guid.as_deref()?)
                .ok()?
                .into_bytes(),
            size_bytes: status.actual_capacity.unwrap_or(volume.spec.capacity),
            content: Content::Filesystem {
                fs_type: volume.spec.fs_type,
                uuid: status.filesystem_uuid?,
            },
            read_only: ReadOnly::No,
            owner_node: volume.spec.owner_node.clone(),
            dataset: status.dataset_path.clone()?,
        })
    };
    read().ok_or_else(|| {
        Refusal::new(
            Kind::Internal,
            format!(
                "the status of volume {} lacks targetNQN, portal (address:port), deviceUUID, deviceGUID or \
                 filesystemUUID: look at the agent's log on {}",
                volume.metadata.name, volume.spec.owner_node
            ),
        )
    })
}
