//! Objects with every field set, each to another value than its default: what a store must not lose. A new field of the
//! model does not compile here until it is named.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::time;
use crate::model::access::AccessMode;
use crate::model::names::host_nqn;
use crate::model::snapshot::{
    self, Snapshot, SnapshotKind, SnapshotSpec, SnapshotState, SnapshotStatus, Source, Taken,
};
use crate::model::storage_node::{PoolStatus, StorageNode, StorageNodeSpec, StorageNodeStatus};
use crate::model::volume::{
    self, AttachMode, BlockTransport, Claim, Condition, DeletionPolicy, FsType, MappedInitiator,
    Metadata, Placement, Provenance, Provisioning, State, Tuning, Volume, VolumeMode, VolumeSpec,
    VolumeStatus, VolumeType, WriteProtect,
};

fn metadata(name: &str, finalizer: Option<&str>) -> Metadata {
    Metadata {
        name: name.into(),
        finalizers: finalizer.into_iter().map(str::to_owned).collect(),
        ..Metadata::default()
    }
}

fn conditions() -> Vec<Condition> {
    vec![Condition {
        kind: "Ready".into(),
        status: "True".into(),
        reason: volume::reason::RECONCILED.into(),
        message: "all is well".into(),
        last_transition_time: time::now(),
        observed_generation: 1,
    }]
}

fn tuning() -> Tuning {
    Tuning {
        compression: "zstd-3-fast".into(),
        sync: "always".into(),
        logbias: "throughput".into(),
        primarycache: "metadata".into(),
        provisioning: Provisioning::Thick,
    }
}

/// A Volume.
pub fn volume(name: &str) -> Volume {
    Volume {
        metadata: metadata(name, Some(volume::FINALIZER)),
        spec: VolumeSpec {
            provenance: Provenance::Imported,
            backend_path: "tank/old/data".into(),
            deletion_policy: DeletionPolicy::Retain,
            pool: "tank".into(),
            capacity: 1 << 40,
            volume_type: VolumeType::Filesystem,
            fs_type: FsType::Xfs,
            vol_block_size: "16k".into(),
            volume_mode: VolumeMode::Block,
            tuning: tuning(),
            tuning_before: Some(tuning()),
            mkfs_options: vec!["-i".into(), "8192".into()],
            encryption_key_ref: Some("transit/key".into()),
            transport: BlockTransport::NvmeTcp,
            attach: AttachMode::Pooled,
            owner_node: "storage0.example".into(),
            vol_name: "A name, by CSI".into(),
            volume_id: name.into(),
            source_snapshot_id: Some("pvc-1@snapshot-1".into()),
            source_volume_id: Some("pvc-1".into()),
            nfs_export_cidrs: vec!["10.0.0.0/8".into(), "fd00::/8".into()],
            nfs_export_access_mode: "ro".into(),
            claim: Some(Claim {
                namespace: "default".into(),
                name: "claim.1".into(),
            }),
        },
        status: VolumeStatus {
            conditions: conditions(),
            state: State::ReadyToPublish,
            observed_generation: 1,
            target_nqn: Some(format!("nqn.2026-11.uk.co.randomvariable.csi.zfs:{name}")),
            portal: Some("[fd00::1]:4420".into()),
            device_guid: Some("0123456789abcdef0123456789abcdef".into()),
            device_uuid: Some(Uuid::from_u128(1)),
            export_path: Some("storage0:/tank/csi/fs/x".into()),
            mapped_initiators: vec![MappedInitiator {
                node_name: "node0".into(),
                initiator_id: host_nqn("node0"),
                attached_at: time::now(),
                read_only: true,
                access_mode: AccessMode::MultiNodeReaderOnly,
            }],
            published_initiators: vec![host_nqn("node0")],
            placements: vec![Placement {
                initiator_id: host_nqn("node0"),
                target_nqn: "nqn.2026-11.uk.co.randomvariable.csi.zfs:pooled".into(),
                nsid: u32::MAX,
            }],
            key_status: Some("Available".into()),
            zvol_path: Some("/dev/zvol/tank/csi/block/x".into()),
            dataset_path: Some("tank/csi/block/x".into()),
            actual_capacity: Some(1 << 40),
            pool_guid: Some(u64::MAX.to_string()),
            filesystem_uuid: Some(Uuid::from_u128(2)),
            write_protect: WriteProtect::Changing,
            was_ready: true,
        },
    }
}

/// A Snapshot.
pub fn snapshot(name: &str) -> Snapshot {
    Snapshot {
        metadata: metadata(name, Some(snapshot::FINALIZER)),
        spec: SnapshotSpec {
            snap_name: "A name, by CSI".into(),
            kind: SnapshotKind::Group,
            owner_node: "storage0".into(),
            pool: "tank".into(),
            pool_guid: u64::MAX.to_string(),
            members: vec![Source {
                volume_id: "pvc-1".into(),
                volume_uid: Uuid::from_u128(3).to_string(),
                dataset_path: "tank/csi/block/pvc-1".into(),
                volume_mode: VolumeMode::Block,
                fs_type: FsType::Xfs,
                filesystem_uuid: Some(Uuid::from_u128(4)),
                vol_block_size: "128k".into(),
            }],
        },
        status: SnapshotStatus {
            conditions: conditions(),
            state: SnapshotState::Ready,
            members: vec![Taken {
                volume_id: "pvc-1".into(),
                snapshot_path: "tank/csi/block/pvc-1@snapshot-1.01234567".into(),
                guid: u64::MAX.to_string(),
                created: 1_800_000_000,
                size: 1 << 40,
            }],
            was_ready: true,
        },
    }
}

/// A StorageNode.
pub fn storage_node(name: &str) -> StorageNode {
    StorageNode {
        metadata: metadata(name, None),
        spec: StorageNodeSpec {
            node_name: "Storage_0.example".into(),
        },
        status: StorageNodeStatus {
            pools: vec![PoolStatus {
                name: "tank".into(),
                guid: u64::MAX.to_string(),
                health: "DEGRADED".into(),
                available: 1 << 50,
                used: 1 << 40,
                cost_of_gib: BTreeMap::from([(16 << 10, 3 << 29), (128 << 10, 1 << 30)]),
            }],
            observed_at: time::now(),
        },
    }
}
