//! The Volume API: desired and observed state of one volume, field by field.
//!
//! Group `zfs.csi.randomvariable.co.uk`, version `v1alpha1`. The controller writes `spec` and
//! `status.mappedInitiators`; the agent writes everything else in `status`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::access::AccessMode;
use super::names::Identity;
use super::object::Object;
pub use super::object::{Condition, Metadata};

/// Keeps a Volume from vanishing before its agent has destroyed what it stands for.
pub const FINALIZER: &str = "zfs.csi.randomvariable.co.uk/volume-protect";

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name, versions, deletion.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: VolumeSpec,
    /// What is.
    #[serde(default)]
    pub status: VolumeStatus,
}

/// Where the storage came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provenance {
    /// Provisioned by CSI.
    #[default]
    Dynamic,
    /// A validated, retained backend.
    Imported,
}

/// What becomes of the dataset when the Volume is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// Destroyed.
    #[default]
    Delete,
    /// Kept.
    Retain,
}

/// Zvol or dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeType {
    /// A zvol.
    #[default]
    Block,
    /// A dataset.
    Filesystem,
}

/// Block transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockTransport {
    /// NVMe/TCP.
    #[default]
    #[serde(rename = "nvme-tcp")]
    NvmeTcp,
}

/// How a node comes to a block volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// By a connection to the volume's own subsystem.
    #[default]
    PerVolume,
    /// By one connection for all such volumes of a storage host, which the node keeps.
    Pooled,
}

impl AttachMode {
    /// The API's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerVolume => "per-volume",
            Self::Pooled => "pooled",
        }
    }

    /// The one called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::PerVolume, Self::Pooled]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }
}

/// How a block volume appears in a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeMode {
    /// A mounted filesystem, which the agent has made.
    #[default]
    Filesystem,
    /// The raw device: nothing is ever made on it.
    Block,
}

/// Whether a zvol's space is reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provisioning {
    /// Space is taken as it is written.
    #[default]
    Thin,
    /// `refreservation` holds all of it, with what the pool's layout adds.
    Thick,
}

/// Properties of a volume that can be changed while it is used. Empty inherits from the parent dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tuning {
    /// ZFS `compression`, by the Volume API's names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compression: String,
    /// ZFS `sync`: `standard`, `always` or `disabled`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sync: String,
    /// ZFS `logbias`: `latency` or `throughput`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub logbias: String,
    /// ZFS `primarycache`: `all`, `metadata` or `none`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub primarycache: String,
    /// Whether space is reserved (`refreservation`).
    pub provisioning: Provisioning,
}

/// The filesystem that is made on a block volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
}

impl FsType {
    /// The kernel's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The filesystem called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }
}

/// Desired state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// Where the storage came from.
    #[serde(default)]
    pub provenance: Provenance,
    /// Canonical ZFS name of an imported backend; empty for dynamic volumes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend_path: String,
    /// What deletion does.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Pool, 1 to 63 characters.
    pub pool: String,
    /// Bytes: `volsize` (a multiple of the block size) or `refquota`.
    pub capacity: u64,
    /// Zvol or dataset.
    #[serde(rename = "type", default)]
    pub volume_type: VolumeType,
    /// Filesystem on a block volume.
    #[serde(default)]
    pub fs_type: FsType,
    /// Canonical `volblocksize` (`16k`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vol_block_size: String,
    /// Filesystem or raw device (added to the seed's fields).
    #[serde(default)]
    pub volume_mode: VolumeMode,
    /// `compression`, and what was added to the seed's fields: all that can be changed later.
    #[serde(flatten)]
    pub tuning: Tuning,
    /// What `tuning` was before the change that is under way: it goes back there when ZFS refuses that (added
    /// to the seed's fields).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning_before: Option<Tuning>,
    /// Options of mkfs, one word each, checked against a list (added to the seed's fields).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    /// Key reference, `transit/<keyName>` or `kv/<path>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_key_ref: Option<String>,
    /// Block transport.
    #[serde(default)]
    pub transport: BlockTransport,
    /// How nodes come to it (added to the seed's fields). Never changed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attach: AttachMode,
    /// Storage node that materialises the volume.
    pub owner_node: String,
    /// The CSI volume name.
    pub vol_name: String,
    /// The CSI volume handle.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Snapshot to restore.
    #[serde(
        rename = "sourceSnapshotID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub source_snapshot_id: Option<String>,
    /// Volume to clone.
    #[serde(
        rename = "sourceVolumeID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub source_volume_id: Option<String>,
    /// Clients of a filesystem volume.
    #[serde(
        rename = "nfsExportCIDRs",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub nfs_export_cidrs: Vec<String>,
    /// `rw` or `ro`.
    #[serde(default = "rw", skip_serializing_if = "is_rw")]
    pub nfs_export_access_mode: String,
    /// Namespace and name of the claim, when the provisioner gave them (added to the seed's fields).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// The claim that a volume was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn rw() -> String {
    "rw".into()
}

fn is_rw(mode: &str) -> bool {
    mode == "rw"
}

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Wanted, not there yet.
    #[default]
    Pending,
    /// Created, formatted and exported, with no host allowed.
    Ready,
    /// As Ready, with an export that awaits its first consumer.
    ReadyToPublish,
    /// Being destroyed.
    Deleting,
    /// Gone.
    Destroyed,
    /// A person must look; the Ready condition says why.
    Error,
}

/// A consumer that is allowed to attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MappedInitiator {
    /// The node.
    pub node_name: String,
    /// Its host NQN.
    #[serde(rename = "initiatorID")]
    pub initiator_id: String,
    /// RFC 3339, UTC.
    pub attached_at: String,
    /// It may not write (added to the seed's fields).
    #[serde(default)]
    pub read_only: bool,
    /// What it asked for (added to the seed's fields).
    #[serde(default)]
    pub access_mode: AccessMode,
}

/// Where one host finds a pooled volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The host.
    #[serde(rename = "initiatorID")]
    pub initiator_id: String,
    /// The subsystem that the host has of this storage host.
    #[serde(rename = "targetNQN")]
    pub target_nqn: String,
    /// The volume's namespace in it: the same for as long as the host is admitted, whatever is made anew.
    pub nsid: u32,
}

/// Namespace Write Protect (NVMe base spec, feature 84h) of a volume's namespace, by the agent's word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteProtect {
    /// Writes are taken.
    #[default]
    Off,
    /// It is being switched: either may hold.
    Changing,
    /// The target refuses writes.
    On,
}

/// Why the `Ready` condition is false: the words that controller and agent share.
pub mod reason {
    /// The pool is not imported on the owner. Final.
    pub const POOL_NOT_FOUND: &str = "PoolNotFound";
    /// A pool of this name is imported, but its GUID is not the one that the volume was made on. Final.
    pub const POOL_REPLACED: &str = "PoolReplaced";
    /// The pool or a quota is full. Final for a volume that was never Ready.
    pub const NO_SPACE: &str = "NoSpace";
    /// ZFS refuses a property. Final.
    pub const BAD_PROPERTY: &str = "BadProperty";
    /// The volume was Ready once and its dataset is missing: rule 2. Final.
    pub const DATASET_MISSING: &str = "DatasetMissing";
    /// A dataset of this name exists and is not this volume's. Final.
    pub const DATASET_FOREIGN: &str = "DatasetForeign";
    /// Something holds the dataset; tried again.
    pub const BUSY: &str = "Busy";
    /// A system call failed; tried again.
    pub const KERNEL: &str = "KernelError";
    /// What the volume is to be made from is not there. Final.
    pub const SOURCE_MISSING: &str = "SourceMissing";
    /// All is well.
    pub const RECONCILED: &str = "Reconciled";
}

/// Observed state. Written by the agent, but for `mapped_initiators`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// Conditions `Ready`, `Applied` (what was changed after creation is in ZFS) and `Encrypted`.
    pub conditions: Vec<Condition>,
    /// Where it is in its life.
    pub state: State,
    /// The generation that was last reconciled.
    pub observed_generation: i64,
    /// Subsystem NQN.
    #[serde(rename = "targetNQN", skip_serializing_if = "Option::is_none")]
    pub target_nqn: Option<String>,
    /// `host:port`, IPv6 bracketed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal: Option<String>,
    /// The namespace's NGUID, 32 lower-case hex digits.
    #[serde(rename = "deviceGUID", skip_serializing_if = "Option::is_none")]
    pub device_guid: Option<String>,
    /// The namespace's UUID (added to the seed's fields).
    #[serde(rename = "deviceUUID", skip_serializing_if = "Option::is_none")]
    pub device_uuid: Option<Uuid>,
    /// NFS export path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_path: Option<String>,
    /// Consumers that are meant to have access. Written by the controller.
    pub mapped_initiators: Vec<MappedInitiator>,
    /// Initiator IDs that the agent has admitted, or admitted and not yet fenced.
    pub published_initiators: Vec<String>,
    /// Where those of them that reach a pooled volume by their common subsystem find it (added to the seed's fields).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<Placement>,
    /// `Available` or `Unavailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_status: Option<String>,
    /// `/dev/zvol/…` on the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zvol_path: Option<String>,
    /// Full dataset name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset_path: Option<String>,
    /// `volsize` or `refquota` as ZFS has it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_capacity: Option<u64>,
    /// The pool's GUID at creation (added to the seed's fields): a pool of the same name is not the same pool.
    #[serde(rename = "poolGUID", skip_serializing_if = "Option::is_none")]
    pub pool_guid: Option<String>,
    /// The filesystem's UUID (added to the seed's fields).
    #[serde(rename = "filesystemUUID", skip_serializing_if = "Option::is_none")]
    pub filesystem_uuid: Option<Uuid>,
    /// What the target does with writes (added to the seed's fields).
    pub write_protect: WriteProtect,
    /// The volume has been Ready once (added to the seed's fields): it is never created again (rule 2).
    pub was_ready: bool,
}

impl Object for Volume {
    const KIND: &'static str = "volume";
    const PLURAL: &'static str = "volumes";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    fn take_spec(&mut self, other: &Self) -> bool {
        let differs = self.spec != other.spec;
        self.spec = other.spec.clone();
        differs
    }

    fn take_status(&mut self, other: &Self) {
        self.status = other.status.clone();
    }

    fn reset_status(&mut self) {
        self.status = VolumeStatus::default();
    }

    /// A power cut must not readmit a node that was fenced, nor forget a size that was promised.
    fn must_be_durable(&self, next: &Self) -> bool {
        let kept = |old: &MappedInitiator| {
            let same = |new: &MappedInitiator| new.initiator_id == old.initiator_id;
            next.status.mapped_initiators.iter().any(same)
        };
        !self.status.mapped_initiators.iter().all(kept) || self.spec != next.spec
    }
}

impl Volume {
    /// Deletion has been asked for.
    pub fn is_deleting(&self) -> bool {
        Object::is_deleting(self)
    }

    /// What identifies it when its dataset, in its pool, has these GUIDs.
    pub fn identity(&self, pool_guid: u64, dataset_guid: u64) -> Identity {
        let identity = Identity::new(pool_guid, dataset_guid);
        match self.spec.attach {
            AttachMode::PerVolume => identity,
            AttachMode::Pooled => identity.tagged(&self.metadata.name),
        }
    }

    /// The subsystem in which this host finds it.
    pub fn target_nqn(&self, host_nqn: &str) -> Option<&str> {
        let mut placements = self.status.placements.iter();
        match placements.find(|placement| placement.initiator_id == host_nqn) {
            Some(placement) => Some(&placement.target_nqn),
            None => self.status.target_nqn.as_deref(),
        }
    }

    /// What the agent says of the newest change of `spec`, when it is not in ZFS.
    pub fn refusal(&self) -> Option<&Condition> {
        self.condition("Applied")
            .filter(|c| c.status == "False" && c.observed_generation >= self.metadata.generation)
    }

    /// The condition of this kind.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.kind == kind)
    }

    /// The message of the `Ready` condition, when it is not true.
    pub fn trouble(&self) -> Option<&str> {
        self.condition("Ready")
            .filter(|c| c.status != "True")
            .map(|c| c.message.as_str())
    }
}
