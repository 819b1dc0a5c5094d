//! Clones: made from a snapshot, promoted.

use nix::errno::Errno;
use nix::libc;

use super::dataset::never_shrinks;
use super::props::{Birth, Builder};
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
    pub fn clone_zvol(&self, spec: &CloneSpec) -> Result<(), Error> {
        let (dataset, origin) = (name::dataset(&spec.dataset)?, name::snapshot(&spec.origin)?);
        name::same_pool("lzc_clone", &spec.dataset, &spec.origin)?;
        self.check_origin(spec)?;
        let mut builder = Builder::new(self.libraries, &spec.dataset, Birth::Clone)?;
        for (property, value) in &spec.properties {
            builder.native(property, value)?;
        }
        for (property, value) in &spec.user_properties {
            builder.user(property, value)?;
        }
        let (mut list, names) = builder.finish();
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
                code => error::created("lzc_clone", &spec.dataset, &names, code),
            })
    }

    /// It is a zvol's, and the clone is not to be smaller: the kernel would cut it off.
    fn check_origin(&self, spec: &CloneSpec) -> Result<(), Error> {
        let origin = self.snapshot_info(&spec.origin)?;
        let Some(volsize) = origin.volsize else {
            return Err(SysError::new("lzc_clone", &spec.origin, Errno::EINVAL)
                .with_detail("it is a filesystem's snapshot")
                .into());
        };
        let asked = spec.properties.iter().find(|(name, _)| name == "volsize");
        asked.map_or(Ok(()), |(_, asked)| {
            never_shrinks(&spec.dataset, Some(volsize), asked)
        })
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
