//! The connect line, its answer, and the one write and read between them.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::errno::Errno;

use super::{ConnectOptions, Connected, Error, NQN_MAX_BYTES, Transport};
use crate::error::SysError;

/// `IFNAMSIZ` without its NUL.
const IFNAME_MAX_BYTES: usize = 15;

/// The kernel parses every number as an `int` (`match_int`).
const INT_MAX: u32 = i32::MAX.unsigned_abs();

/// The line that is written to `/dev/nvme-fabrics`. Pure; refuses what cannot be said (C-60: IPv6 unbracketed).
pub fn connect_line(options: &ConnectOptions) -> Result<String, Error> {
    let mut line = Line(String::with_capacity(512));
    match &options.transport {
        Transport::Tcp {
            portal,
            host_traddr,
            host_iface,
        } => {
            line.put("transport", "tcp");
            line.put_portal(*portal, host_iface.as_deref())?;
            line.put_identity(options)?;
            if let Some(address) = host_traddr {
                line.put_host_traddr(*address, *portal, host_iface.as_deref())?;
            }
            if let Some(name) = host_iface {
                line.put_text("host_iface", name, IFNAME_MAX_BYTES)?;
            }
        }
        Transport::Loop { port } => {
            let why = "nvme-loop never reconnects, and refuses the option";
            refuse_set("ctrl_loss_tmo", options.ctrl_loss_tmo, why)?;
            refuse_set("reconnect_delay", options.reconnect_delay, why)?;
            line.put("transport", "loop");
            // Without an address, the kernel takes the first loop port, whoever has made it.
            line.put("traddr", port);
            line.put_identity(options)?;
        }
    }
    line.put_number("nr_io_queues", options.nr_io_queues, 1, INT_MAX, "from 1")?;
    line.put_number("queue_size", options.queue_size, 16, 1024, "16 to 1024")?;
    line.put_number(
        "reconnect_delay",
        options.reconnect_delay,
        1,
        INT_MAX,
        "seconds, from 1",
    )?;
    line.put_number(
        "keep_alive_tmo",
        options.keep_alive_tmo,
        1,
        INT_MAX,
        "seconds, from 1 (the kernel reads 0 as its default)",
    )?;
    let forever = "seconds, or -1 for never";
    line.put_number(
        "ctrl_loss_tmo",
        options.ctrl_loss_tmo,
        -1,
        i32::MAX,
        forever,
    )?;
    line.put_number(
        "fast_io_fail_tmo",
        options.fast_io_fail_tmo,
        -1,
        i32::MAX,
        forever,
    )?;
    Ok(line.0)
}

/// `option=value` pairs with commas between them: the kernel splits at commas and newlines, and
/// knows no way to quote either.
struct Line(String);

impl Line {
    fn put(&mut self, option: &'static str, value: impl std::fmt::Display) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{option}={value}");
    }

    fn put_text(
        &mut self,
        option: &'static str,
        value: &str,
        max_bytes: usize,
    ) -> Result<(), Error> {
        let why = if value.is_empty() {
            "it is empty"
        } else if value.len() > max_bytes {
            "it is too long for the kernel"
        } else if value.contains(',') {
            "a comma ends it"
        } else if value.contains(|c: char| c.is_control() || c.is_whitespace()) {
            "it has white space or control characters"
        } else {
            self.put(option, value);
            return Ok(());
        };
        Err(bad(option, value, why))
    }

    fn put_number<N: PartialOrd + std::fmt::Display>(
        &mut self,
        option: &'static str,
        value: Option<N>,
        min: N,
        max: N,
        range: &'static str,
    ) -> Result<(), Error> {
        match value {
            Some(number) if number < min || number > max => Err(bad(option, number, range)),
            Some(number) => {
                self.put(option, number);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn put_portal(&mut self, portal: SocketAddr, iface: Option<&str>) -> Result<(), Error> {
        if portal.ip().is_unspecified() || portal.ip().is_multicast() {
            return Err(bad("traddr", portal.ip(), "nobody can be reached there"));
        }
        if portal.port() == 0 {
            return Err(bad("trsvcid", 0, "a port is 1 to 65535"));
        }
        let scope = match portal {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        self.put_address("traddr", portal.ip(), scope, iface)?;
        self.put("trsvcid", portal.port());
        Ok(())
    }

    fn put_host_traddr(
        &mut self,
        address: IpAddr,
        portal: SocketAddr,
        iface: Option<&str>,
    ) -> Result<(), Error> {
        if address.is_ipv4() != portal.is_ipv4() {
            return Err(bad(
                "host_traddr",
                address,
                "it is of another family than the portal",
            ));
        }
        let scope = match portal {
            SocketAddr::V6(portal) => portal.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        self.put_address("host_traddr", address, scope, iface)
    }

    /// The kernel wants IPv6 without brackets and, for a link-local one, `%` and the interface's
    /// name or index (`inet_pton_with_scope`).
    fn put_address(
        &mut self,
        option: &'static str,
        address: IpAddr,
        scope: u32,
        iface: Option<&str>,
    ) -> Result<(), Error> {
        let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        match (link_local, iface, scope) {
            (false, _, _) => self.put(option, address),
            (true, Some(name), _) => self.put_text(option, &format!("{address}%{name}"), 256)?,
            (true, None, 0) => {
                let why = "a link-local address needs its interface: set host_iface";
                return Err(bad(option, address, why));
            }
            (true, None, index) => self.put(option, format_args!("{address}%{index}")),
        }
        Ok(())
    }

    fn put_identity(&mut self, options: &ConnectOptions) -> Result<(), Error> {
        self.put_text("nqn", &options.subsystem_nqn, NQN_MAX_BYTES)?;
        self.put_text("hostnqn", &options.host.nqn, NQN_MAX_BYTES)?;
        self.put("hostid", options.host.id);
        Ok(())
    }
}

fn refuse_set<N: std::fmt::Display>(
    option: &'static str,
    value: Option<N>,
    why: &'static str,
) -> Result<(), Error> {
    value.map_or(Ok(()), |value| Err(bad(option, value, why)))
}

fn bad(option: &'static str, value: impl std::fmt::Display, why: &'static str) -> Error {
    Error::BadOption {
        option,
        value: value.to_string(),
        why,
    }
}

/// Parses the kernel's answer. Pure.
pub fn parse_reply(reply: &str) -> Result<Connected, Error> {
    let number = |key: &str| {
        let mut pairs = reply
            .trim_end()
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key)?.1.parse().ok()
    };
    match (number("instance"), number("cntlid")) {
        (Some(instance), Some(cntlid)) => Ok(Connected { instance, cntlid }),
        _ => Err(Error::BadReply {
            reply: reply.to_owned(),
        }),
    }
}

/// Connects like [`connect_once`]. On `EXDEV` (an offline CPU: C-55) tries again with [`fewer_queues`].
pub fn connect(dev: &Path, options: &ConnectOptions) -> Result<Connected, Error> {
    with_fewer_queues(options, |options| connect_once(dev, options))
}

/// Connects: one write to `<dev>/nvme-fabrics`, one read. Blocks until the controller is live or the
/// kernel gives up: about 3 s when nothing answers, at most its time-out of 60 s for admin commands. The kernel does one
/// connect at a time.
///
/// The errno of a refusal: `EXDEV` when a queue has no online CPU (C-55), `EIO` when the target does not admit the host or does not know the
/// subsystem (the kernel log says which), `EINVAL` when the host ID is in use with another host NQN
/// (C-40) or no module for the transport is loaded, `ECONNREFUSED` when nothing listens.
pub fn connect_once(dev: &Path, options: &ConnectOptions) -> Result<Connected, Error> {
    let path = &dev.join("nvme-fabrics");
    let line = connect_line(options)?;
    let mut fabrics = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| SysError::io("open", path, &e))?;
    fabrics.write_all(line.as_bytes()).map_err(|e| {
        match Errno::from_raw(e.raw_os_error().unwrap_or(0)) {
            Errno::EALREADY => Error::Already {
                nqn: options.subsystem_nqn.clone(),
            },
            _ => SysError::io("write", path, &e)
                .with_detail(format!("wrote {line}"))
                .into(),
        }
    })?;
    let mut reply = [0; 256];
    let length = fabrics
        .read(&mut reply)
        .map_err(|e| SysError::io("read", path, &e))?;
    parse_reply(&String::from_utf8_lossy(&reply[..length]))
}

/// Half as many I/O queues as were asked for, or as the kernel would make by itself (one a CPU); `None`
/// when there is but one.
pub fn fewer_queues(nr_io_queues: Option<u32>) -> Option<u32> {
    let queues = nr_io_queues.unwrap_or_else(|| {
        std::thread::available_parallelism()
            .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
    });
    Some(queues / 2).filter(|half| *half > 0)
}

fn with_fewer_queues(
    options: &ConnectOptions,
    mut attempt: impl FnMut(&ConnectOptions) -> Result<Connected, Error>,
) -> Result<Connected, Error> {
    let mut options = options.clone();
    loop {
        let error = match attempt(&options) {
            Err(Error::Sys(error)) if error.errno == Errno::EXDEV => error,
            outcome => return outcome,
        };
        let Some(queues) = fewer_queues(options.nr_io_queues) else {
            return Err(error.into());
        };
        options.nr_io_queues = Some(queues);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::HostIdentity;
    use super::*;

    const HOST_ID: Uuid = Uuid::from_u128(0x1111_1111_1111_1111_1111_1111_1111_1111);

    fn options(portal: &str) -> ConnectOptions {
        ConnectOptions {
            transport: Transport::Tcp {
                portal: portal.parse().unwrap(),
                host_traddr: None,
                host_iface: None,
            },
            subsystem_nqn: "nqn.2026-11.t:v".into(),
            host: HostIdentity {
                nqn: "nqn.2026-11.t:host".into(),
                id: HOST_ID,
            },
            nr_io_queues: None,
            queue_size: None,
            ctrl_loss_tmo: None,
            reconnect_delay: None,
            fast_io_fail_tmo: None,
            keep_alive_tmo: None,
        }
    }

    fn via(portal: &str, traddr: Option<&str>, iface: Option<&str>) -> ConnectOptions {
        ConnectOptions {
            transport: Transport::Tcp {
                portal: portal.parse().unwrap(),
                host_traddr: traddr.map(|a| a.parse().unwrap()),
                host_iface: iface.map(Into::into),
            },
            ..options(portal)
        }
    }

    fn refused(options: &ConnectOptions) -> &'static str {
        match connect_line(options) {
            Err(Error::BadOption { option, .. }) => option,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_option_has_the_kernels_name() {
        let all = ConnectOptions {
            nr_io_queues: Some(4),
            queue_size: Some(64),
            ctrl_loss_tmo: Some(-1),
            reconnect_delay: Some(2),
            fast_io_fail_tmo: Some(30),
            keep_alive_tmo: Some(5),
            ..via("192.0.2.1:4420", Some("192.0.2.7"), Some("eth1"))
        };
        assert_eq!(
            connect_line(&all).unwrap(),
            "transport=tcp,traddr=192.0.2.1,trsvcid=4420,nqn=nqn.2026-11.t:v,hostnqn=nqn.2026-11.t:host,\
             hostid=11111111-1111-1111-1111-111111111111,host_traddr=192.0.2.7,host_iface=eth1,nr_io_queues=4,\
             queue_size=64,reconnect_delay=2,keep_alive_tmo=5,ctrl_loss_tmo=-1,fast_io_fail_tmo=30"
        );
    }

    #[test]
    fn what_is_left_to_the_kernel_is_not_said() {
        assert_eq!(
            connect_line(&ConnectOptions {
                transport: Transport::Loop { port: 9 },
                ..options("192.0.2.1:1")
            })
            .unwrap(),
            "transport=loop,traddr=9,nqn=nqn.2026-11.t:v,hostnqn=nqn.2026-11.t:host,hostid=11111111-1111-1111-1111-111111111111"
        );
    }

    #[test]
    fn c_60_ipv6_goes_without_brackets_and_link_local_with_its_interface() {
        for (options, start) in [
            (
                via("[2001:db8::1]:4420", None, None),
                "transport=tcp,traddr=2001:db8::1,trsvcid=4420,",
            ),
            (
                via("[fe80::1]:4420", None, Some("eth0")),
                "transport=tcp,traddr=fe80::1%eth0,trsvcid=4420,",
            ),
            (
                via("[fe80::1%3]:4420", None, None),
                "transport=tcp,traddr=fe80::1%3,trsvcid=4420,",
            ),
        ] {
            let line = connect_line(&options).unwrap();
            assert!(line.starts_with(start), "{line}");
        }
        let line = connect_line(&via("[fe80::1]:1", Some("fe80::2"), Some("eth0"))).unwrap();
        assert!(
            line.contains(",host_traddr=fe80::2%eth0,host_iface=eth0"),
            "{line}"
        );
        assert_eq!(refused(&via("[fe80::1]:4420", None, None)), "traddr");
    }

    #[test]
    fn rule_12_nothing_that_arrives_can_add_an_option() {
        let long = "n".repeat(NQN_MAX_BYTES + 1);
        for nqn in [
            "",
            "a,transport=rdma",
            "a\nb",
            "a\0b",
            "a b",
            "a\r",
            "\u{85}",
            &long,
        ] {
            let mut subsystem = options("192.0.2.1:1");
            subsystem.subsystem_nqn = nqn.into();
            assert_eq!(refused(&subsystem), "nqn", "{nqn:?}");
            let mut host = options("192.0.2.1:1");
            host.host.nqn = nqn.into();
            assert_eq!(refused(&host), "hostnqn", "{nqn:?}");
        }
        for iface in ["", "eth0,x=1", "sixteen-letters-"] {
            assert_eq!(
                refused(&via("192.0.2.1:1", None, Some(iface))),
                "host_iface",
                "{iface:?}"
            );
        }
        assert_eq!(refused(&via("[fe80::1]:1", None, Some("a,b"))), "traddr");
        let mut longest = options("192.0.2.1:1");
        longest.subsystem_nqn.clone_from(&"n".repeat(NQN_MAX_BYTES));
        assert!(connect_line(&longest).is_ok());
    }

    #[test]
    fn numbers_that_the_kernel_refuses_or_reinterprets_are_refused_before() {
        type Change = fn(&mut ConnectOptions);
        let cases: [(&str, Change); 12] = [
            ("nr_io_queues", |o| o.nr_io_queues = Some(0)),
            ("nr_io_queues", |o| o.nr_io_queues = Some(1 << 31)),
            ("queue_size", |o| o.queue_size = Some(15)),
            ("queue_size", |o| o.queue_size = Some(1025)),
            ("reconnect_delay", |o| o.reconnect_delay = Some(0)),
            ("keep_alive_tmo", |o| o.keep_alive_tmo = Some(0)),
            ("ctrl_loss_tmo", |o| o.ctrl_loss_tmo = Some(-2)),
            ("fast_io_fail_tmo", |o| o.fast_io_fail_tmo = Some(-2)),
            ("traddr", |o| {
                o.transport = via("0.0.0.0:1", None, None).transport
            }),
            ("trsvcid", |o| {
                o.transport = via("192.0.2.1:0", None, None).transport
            }),
            ("host_traddr", |o| {
                o.transport = via("192.0.2.1:1", Some("::1"), None).transport
            }),
            ("ctrl_loss_tmo", |o| {
                o.transport = Transport::Loop { port: 9 };
                o.ctrl_loss_tmo = Some(-1);
            }),
        ];
        for (option, change) in cases {
            let mut options = options("192.0.2.1:4420");
            change(&mut options);
            assert_eq!(refused(&options), option);
        }
    }

    #[test]
    fn the_reply_names_the_controller() {
        let connected = Connected {
            instance: 12,
            cntlid: 3,
        };
        assert_eq!(parse_reply("instance=12,cntlid=3\n").unwrap(), connected);
        for reply in [
            "",
            "instance=-1,cntlid=-1,transport=%s\n",
            "instance=1",
            "cntlid=1,instance=x",
        ] {
            assert!(
                matches!(parse_reply(reply), Err(Error::BadReply { .. })),
                "{reply:?}"
            );
        }
    }

    #[test]
    fn c_55_an_offline_cpu_halves_the_queues_until_one_is_left() {
        let mut tried = Vec::new();
        let mut asked = options("192.0.2.1:4420");
        asked.nr_io_queues = Some(6);
        let offline = || SysError::new("write", "/dev/nvme-fabrics", Errno::EXDEV);
        let outcome = with_fewer_queues(&asked, |options| {
            tried.push(options.nr_io_queues);
            Err(offline().into())
        });
        assert_eq!(tried, [Some(6), Some(3), Some(1)]);
        assert!(matches!(outcome, Err(Error::Sys(e)) if e == offline()));

        let connected = Connected {
            instance: 0,
            cntlid: 1,
        };
        let outcome = with_fewer_queues(&asked, |options| match options.nr_io_queues {
            Some(3) => Ok(connected),
            _ => Err(offline().into()),
        });
        assert_eq!(outcome.unwrap(), connected);
    }

    #[test]
    fn another_errno_is_not_tried_again() {
        let mut tries = 0;
        let outcome = with_fewer_queues(&options("192.0.2.1:4420"), |_| {
            tries += 1;
            Err(SysError::new("write", "/dev/nvme-fabrics", Errno::ECONNREFUSED).into())
        });
        assert!(outcome.is_err());
        assert_eq!(tries, 1);
    }

    #[test]
    fn a_machine_without_the_module_says_which_file_is_missing() {
        let dev = tempfile::tempdir().unwrap();
        let error = connect(dev.path(), &options("192.0.2.1:4420")).unwrap_err();
        assert!(
            error.to_string().contains("/nvme-fabrics: ENOENT"),
            "{error}"
        );
    }
}
