//! Directories below a directory, and what is at a name.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstatvfs,
    mkdirat, openat, openat2, statx, unlinkat,
};

use super::{Access, PathState};
use crate::block::DevId;
use crate::error::{Errno, SysError};

/// Opens the directory `path` below the directory `base` (`openat2` with `RESOLVE_BENEATH |
/// RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`). `path` is relative.
pub fn open_dir_beneath(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SysError> {
    openat2(
        base,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(|e| failed("openat2", path.display(), e))
}

/// Opens a directory by its absolute path, with links followed: for the configured base directory.
pub fn open_base(path: &Path) -> Result<OwnedFd, SysError> {
    rustix::fs::open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| failed("open", path.display(), e))
}

/// Makes the directory `name` in `parent` (mode 0750) unless it is there; never through a link.
pub fn make_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    component(parent, name)?;
    match mkdirat(parent, name, Mode::RWXU | Mode::RGRP | Mode::XGRP) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => match state_at(parent, name)? {
            Some(state) if state.is_dir => Ok(()),
            _ => Err(SysError::new(
                "mkdirat",
                shown(parent, name),
                Errno::ENOTDIR,
            )),
        },
        Err(e) => Err(failed("mkdirat", shown(parent, name), e)),
    }
}

/// Removes the empty directory `name` from `parent`; fine when it is gone already.
pub fn remove_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    component(parent, name)?;
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(failed("unlinkat", shown(parent, name), e)),
    }
}

/// What `name` in `parent` is (`statx`, `AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT |
/// AT_STATX_DONT_SYNC`); `None` when there is no such entry.
pub fn state_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<PathState>, SysError> {
    component(parent, name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = match statx(parent, name, flags, StatxFlags::TYPE) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(failed("statx", shown(parent, name), e)),
    };
    if !found
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
    {
        return Err(
            SysError::new("statx", shown(parent, name), Errno::EOPNOTSUPP).with_detail(
                "the kernel does not tell mount points (STATX_ATTR_MOUNT_ROOT, Linux 5.8)",
            ),
        );
    }
    Ok(Some(PathState {
        is_mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        dev: DevId {
            major: found.stx_dev_major,
            minor: found.stx_dev_minor,
        },
        is_dir: rustix::fs::FileType::from_raw_mode(found.stx_mode.into()).is_dir(),
    }))
}

/// Whether the mount on `name` in `parent` allows writes (`fstatvfs`, `ST_RDONLY`).
pub fn access_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Access, SysError> {
    component(parent, name)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let at = openat(parent, name, flags, Mode::empty())
        .map_err(|e| failed("openat", shown(parent, name), e))?;
    let found = fstatvfs(&at).map_err(|e| failed("fstatvfs", shown(parent, name), e))?;
    Ok(if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    })
}

/// Refuses what is not one component of a path.
pub(super) fn component(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    let bytes = name.as_bytes();
    if bytes.is_empty()
        || bytes == b"."
        || bytes == b".."
        || bytes.contains(&b'/')
        || bytes.contains(&0)
    {
        return Err(SysError::new("openat", shown(parent, name), Errno::EINVAL)
            .with_detail(format!("{name:?} is not one component of a path")));
    }
    Ok(())
}

/// The whole path, for messages: the parent's as the kernel knows it now.
pub(super) fn shown(parent: BorrowedFd<'_>, name: &OsStr) -> String {
    let link = format!("/proc/self/fd/{}", parent.as_raw_fd());
    let parent = std::fs::read_link(&link).unwrap_or_else(|_| link.into());
    parent.join(name).display().to_string()
}

pub(super) fn failed(
    call: &'static str,
    subject: impl Display,
    error: rustix::io::Errno,
) -> SysError {
    SysError::new(call, subject, Errno::from_raw(error.raw_os_error()))
}
