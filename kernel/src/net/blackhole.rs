//! A listening address whose answers are dropped: a policy rule (rtnetlink(7) `RTM_NEWRULE`, `FR_ACT_BLACKHOLE` of
//! `linux/fib_rules.h`) for what TCP sends from it. A client's SYN goes unanswered and is sent again a second later.
//! Needs `CAP_NET_ADMIN`; the look does not.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, IpProtocol};
use nix::errno::Errno;
use nix::sys::socket::{
    MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket,
};

use super::{DATAGRAM_BYTES, SUBJECT};
use crate::error::SysError;

/// After the rule of the local table (0): what this machine sends to itself is not dropped.
const PRIORITY: u32 = 1;
const GET: &str = "NETLINK_ROUTE RTM_GETRULE";

/// Drops what TCP sends from `address` from now on. Whether it was not so before.
pub fn blackhole(address: SocketAddr) -> Result<bool, SysError> {
    let request = RouteNetlinkMessage::NewRule(rule(address));
    match ask(request, NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.errno == Errno::EEXIST => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Lets it out again. Whether it was dropped before.
pub fn unblackhole(address: SocketAddr) -> Result<bool, SysError> {
    match ask(RouteNetlinkMessage::DelRule(rule(address)), 0) {
        Err(error) if error.errno == Errno::ENOENT || is_without_rules(error.errno) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Whether what TCP sends from `address` is dropped now. Grows with the number of policy rules.
pub fn is_blackholed(address: SocketAddr) -> Result<bool, SysError> {
    let ours = rule(address);
    match rules(ours.header.family) {
        Err(error) if is_without_rules(error.errno) => Ok(false),
        found => Ok(found?.iter().any(|rule| is_same(rule, &ours))),
    }
}

/// The policy rules of a family, from as many datagrams as the kernel takes to tell of them.
fn rules(family: AddressFamily) -> Result<Vec<RuleMessage>, SysError> {
    let mut request = RuleMessage::default();
    request.header.family = family;
    let socket = send(RouteNetlinkMessage::GetRule(request), NLM_F_DUMP, GET)?;
    let failed = |errno| SysError::new("recv", GET, errno);
    let mut rules = Vec::new();
    let mut datagram = [0; DATAGRAM_BYTES];
    loop {
        let length = receive(&socket, &mut datagram, GET)?;
        let mut rest = &datagram[..length];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|_| failed(Errno::EBADMSG))?;
            // Messages are aligned to four bytes (NLMSG_ALIGN).
            let aligned = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(aligned..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRule(rule)) => {
                    rules.push(rule)
                }
                NetlinkPayload::Done(_) => return Ok(rules),
                NetlinkPayload::Error(error) => {
                    let code = error.code.map_or(libc::EBADMSG, |code| -code.get());
                    return Err(failed(Errno::from_raw(code)));
                }
                _ => {}
            }
        }
    }
}

/// Whether a rule of the kernel does what ours does; it tells more attributes than it was given.
fn is_same(found: &RuleMessage, ours: &RuleMessage) -> bool {
    found.header.action == ours.header.action
        && found.header.src_len == ours.header.src_len
        && ours.attributes.iter().all(|a| found.attributes.contains(a))
}

/// This kernel has no policy rules for the family: none of its own, or no such family (as without IPv6).
fn is_without_rules(errno: Errno) -> bool {
    matches!(errno, Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP)
}

fn rule(address: SocketAddr) -> RuleMessage {
    let mut rule = RuleMessage::default();
    let (family, bits) = match address.ip() {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    rule.header.family = family;
    rule.header.action = RuleAction::Blackhole;
    let port = RulePortRange {
        start: address.port(),
        end: address.port(),
    };
    rule.attributes = vec![
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::IpProtocol(IpProtocol::Tcp),
        RuleAttribute::SourcePortRange(port),
    ];
    if !address.ip().is_unspecified() {
        rule.header.src_len = bits;
        rule.attributes.push(RuleAttribute::Source(address.ip()));
    }
    rule
}

/// Sends one request and reads what became of it.
fn ask(request: RouteNetlinkMessage, flags: u16) -> Result<(), SysError> {
    let subject = match &request {
        RouteNetlinkMessage::NewRule(_) => "NETLINK_ROUTE RTM_NEWRULE",
        _ => "NETLINK_ROUTE RTM_DELRULE",
    };
    let socket = send(request, NLM_F_ACK | flags, subject)?;
    let mut reply = [0; DATAGRAM_BYTES];
    let length = receive(&socket, &mut reply, subject)?;
    answer(&reply[..length]).map_err(|errno| SysError::new("sendmsg", subject, errno))
}

fn send(request: RouteNetlinkMessage, flags: u16, subject: &str) -> Result<OwnedFd, SysError> {
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = open()?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &bytes, &kernel, MsgFlags::empty())
        .map_err(|errno| SysError::new("sendto", subject, errno))?;
    Ok(socket)
}

/// The next datagram: the kernel answers within sendto, and a dump goes on within recv; nothing is waited for.
fn receive(socket: &OwnedFd, buffer: &mut [u8], subject: &str) -> Result<usize, SysError> {
    loop {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EINTR) => {}
            outcome => return outcome.map_err(|errno| SysError::new("recv", subject, errno)),
        }
    }
}

/// What an acknowledgement says (`struct nlmsgerr`).
fn answer(datagram: &[u8]) -> Result<(), Errno> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram);
    match message.map(|m| m.payload) {
        Ok(NetlinkPayload::Error(error)) => match error.code {
            None => Ok(()),
            Some(code) => Err(Errno::from_raw(-code.get())),
        },
        _ => Err(Errno::EBADMSG),
    }
}

fn open() -> Result<OwnedFd, SysError> {
    let fd = socket(
        nix::sys::socket::AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .map_err(|errno| SysError::new("socket", SUBJECT, errno))?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))
        .map_err(|errno| SysError::new("bind", SUBJECT, errno))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn an_answer_is_read() {
        let mut bytes = vec![0; 36];
        bytes[0] = 36;
        bytes[4] = 2; // NLMSG_ERROR
        assert_eq!(answer(&bytes), Ok(()));
        bytes[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        assert_eq!(answer(&bytes), Err(Errno::EEXIST));
        assert_eq!(answer(&bytes[..8]), Err(Errno::EBADMSG));
    }

    #[test]
    fn a_rule_is_known_again_by_what_it_does() {
        let ours = rule("192.0.2.1:4420".parse().unwrap());
        let mut found = ours.clone();
        found
            .attributes
            .push(RuleAttribute::SuppressPrefixLen(u32::MAX));
        assert!(is_same(&found, &ours));
        found.header.action = RuleAction::ToTable;
        assert!(!is_same(&found, &ours));
        let other = rule("192.0.2.1:4421".parse().unwrap());
        assert!(!is_same(&other, &ours));
    }

    #[test]
    fn a_rule_is_of_one_address_and_port() {
        let told = rule("[fd00::1]:4420".parse().unwrap());
        assert_eq!(told.header.src_len, 128);
        let source = RuleAttribute::Source("fd00::1".parse().unwrap());
        assert!(told.attributes.contains(&source));
        let everywhere = rule("0.0.0.0:4420".parse().unwrap());
        assert_eq!(everywhere.header.src_len, 0);
        assert_eq!(everywhere.attributes.len(), 3);
    }
}
