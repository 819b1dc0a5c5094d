//! Mounts by the new mount API (`fsopen(2)`, `fsmount(2)`, `move_mount(2)`, `open_tree(2)`,
//! `mount_setattr(2)`), paths by `openat2(2)`, mount points by `statx(2)`.
//!
//! Minimum kernel: 5.12 (`mount_setattr`). Needs `CAP_SYS_ADMIN`. Whatever is mounted or unmounted is
//! named by an open parent directory and one component, so that nothing can be swapped on the way
//! (design rule 12).

mod attach;
mod ffi;
mod paths;
mod table;
mod unmount;

use std::path::Path;

use crate::block::DevId;

pub use attach::{bind_at, mount_at};
pub use paths::{access_at, make_dir, open_base, open_dir_beneath, remove_dir, state_at};
pub use table::{MountEntry, entry_of, is_shared, parse};
pub use unmount::unmount_at;

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
    /// `nosymfollow`) become mount attributes; every other goes to `fsconfig` as a flag or, with
    /// a `=`, as a string.
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
