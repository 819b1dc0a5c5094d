//! Datasets: containers and zvols.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use nix::errno::Errno;
use nix::libc;

use super::ffi::Kind;
use super::ffi::handle::Dataset;
use super::props::{self, Birth, Builder};
use super::{Error, Zfs, error, name};
use crate::error::SysError;

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

impl Zfs {
    /// Creates a zvol with every property in one `lzc_create`. The parent must exist:
    /// [`Error::NotFound`] names it when it does not.
    pub fn create_zvol(&self, spec: &ZvolSpec) -> Result<(), Error> {
        let dataset = name::dataset(&spec.dataset)?;
        check_size(&spec.dataset, spec.volsize, spec.volblocksize)?;
        let (volsize, volblocksize) = (spec.volsize.to_string(), spec.volblocksize.to_string());
        let mut builder = Builder::new(self.libraries, &spec.dataset, Birth::New(Kind::Volume))?;
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
            .map_err(|code| error::created("lzc_create", &spec.dataset, &names, code))
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
        let mut builder = Builder::new(self.libraries, dataset, Birth::New(Kind::Filesystem))?;
        builder.native("canmount", "off")?;
        builder.native("mountpoint", "none")?;
        let (mut list, names) = builder.finish();
        self.libraries
            .create(&name, Kind::Filesystem, &mut list)
            .map_err(|code| error::created("lzc_create", dataset, &names, code))
    }

    /// Destroys one dataset (`lzc_destroy`): never recursive. [`Error::NotFound`] when it is gone,
    /// [`Error::Busy`] when it is open, or has snapshots or children.
    pub fn destroy(&self, dataset: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        self.libraries.destroy(&name).map_err(|code| match code {
            libc::ENOENT => self.missing(dataset, &name),
            libc::EBUSY => Error::Busy {
                name: dataset.to_owned(),
                detail: error::in_use(self.snapshots(dataset).ok().as_deref()),
            },
            code => error::destroyed(dataset, code),
        })
    }

    /// Renames a dataset within its pool (`lzc_rename`), with all that is below it and its snapshots. Nothing is
    /// mounted or shared again. Names of more than 255 bytes, of snapshots too, are refused.
    /// [`Error::NotFound`] names the dataset or the new parent, [`Error::Exists`] the new name.
    ///
    /// An open zvol may be renamed: its device stays what it is, and tells its new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (old, new) = (name::dataset(from)?, name::dataset(to)?);
        name::same_pool("lzc_rename", from, to)?;
        self.libraries
            .rename(&old, &new)
            .map_err(|code| match code {
                libc::ENOENT => match self.is_there(from, &old) {
                    Ok(true) => Error::NotFound {
                        name: name::parent(to).unwrap_or(to).to_owned(),
                    },
                    Ok(false) => Error::NotFound {
                        name: from.to_owned(),
                    },
                    Err(error) => error,
                },
                code => error::renamed(from, to, code),
            })
    }

    /// Whether the dataset exists. Any failure other than "not there" is an error, never "no"; a pool that
    /// is not imported is [`Error::NotFound`] with the pool's name (design rule 2).
    pub fn exists(&self, dataset: &str) -> Result<bool, Error> {
        self.is_there(dataset, &name::dataset(dataset)?)
    }

    /// As [`Self::exists`], of a snapshot too. `name` is the same as `own`.
    pub(super) fn is_there(&self, own: &str, name: &CStr) -> Result<bool, Error> {
        if self.libraries.surely_exists(name) {
            return Ok(true);
        }
        // lzc_exists does not tell why not: libzfs does.
        match self.look(own, name) {
            Ok(()) => return Ok(true),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // The pool was there before and after the second look, or "not there" says nothing.
        let before = self.pool(name::pool(own))?;
        let second = self.look(own, name);
        let after = self.pool(name::pool(own))?;
        match second {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. }) if before.guid == after.guid => Ok(false),
            Err(Error::NotFound { .. }) => Err(SysError::new("zfs_open", own, Errno::EAGAIN)
                .with_detail("the pool was imported meanwhile: look again")
                .into()),
            Err(error) => Err(error),
        }
    }

    fn look(&self, own: &str, name: &CStr) -> Result<(), Error> {
        let (own, name) = (own.to_owned(), name.to_owned());
        self.worker.ask(move |handle| match handle.open(&name) {
            Ok(_) => Ok(()),
            Err(failure) => Err(error::failed("zfs_open", &own, failure)),
        })?
    }

    /// What to say when the kernel did not find a dataset or snapshot: [`Error::NotFound`] with its name only
    /// when its pool is imported, else with the pool's.
    pub(super) fn missing(&self, own: &str, name: &CStr) -> Error {
        match self.is_there(own, name) {
            Ok(false) => Error::NotFound {
                name: own.to_owned(),
            },
            Ok(true) => SysError::new("zfs_open", own, Errno::EAGAIN)
                .with_detail("it was not there a moment ago, and now it is: try again")
                .into(),
            Err(error) => error,
        }
    }

    /// A dataset's properties, `guid`, `volsize`, `volblocksize`, `available`, `used`, `logicalused`, `written`,
    /// `usedbysnapshots`, `refreservation` and, of a clone, `origin` among them. `available` is what this dataset
    /// can still get, quotas and reservations of it and of those above it considered.
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
        let (property_c, value_c) = name_and_value(dataset, property, value)?;
        let (dataset, property, value) =
            (dataset.to_owned(), property.to_owned(), value.to_owned());
        self.worker.ask(move |handle| {
            let mut open = handle
                .open(&name)
                .map_err(|failure| error::failed("zfs_open", &dataset, failure))?;
            if property == "volsize" {
                let now = open
                    .properties()
                    .and_then(|all| props::number_of(all, "volsize"));
                never_shrinks(&dataset, now, &value)?;
            }
            open.set(&property_c, &value_c).map_err(|failure| {
                error::not_set("zfs_prop_set", &dataset, &property, &value, failure)
            })
        })?
    }

    /// Takes a property, native or user, back to what the dataset inherits (`zfs_prop_inherit`): a user property
    /// that was set on it only is gone then. Fine when it was not set. Properties that are never inherited
    /// (`volsize`, `refreservation`, …) are [`Error::BadProperty`].
    pub fn inherit_property(&self, dataset: &str, property: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        let (property_c, _) = name_and_value(dataset, property, "")?;
        let (dataset, property) = (dataset.to_owned(), property.to_owned());
        self.worker.ask(move |handle| {
            let mut open = handle
                .open(&name)
                .map_err(|failure| error::failed("zfs_open", &dataset, failure))?;
            open.inherit(&property_c).map_err(|failure| {
                error::not_set("zfs_prop_inherit", &dataset, &property, "", failure)
            })
        })?
    }

    /// The datasets directly below `parent`, by full name; empty when the parent does not exist.
    pub fn children(&self, parent: &str) -> Result<Vec<String>, Error> {
        let name = name::dataset(parent)?;
        let parent = parent.to_owned();
        self.worker.ask(move |handle| match handle.open(&name) {
            Ok(open) => match open.children() {
                Ok(children) => Ok(children.iter().map(Dataset::name).collect()),
                Err(failure) => Err(error::failed("zfs_iter_filesystems", &parent, failure)),
            },
            Err(failure) => match error::failed("zfs_open", &parent, failure) {
                Error::NotFound { .. } => Ok(Vec::new()),
                error => Err(error),
            },
        })?
    }
}

/// The two as the call takes them.
fn name_and_value(dataset: &str, property: &str, value: &str) -> Result<(CString, CString), Error> {
    if property.contains(':') {
        name::user_property(dataset, property, value)
    } else {
        error::c_pair(dataset, property, value)
    }
}

/// `SPA_MINBLOCKSIZE`, `SPA_MAXBLOCKSIZE` (`sys/fs/zfs.h`).
const BLOCK_MIN: u64 = 512;
const BLOCK_MAX: u64 = 16 << 20;

/// What the kernel would answer with a bare `EINVAL` or `EDOM` (C-31).
pub(super) fn check_size(name: &str, volsize: u64, volblocksize: u64) -> Result<(), Error> {
    let bad = |property: &str, value: u64, detail: &str| {
        Err(Error::BadProperty {
            name: name.to_owned(),
            property: property.to_owned(),
            value: value.to_string(),
            detail: detail.to_owned(),
        })
    };
    if !volblocksize.is_power_of_two() || !(BLOCK_MIN..=BLOCK_MAX).contains(&volblocksize) {
        return bad(
            "volblocksize",
            volblocksize,
            "must be a power of two from 512 to 16777216",
        );
    }
    if volsize == 0 || !volsize.is_multiple_of(volblocksize) {
        return bad(
            "volsize",
            volsize,
            "must be a multiple of volblocksize, and not 0",
        );
    }
    Ok(())
}

/// `now` is the size in bytes that the volume, or what it is cloned from, has.
pub(super) fn never_shrinks(dataset: &str, now: Option<u64>, asked: &str) -> Result<(), Error> {
    let bad = |detail: String| Error::BadProperty {
        name: dataset.to_owned(),
        property: "volsize".to_owned(),
        value: asked.to_owned(),
        detail,
    };
    let now = now.ok_or_else(|| bad("the dataset has no volsize".to_owned()))?;
    match asked.parse::<u64>() {
        Ok(asked) if asked >= now => Ok(()),
        Ok(_) => Err(bad(format!(
            "the volume has {now} bytes, and shrinking would cut off data"
        ))),
        Err(_) => Err(bad("is not a plain number of bytes".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_31_sizes_are_checked_before_the_kernel_says_einval() {
        assert!(check_size("t/x", 1 << 30, 16384).is_ok());
        for (volsize, volblocksize, property) in [
            (0, 16384, "volsize"),
            ((1 << 30) + 512, 16384, "volsize"),
            (1 << 30, 0, "volblocksize"),
            (1 << 30, 256, "volblocksize"),
            (1 << 30, 12288, "volblocksize"),
            (1 << 30, 32 << 20, "volblocksize"),
        ] {
            let error = check_size("t/x", volsize, volblocksize).unwrap_err();
            assert!(
                matches!(&error, Error::BadProperty { property: p, .. } if p == property),
                "{error}"
            );
        }
    }

    #[test]
    fn rule_09_volsize_never_shrinks() {
        let now = Some(1 << 30);
        assert!(never_shrinks("t/x", now, "1073741824").is_ok());
        assert!(never_shrinks("t/x", now, "2147483648").is_ok());
        for asked in ["1073741823", "0", "1G", ""] {
            assert!(never_shrinks("t/x", now, asked).is_err(), "{asked}");
        }
        assert!(never_shrinks("t/x", None, "1").is_err());
    }
}
