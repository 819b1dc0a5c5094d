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
//! no user property.

mod error;
mod ffi;
mod name;
mod props;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;

use nix::errno::Errno;

use crate::error::SysError;
use ffi::nvlist::Value;
use ffi::{Kind, Libraries};
use props::Builder;
use worker::Worker;

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
    /// The dataset or pool is not there.
    #[error("{name} does not exist")]
    NotFound {
        /// Dataset or pool.
        name: String,
    },
    /// The dataset is there already.
    #[error("{name} exists already")]
    Exists {
        /// Dataset.
        name: String,
    },
    /// The dataset is in use.
    #[error("{name} is busy: {detail}")]
    Busy {
        /// Dataset.
        name: String,
        /// What holds it, when known.
        detail: String,
    },
    /// The pool or a quota is full.
    #[error("{name}: no space left: {detail}")]
    NoSpace {
        /// Dataset.
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

/// A zvol to create: everything goes into one `lzc_create`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZvolSpec {
    /// Full dataset name.
    pub dataset: String,
    /// `volsize` in bytes, a multiple of `volblocksize`.
    pub volsize: u64,
    /// `volblocksize` in bytes.
    pub volblocksize: u64,
    /// Native properties by name and text value (`compression`=`zstd-3`, `volmode`=`dev`, `snapdev`=`hidden`,
    /// `refreservation`=bytes), converted by libzfs's own tables.
    pub properties: Vec<(String, String)>,
    /// User properties (names with a `:`).
    pub user_properties: Vec<(String, String)>,
}

/// A dataset's properties: name to text value. Native numbers are plain decimal (bytes), user
/// properties are as they were set on this dataset (inherited and received ones are left out).
/// Native properties at their default value may be missing. `type` is `volume` or `filesystem`.
pub type Properties = BTreeMap<String, String>;

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `SUSPENDED`, `FAULTED`, …
    pub health: String,
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

    /// Creates a zvol with every property in one `lzc_create`. The parent must exist:
    /// [`Error::NotFound`] names it when it does not.
    pub fn create_zvol(&self, spec: &ZvolSpec) -> Result<(), Error> {
        let dataset = name::dataset(&spec.dataset)?;
        check_size(spec)?;
        let (volsize, volblocksize) = (spec.volsize.to_string(), spec.volblocksize.to_string());
        let mut builder = Builder::new(self.libraries, &spec.dataset, Kind::Volume)?;
        builder.native("volsize", &volsize)?;
        builder.native("volblocksize", &volblocksize)?;
        for (property, value) in &spec.properties {
            builder.native(property, value)?;
        }
        for (property, value) in &spec.user_properties {
            builder.user(property, value)?;
        }
        let (mut list, names) = builder.finish();
        self.libraries
            .create(&dataset, Kind::Volume, &mut list)
            .map_err(|code| error::created(&spec.dataset, &names, code))
    }

    /// Creates a filesystem dataset that is never mounted (`canmount=off`, `mountpoint=none`): a container of others.
    /// Missing ones above it are made in the same way; the pool must be imported. Fine when it exists.
    pub fn ensure_container(&self, dataset: &str) -> Result<(), Error> {
        match self.create_container(dataset) {
            Ok(()) | Err(Error::Exists { .. }) => Ok(()),
            Err(Error::NotFound { name }) if name.contains('/') => {
                self.ensure_container(&name)?;
                match self.create_container(dataset) {
                    Err(Error::Exists { .. }) => Ok(()),
                    other => other,
                }
            }
            Err(error) => Err(error),
        }
    }

    fn create_container(&self, dataset: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        let mut builder = Builder::new(self.libraries, dataset, Kind::Filesystem)?;
        builder.native("canmount", "off")?;
        builder.native("mountpoint", "none")?;
        let (mut list, names) = builder.finish();
        self.libraries
            .create(&name, Kind::Filesystem, &mut list)
            .map_err(|code| error::created(dataset, &names, code))
    }

    /// Destroys one dataset (`lzc_destroy`): never recursive. [`Error::NotFound`] when it is gone,
    /// [`Error::Busy`] when it is open, or has snapshots or children.
    pub fn destroy(&self, dataset: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        self.libraries
            .destroy(&name)
            .map_err(|code| error::destroyed(dataset, code))
    }

    /// Whether the dataset exists. Any failure other than "not there" is an error, never "no"; a pool that
    /// is not imported is [`Error::NotFound`] with the pool's name (design rule 2).
    pub fn exists(&self, dataset: &str) -> Result<bool, Error> {
        let name = name::dataset(dataset)?;
        if self.libraries.surely_exists(&name) {
            return Ok(true);
        }
        // lzc_exists does not tell why not: libzfs does.
        match self.properties(dataset) {
            Ok(_) => return Ok(true),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // The pool was there before and after the second look, or "not there" says nothing.
        let before = self.pool(name::pool(dataset))?;
        let second = self.properties(dataset);
        let after = self.pool(name::pool(dataset))?;
        match second {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) if before.guid == after.guid => Ok(false),
            Err(Error::NotFound { .. }) => Err(SysError::new("zfs_open", dataset, Errno::EAGAIN)
                .with_detail("the pool was imported meanwhile: look again")
                .into()),
            Err(error) => Err(error),
        }
    }

    /// A dataset's properties, `guid`, `volsize`, `volblocksize`, `available`, `used` among them.
    pub fn properties(&self, dataset: &str) -> Result<Properties, Error> {
        let name = name::dataset(dataset)?;
        let own_name = dataset.to_owned();
        self.worker.ask(move |handle| match handle.open(&name) {
            Ok(open) => Ok(props::read(&open, handle.libraries(), &own_name)),
            Err(failure) => Err(error::failed("zfs_open", &own_name, failure)),
        })?
    }

    /// Sets one property, native or user, by its text (`zfs_prop_set`). `volsize` never shrinks.
    pub fn set_property(&self, dataset: &str, property: &str, value: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        let (property_c, value_c) = if property.contains(':') {
            name::user_property(dataset, property, value)?
        } else {
            error::c_pair(dataset, property, value)?
        };
        let (dataset, property, value) =
            (dataset.to_owned(), property.to_owned(), value.to_owned());
        self.worker.ask(move |handle| {
            let mut open = handle
                .open(&name)
                .map_err(|failure| error::failed("zfs_open", &dataset, failure))?;
            if property == "volsize" {
                let properties = props::read(&open, handle.libraries(), &dataset);
                never_shrinks(&dataset, properties.get("volsize"), &value)?;
            }
            open.set(&property_c, &value_c)
                .map_err(|failure| error::not_set(&dataset, &property, &value, failure))
        })?
    }

    /// The datasets directly below `parent`, by full name; empty when the parent does not exist.
    pub fn children(&self, parent: &str) -> Result<Vec<String>, Error> {
        let name = name::dataset(parent)?;
        let parent = parent.to_owned();
        self.worker.ask(move |handle| match handle.open(&name) {
            Ok(open) => open
                .children()
                .map_err(|failure| error::failed("zfs_iter_filesystems", &parent, failure)),
            Err(failure) => match error::failed("zfs_open", &parent, failure) {
                Error::NotFound { .. } => Ok(Vec::new()),
                error => Err(error),
            },
        })?
    }

    /// An imported pool; [`Error::NotFound`] when none of this name is imported.
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        let pool = name::dataset(name)?;
        let name = name.to_owned();
        self.worker.ask(move |handle| {
            let open = handle
                .open_pool(&pool)
                .map_err(|failure| error::failed("zpool_open_canfail", &name, failure))?;
            let guid = match open.config().and_then(|config| config.get("pool_guid")) {
                Some(Value::U64(guid)) => guid,
                _ => {
                    let error = SysError::new("zpool_get_config", &name, Errno::EBADMSG);
                    return Err(error.with_detail("the pool tells no GUID").into());
                }
            };
            Ok(Pool {
                guid,
                health: open.health().unwrap_or_default(),
                name,
            })
        })?
    }
}

const SYS: &str = "/sys";

/// `SPA_MINBLOCKSIZE`, `SPA_MAXBLOCKSIZE` (`sys/fs/zfs.h`).
const BLOCK_MIN: u64 = 512;
const BLOCK_MAX: u64 = 16 << 20;

/// What the kernel would answer with a bare `EINVAL` or `EDOM` (C-31).
fn check_size(spec: &ZvolSpec) -> Result<(), Error> {
    let bad = |property: &str, value: u64, detail: &str| {
        Err(Error::BadProperty {
            name: spec.dataset.clone(),
            property: property.to_owned(),
            value: value.to_string(),
            detail: detail.to_owned(),
        })
    };
    let block = spec.volblocksize;
    if !block.is_power_of_two() || !(BLOCK_MIN..=BLOCK_MAX).contains(&block) {
        return bad(
            "volblocksize",
            block,
            "must be a power of two from 512 to 16777216",
        );
    }
    if spec.volsize == 0 || !spec.volsize.is_multiple_of(block) {
        return bad(
            "volsize",
            spec.volsize,
            "must be a multiple of volblocksize, and not 0",
        );
    }
    Ok(())
}

fn never_shrinks(dataset: &str, now: Option<&String>, asked: &str) -> Result<(), Error> {
    let bad = |detail: String| Error::BadProperty {
        name: dataset.to_owned(),
        property: "volsize".to_owned(),
        value: asked.to_owned(),
        detail,
    };
    let bytes = |text: &str| text.parse::<u64>().ok();
    let now = now
        .and_then(|text| bytes(text))
        .ok_or_else(|| bad("the dataset has no volsize".to_owned()))?;
    match bytes(asked) {
        Some(asked) if asked >= now => Ok(()),
        Some(_) => Err(bad(format!(
            "the volume has {now} bytes, and shrinking would cut off data"
        ))),
        None => Err(bad("is not a plain number of bytes".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(volsize: u64, volblocksize: u64) -> ZvolSpec {
        ZvolSpec {
            dataset: "tank/csi/block/x".to_owned(),
            volsize,
            volblocksize,
            properties: Vec::new(),
            user_properties: Vec::new(),
        }
    }

    #[test]
    fn bug_c_31_sizes_are_checked_before_the_kernel_says_einval() {
        assert!(check_size(&spec(1 << 30, 16384)).is_ok());
        for (volsize, volblocksize, property) in [
            (0, 16384, "volsize"),
            ((1 << 30) + 512, 16384, "volsize"),
            (1 << 30, 0, "volblocksize"),
            (1 << 30, 256, "volblocksize"),
            (1 << 30, 12288, "volblocksize"),
            (1 << 30, 32 << 20, "volblocksize"),
        ] {
            let error = check_size(&spec(volsize, volblocksize)).unwrap_err();
            assert!(
                matches!(&error, Error::BadProperty { property: p, .. } if p == property),
                "{error}"
            );
        }
    }

    #[test]
    fn rule_09_volsize_never_shrinks() {
        let now = "1073741824".to_owned();
        assert!(never_shrinks("t/x", Some(&now), "1073741824").is_ok());
        assert!(never_shrinks("t/x", Some(&now), "2147483648").is_ok());
        for asked in ["1073741823", "0", "1G", ""] {
            assert!(never_shrinks("t/x", Some(&now), asked).is_err(), "{asked}");
        }
        assert!(never_shrinks("t/x", None, "1").is_err());
    }

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
