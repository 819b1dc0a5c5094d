//! Mounts by the new mount API (`fsopen(2)`, `fsmount(2)`, `move_mount(2)`, `open_tree(2)`,
//! `mount_setattr(2)`), paths by `openat2(2)`, mount points by `statx(2)`.
//!
//! Minimum kernel: 5.12 (`mount_setattr`). Needs `CAP_SYS_ADMIN`, and `/proc` for unmounts: there is
//! no `umount2` that takes a directory's descriptor.
//!
//! A mount is made on a detached tree and becomes visible, with all its attributes, in the one call of
//! `move_mount`: a crash before it leaves nothing.

mod attach;
mod detach;
mod ffi;
mod info;
mod paths;
mod usage;

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::block::DevId;
use crate::error::SysError;

pub use crate::block::Access;
pub use attach::{bind_at, bind_node_at, mount_at};
pub use detach::{mount_id_at, unmount_at};
pub use info::{MountedAt, Options, Shown, fs_type, is_shared, mounts_of, options_at};
pub use paths::{
    access_at, filesystem_of, make_dir, make_file, open_at, open_base, open_dir_beneath, open_root,
    remove_dir, remove_file, state_at,
};
pub use usage::{Amount, Usage, ext4_errors, usage_of};

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
    /// `nosymfollow`) become mount attributes; every other goes to `fsconfig` as a flag or, with a `=`, as a
    /// string. Those that only mean something to `mount(8)` (`defaults`, `_netdev`, `nofail`) are
    /// skipped; `ro` and `rw` are refused: `access` says it.
    pub options: &'a [String],
}

/// What a path is, seen by `statx` without following a link and without syncing with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// `STATX_ATTR_MOUNT_ROOT`: something is mounted exactly here.
    pub is_mount_root: bool,
    /// The device of the filesystem that the path is on.
    pub dev: DevId,
    /// What the entry is.
    pub kind: Kind,
    /// Whether the filesystem answered. One that has lost its device may give an error instead (XFS
    /// does), and is mounted all the same (C-47).
    pub answers: bool,
}

impl PathState {
    /// Whether the entry is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A plain file without a byte.
    EmptyFile,
    /// A block device's node.
    Device {
        /// The device's number.
        id: DevId,
        /// Whether the node has been removed since: the device is gone, and its number may be that of
        /// another one by now.
        is_deleted: bool,
    },
    /// Anything else.
    Other,
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

/// Refuses what is more than the name of an entry (rule 12).
fn entry(call: &'static str, name: &OsStr) -> Result<(), SysError> {
    let bytes = name.as_encoded_bytes();
    if bytes.is_empty()
        || bytes == b"."
        || bytes == b".."
        || bytes.contains(&b'/')
        || bytes.contains(&0)
    {
        return Err(SysError::new(call, format!("{name:?}"), Errno::EINVAL)
            .with_detail("one name is expected, without / and not . or .."));
    }
    Ok(())
}

/// The path of `name` in `parent`, for people: a directory held open has a name only in `/proc`.
fn full_path(parent: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    let link = info::descriptor_path(parent);
    std::fs::read_link(&link).unwrap_or(link).join(name)
}

fn failed_at(
    call: &'static str,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    errno: rustix::io::Errno,
) -> SysError {
    SysError::new(call, full_path(parent, name).display(), errno_of(errno))
}

fn errno_of(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}
