//! Snapshots, single and in groups: one object is one moment of one volume, or of several.

mod create;
mod delete;
mod list;

use zvolt_proto::csi;

pub(in crate::csi) use self::create::SnapshotWanted;
pub(super) use self::list::Filter;
use super::list::to_i64;
use crate::csi::status::{Kind, Refusal};
use crate::model::shown;
use crate::model::snapshot::{Snapshot, SnapshotKind, SnapshotState, Source, Taken};
use crate::store::time;

fn unknown(id: &str) -> Refusal {
    Refusal::new(
        Kind::NotFound,
        format!("snapshot {} does not exist", shown(id)),
    )
}

fn is_ready(snapshot: &Snapshot) -> bool {
    snapshot.status.state == SnapshotState::Ready && snapshot.metadata.deletion_timestamp.is_none()
}

/// A member as CSI has it. One that is not taken yet has no size, and is as old as the wish for it.
fn member_to_csi(
    snapshot: &Snapshot,
    source: &Source,
    taken: Option<&Taken>,
) -> Result<csi::Snapshot, Refusal> {
    let metadata = &snapshot.metadata;
    let created = taken
        .map(|taken| taken.created)
        .or(time::seconds(&metadata.creation_timestamp));
    let id = snapshot.member_id(&source.volume_id);
    Ok(csi::Snapshot {
        size_bytes: taken.map_or(Ok(0), |taken| to_i64(&id, taken.size))?,
        snapshot_id: id,
        source_volume_id: source.volume_id.clone(),
        creation_time: created.map(|seconds| zvolt_proto::Timestamp { seconds, nanos: 0 }),
        ready_to_use: taken.is_some() && is_ready(snapshot),
        group_snapshot_id: match snapshot.spec.kind {
            SnapshotKind::Group => metadata.name.clone(),
            SnapshotKind::Single => String::new(),
        },
        ..csi::Snapshot::default()
    })
}

/// All members as CSI has them.
fn members_to_csi(snapshot: &Snapshot) -> Result<Vec<csi::Snapshot>, Refusal> {
    let members = snapshot.spec.members.iter();
    members
        .map(|source| {
            let taken = snapshot.member(&source.volume_id).and_then(|(_, t)| t);
            member_to_csi(snapshot, source, taken)
        })
        .collect()
}

/// A group as CSI has it.
pub(in crate::csi) fn group_to_csi(
    snapshot: &Snapshot,
) -> Result<csi::VolumeGroupSnapshot, Refusal> {
    let snapshots = members_to_csi(snapshot)?;
    Ok(csi::VolumeGroupSnapshot {
        group_snapshot_id: snapshot.metadata.name.clone(),
        // One moment: all members say the same.
        creation_time: snapshots.first().and_then(|member| member.creation_time),
        ready_to_use: snapshots.iter().all(|member| member.ready_to_use),
        snapshots,
    })
}
