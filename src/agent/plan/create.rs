//! The one `lzc_create` of a volume, with all that says whose it is.

use zvolt_kernel::zfs::ZvolSpec;

use super::super::observe::{Failure, Format, property};
use super::super::steps::Act;
use crate::model::names;
use crate::model::parameters::block_bytes;
use crate::model::volume::{Volume, VolumeSpec, reason};

/// The step that creates the zvol: thin, with a device for itself and none for its snapshots.
pub(super) fn step(volume: &Volume) -> Result<Act, Failure> {
    let spec = &volume.spec;
    Ok(Act::Create(Box::new(ZvolSpec {
        dataset: names::zvol(&spec.pool, &volume.metadata.name),
        volsize: volsize(spec)?,
        volblocksize: block(spec)?,
        properties: native(spec),
        user_properties: ours(volume, Format::PENDING.to_owned()),
    })))
}

fn block(spec: &VolumeSpec) -> Result<u64, Failure> {
    block_bytes(&spec.vol_block_size).ok_or_else(|| {
        bad(format!(
            "volBlockSize is {:?}: a power of two from 512 to 128k is needed",
            spec.vol_block_size
        ))
    })
}

/// `volsize` in bytes: the capacity in whole blocks.
pub(super) fn volsize(spec: &VolumeSpec) -> Result<u64, Failure> {
    spec.capacity
        .checked_next_multiple_of(block(spec)?)
        .filter(|size| *size > 0 && i64::try_from(*size).is_ok())
        .ok_or_else(|| {
            bad(format!(
                "capacity is {}: 1 byte to 8 EiB is possible",
                spec.capacity
            ))
        })
}

/// The native properties besides sizes.
pub(super) fn native(spec: &VolumeSpec) -> Vec<(String, String)> {
    let mut properties = vec![
        ("volmode".to_owned(), "dev".to_owned()),
        ("snapdev".to_owned(), "hidden".to_owned()),
    ];
    if !spec.tuning.compression.is_empty() {
        properties.push(("compression".into(), compression(&spec.tuning.compression)));
    }
    properties
}

/// The user properties: all that says whose the zvol is, and its format record.
pub(super) fn ours(volume: &Volume, record: String) -> Vec<(String, String)> {
    let spec = &volume.spec;
    let mut ours = vec![
        (property("handle"), volume.metadata.name.clone()),
        (property("uid"), volume.metadata.uid.clone()),
        (property("name"), spec.vol_name.clone()),
        (property("fstype"), spec.fs_type.as_str().to_owned()),
        (property("version"), env!("CARGO_PKG_VERSION").to_owned()),
        (property("format"), record),
    ];
    if let Some(claim) = &spec.claim {
        ours.push((
            property("claim"),
            format!("{}/{}", claim.namespace, claim.name),
        ));
    }
    ours
}

fn bad(message: String) -> Failure {
    Failure::lasting(reason::BAD_PROPERTY, message)
}

/// The API's `zstd-3-fast` is ZFS's `zstd-fast-3`; all else is called the same.
pub(super) fn compression(text: &str) -> String {
    match text
        .strip_prefix("zstd-")
        .and_then(|rest| rest.strip_suffix("-fast"))
    {
        Some(level) => format!("zstd-fast-{level}"),
        None => text.to_owned(),
    }
}
