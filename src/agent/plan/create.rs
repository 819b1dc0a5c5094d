//! The one `lzc_create` of a volume, with all that says whose it is.

use zvolt_kernel::zfs::ZvolSpec;

use super::super::observe::{Failure, Format, property};
use super::super::steps::Act;
use super::changes;
use crate::model::names;
use crate::model::volume::{Volume, VolumeMode};

/// The step that creates the zvol: with a device for itself and none for its snapshots.
pub(super) fn step(volume: &Volume) -> Result<Act, Failure> {
    let spec = &volume.spec;
    let block = changes::block(volume)?;
    let zvol = ZvolSpec {
        dataset: names::zvol(&spec.pool, &volume.metadata.name),
        volsize: changes::volsize(spec.capacity, block)?,
        volblocksize: block,
        properties: vec![
            ("volmode".to_owned(), "dev".to_owned()),
            ("snapdev".to_owned(), "hidden".to_owned()),
        ],
        user_properties: ours(volume),
    };
    Ok(changes::create(zvol, &spec.tuning))
}

/// What says whose a zvol is, and that it is new.
fn ours(volume: &Volume) -> Vec<(String, String)> {
    let spec = &volume.spec;
    let (fs_type, format) = match spec.volume_mode {
        VolumeMode::Filesystem => (spec.fs_type.as_str(), Format::PENDING),
        VolumeMode::Block => ("none", Format::RAW),
    };
    let mut ours = vec![
        (property("handle"), volume.metadata.name.clone()),
        (property("uid"), volume.metadata.uid.clone()),
        (property("name"), spec.vol_name.clone()),
        (property("fstype"), fs_type.to_owned()),
        (property("version"), env!("CARGO_PKG_VERSION").to_owned()),
        (property("format"), format.to_owned()),
    ];
    if let Some(claim) = &spec.claim {
        ours.push((
            property("claim"),
            format!("{}/{}", claim.namespace, claim.name),
        ));
    }
    ours
}
