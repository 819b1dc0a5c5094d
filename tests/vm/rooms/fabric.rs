//! One machine that is storage host and consumer at once: a subsystem on a loop device, exported over
//! loopback. Everything is taken down with the value.

#![allow(clippy::disallowed_methods, reason = "losetup makes the devices")]

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;
use zvolt_kernel::nvme::{
    self, ConnectOptions, Connected, Controller, HostIdentity, Namespace, Transport,
};
use zvolt_kernel::nvmet::{NamespaceSpec, PortSpec, SubsystemSpec, Target};
use zvolt_kernel::uevent::{Received, Uevent, UeventSocket};

pub(super) const SYS: &str = "/sys";
pub(super) const DEV: &str = "/dev";
pub(super) const NVMET: &str = "/sys/kernel/config/nvmet";
pub(super) const MODEL: &str = "zvolt";
/// Not 1, so that it differs from the instance in the device's name (C-34).
pub(super) const NSID: u32 = 7;
pub(super) const DISK_BYTES: u64 = 32 << 20;

/// What the emulated machine may take for one step.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub(super) fn sys() -> &'static Path {
    Path::new(SYS)
}

pub(super) fn losetup(args: &[&str]) -> String {
    let output = Command::new("losetup").args(args).output().unwrap();
    assert!(output.status.success(), "losetup {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device on a sparse file.
pub(super) struct Disk {
    dir: tempfile::TempDir,
    pub(super) device: PathBuf,
}

impl Disk {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        let device = losetup(&["--find", "--show", image.to_str().unwrap()]).into();
        Self { dir, device }
    }

    pub(super) fn grow(&self, bytes: u64) {
        let image = self.dir.path().join("image");
        File::options()
            .write(true)
            .open(image)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        losetup(&["--set-capacity", self.device.to_str().unwrap()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        losetup(&["--detach", self.device.to_str().unwrap()]);
    }
}

/// Who connects, another one for each test.
fn host(number: u16) -> HostIdentity {
    let id = Uuid::from_u128(0x1000 + u128::from(number));
    HostIdentity {
        nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{id}"),
        id,
    }
}

pub(super) struct Fabric {
    pub(super) target: Target,
    pub(super) port: PortSpec,
    pub(super) subsystem: SubsystemSpec,
    pub(super) namespace: NamespaceSpec,
    pub(super) host: HostIdentity,
    pub(super) events: UeventSocket,
    pub(super) disk: Disk,
    _alone: MutexGuard<'static, ()>,
}

impl Fabric {
    /// The specs and a device; nothing is exported yet. One at a time: the events are the machine's.
    pub(super) fn new(ip: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let disk = Disk::new();
        Self {
            target: Target::at(NVMET),
            port: PortSpec {
                id: 1000 + number,
                address: Some(SocketAddr::new(ip.parse().unwrap(), 5000 + number)),
            },
            subsystem: SubsystemSpec {
                nqn: format!("nqn.2026-11.zvolt.test:{number}"),
                serial: format!("serial-{number}"),
                model: MODEL.into(),
            },
            namespace: NamespaceSpec {
                nsid: NSID,
                device: disk.device.clone(),
                uuid: Uuid::from_u128(0xaaaa_0000 + u128::from(number)),
                nguid: *Uuid::from_u128(0xbbbb_0000 + u128::from(number)).as_bytes(),
            },
            host: host(number),
            events: UeventSocket::open().unwrap(),
            disk,
            _alone: alone,
        }
    }

    /// Exported to the host.
    pub(super) fn exported(ip: &str) -> Self {
        let fabric = Self::new(ip);
        fabric.target.converge_port(&fabric.port).unwrap();
        fabric.export();
        fabric
    }

    /// The subsystem and all in it, with the host allowed, linked to the port.
    pub(super) fn export(&self) {
        self.target.converge_subsystem(&self.subsystem).unwrap();
        self.target
            .converge_namespace(self.nqn(), &self.namespace)
            .unwrap();
        self.target.allow_host(self.nqn(), &self.host.nqn).unwrap();
        self.target.link_port(self.nqn(), self.port.id).unwrap();
    }

    pub(super) fn nqn(&self) -> &str {
        &self.subsystem.nqn
    }

    /// Another host than the one that is allowed.
    pub(super) fn stranger(&self) -> HostIdentity {
        host(self.port.id + 10_000)
    }

    pub(super) fn subsystem_dir(&self) -> PathBuf {
        Path::new(NVMET).join("subsystems").join(self.nqn())
    }

    pub(super) fn options(&self) -> ConnectOptions {
        let (transport, reconnects) = match self.port.address {
            Some(portal) => (
                Transport::Tcp {
                    portal,
                    host_traddr: None,
                    host_iface: None,
                },
                true,
            ),
            None => (Transport::Loop { port: self.port.id }, false),
        };
        ConnectOptions {
            transport,
            subsystem_nqn: self.nqn().into(),
            host: self.host.clone(),
            nr_io_queues: Some(1),
            queue_size: None,
            ctrl_loss_tmo: reconnects.then_some(-1),
            reconnect_delay: reconnects.then_some(1),
            fast_io_fail_tmo: Some(30),
            keep_alive_tmo: None,
        }
    }

    pub(super) fn connect(&self) -> Result<Connected, nvme::Error> {
        nvme::connect(Path::new(DEV), &self.options())
    }

    /// Connects and waits for the namespace: the controller's name, and the namespace.
    pub(super) fn attach(&self) -> (String, Namespace) {
        let name = format!("nvme{}", self.connect().unwrap().instance);
        // The kernel tells both, in either order: an event that is left over would look like a reconnect.
        let (mut namespace, mut connected) = (None, false);
        self.await_event("the controller and its namespace", |event| {
            connected |= is_connected(event, &name);
            if is_new_disk(event) {
                namespace = nvme::namespace(sys(), &event.devname)
                    .unwrap()
                    .filter(|n| n.uuid == Some(self.namespace.uuid))
                    .or(namespace.take());
            }
            connected && namespace.is_some()
        });
        (name, namespace.unwrap())
    }

    /// The next event that is wanted.
    pub(super) fn await_event(
        &self,
        what: &str,
        mut wanted: impl FnMut(&Uevent) -> bool,
    ) -> Uevent {
        let deadline = soon();
        loop {
            match self.events.recv(Some(deadline)).unwrap() {
                Received::Event(event) if wanted(&event) => return event,
                Received::Event(_) => {}
                other => panic!("{other:?} while waiting for {what}"),
            }
        }
    }

    /// The namespace, when the kernel says that it is there.
    pub(super) fn await_namespace(&self, uuid: Uuid) -> Namespace {
        let mut found = None;
        self.await_event("the namespace", |event| {
            if is_new_disk(event) {
                found = nvme::namespace(sys(), &event.devname).unwrap();
            }
            found.as_ref().is_some_and(|n| n.uuid == Some(uuid))
        });
        found.unwrap()
    }

    pub(super) fn await_removal(&self, name: &str) {
        self.await_event("a removal", |event| {
            event.action == "remove" && event.devname == name
        });
    }

    /// Waits until the controller is live again after a loss.
    pub(super) fn await_reconnect(&self, controller: &str) {
        self.await_event("a reconnect", |event| is_connected(event, controller));
        assert_eq!(self.controller(controller).unwrap().state, "live");
    }

    pub(super) fn controller(&self, name: &str) -> Option<Controller> {
        nvme::controller(sys(), name).unwrap()
    }

    pub(super) fn controllers(&self) -> Vec<Controller> {
        let mut all = nvme::controllers(sys()).unwrap();
        all.retain(|c| c.subsystem_nqn == self.nqn());
        all
    }
}

fn is_new_disk(event: &Uevent) -> bool {
    event.action == "add" && event.subsystem == "block" && event.devtype == "disk"
}

fn is_connected(event: &Uevent, controller: &str) -> bool {
    let connected = ("NVME_EVENT".into(), "connected".into());
    event.devname == controller && event.pairs.contains(&connected)
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for controller in self.controllers() {
            let _ = nvme::delete(sys(), &controller.name);
        }
        let _ = self.target.remove_subsystem(self.nqn());
        let _ = self.target.remove_port(self.port.id);
        let _ = self.target.remove_host(&self.host.nqn);
        let _ = self.target.remove_host(&self.stranger().nqn);
    }
}
