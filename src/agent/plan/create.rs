//! The one `lzc_create` of a volume, with all that says whose it is.

use zvolt_kernel::zfs::ZvolSpec;

use super::super::observe::{Failure, Format, property};
use super::super::steps::Act;
use super::{changes, mkfs};
use crate::model::names;
use crate::model::volume::{Volume, VolumeMode};

/// The step that creates the zvol.
pub(super) fn step(volume: &Volume) -> Result<Act, Failure> {
    let spec = &volume.spec;
    let block = changes::block(volume)?;
    let record = match spec.volume_mode {
        VolumeMode::Filesystem => {
            // What cannot be made later is not begun.
            mkfs::options(volume)?;
            Format::PENDING
        }
        VolumeMode::Block => Format::RAW,
    };
    let zvol = ZvolSpec {
        dataset: names::zvol(&spec.pool, &volume.metadata.name),
        volsize: changes::volsize(spec.capacity, block)?,
        volblocksize: block,
        properties: native(volume),
        user_properties: ours(volume, record.to_owned()),
    };
    Ok(Act::Create {
        spec: Box::new(zvol),
        provisioning: spec.tuning.provisioning,
    })
}

/// The native properties besides sizes and what is reserved. How devices show (`volmode`, `snapdev`) the container says:
/// set on the zvol, each would wait for a transaction group of its own.
pub(super) fn native(volume: &Volume) -> Vec<(String, String)> {
    changes::tuned(&volume.spec.tuning)
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(property, value)| (property.to_owned(), value))
        .collect()
}

/// The user properties: all that says whose the zvol is, and its format record.
pub(super) fn ours(volume: &Volume, record: String) -> Vec<(String, String)> {
    let spec = &volume.spec;
    let fs_type = match spec.volume_mode {
        VolumeMode::Filesystem => spec.fs_type.as_str(),
        VolumeMode::Block => "none",
    };
    let mut ours = vec![
        (property("handle"), volume.metadata.name.clone()),
        (property("uid"), volume.metadata.uid.clone()),
        (property("name"), spec.vol_name.clone()),
        (property("fstype"), fs_type.to_owned()),
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
