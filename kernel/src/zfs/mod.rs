//! ZFS through libzfs_core and libzfs, loaded at run time.
//!
//! A consumer without ZFS runs the same binary: [`Zfs::load`] then says [`Error::NotInstalled`].
//! libzfs_core calls run on the caller's thread; a libzfs handle is never shared between threads (it is
//! owned by one thread of its own, behind a channel).
//!
//! OpenZFS 2.1 to 2.3; needs `CAP_SYS_ADMIN` and `/dev/zfs`. Nothing here mounts, shares, loads a module
//! or runs a program. Every change is on disk when the call returns.
//!
//! What a crash leaves: the kernel creates a dataset in one transaction group and sets its properties in
//! the next (`zfs_ioc_create`), so that a machine that dies between them has a zvol of the right size with
//! no user property. A clone (`zfs_ioc_clone`) is the same, and has its origin's size then. A snapshot has its
//! properties with it in one transaction group; promote, rename, rollback and destroy are one each.

mod clone;
mod dataset;
mod error;
mod event;
mod ffi;
mod name;
mod pool;
mod props;
mod snapshot;
mod worker;

use std::path::Path;

use crate::error::SysError;
use ffi::Libraries;
use worker::Worker;

pub use clone::CloneSpec;
pub use dataset::{Properties, ZvolSpec};
pub use event::PoolEvent;
pub use pool::{Pool, Vdev};
pub use snapshot::{Destroy, Snapshot};

/// Why ZFS said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The libraries are not installed.
    #[error(
        "{library} cannot be loaded ({reason}): install zfsutils-linux of the same version as the zfs module"
    )]
    NotInstalled {
        /// Shared object.
        library: String,
        /// What the dynamic linker said.
        reason: String,
    },
    /// `/dev/zfs` or the module is missing or refuses us.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The dataset, snapshot or pool is not there.
    #[error("{name} does not exist")]
    NotFound {
        /// Dataset, snapshot or pool.
        name: String,
    },
    /// The dataset or snapshot is there already.
    #[error("{name} exists already")]
    Exists {
        /// Dataset or snapshot.
        name: String,
    },
    /// The dataset or snapshot is in use.
    #[error("{name} is busy: {detail}")]
    Busy {
        /// Dataset or snapshot.
        name: String,
        /// What holds it: clones, snapshots, holds, openers.
        detail: String,
    },
    /// The pool or a quota is full.
    #[error("{name}: no space left: {detail}")]
    NoSpace {
        /// Dataset or snapshot.
        name: String,
        /// ENOSPC or EDQUOT, in words.
        detail: String,
    },
    /// A property or value that ZFS does not take.
    #[error("{name}: property {property}={value:?}: {detail}")]
    BadProperty {
        /// Dataset.
        name: String,
        /// Property.
        property: String,
        /// Value.
        value: String,
        /// Why.
        detail: String,
    },
}

/// Versions of the two halves, e.g. `2.3.9-1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The libraries.
    pub userland: String,
    /// The module that is loaded.
    pub module: String,
}

impl Version {
    /// Whether both are of one release series (`2.3`). When not, calls fail in odd ways: install the
    /// userland of the module's version, or reboot after an upgrade (C-83, C-85).
    pub fn agree(&self) -> bool {
        same_release(&self.userland, &self.module)
    }
}

fn same_release(one: &str, other: &str) -> bool {
    let release = |version: &str| {
        version
            .splitn(3, '.')
            .take(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    release(one) == release(other)
}

/// The libraries, loaded.
#[derive(Debug)]
pub struct Zfs {
    libraries: &'static Libraries,
    worker: Worker,
}

impl Zfs {
    /// Loads the libraries and opens `/dev/zfs`.
    pub fn load() -> Result<Self, Error> {
        let module = ffi::module_version(Path::new(SYS))?;
        let libraries = ffi::libraries(module.as_deref())?;
        std::fs::metadata(ffi::DEVICE).map_err(|e| {
            SysError::io("stat", ffi::DEVICE.as_ref(), &e).with_detail(
                "the zfs module is not loaded (modprobe zfs), or /dev is not the host's",
            )
        })?;
        libraries
            .init_core()
            .map_err(|errno| SysError::new("libzfs_core_init", ffi::DEVICE, errno))?;
        let worker = Worker::start(libraries)?;
        Ok(Self { libraries, worker })
    }

    /// The versions of the libraries and of the module.
    pub fn version(&self) -> Result<Version, Error> {
        let module = ffi::module_version(Path::new(SYS))?;
        Ok(Version {
            userland: self.libraries.userland.clone(),
            module: module.unwrap_or_default(),
        })
    }
}

const SYS: &str = "/sys";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_83_versions_agree_by_release() {
        let agree = |userland: &str, module: &str| {
            Version {
                userland: userland.to_owned(),
                module: module.to_owned(),
            }
            .agree()
        };
        assert!(agree("2.3.9-1", "2.3.2-2ubuntu1"));
        assert!(!agree("2.1.11-1", "2.3.9-1"));
        assert!(!agree("2.3.9-1", ""));
    }

    #[test]
    fn zfs_goes_to_any_thread() {
        fn sendable<T: Send + Sync>() {}
        sendable::<Zfs>();
    }
}
