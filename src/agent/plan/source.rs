//! A volume that is made from a snapshot or from another volume: a clone, never a copy, never formatted (rule 1).
//!
//! From a volume it goes by an internal snapshot, which is told to vanish with its last clone as soon as
//! the clone is there. Its name has the new volume's uid in it, so that each of the three acts is found
//! done or not done after a crash.

use zvolt_kernel::zfs::{self, CloneSpec, Destroy, Pool};

use super::super::observe::{Dataset, Failure, Format, property};
use super::super::steps::Act;
use super::{Site, changes, create, judge};
use crate::model::names;
use crate::model::parameters::block_bytes;
use crate::model::snapshot::{Snapshot, SnapshotState};
use crate::model::volume::{Provisioning, Volume, VolumeMode, reason};

/// What a volume is made from, as it is now.
#[derive(Debug, Clone)]
pub enum Source {
    /// A snapshot.
    Snapshot {
        /// The object; `None` when there is none of that name.
        object: Option<Box<Snapshot>>,
        /// The member in ZFS, wherever it is now.
        found: Option<zfs::Snapshot>,
    },
    /// A volume.
    Volume {
        /// The object; `None` when there is none of that name.
        object: Option<Box<Volume>>,
        /// Its zvol.
        dataset: Option<Dataset>,
        /// The snapshot of it that was taken for the new volume, wherever it is now.
        internal: Option<zfs::Snapshot>,
    },
}

/// Whether the volume is made from something.
pub(super) fn has_any(volume: &Volume) -> bool {
    volume.spec.source_snapshot_id.is_some() || volume.spec.source_volume_id.is_some()
}

/// Whether an internal snapshot may be there that nobody has told to vanish yet.
pub(super) fn has_snapshot_of_its_own(volume: &Volume) -> bool {
    volume.spec.source_volume_id.is_some() && !volume.status.was_ready
}

/// Tells the internal snapshot to vanish with its last clone, or now.
pub(super) fn let_go(source: &Source) -> Option<Act> {
    match source {
        Source::Volume {
            internal: Some(internal),
            ..
        } if !internal.is_deferred => Some(Act::DestroySnapshot {
            snapshot: internal.name.clone(),
            when: Destroy::Deferred,
        }),
        _ => None,
    }
}

/// The next act on the way to the volume's zvol.
pub(super) fn step(
    volume: &Volume,
    pool: &Pool,
    source: &Source,
    site: &Site,
) -> Result<Act, Failure> {
    match source {
        Source::Snapshot { object, found } => {
            from_snapshot(volume, pool, object.as_deref(), found.as_ref(), site)
        }
        Source::Volume {
            internal: Some(internal),
            ..
        } => {
            let record = internal.user_properties.get(&property("format"));
            let record = record.cloned().ok_or_else(|| {
                missing(format!(
                    "{} does not say what filesystem it has",
                    internal.name
                ))
            })?;
            clone(volume, internal, record)
        }
        Source::Volume {
            object, dataset, ..
        } => from_volume(volume, pool, object.as_deref(), dataset.as_ref(), site),
    }
}

fn from_snapshot(
    volume: &Volume,
    pool: &Pool,
    object: Option<&Snapshot>,
    found: Option<&zfs::Snapshot>,
    site: &Site,
) -> Result<Act, Failure> {
    let id = volume
        .spec
        .source_snapshot_id
        .as_deref()
        .unwrap_or_default();
    let gone = |why: &str| missing(format!("snapshot {id} {why}"));
    let object = object.ok_or_else(|| gone("does not exist"))?;
    let handle = names::snapshot_halves(id).0;
    let Some((source, taken)) = object.member(handle) else {
        return Err(gone("does not exist: no such member"));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Err(gone("is being deleted"));
    }
    is_near(
        volume,
        (&object.spec.owner_node, &object.spec.pool),
        &format!("snapshot {id}"),
    )?;
    if object.spec.pool_guid != pool.guid.to_string() {
        return Err(bad(format!(
            "snapshot {id} was taken in the pool with GUID {}, and pool {} on {} has {}",
            object.spec.pool_guid, pool.name, site.node, pool.guid
        )));
    }
    match object.status.state {
        SnapshotState::Pending => {
            return Err(Failure::passing(
                reason::BUSY,
                format!("snapshot {id} is not taken yet"),
            ));
        }
        SnapshotState::Error if taken.is_none() => return Err(gone("was never taken")),
        _ => {}
    }
    let found = found.ok_or_else(|| {
        gone(&format!(
            "is missing in pool {} on {}: somebody has destroyed it",
            pool.name, site.node
        ))
    })?;
    let record = match (volume.spec.volume_mode, source.volume_mode) {
        (VolumeMode::Block, _) => Format::RAW.to_owned(),
        (VolumeMode::Filesystem, VolumeMode::Block) => {
            return Err(bad(format!(
                "snapshot {id} is of a raw device: a volume with a filesystem cannot be made from it"
            )));
        }
        (VolumeMode::Filesystem, VolumeMode::Filesystem) => {
            let uuid = source
                .filesystem_uuid
                .ok_or_else(|| gone("does not say which filesystem it has"))?;
            Format::record(source.fs_type, uuid)
        }
    };
    same_block(volume, &source.vol_block_size, &format!("snapshot {id}"))?;
    clone(volume, found, record)
}

fn from_volume(
    volume: &Volume,
    pool: &Pool,
    object: Option<&Volume>,
    dataset: Option<&Dataset>,
    site: &Site,
) -> Result<Act, Failure> {
    let id = volume.spec.source_volume_id.as_deref().unwrap_or_default();
    let gone = |why: &str| missing(format!("volume {id} {why}"));
    let object = object.ok_or_else(|| gone("does not exist"))?;
    if object.is_deleting() {
        return Err(gone("is being deleted"));
    }
    is_near(
        volume,
        (&object.spec.owner_node, &object.spec.pool),
        &format!("volume {id}"),
    )?;
    if !object.status.was_ready {
        return Err(Failure::passing(
            reason::BUSY,
            format!("volume {id} is not ready yet"),
        ));
    }
    let Some(dataset) = dataset.filter(|found| judge::is_ours(object, pool, found)) else {
        return Err(gone(&format!(
            "has no zvol in pool {} on {}",
            pool.name, site.node
        )));
    };
    let record = match (volume.spec.volume_mode, &dataset.format) {
        (VolumeMode::Block, _) => Format::RAW.to_owned(),
        (VolumeMode::Filesystem, Format::Made(kind, uuid)) => Format::record(*kind, *uuid),
        (VolumeMode::Filesystem, _) => {
            return Err(bad(format!(
                "volume {id} has no filesystem: a volume with one cannot be made from it"
            )));
        }
    };
    same_block(volume, &object.spec.vol_block_size, &format!("volume {id}"))?;
    let component = names::clone_component(&volume.metadata.uid);
    Ok(Act::Snapshot {
        names: vec![format!("{}@{component}", names::zvol(&pool.name, id))],
        properties: vec![
            (property("clone"), volume.metadata.uid.clone()),
            (property("handle"), volume.metadata.name.clone()),
            (property("format"), record),
        ],
    })
}

/// A clone has its origin's blocks, and is never smaller.
fn clone(volume: &Volume, origin: &zfs::Snapshot, record: String) -> Result<Act, Failure> {
    let spec = &volume.spec;
    let least = origin
        .volsize
        .ok_or_else(|| bad(format!("{} is no zvol's", origin.name)))?;
    let volsize = changes::volsize(spec.capacity, changes::block(volume)?)?.max(least);
    let mut properties = create::native(volume);
    properties.push(("volsize".into(), volsize.to_string()));
    let block = block_bytes(&spec.vol_block_size);
    Ok(Act::Clone {
        spec: Box::new(CloneSpec {
            dataset: names::zvol(&spec.pool, &volume.metadata.name),
            origin: origin.name.clone(),
            properties,
            user_properties: create::ours(volume, record),
        }),
        thick: block.filter(|_| spec.tuning.provisioning == Provisioning::Thick),
    })
}

/// Clones live in their origin's pool.
fn is_near(volume: &Volume, (owner, pool): (&str, &str), source: &str) -> Result<(), Failure> {
    let spec = &volume.spec;
    if (owner, pool) == (spec.owner_node.as_str(), spec.pool.as_str()) {
        return Ok(());
    }
    Err(bad(format!(
        "{source} is in pool {pool} on {owner}: a volume made from it is made there too, not in pool {} on {}",
        spec.pool, spec.owner_node
    )))
}

fn same_block(volume: &Volume, block: &str, source: &str) -> Result<(), Failure> {
    if volume.spec.vol_block_size == block {
        return Ok(());
    }
    Err(bad(format!(
        "volBlockSize is {}, that of {source} {block}: a volume made from it has the same",
        volume.spec.vol_block_size
    )))
}

fn bad(message: String) -> Failure {
    Failure::lasting(reason::BAD_PROPERTY, message)
}

fn missing(message: String) -> Failure {
    Failure::lasting(reason::SOURCE_MISSING, message)
}
