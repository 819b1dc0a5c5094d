//! Directories and entries, each by its parent's descriptor and one name.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Statx, StatxAttributes,
    StatxFlags, fstatvfs, mkdirat, open, openat, openat2, statx, unlinkat,
};
use rustix::io::Errno;

use super::{Access, Kind, PathState, entry, errno_of, failed_at, info};
use crate::block::DevId;
use crate::error::SysError;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the directory `path` below the directory `base` (`openat2` with `RESOLVE_BENEATH |
/// RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`, `O_PATH | O_DIRECTORY | O_CLOEXEC`). `path` is relative.
///
/// `ELOOP` for a link on the way, `EXDEV` for a way out, `ENOENT`, `ENOTDIR`.
pub fn open_dir_beneath(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SysError> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(base, path, DIRECTORY, Mode::empty(), resolve) {
            // A rename elsewhere at this very moment: openat2(2) says to try again.
            Err(Errno::AGAIN) => {}
            outcome => return outcome.map_err(|e| failed_at("openat2", base, path.as_os_str(), e)),
        }
    }
}

/// Opens a directory by its absolute path, with links followed: for the configured base directory.
pub fn open_base(path: &Path) -> Result<OwnedFd, SysError> {
    let failed = |errno| SysError::new("open", path.display(), errno_of(errno));
    if !path.is_absolute() {
        return Err(failed(Errno::INVAL).with_detail("the path must be absolute"));
    }
    open(path, DIRECTORY, Mode::empty()).map_err(failed)
}

/// Makes the directory `name` in `parent` (mode 0750) unless it is there; never through a link.
/// `ENOTDIR` when something else is there.
pub fn make_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    entry("mkdirat", name)?;
    match mkdirat(parent, name, Mode::from_raw_mode(0o750)) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => match state_at(parent, name)? {
            Some(state) if state.is_dir() => Ok(()),
            Some(_) => Err(failed_at("mkdirat", parent, name, Errno::NOTDIR)),
            None => Err(failed_at("mkdirat", parent, name, Errno::EXIST)),
        },
        Err(errno) => Err(failed_at("mkdirat", parent, name, errno)),
    }
}

/// Removes the empty directory `name` from `parent`; fine when it is gone already. `EBUSY` when
/// something is mounted on it in this mount namespace, `ENOTEMPTY`, `ENOTDIR`.
pub fn remove_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    entry("unlinkat", name)?;
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed_at("unlinkat", parent, name, errno)),
    }
}

/// Makes the empty file `name` in `parent` (mode 0600) unless it is there: something to bind a device's
/// node onto. `EEXIST` when something else is there, or something is in it.
pub fn make_file(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    entry("openat", name)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::from_raw_mode(0o600)) {
        Ok(_) => Ok(()),
        Err(Errno::EXIST) => match state_at(parent, name)? {
            Some(state) if state.kind == Kind::EmptyFile => Ok(()),
            _ => Err(failed_at("openat", parent, name, Errno::EXIST)),
        },
        Err(errno) => Err(failed_at("openat", parent, name, errno)),
    }
}

/// Removes the empty file `name` from `parent`; fine when it is gone already. `ENOTEMPTY` for a file with
/// something in it and for all that is no plain file, `EBUSY` when something is mounted on it.
pub fn remove_file(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    let failed = |errno| failed_at("unlinkat", parent, name, errno);
    match state_at(parent, name)? {
        None => return Ok(()),
        Some(state) if state.is_mount_root => return Err(failed(Errno::BUSY)),
        Some(state) if state.kind == Kind::EmptyFile => {}
        Some(_) => return Err(failed(Errno::NOTEMPTY).with_detail("it is no empty file")),
    }
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// What `name` in `parent` is (`statx`, `AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC`);
/// `None` when there is no such entry.
///
/// A filesystem that has lost its device answers `statx` with an error, XFS for one; it is mounted all
/// the same (C-47), and is then told by the mount IDs and `/proc/self/mountinfo`.
pub fn state_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<PathState>, SysError> {
    entry("statx", name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::NLINK;
    match statx(parent, name, flags, wanted) {
        Ok(seen) => Ok(Some(PathState {
            is_mount_root: seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            dev: DevId {
                major: seen.stx_dev_major,
                minor: seen.stx_dev_minor,
            },
            kind: kind_of(&seen),
            answers: true,
        })),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => state_of_dead(parent, name)
            .ok_or_else(|| failed_at("statx", parent, name, errno))
            .map(Some),
    }
}

fn kind_of(seen: &Statx) -> Kind {
    match FileType::from_raw_mode(seen.stx_mode.into()) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile if seen.stx_size == 0 => Kind::EmptyFile,
        FileType::BlockDevice => Kind::Device {
            id: DevId {
                major: seen.stx_rdev_major,
                minor: seen.stx_rdev_minor,
            },
            // devtmpfs takes the node away with the device; a bind keeps it.
            is_deleted: seen.stx_nlink == 0,
        },
        _ => Kind::Other,
    }
}

/// What is mounted at `name`, without asking the filesystem; `None` for what is no mount.
fn state_of_dead(parent: BorrowedFd<'_>, name: &OsStr) -> Option<PathState> {
    let found = open_entry(parent, name).ok()?;
    let id = info::mount_id(&found)?;
    if info::mount_id(&parent)? == id {
        return None;
    }
    Some(PathState {
        is_mount_root: true,
        dev: info::device(id)?,
        // Nodes are bound from devtmpfs, which always answers.
        kind: Kind::Directory,
        answers: false,
    })
}

/// Opens an entry, whatever it is, without following a link and without touching its filesystem.
pub(super) fn open_entry(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Opens an entry for calls that only need to name it (`O_PATH`), without following a link and without
/// touching its filesystem.
pub fn open_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, SysError> {
    entry("openat", name)?;
    open_entry(parent, name).map_err(|e| failed_at("openat", parent, name, e))
}

/// Opens the directory `name` in `parent`, the root of what is mounted there, for ioctls; never through a
/// link. Asks its filesystem, but no device: the root is in memory for as long as it is mounted.
pub fn open_root(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, SysError> {
    entry("openat", name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty()).map_err(|e| failed_at("openat", parent, name, e))
}

/// The device number of the filesystem that a path lies on.
pub fn filesystem_of(path: &Path) -> Result<DevId, SysError> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let seen = statx(CWD, path, flags, StatxFlags::empty())
        .map_err(|errno| SysError::new("statx", path.display(), errno_of(errno)))?;
    Ok(DevId {
        major: seen.stx_dev_major,
        minor: seen.stx_dev_minor,
    })
}

/// Whether the mount on `name` in `parent` allows writes (`fstatvfs`, `ST_RDONLY`).
pub fn access_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Access, SysError> {
    entry("fstatvfs", name)?;
    let found = open_entry(parent, name).map_err(|e| failed_at("openat", parent, name, e))?;
    let seen = fstatvfs(&found).map_err(|e| failed_at("fstatvfs", parent, name, e))?;
    Ok(if seen.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    })
}

/// The ID of the mount that a path lies on (`STATX_MNT_ID`).
pub(super) fn mount_id_of(path: &Path) -> Result<u64, SysError> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let seen = statx(CWD, path, flags, StatxFlags::MNT_ID)
        .map_err(|errno| SysError::new("statx", path.display(), errno_of(errno)))?;
    Ok(seen.stx_mnt_id)
}
