//! Making an exported volume with a filesystem, and taking it away.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use uuid::Uuid;
use zvolt_kernel::block;
use zvolt_kernel::format;
use zvolt_kernel::nvmet::{NamespaceSpec, SubsystemSpec, Target};
use zvolt_kernel::probe::FsKind;
use zvolt_kernel::uevent::{Received, UeventSocket};
use zvolt_kernel::zfs::{Zfs, ZvolSpec};

use crate::sample::{Sample, Side, Watch};

/// What the floor makes of a volume.
#[derive(Debug)]
pub struct Wanted {
    /// The zvol's full dataset name; its parent is there.
    pub dataset: String,
    /// Bytes.
    pub size: u64,
    /// The filesystem.
    pub kind: FsKind,
    /// Subsystem NQN.
    pub nqn: String,
    /// The port to link, by number.
    pub port: u16,
}

/// A zvol, its device by uevent, a filesystem, and the configfs writes of an export.
pub fn create(zfs: &Zfs, target: &Target, wanted: &Wanted) -> Result<Sample> {
    let spec = ZvolSpec {
        dataset: wanted.dataset.clone(),
        volsize: wanted.size,
        volblocksize: 16 << 10,
        properties: Vec::new(),
        user_properties: Vec::new(),
    };
    let identity = Uuid::new_v4();
    let mut watch = Watch::start();
    let events = UeventSocket::open()?;
    zfs.create_zvol(&spec)?;
    watch.step("zfs.create");
    let device = appear(&events, &wanted.dataset)?;
    watch.step("zvol.appear");
    format::make(wanted.kind, &device, identity)?;
    watch.step("zvol.format");
    target.converge_subsystem(&SubsystemSpec {
        nqn: wanted.nqn.clone(),
        serial: "zvolt-bench".into(),
        model: "zvolt".into(),
    })?;
    target.converge_namespace(
        &wanted.nqn,
        &NamespaceSpec {
            nsid: 1,
            device,
            uuid: identity,
            nguid: identity.into_bytes(),
        },
    )?;
    target.link_port(&wanted.nqn, wanted.port)?;
    watch.step("nvmet.export");
    Ok(watch.stop(Side::Floor, "create"))
}

fn appear(events: &UeventSocket, dataset: &str) -> Result<PathBuf> {
    loop {
        let Received::Event(event) = events.recv(None)? else {
            bail!("uevents were lost");
        };
        if event.action != "add" || event.subsystem != "block" || !event.devname.starts_with("zd") {
            continue;
        }
        let device = Path::new("/dev").join(&event.devname);
        let file = std::fs::File::open(&device).with_context(|| device.display().to_string())?;
        if block::zvol_name(&file, &device)? == dataset {
            return Ok(device);
        }
    }
}

/// Link, subsystem and zvol go.
pub fn delete(zfs: &Zfs, target: &Target, wanted: &Wanted) -> Result<Sample> {
    let mut watch = Watch::start();
    target.unlink_port(&wanted.nqn, wanted.port)?;
    target.remove_namespace(&wanted.nqn, 1)?;
    target.remove_subsystem(&wanted.nqn)?;
    watch.step("nvmet.remove");
    zfs.destroy(&wanted.dataset)?;
    watch.step("zfs.destroy");
    Ok(watch.stop(Side::Floor, "delete"))
}
