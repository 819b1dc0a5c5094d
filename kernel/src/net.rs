//! The network's addresses: whether this machine has one, and word of new ones (`NETLINK_ROUTE`, rtnetlink(7),
//! groups `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`).
//!
//! The kernel's target can listen on an address only while some interface has it. Whether that is so, `bind`
//! answers best: it knows local routes, duplicate address detection and `ip_nonlocal_bind`, as the target's own bind
//! does. The socket only says when to ask again. Needs no capability, and the network namespace of the host.

mod blackhole;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};
use nix::sys::time::TimeSpec;

pub use self::blackhole::{blackhole, is_blackholed, unblackhole};
use crate::error::SysError;

/// `RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR` (`linux/rtnetlink.h`).
const GROUPS: u32 = 0x10 | 0x100;

/// One message about an address is some hundred bytes (`inet_nlmsg_size`, `inet6_ifaddr_msgsize`).
const DATAGRAM_BYTES: usize = 8 << 10;

/// What system call errors are about.
const SUBJECT: &str = "NETLINK_ROUTE";

/// Whether a server could listen on `address` now. The port is not looked at.
pub fn can_listen(address: SocketAddr) -> Result<bool, SysError> {
    let mut probe = address;
    probe.set_port(0);
    match UdpSocket::bind(probe) {
        Ok(_) => Ok(true),
        Err(e) => match Errno::from_raw(e.raw_os_error().unwrap_or(0)) {
            // ENODEV: the interface of a link-local address. EAFNOSUPPORT: IPv6 is switched off.
            Errno::EADDRNOTAVAIL | Errno::ENODEV | Errno::EAFNOSUPPORT => Ok(false),
            errno => Err(SysError::new("bind", address, errno)),
        },
    }
}

/// What [`AddressSocket::recv`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// An interface has this address now, or has come to trust it.
    Appeared(IpAddr),
    /// The kernel dropped messages (`ENOBUFS`): any address may have appeared.
    Overrun,
    /// The deadline came first.
    TimedOut,
}

/// A listening socket. Open it *before* the first [`can_listen`].
#[derive(Debug)]
pub struct AddressSocket {
    fd: OwnedFd,
}

impl AddressSocket {
    /// Opens and binds the socket.
    pub fn open() -> Result<Self, SysError> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )
        .map_err(|errno| SysError::new("socket", SUBJECT, errno))?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))
            .map_err(|errno| SysError::new("bind", SUBJECT, errno))?;
        Ok(Self { fd })
    }

    /// Waits for the next address, or until `deadline` (`None`: for ever). A deadline in the past takes what is there.
    pub fn recv(&self, deadline: Option<Instant>) -> Result<Heard, SysError> {
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut datagram) {
                Ok((length, sender)) => {
                    let from_kernel = sender.is_some_and(|address| address.pid() == 0);
                    if let Some(address) = appeared(&datagram[..length]).filter(|_| from_kernel) {
                        return Ok(Heard::Appeared(address));
                    }
                }
                Err(Errno::EAGAIN) => {
                    if !self.wait(deadline)? {
                        return Ok(Heard::TimedOut);
                    }
                }
                Err(Errno::ENOBUFS) => return Ok(Heard::Overrun),
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

/// The address that a notification says is there; `None` for any other message. The kernel sends one a datagram.
fn appeared(datagram: &[u8]) -> Option<IpAddr> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram).ok()?;
    match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => local(&address),
        _ => None,
    }
}

/// `IFA_LOCAL` is this end's; without it (IPv6, but for tunnels) `IFA_ADDRESS` is.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = message.attributes.iter();
    let local = attributes.clone().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        attributes.clone().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ip address add 192.0.2.9/32 peer 192.0.2.1 dev lo`, as Linux 6.12 tells it.
    fn notification(kind: u16) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[0] = 40;
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        // ifaddrmsg: AF_INET, /32, flags, scope, index 1.
        bytes[16..24].copy_from_slice(&[2, 32, 0, 0, 1, 0, 0, 0]);
        // IFA_ADDRESS, then IFA_LOCAL.
        bytes[24..32].copy_from_slice(&[8, 0, 1, 0, 192, 0, 2, 1]);
        bytes[32..40].copy_from_slice(&[8, 0, 2, 0, 192, 0, 2, 9]);
        bytes
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn this_ends_address_is_read_and_other_messages_are_none() {
        const RTM_NEWADDR: u16 = 20;
        const RTM_DELADDR: u16 = 21;
        let here: IpAddr = "192.0.2.9".parse().unwrap();
        assert_eq!(appeared(&notification(RTM_NEWADDR)), Some(here));
        assert_eq!(appeared(&notification(RTM_DELADDR)), None);
        let without_local = {
            let mut bytes = notification(RTM_NEWADDR);
            bytes.truncate(32);
            bytes[0] = 32;
            bytes
        };
        assert_eq!(appeared(&without_local), Some("192.0.2.1".parse().unwrap()));
        for length in 0..40 {
            assert_eq!(appeared(&notification(RTM_NEWADDR)[..length]), None);
        }
    }

    #[test]
    fn an_address_that_no_interface_has_cannot_be_listened_on() {
        for (address, there) in [
            ("127.0.0.1:4420", true),
            ("127.9.9.9:4420", true),
            ("0.0.0.0:4420", true),
            // For documentation only (RFC 5737, RFC 3849).
            ("192.0.2.77:4420", false),
            ("[2001:db8::77]:4420", false),
            ("[fe80::1%4294967]:4420", false),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(can_listen(address).unwrap(), there, "{address}");
        }
    }

    #[test]
    fn rule_10_a_wait_ends_by_its_deadline() {
        let socket = AddressSocket::open().unwrap();
        assert_eq!(socket.recv(Some(Instant::now())).unwrap(), Heard::TimedOut);
    }
}
