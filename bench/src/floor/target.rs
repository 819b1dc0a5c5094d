//! Exports and hosts, by the target's configfs alone.

use std::path::PathBuf;

use anyhow::{Context, Result};
use uuid::Uuid;
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

/// One subsystem with all of these zvols, on a port of its own, and away with it.
pub fn export(target: &Target, zvols: &[PathBuf]) -> Result<Vec<Sample>> {
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
    for (nsid, zvol) in (1..).zip(zvols) {
        let identity = Uuid::new_v4();
        namespaces.push(NamespaceSpec {
            nsid,
            device: zvol
                .canonicalize()
                .with_context(|| zvol.display().to_string())?,
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
