//! The NVMe target's configfs tree (`drivers/nvme/target/configfs.c`), below
//! `/sys/kernel/config/nvmet`.
//!
//! Order rules: a namespace's attributes are writable only while it is disabled; a port's only
//! while no subsystem is linked to it; teardown is port link, allowed hosts, namespaces (disable, rmdir), subsystem
//! (design rule 8). Every call converges: it looks first, writes what differs, reads back what it wrote. What a
//! crash leaves is what the next call finds and finishes. No subsystem is ever opened to any host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::SysError;

/// Whether a converging call had anything to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was so already.
    Unchanged,
    /// Something was written.
    Changed,
}

/// Why the target could not be brought to the wanted state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// A name would leave its directory or is too long.
    #[error("{what} {value:?} is not usable: {why}")]
    BadName {
        /// NQN, host NQN, serial, …
        what: &'static str,
        /// The value.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An attribute read back differs from what was written.
    #[error("{path} reads {found:?} after {wanted:?} was written")]
    ReadBack {
        /// Attribute.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it reads.
        found: String,
    },
    /// The object exists with other attributes that cannot be changed now (a port in use elsewhere).
    #[error("{path} is {found:?}, not {wanted:?}: {remedy}")]
    Foreign {
        /// Attribute.
        path: PathBuf,
        /// What was wanted.
        wanted: String,
        /// What it is.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// A TCP port (or the loop port, with no address).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Directory name below `ports/`.
    pub id: u16,
    /// Address for TCP; `None` makes an nvme-loop port.
    pub address: Option<SocketAddr>,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// Namespace ID, from 1.
    pub nsid: u32,
    /// The backing block device.
    pub device: PathBuf,
    /// UUID.
    pub uuid: Uuid,
    /// NGUID.
    pub nguid: [u8; 16],
}

/// A subsystem with all that it should hold, but for its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsystemSpec {
    /// NQN.
    pub nqn: String,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// Model, at most 40.
    pub model: String,
}

/// A subsystem as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSubsystem {
    /// NQN.
    pub nqn: String,
    /// `attr_serial`.
    pub serial: String,
    /// Host NQNs that are allowed, sorted.
    pub allowed_hosts: Vec<String>,
    /// Namespaces, by nsid.
    pub namespaces: Vec<ObservedNamespace>,
    /// Ports that it is linked to, sorted.
    pub ports: Vec<u16>,
}

/// A namespace as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedNamespace {
    /// Namespace ID.
    pub nsid: u32,
    /// `device_path`.
    pub device: PathBuf,
    /// `device_uuid`.
    pub uuid: Uuid,
    /// `device_nguid`.
    pub nguid: [u8; 16],
    /// `enable`.
    pub enabled: bool,
}

/// The tree.
#[derive(Debug, Clone)]
pub struct Target {
    root: PathBuf,
}

impl Target {
    /// The tree below `root` (`/sys/kernel/config/nvmet`).
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the tree is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// One subsystem as it is; `None` when there is none. Reads that subsystem and one link a port.
    pub fn observe(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Error> {
        let _ = nqn;
        unimplemented!()
    }

    /// The NQNs of all subsystems. Start-up and repair only.
    pub fn subsystems(&self) -> Result<Vec<String>, Error> {
        unimplemented!()
    }

    /// Makes a port. Refuses ([`Error::Foreign`]) when the port exists with another address.
    pub fn converge_port(&self, port: &PortSpec) -> Result<Outcome, Error> {
        let _ = port;
        unimplemented!()
    }

    /// Removes a port that has no subsystem linked; fine when it is gone.
    pub fn remove_port(&self, id: u16) -> Result<Outcome, Error> {
        let _ = id;
        unimplemented!()
    }

    /// Makes a subsystem with `attr_allow_any_host` 0, serial and model.
    pub fn converge_subsystem(&self, subsystem: &SubsystemSpec) -> Result<Outcome, Error> {
        let _ = subsystem;
        unimplemented!()
    }

    /// Makes and enables a namespace. One that is enabled with the wanted attributes is left alone; one that
    /// differs is disabled, rewritten and enabled again.
    pub fn converge_namespace(&self, nqn: &str, namespace: &NamespaceSpec) -> Result<Outcome, Error> {
        let _ = (nqn, namespace);
        unimplemented!()
    }

    /// Tells the target that the backing device's size has changed (`revalidate_size`).
    pub fn revalidate_size(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        let _ = (nqn, nsid);
        unimplemented!()
    }

    /// Disables and removes a namespace; fine when it is gone.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<Outcome, Error> {
        let _ = (nqn, nsid);
        unimplemented!()
    }

    /// Links a subsystem to a port.
    pub fn link_port(&self, nqn: &str, port: u16) -> Result<Outcome, Error> {
        let _ = (nqn, port);
        unimplemented!()
    }

    /// Unlinks a subsystem from a port: its controllers on that port are cut
    /// (`nvmet_port_subsys_drop_link`). Fine when it is not linked.
    pub fn unlink_port(&self, nqn: &str, port: u16) -> Result<Outcome, Error> {
        let _ = (nqn, port);
        unimplemented!()
    }

    /// Admits a host, making its `hosts/` entry when needed.
    pub fn allow_host(&self, nqn: &str, host_nqn: &str) -> Result<Outcome, Error> {
        let _ = (nqn, host_nqn);
        unimplemented!()
    }

    /// Takes a host out of the allowed ones. Its live controller goes on: whoever wants it cut
    /// unlinks and links the port (design 5.1).
    pub fn disallow_host(&self, nqn: &str, host_nqn: &str) -> Result<Outcome, Error> {
        let _ = (nqn, host_nqn);
        unimplemented!()
    }

    /// Removes a `hosts/` entry that no subsystem refers to; leaves one that is in use.
    pub fn remove_host(&self, host_nqn: &str) -> Result<Outcome, Error> {
        let _ = host_nqn;
        unimplemented!()
    }

    /// Tears a subsystem down in the order of design rule 8; fine when it is gone or half gone.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<Outcome, Error> {
        let _ = nqn;
        unimplemented!()
    }
}
