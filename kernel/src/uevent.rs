//! Kernel uevents: `NETLINK_KOBJECT_UEVENT`, group 1 (`lib/kobject_uevent.c`, `netlink(7)`).
//!
//! The kernel sends them to every network namespace whose user namespace is the initial one, so a
//! container with a network namespace of its own hears them, and a user-namespaced one does not.
//! Needs no capability; `CAP_NET_ADMIN` lifts the limit on the receive buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeSpec;

use crate::error::SysError;

/// The group of the kernel's own events; udevd's rebroadcasts are in group 2.
const KERNEL_GROUP: u32 = 1;

/// Room for some tens of thousands of events: a storage host's boot makes as many.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// The kernel's limit is 2,048 bytes of pairs (`UEVENT_BUFFER_SIZE`) and the header before them.
const DATAGRAM_BYTES: usize = 8 << 10;

/// What system call errors are about.
const SUBJECT: &str = "NETLINK_KOBJECT_UEVENT";

/// One uevent. Paths are relative to `/sys`, as the kernel sends them (`/devices/…`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `move`, …
    pub action: String,
    /// `DEVPATH`, beginning with `/devices` for devices (`/module`, `/bus`, … for the rest).
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
///
/// Bytes that are no UTF-8 (names that hardware reports) are replaced, not refused.
pub fn parse(datagram: &[u8]) -> Option<Uevent> {
    let mut parts = datagram.strip_suffix(&[0])?.split(|&byte| byte == 0);
    let header = parts.next()?;
    let mut event = Uevent::default();
    for part in parts {
        let equals = part.iter().position(|&byte| byte == b'=')?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (key, value) = (text(&part[..equals]), text(&part[equals + 1..]));
        match key.as_str() {
            "ACTION" => event.action.clone_from(&value),
            "DEVPATH" => event.devpath.clone_from(&value),
            "SUBSYSTEM" => event.subsystem.clone_from(&value),
            "DEVTYPE" => event.devtype.clone_from(&value),
            "DEVNAME" => event.devname.clone_from(&value),
            "SEQNUM" => event.seqnum = value.parse().ok()?,
            _ => {}
        }
        event.pairs.push((key, value));
    }
    // The header says the same again, which no message of udevd ("libudev\0…") does.
    let at = header.iter().position(|&byte| byte == b'@')?;
    let same =
        header[..at] == *event.action.as_bytes() && header[at + 1..] == *event.devpath.as_bytes();
    (same && !event.action.is_empty() && event.devpath.starts_with('/')).then_some(event)
}

/// A listening socket. Open it *before* the act whose event is awaited.
#[derive(Debug)]
pub struct UeventSocket {
    fd: OwnedFd,
}

impl UeventSocket {
    /// Opens and binds the socket, with a receive buffer of some MiB where privileges allow it.
    pub fn open() -> Result<Self, SysError> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkKObjectUEvent,
        )
        .map_err(|errno| SysError::new("socket", SUBJECT, errno))?;
        // Without the privilege the default stays, and an overrun is reported sooner.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES);
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))
            .map_err(|errno| SysError::new("bind", SUBJECT, errno))?;
        Ok(Self { fd })
    }

    /// Waits for the next event, or until `deadline` (`None`: for ever). Ignores messages that
    /// did not come from the kernel (netlink port 0). A deadline in the past takes what is there.
    pub fn recv(&self, deadline: Option<Instant>) -> Result<Received, SysError> {
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut datagram) {
                Ok((length, sender)) => {
                    let from_kernel = sender.is_some_and(|address| address.pid() == 0);
                    if let Some(event) = parse(&datagram[..length]).filter(|_| from_kernel) {
                        return Ok(Received::Event(event));
                    }
                }
                Err(Errno::EAGAIN) => {
                    if !self.wait(deadline)? {
                        return Ok(Received::TimedOut);
                    }
                }
                Err(Errno::ENOBUFS) => return Ok(Received::Overrun),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(SysError::new("recvfrom", SUBJECT, errno)),
            }
        }
    }

    /// Whether something can be read before the deadline.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, SysError> {
        loop {
            let left = deadline
                .map(|at| TimeSpec::from_duration(at.saturating_duration_since(Instant::now())));
            let mut waited = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut waited, left, None) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(SysError::new("ppoll", SUBJECT, errno)),
            }
        }
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ADD: &[u8] = b"add@/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1\0ACTION=add\0\
        DEVPATH=/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1\0SUBSYSTEM=block\0MAJOR=259\0\
        MINOR=1\0DEVNAME=nvme0n1\0DEVTYPE=disk\0DISKSEQ=12\0SEQNUM=2089\0";

    #[test]
    fn a_namespace_that_appears_is_read_whole() {
        let event = parse(ADD).unwrap();
        assert_eq!(
            (
                event.action.as_str(),
                event.subsystem.as_str(),
                event.devtype.as_str()
            ),
            ("add", "block", "disk")
        );
        assert_eq!((event.devname.as_str(), event.seqnum), ("nvme0n1", 2089));
        assert_eq!(
            event.devpath,
            "/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
        );
        assert_eq!(event.pairs.len(), 9);
        assert_eq!(event.pairs[7], ("DISKSEQ".into(), "12".into()));
    }

    #[test]
    fn what_is_missing_is_empty_and_a_value_may_hold_an_equals_sign() {
        let event = parse(
            b"change@/devices/x\0ACTION=change\0DEVPATH=/devices/x\0NVME_EVENT=a=b\0SEQNUM=1\0",
        )
        .unwrap();
        assert_eq!((event.subsystem.as_str(), event.devname.as_str()), ("", ""));
        assert_eq!(event.pairs[2], ("NVME_EVENT".into(), "a=b".into()));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hide_an_event() {
        let event =
            parse(b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0HID_NAME=\xff\0SEQNUM=1\0")
                .unwrap();
        assert_eq!(event.pairs[2].1, "\u{fffd}");
    }

    #[test]
    fn what_the_kernel_does_not_send_is_refused() {
        for junk in [
            &b""[..],
            b"\0",
            b"libudev\0\xfe\xed\xca\xfe(\0\0\0(\0\0\0\x9c\0\0\0ACTION=add\0DEVPATH=/devices/x\0",
            b"add@/devices/x",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SEQNUM=1",
            b"add@/devices/x\0ACTION=remove\0DEVPATH=/devices/x\0SEQNUM=1\0",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/y\0SEQNUM=1\0",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SEQNUM=-1\0",
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SEQNUM\0",
            b"@\0ACTION=\0DEVPATH=\0",
            b"add@x\0ACTION=add\0DEVPATH=x\0SEQNUM=1\0",
        ] {
            assert_eq!(parse(junk), None, "{}", junk.escape_ascii());
        }
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let socket = UeventSocket::open().unwrap();
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(20);
        // Other devices of the machine may well send something meanwhile.
        while socket.recv(Some(deadline)).unwrap() != Received::TimedOut {}
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_message_that_a_process_sends_is_not_an_event() {
        let socket = UeventSocket::open().unwrap();
        let address: NetlinkAddr = nix::sys::socket::getsockname(socket.fd.as_raw_fd()).unwrap();
        let sender = UeventSocket::open().unwrap();
        nix::sys::socket::sendto(
            sender.fd.as_raw_fd(),
            ADD,
            &address,
            nix::sys::socket::MsgFlags::empty(),
        )
        .unwrap();
        while let Received::Event(event) = socket.recv(Some(Instant::now())).unwrap() {
            assert_ne!(
                event.seqnum, 2089,
                "a forged event was taken for the kernel's"
            );
        }
    }
}
