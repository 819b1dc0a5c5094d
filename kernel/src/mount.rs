//! Mounts by the new mount API (`fsopen(2)`, `fsmount(2)`, `move_mount(2)`, `open_tree(2)`,
//! `mount_setattr(2)`), paths by `openat2(2)`, mount points by `statx(2)`.
//!
//! Minimum kernel: 5.12 (`mount_setattr`). Needs `CAP_SYS_ADMIN`.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use crate::block::DevId;
use crate::error::SysError;

/// Whether writes are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes.
    ReadWrite,
    /// Reads only.
    ReadOnly,
}

/// A filesystem to mount.
#[derive(Debug, Clone)]
pub struct FsMount<'a> {
    /// `ext4`, `xfs`, …
    pub fs_type: &'a str,
    /// The device node.
    pub source: &'a Path,
    /// Superblock and mount, both.
    pub access: Access,
    /// The caller's options, one each, never joined: `noatime`, `nosuid`, `context=…`, `nouuid`.
    /// The generic ones (`noatime`, `nodiratime`, `relatime`, `strictatime`, `nosuid`, `nodev`, `noexec`,
    /// `nosymfollow`) become mount attributes; every other goes to `fsconfig` as a flag or, with a `=`, as a string.
    pub options: &'a [String],
}

/// What a path is, seen by `statx` without following a link and without syncing with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// `STATX_ATTR_MOUNT_ROOT`: something is mounted exactly here.
    pub is_mount_root: bool,
    /// The device of the filesystem that the path is on.
    pub dev: DevId,
    /// Is it a directory.
    pub is_dir: bool,
}

/// How an unmount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing is mounted here any more and the call came back.
    Clean,
    /// Nothing was mounted here.
    WasNot,
    /// The unmount did not come back by the deadline: the mount was detached lazily, the filesystem
    /// is still alive in the kernel until its device answers.
    DetachedStillBusy,
}

/// Opens the directory `path` below the directory `base` (`openat2` with `RESOLVE_BENEATH |
/// RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`, `O_PATH | O_DIRECTORY | O_CLOEXEC`). `path` is relative.
pub fn open_dir_beneath(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SysError> {
    let _ = (base, path);
    unimplemented!()
}

/// Opens a directory by its absolute path, with links followed: for the configured base directory.
pub fn open_base(path: &Path) -> Result<OwnedFd, SysError> {
    let _ = path;
    unimplemented!()
}

/// Makes the directory `name` in `parent` (mode 0750) unless it is there; never through a link.
pub fn make_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    let _ = (parent, name);
    unimplemented!()
}

/// Removes the empty directory `name` from `parent`; fine when it is gone already.
pub fn remove_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    let _ = (parent, name);
    unimplemented!()
}

/// What `name` in `parent` is (`statx`, `AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC`);
/// `None` when there is no such entry.
pub fn state_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<PathState>, SysError> {
    let _ = (parent, name);
    unimplemented!()
}

/// Mounts a filesystem on the directory `name` in `parent`. The kernel's own sentences, read from
/// the fs context after a failure, are in the error's detail.
pub fn mount_at(mount: &FsMount<'_>, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    let _ = (mount, parent, name);
    unimplemented!()
}

/// Binds what is mounted on `source_name` in `source_parent` onto the directory `name` in `parent`:
/// `open_tree(OPEN_TREE_CLONE)`, `mount_setattr` where `access` or `attributes` ask for it, `move_mount`.
/// A read-only bind is never visible as a writable one, not for a moment.
pub fn bind_at(
    source_parent: BorrowedFd<'_>,
    source_name: &OsStr,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    access: Access,
) -> Result<(), SysError> {
    let _ = (source_parent, source_name, parent, name, access);
    unimplemented!()
}

/// Unmounts the top mount on `name` in `parent` by `deadline`. Runs `umount2` on a thread of its
/// own; past the deadline detaches (`MNT_DETACH`) and says so. Never follows a link.
pub fn unmount_at(parent: &OwnedFd, name: &OsStr, deadline: Instant) -> Result<Unmounted, SysError> {
    let _ = (parent, name, deadline);
    unimplemented!()
}

/// Whether the mount that `path` lies on is in a shared peer group (`shared:N` in
/// `<proc>/self/mountinfo`, `proc_pid_mountinfo(5)`). Reads the whole table: start-up only.
pub fn is_shared(proc: &Path, path: &Path) -> Result<bool, SysError> {
    let _ = (proc, path);
    unimplemented!()
}

/// Whether the mount on `name` in `parent` allows writes (`fstatvfs`, `ST_RDONLY`).
pub fn access_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Access, SysError> {
    let _ = (parent, name);
    unimplemented!()
}
