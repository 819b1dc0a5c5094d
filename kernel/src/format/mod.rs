//! Making filesystems: ext4 in process by libext2fs, XFS by `mkfs.xfs`; growing both by ioctl; repairing
//! ext4 by `e2fsck`.
//!
//! Only the agent formats, and only a zvol that it has just created and that was never mounted
//! (design rule 1). Before the first write of a mkfs comes a mark with the UUID, on stable storage, that its
//! last write replaces: what a crash in the middle leaves is known by [`probe::unfinished`], and the
//! next [`make`] starts over.

mod child;
mod ext4;
mod ffi;
mod ioctl;
mod options;
mod repair;
mod xfs;

use std::fs::{File, OpenOptions};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use nix::errno::Errno;
use nix::libc;
use uuid::Uuid;

use crate::error::SysError;
use crate::probe::{self, Content, FsKind};

pub use options::{Ext4Options, Inodes, Options, XfsSetting};
pub use repair::repair_ext4;

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
    /// A program ended with a failure.
    #[error("{name} {device}: {status}: {said}")]
    Program {
        /// Its name.
        name: &'static str,
        /// Device.
        device: String,
        /// Exit status in words.
        status: String,
        /// The end of what it wrote.
        said: String,
    },
}

/// Makes a filesystem on `device` (a block device of at least a few MiB, or a plain file), with
/// this UUID, with no discard and with lazy initialisation. The root directory belongs to root,
/// mode 0755. What was there before is gone. On return the filesystem is on stable storage.
///
/// ext4 gets blocks of 4 KiB, no blocks reserved for root, and the features that e2fsprogs 1.47 and
/// Linux 3.18 all know; XFS gets what `mkfs.xfs` makes by default (it refuses less than 300 MB).
///
/// `EBUSY` when something holds the device.
pub fn make(kind: FsKind, device: &Path, uuid: Uuid) -> Result<(), Error> {
    make_with(&Options::plain(kind), device, uuid)
}

/// The same with what the caller has chosen. `EINVAL` for an ext4 that cannot be so; `mkfs.xfs` says itself what
/// does not go together.
pub fn make_with(options: &Options, device: &Path, uuid: Uuid) -> Result<(), Error> {
    let no_child = EXCLUSIVE.read().unwrap_or_else(PoisonError::into_inner);
    if let Options::Ext4(options) = options {
        ext4::check(options, device)?;
    }
    let size = wipe(device, &probe::unfinished_head(options.kind(), uuid))?;
    match options {
        Options::Ext4(options) => ext4::make(options, device, size, uuid),
        Options::Xfs(settings) => {
            drop(no_child);
            xfs::make(settings, device, uuid)
        }
    }
}

/// Read by whoever has a device open with `O_EXCL`, written by whoever starts a program: until the
/// child has executed it, it has a copy of every descriptor, and the device would look busy.
static EXCLUSIVE: RwLock<()> = RwLock::new(());

/// Both ends hold the labels and superblocks of every other format.
const WIPED: u64 = 64 << 10;

/// Zeroes both ends, so that nothing older is recognised beside the new filesystem, puts `head` at the
/// start, and returns the device's size in bytes. `O_EXCL`: never below something that uses the device.
fn wipe(device: &Path, head: &[u8; 4096]) -> Result<u64, SysError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_EXCL)
        .open(device)
        .map_err(|e| SysError::io("open(O_EXCL)", device, &e))?;
    let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|e| SysError::new("lseek", device.display(), Errno::from_raw(e.raw_os_error())))?;
    if size < 2 * WIPED {
        return Err(SysError::new("lseek", device.display(), Errno::ENOSPC)
            .with_detail(format!("{size} bytes are too small for a filesystem")));
    }
    let mut edge = vec![0_u8; usize::try_from(WIPED).unwrap_or(usize::MAX)];
    file.write_all_at(&edge, size - WIPED)
        .map_err(|e| SysError::io("pwrite", device, &e))?;
    edge[..head.len()].copy_from_slice(head);
    file.write_all_at(&edge, 0)
        .map_err(|e| SysError::io("pwrite", device, &e))?;
    file.sync_data()
        .map_err(|e| SysError::io("fdatasync", device, &e))?;
    Ok(size)
}

/// Which of the filesystems that zvolt knows an open descriptor is on (`fstatfs`); `EUCLEAN` for any other.
pub fn mounted_kind(mount_root: BorrowedFd<'_>, path: &Path) -> Result<FsKind, SysError> {
    let failed = |errno| SysError::new("fstatfs", path.display(), errno);
    let stat =
        rustix::fs::fstatfs(mount_root).map_err(|e| failed(Errno::from_raw(e.raw_os_error())))?;
    // linux/magic.h, EXT4_SUPER_MAGIC; fs/xfs/libxfs/xfs_format.h, XFS_SB_MAGIC.
    match stat.f_type {
        0xEF53 => Ok(FsKind::Ext4),
        0x5846_5342 => Ok(FsKind::Xfs),
        other => Err(failed(Errno::EUCLEAN)
            .with_detail(format!("neither ext4 nor XFS is there: type {other:#x}"))),
    }
}

/// Grows the mounted filesystem behind `mount_root` (an open descriptor of its root directory, not
/// `O_PATH`) to the whole of `device`, which it lies on and which has `device_bytes`
/// (`EXT4_IOC_RESIZE_FS`, `XFS_IOC_FSGROWFSDATA`). Never shrinks; nothing is done when it is as large
/// already. Returns the size that the filesystem has afterwards, in bytes, read back: it can be
/// smaller than the device by a last group that is too small to use. Needs `CAP_SYS_RESOURCE` (ext4)
/// or `CAP_SYS_ADMIN` (XFS), and a writable mount.
pub fn grow(
    kind: FsKind,
    mount_root: BorrowedFd<'_>,
    device: &Path,
    device_bytes: u64,
) -> Result<u64, Error> {
    let size = match kind {
        FsKind::Ext4 => grow_ext4(mount_root, device, device_bytes),
        FsKind::Xfs => grow_xfs(mount_root, device, device_bytes),
    }?;
    Ok(size)
}

/// ext4 has no ioctl that tells its size, and `statfs` takes the overhead off; but its superblock is
/// a buffer of the device's page cache, so that a plain read sees the one in use.
fn ext4_size(device: &Path) -> Result<u64, SysError> {
    let file = File::open(device).map_err(|e| SysError::io("open", device, &e))?;
    match probe::superblock(&file, device)? {
        Content::Filesystem(superblock) if superblock.kind == FsKind::Ext4 => {
            Ok(superblock.size_bytes)
        }
        other => Err(SysError::new("pread", device.display(), Errno::EUCLEAN)
            .with_detail(format!("no ext4 there: {other:?}"))),
    }
}

fn grow_ext4(
    mount_root: BorrowedFd<'_>,
    device: &Path,
    device_bytes: u64,
) -> Result<u64, SysError> {
    let stat = rustix::fs::fstatfs(mount_root).map_err(|e| {
        SysError::new(
            "fstatfs",
            device.display(),
            Errno::from_raw(e.raw_os_error()),
        )
    })?;
    let block_size = u64::try_from(stat.f_bsize)
        .ok()
        .filter(|&size| size > 0)
        .ok_or_else(|| SysError::new("fstatfs", device.display(), Errno::EBADMSG))?;
    let size = ext4_size(device)?;
    let blocks = device_bytes / block_size;
    if blocks <= size / block_size {
        return Ok(size);
    }
    ioctl::ext4_resize(mount_root, blocks).map_err(|errno| {
        SysError::new("ioctl(EXT4_IOC_RESIZE_FS)", device.display(), errno)
            .with_detail(resize_hint(errno))
    })?;
    ext4_size(device)
}

fn grow_xfs(mount_root: BorrowedFd<'_>, device: &Path, device_bytes: u64) -> Result<u64, SysError> {
    let geometry = || {
        ioctl::xfs_geometry(mount_root)
            .map_err(|errno| SysError::new("ioctl(XFS_IOC_FSGEOMETRY)", device.display(), errno))
    };
    let now = geometry()?;
    let block_size = u64::from(now.blocksize);
    if block_size == 0 {
        return Err(SysError::new(
            "ioctl(XFS_IOC_FSGEOMETRY)",
            device.display(),
            Errno::EBADMSG,
        ));
    }
    let blocks = device_bytes / block_size;
    if blocks <= now.datablocks {
        return Ok(now.datablocks * block_size);
    }
    ioctl::xfs_grow(mount_root, blocks, now.imaxpct).map_err(|errno| {
        SysError::new("ioctl(XFS_IOC_FSGROWFSDATA)", device.display(), errno)
            .with_detail(resize_hint(errno))
    })?;
    Ok(geometry()?.datablocks * block_size)
}

fn resize_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EROFS => "the filesystem is mounted read-only",
        Errno::EPERM => "needs CAP_SYS_RESOURCE and CAP_SYS_ADMIN",
        Errno::EBUSY | Errno::EWOULDBLOCK => "another resize of it is running: try again",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wipe_marks_the_start_zeroes_both_ends_and_nothing_between() {
        let size = (1 << 20) + 512;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0xff; size]).unwrap();
        let head = probe::unfinished_head(FsKind::Ext4, Uuid::from_u128(1));
        assert_eq!(wipe(file.path(), &head).unwrap(), size as u64);
        let bytes = std::fs::read(file.path()).unwrap();
        let edge = WIPED as usize;
        assert_eq!(bytes[..head.len()], head);
        assert!(bytes[head.len()..edge].iter().all(|&b| b == 0));
        assert!(bytes[size - edge..].iter().all(|&b| b == 0));
        assert!(bytes[edge..size - edge].iter().all(|&b| b == 0xff));
    }

    #[test]
    fn a_device_too_small_is_refused_untouched() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0xff; 4096]).unwrap();
        let error = make(FsKind::Ext4, file.path(), Uuid::nil()).unwrap_err();
        assert!(
            matches!(&error, Error::Sys(e) if e.errno == Errno::ENOSPC),
            "{error}"
        );
        assert_eq!(std::fs::read(file.path()).unwrap(), [0xff; 4096]);
    }

    #[test]
    fn a_device_that_is_not_there_is_enoent() {
        let error = make(FsKind::Xfs, Path::new("/dev/no/such"), Uuid::nil()).unwrap_err();
        assert!(
            matches!(&error, Error::Sys(e) if e.errno == Errno::ENOENT),
            "{error}"
        );
    }
}
