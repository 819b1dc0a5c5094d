//! Exports and hosts, by the target's configfs alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use uuid::Uuid;
use zvolt_kernel::block;
use zvolt_kernel::nvmet::{NamespaceSpec, PortSpec, SubsystemSpec, Target};

use crate::sample::{Sample, Side, Watch};

/// Makes the host and allows it, and takes it away again, to a subsystem of the floor's own: the driver takes hosts that it does not know out of
/// its subsystems.
pub fn admit_to_scratch(target: &Target, host_nqn: &str) -> Result<Vec<Sample>> {
    let scratch = SubsystemSpec {
        nqn: "nqn.2014-08.org.nvmexpress:bench-floor".into(),
        serial: "zvolt-bench".into(),
        model: "zvolt".into(),
    };
    target.converge_subsystem(&scratch)?;
    let mut watch = Watch::start();
    target.allow_host(&scratch.nqn, host_nqn)?;
    watch.step("nvmet.allow-host");
    let admitted = watch.stop(Side::Floor, "admit");
    let mut watch = Watch::start();
    target.disallow_host(&scratch.nqn, host_nqn)?;
    target.remove_host(host_nqn)?;
    watch.step("nvmet.disallow-host");
    let expelled = watch.stop(Side::Floor, "expel");
    target.remove_subsystem(&scratch.nqn)?;
    Ok(vec![admitted, expelled])
}

/// The devices of these zvols. The kernel is asked: links below `/dev/zvol` come late, or not at all (C-1).
pub fn devices(zvols: &[String]) -> Result<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/sys/block")? {
        let device = Path::new("/dev").join(entry?.file_name());
        if device.to_string_lossy().starts_with("/dev/zd") {
            found.insert(block::zvol_name(&File::open(&device)?, &device)?, device);
        }
    }
    let of = |zvol: &String| {
        found
            .remove(zvol)
            .with_context(|| format!("zvol {zvol} has no device"))
    };
    zvols.iter().map(of).collect()
}

/// One subsystem with all of these devices, on a port of its own, and away with it.
pub fn export(target: &Target, devices: &[PathBuf]) -> Result<Vec<Sample>> {
    let port = PortSpec {
        id: 999,
        address: Some("127.0.0.1:4999".parse()?),
    };
    let subsystem = SubsystemSpec {
        nqn: "nqn.2014-08.org.nvmexpress:bench-floor".into(),
        serial: "zvolt-bench".into(),
        model: "zvolt".into(),
    };
    let mut namespaces = Vec::new();
    for (nsid, device) in (1..).zip(devices) {
        let identity = Uuid::new_v4();
        namespaces.push(NamespaceSpec {
            nsid,
            device: device.clone(),
            uuid: identity,
            nguid: identity.into_bytes(),
        });
    }
    let watch = Watch::start();
    target.converge_port(&port)?;
    target.converge_subsystem(&subsystem)?;
    for namespace in &namespaces {
        target.converge_namespace(&subsystem.nqn, namespace)?;
    }
    target.link_port(&subsystem.nqn, port.id)?;
    let exported = watch.stop(Side::Floor, "export");
    target.unlink_port(&subsystem.nqn, port.id)?;
    for namespace in &namespaces {
        target.remove_namespace(&subsystem.nqn, namespace.nsid)?;
    }
    target.remove_subsystem(&subsystem.nqn)?;
    target.remove_port(port.id)?;
    Ok(vec![exported])
}
