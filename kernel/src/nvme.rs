//! The NVMe host: `/dev/nvme-fabrics` (`drivers/nvme/host/fabrics.c`) and its sysfs
//! (`drivers/nvme/host/sysfs.c`, `multipath.c`).
//!
//! Names say nothing: `nvme3n2` is the head of a namespace on subsystem instance 3 and its second
//! head, whatever its nsid. Identifiers are read from sysfs, never parsed out of names (C-34).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use uuid::Uuid;

use crate::error::SysError;

/// Who this machine is to a target: one stable pair (C-40).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN, at most 223 bytes.
    pub nqn: String,
    /// Host ID.
    pub id: Uuid,
}

/// Where and how to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP to this portal.
    Tcp {
        /// Address and port of the portal; an IPv6 scope goes into `traddr` as `%<ifname>`.
        portal: SocketAddr,
        /// Local address to use (`host_traddr`).
        host_traddr: Option<IpAddr>,
        /// Local interface to use (`host_iface`).
        host_iface: Option<String>,
    },
    /// The target of this very machine (nvme-loop).
    Loop,
}

/// One connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// How.
    pub transport: Transport,
    /// Subsystem NQN.
    pub subsystem_nqn: String,
    /// Who asks.
    pub host: HostIdentity,
    /// I/O queues; `None` leaves it to the kernel (one a CPU).
    pub nr_io_queues: Option<u32>,
    /// Queue depth; `None`: the kernel's 128.
    pub queue_size: Option<u32>,
    /// Seconds until a lost controller is removed; -1: never.
    pub ctrl_loss_tmo: Option<i32>,
    /// Seconds between tries to reconnect.
    pub reconnect_delay: Option<u32>,
    /// Seconds until queued I/O of a lost controller fails; -1: never.
    pub fast_io_fail_tmo: Option<i32>,
    /// Keep-alive time-out in seconds.
    pub keep_alive_tmo: Option<u32>,
}

/// The kernel's answer to a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// The controller's instance: `nvme<instance>`.
    pub instance: u32,
    /// The controller ID that the target gave.
    pub cntlid: u32,
}

/// Why a connect or a look-up failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// An option cannot be written into the connect line (a comma, a newline, too long, empty).
    #[error("{option}={value:?} cannot go into a connect line: {why}")]
    BadOption {
        /// The kernel's name of the option.
        option: &'static str,
        /// The value.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A controller with this subsystem, host and address exists (`EALREADY`): look at that one.
    #[error("already connected to {nqn}")]
    Already {
        /// Subsystem NQN.
        nqn: String,
    },
    /// The kernel answered with something that is not `instance=…,cntlid=…`.
    #[error("/dev/nvme-fabrics answered {reply:?}: expected instance=N,cntlid=N")]
    BadReply {
        /// The answer.
        reply: String,
    },
}

/// A controller as sysfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Kernel name, `nvme3`.
    pub name: String,
    /// `live`, `connecting`, `resetting`, `deleting`, `dead`, …
    pub state: String,
    /// `tcp`, `loop`, …
    pub transport: String,
    /// `traddr=…,trsvcid=…` as the kernel gives it; empty for loop.
    pub address: String,
    /// Subsystem NQN.
    pub subsystem_nqn: String,
    /// Host NQN that it was made with.
    pub host_nqn: String,
}

/// A namespace as sysfs shows it, by its usable block device (the multipath head where there is one).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Kernel name of the block device, `nvme0n1`.
    pub block: String,
    /// UUID, when the namespace has one.
    pub uuid: Option<Uuid>,
    /// NGUID, when it has one (all zero counts as none).
    pub nguid: Option<[u8; 16]>,
    /// Namespace ID.
    pub nsid: u32,
}

/// The subsystem that a block device belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// NQN.
    pub nqn: String,
    /// Kernel names of its controllers.
    pub controllers: Vec<String>,
}

/// The line that is written to `/dev/nvme-fabrics`. Pure; refuses what cannot be said (C-60: IPv6 unbracketed).
pub fn connect_line(options: &ConnectOptions) -> Result<String, Error> {
    let _ = options;
    unimplemented!()
}

/// Parses the kernel's answer. Pure.
pub fn parse_reply(reply: &str) -> Result<Connected, Error> {
    let _ = reply;
    unimplemented!()
}

/// Connects: one write, one read. Blocks until the controller is live or the kernel gives up.
/// On `EXDEV` (an offline CPU: C-55) tries again with half the queues.
pub fn connect(dev: &Path, options: &ConnectOptions) -> Result<Connected, Error> {
    let _ = (dev, options);
    unimplemented!()
}

/// One controller; `None` when it is gone (also when it goes while it is read).
pub fn controller(sys: &Path, name: &str) -> Result<Option<Controller>, SysError> {
    let _ = (sys, name);
    unimplemented!()
}

/// Every controller. Grows with their number: start-up and repair only.
pub fn controllers(sys: &Path) -> Result<Vec<Controller>, SysError> {
    let _ = sys;
    unimplemented!()
}

/// The namespace of the block device `block` (`nvme0n1`), `None` when it is gone.
pub fn namespace(sys: &Path, block: &str) -> Result<Option<Namespace>, SysError> {
    let _ = (sys, block);
    unimplemented!()
}

/// Every usable namespace block device (heads where multipath is native). Start-up and repair only.
pub fn namespaces(sys: &Path) -> Result<Vec<Namespace>, SysError> {
    let _ = sys;
    unimplemented!()
}

/// The subsystem of a namespace's block device, from `<sys>/block/<name>/device` (a subsystem for a
/// multipath head, a controller otherwise); `None` for a device that is no NVMe namespace or is gone.
pub fn subsystem_of(sys: &Path, block: &str) -> Result<Option<Subsystem>, SysError> {
    let _ = (sys, block);
    unimplemented!()
}

/// Asks a controller to look for namespaces again (`rescan_controller`).
pub fn rescan(sys: &Path, controller: &str) -> Result<(), SysError> {
    let _ = (sys, controller);
    unimplemented!()
}

/// Deletes a controller (`delete_controller`): blocks until it is gone. Fine when it is gone already.
pub fn delete(sys: &Path, controller: &str) -> Result<(), SysError> {
    let _ = (sys, controller);
    unimplemented!()
}
