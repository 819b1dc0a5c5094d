//! Whether what is there is this volume's, and what may be done with it (rules 1, 2 and 6).

use uuid::Uuid;
use zvolt_kernel::zfs::Pool;

use super::super::observe::{Dataset, Failure, Format, Seen, Storage};
use super::{Site, unsupported};
use crate::model::names;
use crate::model::volume::{Provenance, Volume, VolumeMode, VolumeType, reason};

/// The volume's dataset in its own pool; `None` when it is to be created.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) pool: &'a Pool,
    pub(super) dataset: Option<(&'a Pool, &'a Dataset)>,
}

/// Refuses what this version would get wrong: a zvol in place of a filesystem, say.
pub(super) fn supported(volume: &Volume) -> Result<(), Failure> {
    let spec = &volume.spec;
    for (asked, what) in [
        (
            spec.volume_type == VolumeType::Filesystem,
            "type filesystem",
        ),
        (
            spec.provenance == Provenance::Imported,
            "provenance Imported",
        ),
        (
            spec.source_snapshot_id.is_some() && spec.source_volume_id.is_some(),
            "sourceSnapshotID together with sourceVolumeID",
        ),
        (spec.encryption_key_ref.is_some(), "encryptionKeyRef"),
    ] {
        if asked {
            return Err(unsupported(what));
        }
    }
    let pool = spec.pool.as_bytes();
    let fits = pool.len() <= 63
        && pool.first().is_some_and(u8::is_ascii_alphabetic)
        && pool
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'));
    if !fits {
        return Err(Failure::lasting(
            reason::BAD_PROPERTY,
            format!(
                "pool {:?} is no pool name that can be used: a letter, then letters, digits, '-', '_', '.' or ':', \
                 at most 63",
                spec.pool
            ),
        ));
    }
    Ok(())
}

/// Judges pool and dataset of a volume that is wanted.
pub(super) fn storage<'a>(
    volume: &Volume,
    storage: &'a Storage,
    site: &Site,
) -> Result<Found<'a>, Failure> {
    let pool = pool(volume, storage, site)?;
    let path = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let Some(dataset) = &storage.dataset else {
        if volume.status.was_ready {
            return Err(Failure::lasting(
                reason::DATASET_MISSING,
                format!(
                    "zvol {path} is missing on {} though pool {} is the one that held it, and it is not created again: \
                     it was destroyed or renamed; rename it back, or delete the volume if its data is gone",
                    site.node, pool.name
                ),
            ));
        }
        return Ok(Found {
            pool,
            dataset: None,
        });
    };
    if !is_ours(volume, pool, dataset) {
        return Err(Failure::lasting(
            reason::DATASET_FOREIGN,
            format!(
                "{path} on {} is not this volume's ({}): rename it out of the way, or delete the claim",
                site.node,
                whose(volume, dataset)
            ),
        ));
    }
    Ok(Found {
        pool,
        dataset: Some((pool, dataset)),
    })
}

/// The pool, when it is imported, is the one that it was, and works.
fn pool<'a>(volume: &Volume, storage: &'a Storage, site: &Site) -> Result<&'a Pool, Failure> {
    let (name, guid) = (&volume.spec.pool, volume.status.pool_guid.as_deref());
    usable(name, guid, storage.pool.as_ref(), site)
}

/// The pool called `name`, when it is imported, is the one with this GUID, and works.
pub(in super::super) fn usable<'a>(
    name: &str,
    guid: Option<&str>,
    pool: Option<&'a Pool>,
    site: &Site,
) -> Result<&'a Pool, Failure> {
    let Some(pool) = pool else {
        return Err(Failure::lasting(
            reason::POOL_NOT_FOUND,
            format!(
                "pool {name} is not imported on {}: import it (zpool import {name}), or use a pool that is there",
                site.node
            ),
        ));
    };
    if let Some(guid) = guid
        && guid != pool.guid.to_string()
    {
        return Err(Failure::lasting(
            reason::POOL_REPLACED,
            format!(
                "pool {name} on {} has GUID {}, and it was made on {guid}: another pool has its name; import the \
                 old one under it",
                site.node, pool.guid
            ),
        ));
    }
    if matches!(
        pool.health.as_str(),
        "SUSPENDED" | "FAULTED" | "UNAVAIL" | "REMOVED"
    ) {
        return Err(Failure::passing(
            reason::KERNEL,
            format!(
                "pool {name} on {} is {}: see zpool status {name}, mend its devices and run zpool clear {name}",
                site.node, pool.health
            ),
        ));
    }
    Ok(pool)
}

/// A volume that was Ready is known by the identity that its consumers saw; one that never was, by
/// the handle and the Volume's uid that its creation wrote: a name that is used again is another volume.
pub(super) fn is_ours(volume: &Volume, pool: &Pool, dataset: &Dataset) -> bool {
    if dataset.volsize.is_none() {
        return false;
    }
    if volume.status.was_ready {
        let identity = volume.identity(pool.guid, dataset.guid);
        return volume.status.device_guid == Some(identity.nguid_hex());
    }
    dataset.handle.as_ref() == Some(&volume.metadata.name)
        && dataset.uid.as_ref() == Some(&volume.metadata.uid)
}

fn whose(volume: &Volume, dataset: &Dataset) -> String {
    if dataset.volsize.is_none() {
        return "it is no zvol".into();
    }
    if volume.status.was_ready {
        return format!(
            "its GUID is {}, so it was made or received after the volume's own",
            dataset.guid
        );
    }
    match (&dataset.handle, &dataset.uid) {
        (None, _) => "it has no handle property".into(),
        (Some(handle), _) if *handle != volume.metadata.name => {
            format!("its handle property is {handle:?}")
        }
        (Some(_), _) => "it was made for an earlier volume of this name".into(),
    }
}

/// What is on a volume's zvol, by its format record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Whatever a workload puts there: a raw volume.
    Raw,
    /// The filesystem with this UUID.
    Made(Uuid),
    /// Nothing yet: a filesystem is to be made.
    ToBeMade,
}

/// Whether anybody can reach a volume's zvol by the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exported {
    /// It is behind some namespace.
    Yes,
    /// It is behind none.
    No,
}

impl Exported {
    pub(super) fn of(seen: &Seen) -> Self {
        let placed = seen
            .placed
            .iter()
            .filter_map(|placed| placed.export.as_ref());
        let mut exports = seen.export.iter().chain(placed);
        match exports.any(|export| !export.namespaces.is_empty()) {
            true => Self::Yes,
            false => Self::No,
        }
    }
}

/// Judges the format record.
///
/// Rule 1: only a zvol that says `pending` is formatted, that is one that we created ourselves, that was
/// never Ready, is no clone, and is not exported. (The step looks at the content besides.) A raw volume
/// never says so, and nothing else is handed out as one.
pub(super) fn format(
    volume: &Volume,
    dataset: &Dataset,
    exported: Exported,
) -> Result<Content, Failure> {
    let path = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let refuse = |why: String| {
        Err(Failure::lasting(
            reason::DATASET_FOREIGN,
            format!(
                "{path} {why}: nothing is formatted or exported before somebody has looked at it"
            ),
        ))
    };
    match (volume.spec.volume_mode, &dataset.format) {
        (VolumeMode::Block, Format::Raw) => return Ok(Content::Raw),
        (VolumeMode::Block, record) => {
            return refuse(format!(
                "has the format record {record:?}, but the volume is raw"
            ));
        }
        (VolumeMode::Filesystem, _) => {}
    }
    match &dataset.format {
        Format::Made(kind, uuid) if *kind == volume.spec.fs_type => Ok(Content::Made(*uuid)),
        Format::Raw => refuse("was made for a raw volume, and never formatted".into()),
        Format::Made(kind, _) => refuse(format!(
            "was formatted as {}, not as {}",
            kind.as_str(),
            volume.spec.fs_type.as_str()
        )),
        Format::Absent => refuse("has no format record".into()),
        Format::Unknown(text) => refuse(format!(
            "has the format record {text:?}, which this version does not know"
        )),
        Format::Pending if volume.status.was_ready => {
            refuse("says that it awaits its first format, but the volume was Ready once".into())
        }
        Format::Pending if dataset.origin.is_some() => {
            refuse("says that it awaits its first format, but is a clone".into())
        }
        Format::Pending if exported == Exported::Yes => {
            refuse("says that it awaits its first format, but is exported".into())
        }
        Format::Pending => Ok(Content::ToBeMade),
    }
}

/// Whether deletion has a dataset to destroy. What is not provably this volume's stays.
pub(super) fn is_to_destroy(
    volume: &Volume,
    storage: &Storage,
    site: &Site,
) -> Result<bool, Failure> {
    if storage.pool.is_none() && !volume.status.was_ready {
        return Ok(false);
    }
    // Missing is believed only of the right pool: a dataset in a pool that is away must not leak.
    let pool = pool(volume, storage, site)?;
    Ok(storage
        .dataset
        .as_ref()
        .is_some_and(|dataset| is_ours(volume, pool, dataset)))
}
