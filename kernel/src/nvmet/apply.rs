//! Bringing the tree to the wanted state, one object a call.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::observe::{entries, is_link, observe_namespace};
use super::{Error, NamespaceSpec, Outcome, PortSpec, SubsystemSpec, names};
use crate::attr;
use crate::error::{Errno, SysError};

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

    /// Makes a port. Refuses ([`Error::Foreign`]) when the port exists with another address.
    pub fn converge_port(&self, port: &PortSpec) -> Result<Outcome, Error> {
        let dir = self.root.join("ports").join(port.id.to_string());
        let wanted = port_attributes(port)?;
        let made = make(&dir)?;
        let in_use = !entries(&dir.join("subsystems"))?.is_empty();
        let mut outcome = made;
        for (name, value) in &wanted {
            let path = dir.join(name);
            let found = attr::read(&path)?;
            if found == *value {
                continue;
            }
            if in_use {
                return Err(Error::Foreign {
                    path,
                    wanted: value.clone(),
                    found,
                    remedy: "the port is in use by another configuration: choose another port ID, or unlink its subsystems",
                });
            }
            write_and_read_back(&path, value)?;
            outcome = Outcome::Changed;
        }
        Ok(outcome)
    }

    /// Removes a port that has no subsystem linked; fine when it is gone.
    pub fn remove_port(&self, id: u16) -> Result<Outcome, Error> {
        Ok(remove_dir(&self.root.join("ports").join(id.to_string()))?)
    }

    /// Makes a subsystem with `attr_allow_any_host` 0, serial and model. Refuses ([`Error::Foreign`]) to
    /// give one another serial or model once a host has connected to it: the kernel does.
    pub fn converge_subsystem(&self, subsystem: &SubsystemSpec) -> Result<Outcome, Error> {
        let dir = self.subsystem_dir(&subsystem.nqn)?;
        let serial = names::text("serial number", &subsystem.serial, 20)?;
        let model = names::text("model", &subsystem.model, 40)?;
        let mut outcome = make(&dir)?;
        outcome = outcome.and(converge_attribute(&dir.join("attr_allow_any_host"), "0")?);
        for (name, value) in [("attr_serial", serial), ("attr_model", model)] {
            outcome = outcome.and(converge_once(&dir.join(name), value)?);
        }
        Ok(outcome)
    }

    /// Makes and enables a namespace. One that is enabled with the wanted attributes is left alone;
    /// one that differs is disabled, rewritten and enabled again.
    pub fn converge_namespace(
        &self,
        nqn: &str,
        namespace: &NamespaceSpec,
    ) -> Result<Outcome, Error> {
        let dir = self.namespace_dir(nqn, namespace.nsid)?;
        let mut outcome = make(&dir)?;
        let Some(found) = observe_namespace(&dir, namespace.nsid)? else {
            return Err(SysError::new("open", dir.display(), Errno::ENOENT).into());
        };
        let same = found.device == namespace.device
            && found.uuid == namespace.uuid
            && found.nguid == namespace.nguid;
        if found.enabled && same {
            return Ok(outcome);
        }
        if found.enabled {
            write_and_read_back(&dir.join("enable"), "0")?;
        }
        if found.device != namespace.device {
            let device = namespace.device.to_str().ok_or(Error::BadName {
                what: "device path",
                value: namespace.device.display().to_string(),
                why: "it is no UTF-8",
            })?;
            write_and_read_back(&dir.join("device_path"), device)?;
        }
        if found.uuid != namespace.uuid {
            write_and_read_back(&dir.join("device_uuid"), &namespace.uuid.to_string())?;
        }
        if found.nguid != namespace.nguid {
            let nguid = Uuid::from_bytes(namespace.nguid).to_string();
            write_and_read_back(&dir.join("device_nguid"), &nguid)?;
        }
        write_and_read_back(&dir.join("enable"), "1")?;
        outcome = outcome.and(Outcome::Changed);
        Ok(outcome)
    }

    /// Tells the target that the backing device's size has changed (`revalidate_size`).
    pub fn revalidate_size(&self, nqn: &str, nsid: u32) -> Result<(), Error> {
        Ok(attr::write(
            &self.namespace_dir(nqn, nsid)?.join("revalidate_size"),
            "1",
        )?)
    }

    /// Disables and removes a namespace; fine when it is gone.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<Outcome, Error> {
        let dir = self.namespace_dir(nqn, nsid)?;
        match attr::read_if_present(&dir.join("enable"))? {
            None => return Ok(Outcome::Unchanged),
            Some(enabled) if enabled == "1" => write_and_read_back(&dir.join("enable"), "0")?,
            Some(_) => {}
        }
        Ok(remove_dir(&dir)?)
    }

    /// Links a subsystem to a port.
    pub fn link_port(&self, nqn: &str, port: u16) -> Result<Outcome, Error> {
        let link = self.port_link(nqn, port)?;
        Ok(make_link(&self.subsystem_dir(nqn)?, &link)?)
    }

    /// Unlinks a subsystem from a port: its controllers on that port are cut
    /// (`nvmet_port_subsys_drop_link`). Fine when it is not linked.
    pub fn unlink_port(&self, nqn: &str, port: u16) -> Result<Outcome, Error> {
        Ok(remove_link(&self.port_link(nqn, port)?)?)
    }

    /// Admits a host, making its `hosts/` entry when needed.
    pub fn allow_host(&self, nqn: &str, host_nqn: &str) -> Result<Outcome, Error> {
        let host = self.host_dir(host_nqn)?;
        let link = self
            .subsystem_dir(nqn)?
            .join("allowed_hosts")
            .join(host_nqn);
        if is_link(&link)? {
            return Ok(Outcome::Unchanged);
        }
        make(&host)?;
        Ok(make_link(&host, &link)?)
    }

    /// Takes a host out of the allowed ones. Its live controller goes on: whoever wants it cut
    /// unlinks and links the port (design 5.1).
    pub fn disallow_host(&self, nqn: &str, host_nqn: &str) -> Result<Outcome, Error> {
        names::nqn("host NQN", host_nqn)?;
        let link = self
            .subsystem_dir(nqn)?
            .join("allowed_hosts")
            .join(host_nqn);
        Ok(remove_link(&link)?)
    }

    /// Removes a `hosts/` entry that no subsystem refers to; leaves one that is in use.
    pub fn remove_host(&self, host_nqn: &str) -> Result<Outcome, Error> {
        match remove_dir(&self.host_dir(host_nqn)?) {
            // configfs refuses to remove what a link points to.
            Err(e) if e.errno == Errno::EBUSY => Ok(Outcome::Unchanged),
            other => Ok(other?),
        }
    }

    /// Tears a subsystem down in the order of design rule 8; fine when it is gone or half gone.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<Outcome, Error> {
        let Some(found) = self.observe(nqn)? else {
            return Ok(Outcome::Unchanged);
        };
        for port in found.ports {
            self.unlink_port(nqn, port)?;
        }
        // As they are named in the directory, whoever has named them.
        let allowed = self.subsystem_dir(nqn)?.join("allowed_hosts");
        for host in &found.allowed_hosts {
            remove_link(&allowed.join(host))?;
        }
        for namespace in &found.namespaces {
            self.remove_namespace(nqn, namespace.nsid)?;
        }
        let outcome = remove_dir(&self.subsystem_dir(nqn)?)?;
        for host in &found.allowed_hosts {
            match self.remove_host(host) {
                // Not a name that this driver gives: its owner removes it.
                Err(Error::BadName { .. }) => {}
                other => drop(other?),
            }
        }
        Ok(outcome)
    }

    pub(super) fn namespace_dir(&self, nqn: &str, nsid: u32) -> Result<PathBuf, Error> {
        let nsid = names::nsid(nsid)?.to_string();
        Ok(self.subsystem_dir(nqn)?.join("namespaces").join(nsid))
    }
}

impl Outcome {
    /// Changed when either is.
    fn and(self, other: Self) -> Self {
        if self == Self::Changed { self } else { other }
    }
}

/// A port's attributes, in the order in which they are written.
fn port_attributes(port: &PortSpec) -> Result<Vec<(&'static str, String)>, Error> {
    let Some(address) = port.address else {
        // Its number, so that a host can name this one among the machine's loop ports.
        return Ok(vec![
            ("addr_trtype", "loop".into()),
            ("addr_traddr", port.id.to_string()),
        ]);
    };
    // The kernel wants a link-local address with `%` and its interface (`inet_pton_with_scope`).
    let traddr = match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => match v6.scope_id() {
            0 => {
                return Err(Error::BadName {
                    what: "portal",
                    value: address.to_string(),
                    why: "a link-local address needs its interface: write [fe80::1%2]:4420, with the index that ip link shows",
                });
            }
            index => format!("{}%{index}", v6.ip()),
        },
        _ => address.ip().to_string(),
    };
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    Ok(vec![
        ("addr_trtype", "tcp".into()),
        ("addr_adrfam", family.into()),
        ("addr_traddr", traddr),
        ("addr_trsvcid", address.port().to_string()),
    ])
}

/// An attribute that the kernel lets nobody change once a host has read it (`nvmet_subsys_attr_serial_store`).
fn converge_once(path: &Path, value: &str) -> Result<Outcome, Error> {
    match converge_attribute(path, value) {
        Err(Error::Sys(error)) if error.errno == Errno::EINVAL => Err(Error::Foreign {
            path: path.to_owned(),
            wanted: value.to_owned(),
            found: attr::read(path)?,
            remedy: "a host has connected to the subsystem since it was made: unpublish the volume, remove the subsystem \
                     and let it be made again",
        }),
        outcome => outcome,
    }
}

fn converge_attribute(path: &Path, value: &str) -> Result<Outcome, Error> {
    if attr::read(path)? == value {
        return Ok(Outcome::Unchanged);
    }
    write_and_read_back(path, value)?;
    Ok(Outcome::Changed)
}

/// C-64: what the target has is what it shows, not what was written.
fn write_and_read_back(path: &Path, value: &str) -> Result<(), Error> {
    attr::write(path, value)?;
    let found = attr::read(path)?;
    if found == value {
        return Ok(());
    }
    Err(Error::ReadBack {
        path: path.to_owned(),
        wanted: value.to_owned(),
        found,
    })
}

fn make(dir: &Path) -> Result<Outcome, SysError> {
    match fs::create_dir(dir) {
        Ok(()) => Ok(Outcome::Changed),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(Outcome::Unchanged),
        Err(e) => Err(SysError::io("mkdir", dir, &e)),
    }
}

fn remove_dir(dir: &Path) -> Result<Outcome, SysError> {
    match fs::remove_dir(dir) {
        Ok(()) => Ok(Outcome::Changed),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Outcome::Unchanged),
        Err(e) => Err(SysError::io("rmdir", dir, &e)),
    }
}

fn make_link(target: &Path, link: &Path) -> Result<Outcome, SysError> {
    match symlink(target, link) {
        Ok(()) => Ok(Outcome::Changed),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(Outcome::Unchanged),
        Err(e) => Err(SysError::io("symlink", link, &e)),
    }
}

fn remove_link(link: &Path) -> Result<Outcome, SysError> {
    match fs::remove_file(link) {
        Ok(()) => Ok(Outcome::Changed),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Outcome::Unchanged),
        Err(e) => Err(SysError::io("unlink", link, &e)),
    }
}
