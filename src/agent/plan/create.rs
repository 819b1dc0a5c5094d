//! The one `lzc_create` of a volume, with all that says whose it is.

use zvolt_kernel::zfs::ZvolSpec;

use super::super::observe::{Failure, Format, property};
use super::super::steps::Act;
use crate::model::names;
use crate::model::parameters::block_bytes;
use crate::model::volume::{Volume, reason};

/// The step that creates the zvol: thin, with a device for itself and none for its snapshots.
pub(super) fn step(volume: &Volume) -> Result<Act, Failure> {
    let spec = &volume.spec;
    let block = block_bytes(&spec.vol_block_size).ok_or_else(|| {
        bad(format!(
            "volBlockSize is {:?}: a power of two from 512 to 128k is needed",
            spec.vol_block_size
        ))
    })?;
    let volsize = spec
        .capacity
        .checked_next_multiple_of(block)
        .filter(|size| *size > 0 && i64::try_from(*size).is_ok())
        .ok_or_else(|| {
            bad(format!(
                "capacity is {}: 1 byte to 8 EiB is possible",
                spec.capacity
            ))
        })?;
    let mut properties = vec![
        ("volmode".to_owned(), "dev".to_owned()),
        ("snapdev".to_owned(), "hidden".to_owned()),
    ];
    if !spec.tuning.compression.is_empty() {
        properties.push(("compression".into(), compression(&spec.tuning.compression)));
    }
    let mut ours = vec![
        (property("handle"), volume.metadata.name.clone()),
        (property("uid"), volume.metadata.uid.clone()),
        (property("name"), spec.vol_name.clone()),
        (property("fstype"), spec.fs_type.as_str().to_owned()),
        (property("version"), env!("CARGO_PKG_VERSION").to_owned()),
        (property("format"), Format::PENDING.to_owned()),
    ];
    if let Some(claim) = &spec.claim {
        ours.push((
            property("claim"),
            format!("{}/{}", claim.namespace, claim.name),
        ));
    }
    Ok(Act::Create(Box::new(ZvolSpec {
        dataset: names::zvol(&spec.pool, &volume.metadata.name),
        volsize,
        volblocksize: block,
        properties,
        user_properties: ours,
    })))
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
