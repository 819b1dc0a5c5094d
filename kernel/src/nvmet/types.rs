//! What the target holds, wanted and observed, and why it could not be brought there.

use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Address for TCP; `None` makes an nvme-loop port, whose address is its number.
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
