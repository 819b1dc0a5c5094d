//! The Snapshot API: one snapshot, or a group of them that was taken at one moment.
//!
//! The controller writes `spec`; the agent writes `status`. One object is one `lzc_snapshot`: of one
//! volume, or of several in one pool. The CSI handle of a member is `<volume>@<object>`; it stays when
//! promotion moves the snapshot to another dataset, for the agent follows its GUID.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::names::is_handle;
use super::object::{Condition, Metadata, Object};
use super::parameters::{BadParameter, MAP_MAX};
use super::volume::{FsType, VolumeMode};
use super::{shown, values};

/// Keeps a Snapshot from vanishing before its agent has destroyed what it stands for.
pub const FINALIZER: &str = "zfs.csi.randomvariable.co.uk/snapshot-protect";

/// A snapshot of one volume, or of several at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Name, versions, deletion.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: SnapshotSpec,
    /// What is.
    #[serde(default)]
    pub status: SnapshotStatus,
}

/// One or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotKind {
    /// CreateSnapshot: one member.
    Single,
    /// CreateVolumeGroupSnapshot: one member or more.
    Group,
}

/// Desired state. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// The CSI name.
    pub snap_name: String,
    /// One or a group.
    pub kind: SnapshotKind,
    /// Storage node of all members.
    pub owner_node: String,
    /// Pool of all members.
    pub pool: String,
    /// That pool's GUID: a pool of the same name is not the same pool.
    #[serde(rename = "poolGUID")]
    pub pool_guid: String,
    /// What is taken, by volume; at least one, each volume once.
    pub members: Vec<Source>,
}

/// A volume of which a snapshot is taken, with all that a restore needs when the volume is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The volume's handle.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// The volume's uid: a name that is used again is another volume.
    #[serde(rename = "volumeUID")]
    pub volume_uid: String,
    /// Full name of its dataset when the snapshot was asked for.
    pub dataset_path: String,
    /// Filesystem or raw device.
    pub volume_mode: VolumeMode,
    /// Filesystem on it.
    pub fs_type: FsType,
    /// That filesystem's UUID; none on a raw device.
    #[serde(rename = "filesystemUUID", skip_serializing_if = "Option::is_none")]
    pub filesystem_uuid: Option<Uuid>,
    /// Canonical `volblocksize` (`16k`).
    pub vol_block_size: String,
}

/// Where a snapshot is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotState {
    /// Wanted, not taken yet.
    #[default]
    Pending,
    /// Taken.
    Ready,
    /// Being destroyed.
    Deleting,
    /// A person must look; the Ready condition says why.
    Error,
}

/// Observed state. Written by the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// Condition `Ready`.
    pub conditions: Vec<Condition>,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// What was taken, in the order of the spec; empty before it is Ready.
    pub members: Vec<Taken>,
    /// It has been Ready once: it is never taken again (the moment has passed).
    pub was_ready: bool,
}

/// A snapshot as ZFS has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// The volume's handle.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// `<dataset>@<snapshot>` as it was last seen; promotion moves it.
    pub snapshot_path: String,
    /// ZFS `guid`, decimal: it stays.
    pub guid: String,
    /// ZFS `creation`, seconds since the Unix epoch.
    pub created: i64,
    /// `volsize` at that moment, in bytes: the least size of a volume made from it.
    pub size: u64,
}

impl Snapshot {
    /// The CSI handle of the member that was taken of `volume`.
    pub fn member_id(&self, volume: &str) -> String {
        format!("{volume}@{}", self.metadata.name)
    }

    /// The member's source and, once it is taken, what was taken.
    pub fn member(&self, volume: &str) -> Option<(&Source, Option<&Taken>)> {
        let source = self.spec.members.iter().find(|m| m.volume_id == volume)?;
        let taken = self.status.members.iter().find(|m| m.volume_id == volume);
        Some((source, taken))
    }

    /// The component after the `@` in ZFS. With a part of the uid: a name that is used again must not
    /// meet a snapshot of the same name whose clones still hold it.
    pub fn zfs_name(&self) -> String {
        let uid: String = self.metadata.uid.chars().take(8).collect();
        format!("{}.{uid}", self.metadata.name)
    }

    /// The message of the `Ready` condition, when it is not true, with its reason.
    pub fn trouble(&self) -> Option<(&str, &str)> {
        self.status
            .conditions
            .iter()
            .find(|c| c.kind == "Ready" && c.status != "True")
            .map(|c| (c.reason.as_str(), c.message.as_str()))
    }
}

/// What the snapshotter adds to a request when it is told to (`--extra-create-metadata`): names, which are
/// not used. A snapshot of zvolt has no parameters of its own.
const NAMES_FROM_KUBERNETES: [&str; 6] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];

/// Checks the parameters of a snapshot, or of a group of them. What is not known is refused by its name.
pub fn check_parameters(map: &HashMap<String, String>) -> Result<(), BadParameter> {
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAP_MAX {
        return Err(BadParameter {
            key: "map".to_owned(),
            problem: format!("all together are longer than {MAP_MAX} bytes"),
        });
    }
    let mut keys: Vec<_> = map.keys().collect();
    keys.sort();
    for key in keys {
        if !NAMES_FROM_KUBERNETES.contains(&key.as_str()) {
            return Err(BadParameter {
                key: shown(key),
                problem: "is not known: a snapshot has no parameters".to_owned(),
            });
        }
        if values::name(&map[key]).is_none() {
            return Err(BadParameter {
                key: key.clone(),
                problem: format!("is {}: the name of an object", shown(&map[key])),
            });
        }
    }
    Ok(())
}

/// The volume and the object of a CSI snapshot handle; `None` for what is no handle of ours.
pub fn parse_id(id: &str) -> Option<(&str, &str)> {
    id.split_once('@')
        .filter(|(volume, object)| is_handle(volume) && is_handle(object))
}

impl Object for Snapshot {
    const KIND: &'static str = "snapshot";
    const PLURAL: &'static str = "snapshots";

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
        self.status = SnapshotStatus::default();
    }

    fn must_be_durable(&self, _next: &Self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_snapshotters_own_parameters_are_taken() {
        let map = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
        for key in NAMES_FROM_KUBERNETES {
            check_parameters(&map(key, "snapcontent-1.x")).expect(key);
            for bad in ["", "../x", "A", "a\n"] {
                assert_eq!(check_parameters(&map(key, bad)).unwrap_err().key, key);
            }
        }
        for key in ["pool", "csi.storage.k8s.io/pv/name", "a\nb"] {
            let error = check_parameters(&map(key, "x")).unwrap_err();
            assert_eq!(error.key, shown(key));
        }
        let long = map(NAMES_FROM_KUBERNETES[0], &"a".repeat(MAP_MAX));
        assert!(check_parameters(&long).is_err());
        check_parameters(&HashMap::new()).expect("none is fine");
    }

    #[test]
    fn a_handle_of_ours_has_a_volume_and_an_object() {
        assert_eq!(parse_id("pvc-1@snap-2"), Some(("pvc-1", "snap-2")));
        for bad in [
            "", "@", "pvc-1", "pvc-1@", "@snap", "a@b@c", "A@b", "a/b@c", "a@../b",
        ] {
            assert_eq!(parse_id(bad), None, "{bad:?}");
        }
    }
}
