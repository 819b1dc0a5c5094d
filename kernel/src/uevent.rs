//! Kernel uevents: `NETLINK_KOBJECT_UEVENT`, group 1 (`lib/kobject_uevent.c`).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::error::SysError;

/// One uevent. Paths are relative to `/sys`, as the kernel sends them (`/devices/…`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `move`, …
    pub action: String,
    /// `DEVPATH`, beginning with `/devices`.
    pub devpath: String,
    /// `SUBSYSTEM`, e.g. `block`, `nvme`.
    pub subsystem: String,
    /// `DEVTYPE`, e.g. `disk`; empty when there is none.
    pub devtype: String,
    /// `DEVNAME`, e.g. `nvme0n1`; empty when there is none.
    pub devname: String,
    /// `SEQNUM`.
    pub seqnum: u64,
    /// All pairs, in the order in which they came.
    pub pairs: Vec<(String, String)>,
}

/// What [`UeventSocket::recv`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// An event.
    Event(Uevent),
    /// The kernel dropped events (`ENOBUFS`): whoever keeps an index must look again.
    Overrun,
    /// The deadline came first.
    TimedOut,
}

/// Parses one datagram; `None` for what is no kernel uevent (udevd's own messages, junk).
pub fn parse(datagram: &[u8]) -> Option<Uevent> {
    let _ = datagram;
    unimplemented!()
}

/// A listening socket. Open it *before* the act whose event is awaited.
#[derive(Debug)]
pub struct UeventSocket {
    fd: std::os::fd::OwnedFd,
}

impl UeventSocket {
    /// Opens and binds the socket, with a receive buffer of some MiB where privileges allow it.
    pub fn open() -> Result<Self, SysError> {
        unimplemented!()
    }

    /// Waits for the next event, or until `deadline` (`None`: for ever). Ignores messages that
    /// did not come from the kernel (netlink port 0).
    pub fn recv(&self, deadline: Option<Instant>) -> Result<Received, SysError> {
        let _ = deadline;
        unimplemented!()
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
