//! The Volume API: desired and observed state of one volume, field by field.
//!
//! Group `zfs.csi.randomvariable.co.uk`, version `v1alpha1`. The controller writes `spec` and
//! `status.mappedInitiators`; the agent writes everything else in `status`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

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

/// The part of Kubernetes' ObjectMeta that both stores keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The handle.
    pub name: String,
    /// Set by the store at creation; differs when a name is used again.
    pub uid: String,
    /// Changes with every write; opaque.
    pub resource_version: String,
    /// Counts changes of `spec`.
    pub generation: i64,
    /// RFC 3339, UTC.
    pub creation_timestamp: String,
    /// Set once deletion has been asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Who must finish before the object may vanish.
    pub finalizers: Vec<String>,
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
    /// ZFS `compression`; empty inherits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compression: String,
    /// Key reference, `transit/<keyName>` or `kv/<path>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_key_ref: Option<String>,
    /// Block transport.
    #[serde(default)]
    pub transport: BlockTransport,
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
    /// All is well.
    pub const RECONCILED: &str = "Reconciled";
}

/// A condition, as Kubernetes has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready` or `Encrypted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase, for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// RFC 3339, UTC.
    pub last_transition_time: String,
    /// The generation that it speaks of.
    pub observed_generation: i64,
}

/// Observed state. Written by the agent, but for `mapped_initiators`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// Conditions `Ready` and `Encrypted`.
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
    /// The volume has been Ready once (added to the seed's fields): it is never created again (rule 2).
    pub was_ready: bool,
}

impl Volume {
    /// Deletion has been asked for.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The message of the `Ready` condition, when it is not true.
    pub fn trouble(&self) -> Option<&str> {
        self.status
            .conditions
            .iter()
            .find(|c| c.kind == "Ready" && c.status != "True")
            .map(|c| c.message.as_str())
    }
}
