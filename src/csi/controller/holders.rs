//! Who has a volume, and who may have it besides (rules 4 and 5). Pure.
//!
//! The controller writes `mappedInitiators`, the agent answers in `publishedInitiators`. A node that is
//! in either has the volume, or may still have it.

use uuid::Uuid;

use crate::csi::status::{Kind, Refusal};
use crate::model::access::{AccessMode, ReadOnly, may_share};
use crate::model::capability::Capability;
use crate::model::names::{self, NQN_PREFIX};
use crate::model::publish::{Content, Target};
use crate::model::volume::{MappedInitiator, State, Volume, VolumeMode};
use crate::store::time;

/// A node, and what it wants of a volume.
#[derive(Debug, Clone)]
pub(super) struct Consumer {
    pub(super) node: String,
    /// Its host NQN.
    pub(super) host: String,
    pub(super) capability: Capability,
    pub(super) read_only: ReadOnly,
}

impl Consumer {
    pub(super) fn new(node: &str, capability: Capability, readonly: bool) -> Self {
        Self {
            node: node.to_owned(),
            host: names::host_nqn(node),
            read_only: ReadOnly::of(capability.mode, readonly),
            capability,
        }
    }

    fn access(&self) -> (AccessMode, ReadOnly) {
        (self.capability.mode, self.read_only)
    }

    /// As it is written into the volume.
    pub(super) fn mapping(&self) -> MappedInitiator {
        MappedInitiator {
            node_name: self.node.clone(),
            initiator_id: self.host.clone(),
            attached_at: time::now(),
            read_only: self.read_only.is_set(),
            access_mode: self.capability.mode,
        }
    }
}

/// Whether the node may have the volume now, in this way.
pub(super) fn may_publish(volume: &Volume, consumer: &Consumer) -> Result<(), Refusal> {
    let handle = &volume.metadata.name;
    fits(&consumer.capability, volume)?;
    if volume.is_deleting() || !matches!(volume.status.state, State::Ready | State::ReadyToPublish)
    {
        return Err(not_ready(volume));
    }
    let mapped = &volume.status.mapped_initiators;
    if let Some(same) = mapped.iter().find(|m| m.initiator_id == consumer.host) {
        let (mode, read_only) = access(same);
        if mode.canonical() != consumer.capability.mode.canonical()
            || read_only != consumer.read_only
        {
            return Err(Refusal::new(
                Kind::AlreadyExists,
                format!(
                    "volume {handle} is published to node {} as {}, readonly={}: call ControllerUnpublishVolume first \
                     to have it as {}, readonly={}",
                    consumer.node,
                    mode.as_str(),
                    read_only.is_set(),
                    consumer.capability.mode.as_str(),
                    consumer.read_only.is_set()
                ),
            ));
        }
    }
    let others = || mapped.iter().filter(|m| m.initiator_id != consumer.host);
    if let Some(other) = others().find(|other| !may_share(access(other), consumer.access())) {
        let (mode, read_only) = access(other);
        return Err(Refusal::new(
            Kind::FailedPrecondition,
            format!(
                "volume {handle} is published to node {holder} as {}, readonly={}, which cannot be shared with {}, \
                 readonly={}: call ControllerUnpublishVolume for {holder} first",
                mode.as_str(),
                read_only.is_set(),
                consumer.capability.mode.as_str(),
                consumer.read_only.is_set(),
                holder = other.node_name,
            ),
        ));
    }
    // What it had the volume for is not known any more: it may still write.
    let fenced = volume
        .status
        .published_initiators
        .iter()
        .find(|host| **host != consumer.host && !is_mapped(volume, host));
    match fenced {
        None => Ok(()),
        Some(host) => Err(Refusal::new(
            Kind::FailedPrecondition,
            format!(
                "volume {handle} was published to node {}, which is still being fenced: try again when it is",
                node_of(host)
            ),
        )),
    }
}

/// Whether the volume can be used in this way by anybody.
pub(super) fn fits(capability: &Capability, volume: &Volume) -> Result<(), Refusal> {
    let (handle, spec) = (&volume.metadata.name, &volume.spec);
    if capability.volume_mode != spec.volume_mode {
        let (asked, has) = match spec.volume_mode {
            VolumeMode::Filesystem => ("a raw device", "a filesystem"),
            VolumeMode::Block => ("a filesystem", "a raw device"),
        };
        return Err(Refusal::invalid(format!(
            "volume_capability asks for {asked}, but volume {handle} was made as {has}"
        )));
    }
    if let Some(asked) = capability.fs_type.filter(|asked| *asked != spec.fs_type) {
        return Err(Refusal::invalid(format!(
            "volume_capability asks for {}, but the filesystem of volume {handle} is {}",
            asked.as_str(),
            spec.fs_type.as_str()
        )));
    }
    Ok(())
}

pub(super) fn not_ready(volume: &Volume) -> Refusal {
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

pub(super) fn unknown(handle: &str) -> Refusal {
    Refusal::new(Kind::NotFound, format!("volume {handle} does not exist"))
}

/// The nodes that have the volume, or may still have it; the first was there first.
pub(super) fn holders(volume: &Volume) -> Vec<String> {
    let mut nodes = published_nodes(volume);
    for mapped in &volume.status.mapped_initiators {
        if !nodes.contains(&mapped.node_name) {
            nodes.push(mapped.node_name.clone());
        }
    }
    nodes
}

/// The nodes that the target lets in, or has not shut out yet.
pub(super) fn published_nodes(volume: &Volume) -> Vec<String> {
    let hosts = volume.status.published_initiators.iter();
    hosts.map(|host| node_of(host).to_owned()).collect()
}

fn node_of(host: &str) -> &str {
    let node = host
        .strip_prefix(NQN_PREFIX)
        .and_then(|rest| rest.strip_prefix(".node:"));
    node.unwrap_or(host)
}

fn access(mapped: &MappedInitiator) -> (AccessMode, ReadOnly) {
    (
        mapped.access_mode,
        ReadOnly::of(mapped.access_mode, mapped.read_only),
    )
}

pub(super) fn is_mapped(volume: &Volume, host: &str) -> bool {
    volume
        .status
        .mapped_initiators
        .iter()
        .any(|initiator| initiator.initiator_id == host)
}

pub(super) fn is_published(volume: &Volume, host: &str) -> bool {
    volume
        .status
        .published_initiators
        .iter()
        .any(|published| published == host)
}

/// Whether the host, or any when none is named, is in one of the lists.
pub(super) fn has(volume: &Volume, host: Option<&str>, is_in: fn(&Volume, &str) -> bool) -> bool {
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
pub(super) fn target(volume: &Volume, consumer: &Consumer) -> Result<Target, Refusal> {
    let status = &volume.status;
    let content = || match volume.spec.volume_mode {
        VolumeMode::Block => Some(Content::Raw),
        VolumeMode::Filesystem => Some(Content::Filesystem {
            fs_type: volume.spec.fs_type,
            uuid: status.filesystem_uuid?,
        }),
    };
    let read = || {
        Some(Target {
            nqn: volume.target_nqn(&consumer.host)?.to_owned(),
            portal: status.portal.as_deref()?.parse().ok()?,
            namespace_uuid: status.device_uuid?,
            nguid: Uuid::try_parse(status.device_guid.as_deref()?)
                .ok()?
                .into_bytes(),
            size_bytes: status.actual_capacity.unwrap_or(volume.spec.capacity),
            content: content()?,
            read_only: consumer.read_only,
            owner_node: volume.spec.owner_node.clone(),
            dataset: status.dataset_path.clone()?,
        })
    };
    read().ok_or_else(|| {
        Refusal::new(
            Kind::Internal,
            format!(
                "the status of volume {} lacks targetNQN, portal (address:port), deviceUUID, deviceGUID, datasetPath or \
                 filesystemUUID: look at the agent's log on {}",
                volume.metadata.name, volume.spec.owner_node
            ),
        )
    })
}
