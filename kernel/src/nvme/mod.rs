//! The NVMe host: `/dev/nvme-fabrics` (`drivers/nvme/host/fabrics.c`) and its sysfs
//! (`drivers/nvme/host/sysfs.c`, `multipath.c`).
//!
//! Names say nothing: `nvme3n2` is the head of a namespace on subsystem instance 3 and its second
//! head, whatever its nsid. Identifiers are read from sysfs, never parsed out of names (C-34).
//! With native multipath the head (`nvme3n2`, below its subsystem) is the device to use; the paths
//! (`nvme0c3n2`, below their controllers) are hidden and have no device node.
//!
//! Needs `CAP_SYS_ADMIN` to connect, and the network namespace of the host: the kernel makes the
//! sockets of a reconnect in the initial one. A connect that dies half-way leaves either nothing or
//! a controller, which the next connect reports as [`Error::Already`].

mod connect;
mod feature;
mod ioctl;
mod queue;
mod sysfs;

use std::net::{IpAddr, SocketAddr};

use uuid::Uuid;

pub use connect::{connect, connect_line, connect_once, fewer_queues, parse_reply};
pub use feature::{WriteProtect, set_write_protect, write_protect};
pub use queue::bound_requests;
pub use sysfs::{controller, controllers, delete, namespace, namespaces, rescan, subsystem_of};

use crate::error::SysError;

/// The longest NQN that the kernel's host takes: NVMe allows 223 bytes, `nvmf_parse_options` one less.
pub const NQN_MAX_BYTES: usize = 222;

/// Who this machine is to a target: one stable pair (C-40).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN, at most [`NQN_MAX_BYTES`].
    pub nqn: String,
    /// Host ID.
    pub id: Uuid,
}

/// Where and how to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP to this portal.
    Tcp {
        /// Address and port of the portal. A link-local one needs `host_iface` or a scope ID,
        /// which goes into `traddr` as `%<ifname>` or `%<index>`.
        portal: SocketAddr,
        /// Local address to use (`host_traddr`).
        host_traddr: Option<IpAddr>,
        /// Local interface to use (`host_iface`).
        host_iface: Option<String>,
    },
    /// The target of this very machine (nvme-loop). It never reconnects: neither `ctrl_loss_tmo`
    /// nor `reconnect_delay` may be set.
    Loop {
        /// The target's port, which the room `nvmet` gives its number for an address.
        port: u16,
    },
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
    /// Queue depth, 16 to 1,024; `None`: the kernel's 128.
    pub queue_size: Option<u32>,
    /// Seconds until a lost controller is removed; -1: never; `None`: the kernel's 600.
    pub ctrl_loss_tmo: Option<i32>,
    /// Seconds between tries to reconnect, from 1; `None`: the kernel's 10.
    pub reconnect_delay: Option<u32>,
    /// Seconds until queued I/O of a lost controller fails; -1, and the kernel's default: never.
    pub fast_io_fail_tmo: Option<i32>,
    /// Keep-alive time-out in seconds, from 1; `None`: the kernel's 5.
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
    /// `traddr=…,trsvcid=…,src_addr=…` as the kernel gives it; empty for loop.
    pub address: String,
    /// Subsystem NQN; empty until the controller has identified itself.
    pub subsystem_nqn: String,
    /// Host NQN that it was made with; empty for what is no fabric (PCIe).
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
