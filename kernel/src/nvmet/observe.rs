//! Reading the tree.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::apply::Target;
use super::{Error, ObservedNamespace, ObservedSubsystem, names};
use crate::attr;
use crate::error::{Errno, SysError};

impl Target {
    /// One subsystem as it is; `None` when there is none. Reads that subsystem and one link a port.
    pub fn observe(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Error> {
        let dir = self.subsystem_dir(nqn)?;
        let mut namespaces = Vec::new();
        for name in entries(&dir.join("namespaces"))? {
            let Ok(nsid) = name.parse() else { continue };
            namespaces.extend(observe_namespace(&dir.join("namespaces").join(name), nsid)?);
        }
        namespaces.sort_by_key(|n| n.nsid);
        self.observe_with(nqn, namespaces)
    }

    /// The same with one namespace alone, whatever others there are: it costs the same in a subsystem with many.
    pub fn observe_one(&self, nqn: &str, nsid: u32) -> Result<Option<ObservedSubsystem>, Error> {
        let namespace = observe_namespace(&self.namespace_dir(nqn, nsid)?, nsid)?;
        self.observe_with(nqn, namespace.into_iter().collect())
    }

    fn observe_with(
        &self,
        nqn: &str,
        namespaces: Vec<ObservedNamespace>,
    ) -> Result<Option<ObservedSubsystem>, Error> {
        let dir = self.subsystem_dir(nqn)?;
        let Some(serial) = attr::read_if_present(&dir.join("attr_serial"))? else {
            return Ok(None);
        };
        let mut ports = Vec::new();
        for name in entries(&self.root().join("ports"))? {
            let Ok(id) = name.parse() else { continue };
            if is_link(&self.port_link(nqn, id)?)? {
                ports.push(id);
            }
        }
        ports.sort_unstable();
        let mut allowed_hosts = entries(&dir.join("allowed_hosts"))?;
        allowed_hosts.sort();
        Ok(Some(ObservedSubsystem {
            nqn: nqn.to_owned(),
            serial,
            allowed_hosts,
            namespaces,
            ports,
        }))
    }

    /// Whether a subsystem is linked to a port: that is when it listens (`nvmet_port_subsys_allow_link`).
    pub fn is_listening(&self, port: u16) -> Result<bool, Error> {
        let links = self.root().join(format!("ports/{port}/subsystems"));
        Ok(!entries(&links)?.is_empty())
    }

    /// The NQNs of all subsystems. Start-up and repair only.
    pub fn subsystems(&self) -> Result<Vec<String>, Error> {
        let mut found = entries(&self.root().join("subsystems"))?;
        found.sort();
        Ok(found)
    }

    pub(super) fn subsystem_dir(&self, nqn: &str) -> Result<PathBuf, Error> {
        Ok(self
            .root()
            .join("subsystems")
            .join(names::nqn("subsystem NQN", nqn)?))
    }

    pub(super) fn port_link(&self, nqn: &str, port: u16) -> Result<PathBuf, Error> {
        let nqn = names::nqn("subsystem NQN", nqn)?;
        Ok(self
            .root()
            .join("ports")
            .join(port.to_string())
            .join("subsystems")
            .join(nqn))
    }

    pub(super) fn host_dir(&self, host_nqn: &str) -> Result<PathBuf, Error> {
        Ok(self
            .root()
            .join("hosts")
            .join(names::nqn("host NQN", host_nqn)?))
    }
}

/// A namespace as it is; `None` when it is gone.
pub(super) fn observe_namespace(dir: &Path, nsid: u32) -> Result<Option<ObservedNamespace>, Error> {
    let Some(enable) = attr::read_if_present(&dir.join("enable"))? else {
        return Ok(None);
    };
    // A new namespace's device path is the text "(null)" (`nvmet_ns_device_path_show`).
    let device = attr::read(&dir.join("device_path"))?;
    Ok(Some(ObservedNamespace {
        nsid,
        device: PathBuf::from(if device == "(null)" {
            String::new()
        } else {
            device
        }),
        uuid: uuid_at(&dir.join("device_uuid"))?,
        nguid: *uuid_at(&dir.join("device_nguid"))?.as_bytes(),
        enabled: enable == "1",
    }))
}

/// UUID and NGUID are both shown in the form of a UUID.
fn uuid_at(path: &Path) -> Result<Uuid, Error> {
    let text = attr::read(path)?;
    Uuid::try_parse(&text).map_err(|_| {
        SysError::new("read", path.display(), Errno::EINVAL)
            .with_detail(format!("read {text:?}"))
            .into()
    })
}

/// Whether a symbolic link is there.
pub(super) fn is_link(path: &Path) -> Result<bool, SysError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_symlink()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(SysError::io("lstat", path, &e)),
    }
}

/// The names in a directory; none when it is not there.
pub(super) fn entries(dir: &Path) -> Result<Vec<String>, SysError> {
    let read = match std::fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(SysError::io("readdir", dir, &e)),
    };
    let mut names = Vec::new();
    for entry in read {
        let entry = entry.map_err(|e| SysError::io("readdir", dir, &e))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}
