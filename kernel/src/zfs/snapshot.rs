//! Snapshots: made in groups, read, destroyed, rolled back to.

use std::ffi::{CStr, CString, c_int};

use nix::errno::Errno;
use nix::libc;

use super::ffi::Refusal;
use super::ffi::handle::Dataset;
use super::ffi::nvlist::{NvList, NvRef};
use super::{Error, Properties, Zfs, error, name, props};
use crate::error::SysError;

/// One snapshot as ZFS has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `dataset@snapshot`. The dataset changes when a clone is promoted; the GUID does not.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Transaction group that it was made in; the same for all of one group.
    pub createtxg: u64,
    /// When it was made by ZFS's clock, in Unix seconds.
    pub creation: i64,
    /// Bytes that its destruction would free now.
    pub used: u64,
    /// Bytes that it gives access to.
    pub referenced: u64,
    /// Size in bytes that the zvol had at that moment; `None` of a filesystem.
    pub volsize: Option<u64>,
    /// Its clones, by full dataset name.
    pub clones: Vec<String>,
    /// User holds (`userrefs`).
    pub holds: u64,
    /// Whether it goes with its last clone or hold (`defer_destroy`).
    pub is_deferred: bool,
    /// User properties that were set on the snapshot itself.
    pub user_properties: Properties,
}

/// When a snapshot is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destroy {
    /// Now, or not at all.
    Now,
    /// Now, or by the kernel with its last clone or hold.
    Deferred,
}

impl Zfs {
    /// Makes all of the snapshots in one transaction group, or none (one `lzc_snapshot`). They are of different
    /// datasets of one pool. Each gets the user properties.
    ///
    /// [`Error::Exists`] names the first that exists, [`Error::NotFound`] the dataset that is missing,
    /// [`Error::NoSpace`] the snapshot that has no space (a refreservation wants all of the volume again).
    pub fn snapshot(
        &self,
        names: &[String],
        user_properties: &[(String, String)],
    ) -> Result<(), Error> {
        let first = check_group(names)?;
        let mut list = self.list(first)?;
        for name in names {
            add_name(&mut list, name)?;
        }
        let mut properties = self.list(first)?;
        for (property, value) in user_properties {
            let (name, text) = name::user_property(first, property, value)?;
            properties
                .add_string(&name, &text)
                .map_err(|errno| SysError::new("nvlist_add_string", first, errno))?;
        }
        self.libraries
            .snapshot(&mut list, &mut properties)
            .map_err(|refusal| {
                let (snapshot, code) = worst(names, &refusal);
                let dataset = name::halves(snapshot).0;
                match (code, name::dataset(dataset)) {
                    (libc::ENOENT, Ok(name)) => self.missing(dataset, &name),
                    (libc::ENOENT, Err(error)) => error,
                    (code, _) => error::not_snapped(snapshot, code),
                }
            })
    }

    /// The snapshots of this dataset, not of those below, oldest first. [`Error::NotFound`] when the dataset is
    /// gone.
    pub fn snapshots(&self, dataset: &str) -> Result<Vec<Snapshot>, Error> {
        let name = name::dataset(dataset)?;
        let (own, open_name) = (dataset.to_owned(), name.clone());
        let found = self.worker.ask(move |handle| {
            let open = handle
                .open(&open_name)
                .map_err(|failure| error::failed("zfs_open", &own, failure))?;
            let snapshots = open
                .snapshots()
                .map_err(|failure| error::failed("zfs_iter_snapshots", &own, failure))?;
            let mut snapshots = snapshots.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            snapshots.sort_by_key(|snapshot| snapshot.createtxg);
            Ok(snapshots)
        })?;
        self.believe(dataset, &name, found)
    }

    /// The snapshots called `component` of the datasets directly below `parent`; none when the parent does not
    /// exist.
    pub fn snapshots_called(&self, parent: &str, component: &str) -> Result<Vec<Snapshot>, Error> {
        let name = name::dataset(parent)?;
        name::snapshot(&format!("{parent}@{component}"))?;
        let (own, open_name, component) = (parent.to_owned(), name.clone(), component.to_owned());
        let found = self.worker.ask(move |handle| {
            let open = handle
                .open(&open_name)
                .map_err(|failure| error::failed("zfs_open", &own, failure))?;
            let children = open
                .children()
                .map_err(|failure| error::failed("zfs_iter_filesystems", &own, failure))?;
            let mut found = Vec::new();
            for child in &children {
                let path = format!("{}@{component}", child.name());
                // A name that is too long for a snapshot has none.
                let Ok(path_c) = name::snapshot(&path) else {
                    continue;
                };
                match handle.open(&path_c) {
                    Ok(snapshot) => found.push(read(&snapshot)?),
                    Err(failure) => match error::failed("zfs_open", &path, failure) {
                        Error::NotFound { .. } => {}
                        error => return Err(error),
                    },
                }
            }
            Ok(found)
        })?;
        match self.believe(parent, &name, found) {
            Err(Error::NotFound { name }) if name == parent => Ok(Vec::new()),
            found => found,
        }
    }

    /// One snapshot. [`Error::NotFound`] when it is gone.
    pub fn snapshot_info(&self, snapshot: &str) -> Result<Snapshot, Error> {
        self.of_snapshot(snapshot, read)
    }

    /// What `read` finds in an open snapshot.
    pub(super) fn of_snapshot<T: Send + 'static>(
        &self,
        snapshot: &str,
        read: fn(&Dataset<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let name = name::snapshot(snapshot)?;
        let (own, open_name) = (snapshot.to_owned(), name.clone());
        let found = self.worker.ask(move |handle| {
            let open = handle
                .open(&open_name)
                .map_err(|failure| error::failed("zfs_open", &own, failure))?;
            read(&open)
        })?;
        self.believe(snapshot, &name, found)
    }

    /// "Not there" only with the pool imported.
    fn believe<T>(&self, own: &str, name: &CStr, found: Result<T, Error>) -> Result<T, Error> {
        match found {
            Err(Error::NotFound { .. }) => Err(self.missing(own, name)),
            other => other,
        }
    }

    /// Destroys one snapshot (`lzc_destroy_snaps`), and no clone of it. [`Error::NotFound`] when it is gone,
    /// [`Error::Busy`] when it has clones or holds and must go now. One that is being sent, or whose device is
    /// open, is busy in both cases.
    pub fn destroy_snapshot(&self, snapshot: &str, when: Destroy) -> Result<(), Error> {
        let name = name::snapshot(snapshot)?;
        // The call is content with a snapshot that is not there.
        if !self.is_there(snapshot, &name)? {
            return Err(Error::NotFound {
                name: snapshot.to_owned(),
            });
        }
        let mut list = self.list(snapshot)?;
        add_name(&mut list, snapshot)?;
        self.libraries
            .destroy_snapshots(&mut list, when == Destroy::Deferred)
            .map_err(|refusal| match code_of(snapshot, &refusal) {
                libc::ENOENT => self.missing(snapshot, &name),
                code @ (libc::EEXIST | libc::EBUSY) => Error::Busy {
                    name: snapshot.to_owned(),
                    detail: error::held(self.snapshot_info(snapshot).ok().as_ref(), code),
                },
                code => error::not_destroyed(snapshot, code),
            })
    }

    /// Takes a dataset back to its newest snapshot, which must be this one. [`Error::Busy`] when it is open or
    /// mounted.
    ///
    /// `lzc_rollback_to` would change an open zvol under its users; a channel program does not, and sees
    /// which snapshot is the newest in the transaction group that it works in.
    pub fn rollback_to(&self, snapshot: &str) -> Result<(), Error> {
        let name = name::snapshot(snapshot)?;
        let (dataset, _) = name::halves(snapshot);
        let dataset_name = name::dataset(dataset)?;
        let pool = name::dataset(name::pool(snapshot))?;
        let mut arguments = self.list(snapshot)?;
        for (key, value) in [(c"dataset", &dataset_name), (c"snapshot", &name)] {
            arguments
                .add_string(key, value)
                .map_err(|errno| SysError::new("nvlist_add_string", snapshot, errno))?;
        }
        let (code, said) = match self.libraries.run_program(&pool, ROLLBACK, &mut arguments) {
            Ok(0) => return Ok(()),
            Ok(code) => (
                c_int::try_from(code).unwrap_or(libc::EBADMSG),
                String::new(),
            ),
            Err(code_and_words) => code_and_words,
        };
        Err(match code {
            libc::ENOENT => self.missing(dataset, &dataset_name),
            libc::EEXIST | libc::ESRCH => match self.is_there(snapshot, &name) {
                Ok(true) => error::not_rolled_back(snapshot, libc::EEXIST, &said),
                Ok(false) => Error::NotFound {
                    name: snapshot.to_owned(),
                },
                Err(error) => error,
            },
            code => error::not_rolled_back(snapshot, code, &said),
        })
    }

    fn list(&self, subject: &str) -> Result<NvList, Error> {
        NvList::new(self.libraries)
            .map_err(|errno| SysError::new("nvlist_alloc", subject, errno).into())
    }
}

/// Answers an errno, 0 when it was done. `prevsnap` is the snapshot before the dataset as it is now.
const ROLLBACK: &CStr = c"
    local arg = ...
    if not zfs.exists(arg['dataset']) then
        return 2
    end
    local newest = zfs.get_prop(arg['dataset'], 'prevsnap')
    if newest ~= arg['snapshot'] then
        return 17
    end
    local errno = zfs.sync.rollback(arg['dataset'])
    return errno
";

fn add_name(list: &mut NvList, snapshot: &str) -> Result<(), Error> {
    let name: CString = name::snapshot(snapshot)?;
    list.add_name(&name)
        .map_err(|errno| SysError::new("nvlist_add_boolean", snapshot, errno).into())
}

/// What the kernel would answer with a bare `EXDEV`. Gives the first name.
fn check_group(names: &[String]) -> Result<&str, Error> {
    let call = "lzc_snapshot";
    let bad = |name: &str, errno, detail: &str| {
        Err(SysError::new(call, name, errno).with_detail(detail).into())
    };
    let Some(first) = names.first() else {
        return bad("", Errno::EINVAL, "no snapshot was named");
    };
    for (at, snapshot) in names.iter().enumerate() {
        name::snapshot(snapshot)?;
        name::same_pool(call, first, snapshot)?;
        let dataset = name::halves(snapshot).0;
        if names[..at].iter().any(|n| name::halves(n).0 == dataset) {
            return bad(
                snapshot,
                Errno::EINVAL,
                "one call makes one snapshot of a dataset",
            );
        }
    }
    Ok(first)
}

/// The first name, in the order that was asked, that the kernel refused, and why. `EAGAIN` is left from a
/// transaction group before, in which another snapshot was made.
fn worst<'a>(names: &'a [String], refusal: &Refusal) -> (&'a str, c_int) {
    let refused = |name: &&String| {
        let said = refusal.names.iter().find(|(n, _)| n == *name);
        said.is_some_and(|&(_, code)| code != libc::EAGAIN)
    };
    match names.iter().find(refused).or(names.first()) {
        Some(name) => (name, code_of(name, refusal)),
        None => ("", refusal.code),
    }
}

/// What the kernel said of this name, or of all.
fn code_of(name: &str, refusal: &Refusal) -> c_int {
    let said = refusal.names.iter().find(|(n, _)| n == name);
    match said {
        Some(&(_, code)) if code != libc::EAGAIN => code,
        _ => refusal.code,
    }
}

fn read(open: &Dataset<'_>) -> Result<Snapshot, Error> {
    let name = open.name();
    match open.properties().map(|all| describe(&name, all)) {
        Some(Ok(snapshot)) => Ok(snapshot),
        Some(Err(property)) => Err(SysError::new("zfs_get_all_props", &name, Errno::EBADMSG)
            .with_detail(format!("ZFS tells no {property}"))
            .into()),
        None => Err(SysError::new("zfs_get_all_props", &name, Errno::EBADMSG).into()),
    }
}

/// An error is the property that is missing.
fn describe(name: &str, all: NvRef<'_>) -> Result<Snapshot, &'static str> {
    let number = |property: &'static str| props::number_of(all, property).ok_or(property);
    let clones = match props::names_of(all, "clones") {
        Some(clones) => clones,
        None if number("numclones")? == 0 => Vec::new(),
        None => return Err("clones"),
    };
    Ok(Snapshot {
        name: name.to_owned(),
        guid: number("guid")?,
        createtxg: number("createtxg")?,
        creation: i64::try_from(number("creation")?).map_err(|_| "creation")?,
        used: number("used")?,
        referenced: number("referenced")?,
        volsize: props::number_of(all, "volsize"),
        clones,
        holds: number("userrefs")?,
        is_deferred: number("defer_destroy")? != 0,
        user_properties: props::user(all, name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(names: &[&str]) -> Result<(), Error> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        check_group(&names).map(drop)
    }

    #[test]
    fn a_group_is_of_different_datasets_of_one_pool() {
        assert!(group(&["t/a@s"]).is_ok());
        assert!(group(&["t/a@s", "t/b@s", "t@other"]).is_ok());
        for (names, errno, says) in [
            (&[][..], Errno::EINVAL, "no snapshot"),
            (&["t/a@s", "u/a@s"], Errno::EXDEV, "pool t"),
            (&["t/a@s", "t/b@s", "t/a@r"], Errno::EINVAL, "one snapshot"),
            (&["t/a@s", "t/b"], Errno::EINVAL, "dataset@snapshot"),
        ] {
            let error = group(names).unwrap_err();
            assert!(matches!(&error, Error::Sys(e) if e.errno == errno));
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn an_error_is_of_the_first_name_that_was_refused() {
        let names = ["t/a@s", "t/b@s", "t/c@s"].map(str::to_owned);
        let said = |code, names: &[(&str, c_int)]| Refusal {
            code,
            names: names.iter().map(|&(n, c)| (n.to_owned(), c)).collect(),
        };
        let refusal = said(libc::ENOENT, &[("t/c@s", 2), ("t/b@s", libc::EEXIST)]);
        assert_eq!(worst(&names, &refusal), ("t/b@s", libc::EEXIST));
        let refusal = said(libc::EEXIST, &[("t/a@s", libc::EAGAIN), ("t/c@s", 17)]);
        assert_eq!(worst(&names, &refusal), ("t/c@s", libc::EEXIST));
        assert_eq!(worst(&names, &said(libc::ENOENT, &[])), ("t/a@s", 2));
    }
}
