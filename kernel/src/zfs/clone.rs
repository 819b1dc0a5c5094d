//! Clones: made from a snapshot, promoted.

use std::ffi::{CStr, c_int};

use nix::errno::Errno;
use nix::libc;

use super::dataset::{check_size, never_shrinks};
use super::ffi::handle::Dataset;
use super::props::{self, Birth, Builder};
use super::{Error, Zfs, error, name};
use crate::error::SysError;

/// A clone of a zvol's snapshot to create: everything goes into one `lzc_clone`. It has its origin's
/// `volblocksize`, its origin's size when no `volsize` is given, and none of its user properties or local settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneSpec {
    /// Full dataset name.
    pub dataset: String,
    /// `dataset@snapshot`, in the same pool.
    pub origin: String,
    /// Native properties by name and text value, as in [`super::ZvolSpec`]; `volsize` (plain bytes) may be
    /// larger than the origin's.
    pub properties: Vec<(String, String)>,
    /// User properties (names with a `:`).
    pub user_properties: Vec<(String, String)>,
}

impl Zfs {
    /// Creates a clone with every property in one `lzc_clone`. [`Error::NotFound`] names the origin, or the parent
    /// when that is missing; [`Error::Exists`] the clone.
    ///
    /// The kernel takes a clone back when it cannot set a property, but not when udev has the new device open by
    /// then. So sizes and space are looked at before, and what is left is destroyed here; where that does not
    /// work either, the error says so, and the clone has all of the properties but those that failed: read
    /// `volsize` and `refreservation` back from a clone that is there.
    pub fn clone_zvol(&self, spec: &CloneSpec) -> Result<(), Error> {
        let (dataset, origin) = (name::dataset(&spec.dataset)?, name::snapshot(&spec.origin)?);
        name::same_pool("lzc_clone", &spec.dataset, &spec.origin)?;
        check_sizes(spec, self.of_snapshot(&spec.origin, sizes)?)?;
        let mut builder = Builder::new(self.libraries, &spec.dataset, Birth::Clone)?;
        for (property, value) in &spec.properties {
            builder.native(property, value)?;
        }
        for (property, value) in &spec.user_properties {
            builder.user(property, value)?;
        }
        let (mut list, names) = builder.finish();
        if self.is_there(&spec.dataset, &dataset)? {
            return Err(Error::Exists {
                name: spec.dataset.clone(),
            });
        }
        self.check_space(spec)?;
        self.libraries
            .clone_snapshot(&dataset, &origin, &mut list)
            .map_err(|code| match code {
                libc::ENOENT => match self.is_there(&spec.origin, &origin) {
                    Ok(true) => error::created("lzc_clone", &spec.dataset, &names, code),
                    Ok(false) => Error::NotFound {
                        name: spec.origin.clone(),
                    },
                    Err(error) => error,
                },
                code if error::is_of_a_property(code) => {
                    let error = error::created("lzc_clone", &spec.dataset, &names, code);
                    match self.take_back(spec, &dataset) {
                        Ok(()) => error,
                        Err(code) => error::left(error, code),
                    }
                }
                code => error::created("lzc_clone", &spec.dataset, &names, code),
            })
    }

    /// Whether the parent can give what is to be reserved.
    fn check_space(&self, spec: &CloneSpec) -> Result<(), Error> {
        let given = |name| value_of(spec, name).and_then(|text| text.parse().ok());
        let wanted: u64 = given("refreservation")
            .max(given("reservation"))
            .unwrap_or(0);
        let parent = name::parent(&spec.dataset).unwrap_or(&spec.dataset);
        let properties = self.properties(parent)?;
        let available = properties
            .get("available")
            .and_then(|text| text.parse::<u64>().ok());
        match available {
            Some(available) if available < wanted => Err(Error::NoSpace {
                name: spec.dataset.clone(),
                detail: format!("{parent} has {available} bytes, {wanted} are to be reserved"),
            }),
            _ => Ok(()),
        }
    }

    /// Destroys what a clone left that was made and failed then. It was not there before the call.
    fn take_back(&self, spec: &CloneSpec, dataset: &CStr) -> Result<(), c_int> {
        match self.properties(&spec.dataset) {
            Ok(found) if found.get("origin") == Some(&spec.origin) => {
                match self.libraries.destroy(dataset) {
                    Err(code) if code != libc::ENOENT => Err(code),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Makes a clone the owner of its origin (`lzc_promote`): the origin and all older snapshots of that dataset
    /// move to it, GUIDs and all, and the dataset that they were of becomes its clone.
    ///
    /// [`Error::Exists`] names a snapshot of the clone that has the name of one that would move; a dataset that is no
    /// clone is `EINVAL`; [`Error::NoSpace`] when the clone's quota, or one above it, cannot hold them.
    pub fn promote(&self, dataset: &str) -> Result<(), Error> {
        let name = name::dataset(dataset)?;
        self.libraries
            .promote(&name)
            .map_err(|(code, conflict)| match code {
                libc::ENOENT => self.missing(dataset, &name),
                code => error::not_promoted(dataset, &conflict, code),
            })
    }
}

fn value_of<'a>(spec: &'a CloneSpec, property: &str) -> Option<&'a str> {
    let mut all = spec.properties.iter();
    all.find(|(name, _)| name == property)
        .map(|(_, value)| value.as_str())
}

/// `volsize` and `volblocksize` of a zvol's snapshot.
fn sizes(open: &Dataset<'_>) -> Result<(u64, u64), Error> {
    let number = |name| {
        open.properties()
            .and_then(|all| props::number_of(all, name))
    };
    match (number("volsize"), number("volblocksize")) {
        (Some(volsize), Some(volblocksize)) => Ok((volsize, volblocksize)),
        _ => Err(SysError::new("lzc_clone", open.name(), Errno::EINVAL)
            .with_detail("it is no zvol's snapshot")
            .into()),
    }
}

/// The clone is not to be smaller than its origin, which the kernel would cut off, nor of half a block.
fn check_sizes(spec: &CloneSpec, (volsize, volblocksize): (u64, u64)) -> Result<(), Error> {
    let Some(asked) = value_of(spec, "volsize") else {
        return Ok(());
    };
    never_shrinks(&spec.dataset, Some(volsize), asked)?;
    check_size(&spec.dataset, asked.parse().unwrap_or(0), volblocksize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_07_a_clone_is_as_large_as_its_origin_or_larger_and_of_whole_blocks() {
        let check = |volsize: &str| {
            let spec = CloneSpec {
                dataset: "t/c".to_owned(),
                origin: "t/v@s".to_owned(),
                properties: vec![("volsize".to_owned(), volsize.to_owned())],
                user_properties: Vec::new(),
            };
            check_sizes(&spec, (1 << 30, 16384))
        };
        for good in ["1073741824", "1073758208", "2147483648"] {
            check(good).unwrap();
        }
        for bad in ["1073725440", "1073741825", "0", "2G", "none", ""] {
            assert!(
                matches!(check(bad), Err(Error::BadProperty { property, .. }) if property == "volsize"),
                "{bad}"
            );
        }
    }
}
