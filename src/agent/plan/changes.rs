//! What of a volume can be changed after its creation: against what ZFS has, property by property.

use super::super::observe::{Dataset, Failure, Reserved};
use super::super::steps::Act;
use super::Step;
use crate::model::names;
use crate::model::parameters::block_bytes;
use crate::model::volume::{Provisioning, Tuning, Volume, reason};

/// ZFS's properties that a Volume tunes, with the values that it wants; empty inherits.
pub(super) fn tuned(tuning: &Tuning) -> [(&'static str, String); 4] {
    [
        ("compression", compression(&tuning.compression)),
        ("sync", tuning.sync.clone()),
        ("logbias", tuning.logbias.clone()),
        ("primarycache", tuning.primarycache.clone()),
    ]
}

/// The steps that bring ZFS to what the spec says; none when it is there.
///
/// What needs space comes last, so that a pool that is full refuses nothing else. A reservation is set
/// before the size: from then on ZFS moves both at once or refuses both (`zfs_add_synthetic_resv`), while one
/// that comes after the size could be refused when the volume has grown already. A size never shrinks.
pub(super) fn steps(volume: &Volume, dataset: &Dataset) -> Result<Vec<Step>, Failure> {
    let path = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let set = |property: &'static str, value: String| {
        Step::Act(Act::Set {
            dataset: path.clone(),
            guid: dataset.guid,
            property,
            value,
        })
    };
    let mut steps = Vec::new();
    for (property, wanted) in tuned(&volume.spec.tuning) {
        let found = dataset.own.get(property).map_or("", String::as_str);
        if found != wanted {
            steps.push(set(property, wanted));
        }
    }
    match (volume.spec.tuning.provisioning, dataset.reserved) {
        (Provisioning::Thin, Reserved::Part | Reserved::All) => {
            steps.push(set("refreservation", "none".into()));
        }
        (Provisioning::Thick, Reserved::Nothing | Reserved::Part) => {
            steps.push(set("refreservation", "auto".into()));
        }
        (Provisioning::Thin, Reserved::Nothing) | (Provisioning::Thick, Reserved::All) => {}
    }
    if let (Some(now), Some(block)) = (dataset.volsize, dataset.volblocksize) {
        let wanted = volsize(volume.spec.capacity, block)?;
        if wanted > now {
            steps.push(set("volsize", wanted.to_string()));
        }
    }
    Ok(steps)
}

/// The block size that the spec asks for, in bytes.
pub(super) fn block(volume: &Volume) -> Result<u64, Failure> {
    let text = &volume.spec.vol_block_size;
    block_bytes(text).ok_or_else(|| {
        bad(format!(
            "volBlockSize is {text:?}: a power of two from 512 to 128k is needed"
        ))
    })
}

/// A capacity as a `volsize`: rounded up to the block size (rule 7).
pub(super) fn volsize(capacity: u64, block: u64) -> Result<u64, Failure> {
    capacity
        .checked_next_multiple_of(block)
        .filter(|size| *size > 0 && i64::try_from(*size).is_ok())
        .ok_or_else(|| {
            bad(format!(
                "capacity is {capacity}: 1 byte to 8 EiB is possible"
            ))
        })
}

fn bad(message: String) -> Failure {
    Failure::lasting(reason::BAD_PROPERTY, message)
}

/// The API's `zstd-3-fast` is ZFS's `zstd-fast-3`, and the first of them is told as `zstd-fast`, whatever was set; all
/// else is called the same.
fn compression(text: &str) -> String {
    match text
        .strip_prefix("zstd-")
        .and_then(|rest| rest.strip_suffix("-fast"))
    {
        Some("1") => "zstd-fast".to_owned(),
        Some(level) => format!("zstd-fast-{level}"),
        None => text.to_owned(),
    }
}
