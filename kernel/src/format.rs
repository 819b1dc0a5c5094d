//! Making filesystems: ext4 in process by libext2fs, XFS by `mkfs.xfs`; growing both by ioctl.
//!
//! Only the agent formats, and only a zvol that it has just created (design rule 1).

use std::os::fd::BorrowedFd;
use std::path::Path;

use uuid::Uuid;

use crate::error::SysError;
use crate::probe::FsKind;

/// Why a filesystem could not be made or grown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The library or program is not installed; the text says which package brings it.
    #[error("{what} is not installed: install the package {package}")]
    Missing {
        /// Library or program.
        what: &'static str,
        /// Debian's package for it.
        package: &'static str,
    },
    /// libext2fs said no.
    #[error("{call} {device}: {message} (libext2fs {code})")]
    Ext2 {
        /// Library function.
        call: &'static str,
        /// Device.
        device: String,
        /// `errcode_t`.
        code: i64,
        /// What `error_message` says of it.
        message: String,
    },
    /// `mkfs.xfs` ended with a failure.
    #[error("mkfs.xfs {device}: {status}: {stderr}")]
    Xfs {
        /// Device.
        device: String,
        /// Exit status in words.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
}

/// Makes a filesystem on `device` (a block device of at least a few MiB), with this UUID, with no
/// discard and with lazy initialisation. The root directory belongs to root, mode 0755.
///
/// ext4 has mke2fs's default features. XFS runs `mkfs.xfs` directly (no shell, no `PATH`).
pub fn make(kind: FsKind, device: &Path, uuid: Uuid) -> Result<(), Error> {
    let _ = (kind, device, uuid);
    unimplemented!()
}

/// Grows the mounted filesystem behind `mount_root` (an open descriptor of its root directory) to
/// the whole of its device (`EXT4_IOC_RESIZE_FS`, `XFS_IOC_FSGROWFSDATA`). `device_bytes` is the
/// device's size. Returns the size that the filesystem has afterwards, in bytes, read back.
pub fn grow(kind: FsKind, mount_root: BorrowedFd<'_>, device_bytes: u64) -> Result<u64, Error> {
    let _ = (kind, mount_root, device_bytes);
    unimplemented!()
}
