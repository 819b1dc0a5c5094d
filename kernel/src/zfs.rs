//! ZFS through libzfs_core and libzfs, loaded at run time.
//!
//! A consumer without ZFS runs the same binary: [`Zfs::load`] then says [`Error::NotInstalled`].
//! libzfs_core calls may run on any thread; a libzfs handle is never shared between threads (it is
//! owned by one thread of its own, behind a channel).

use std::collections::BTreeMap;

use crate::error::SysError;

/// Why ZFS said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The libraries are not installed.
    #[error("{library} cannot be loaded ({reason}): install zfsutils-linux of the same version as the zfs module")]
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
/// properties are as they were set on this dataset (inherited ones are left out).
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

/// The libraries, loaded.
#[derive(Debug)]
pub struct Zfs {
    _private: (),
}

impl Zfs {
    /// Loads the libraries and opens `/dev/zfs`.
    pub fn load() -> Result<Self, Error> {
        unimplemented!()
    }

    /// Creates a zvol with every property in one `lzc_create`. The parent must exist.
    pub fn create_zvol(&self, spec: &ZvolSpec) -> Result<(), Error> {
        let _ = spec;
        unimplemented!()
    }

    /// Creates a filesystem dataset that is never mounted (`canmount=off`, `mountpoint=none`): a container of others.
    /// Fine when it exists.
    pub fn ensure_container(&self, dataset: &str) -> Result<(), Error> {
        let _ = dataset;
        unimplemented!()
    }

    /// Destroys one dataset (`lzc_destroy`): never recursive. [`Error::NotFound`] when it is gone.
    pub fn destroy(&self, dataset: &str) -> Result<(), Error> {
        let _ = dataset;
        unimplemented!()
    }

    /// Whether the dataset exists. Any failure other than "not there" is an error, never "no".
    pub fn exists(&self, dataset: &str) -> Result<bool, Error> {
        let _ = dataset;
        unimplemented!()
    }

    /// A dataset's properties, `guid`, `volsize`, `volblocksize`, `available`, `used` among them.
    pub fn properties(&self, dataset: &str) -> Result<Properties, Error> {
        let _ = dataset;
        unimplemented!()
    }

    /// Sets one property, native or user, by its text (`zfs_prop_set`).
    pub fn set_property(&self, dataset: &str, property: &str, value: &str) -> Result<(), Error> {
        let _ = (dataset, property, value);
        unimplemented!()
    }

    /// The datasets directly below `parent`, by full name; empty when the parent does not exist.
    pub fn children(&self, parent: &str) -> Result<Vec<String>, Error> {
        let _ = parent;
        unimplemented!()
    }

    /// An imported pool; [`Error::NotFound`] when none of this name is imported.
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        let _ = name;
        unimplemented!()
    }
}
