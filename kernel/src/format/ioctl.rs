//! Resize ioctls: `EXT4_IOC_RESIZE_FS` of Linux `include/uapi/linux/ext4.h`; `XFS_IOC_FSGEOMETRY`
//! and `XFS_IOC_FSGROWFSDATA` of `fs/xfs/libxfs/xfs_fs.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc::Ioctl;

/// `_IOW('f', 16, __u64)`.
const EXT4_IOC_RESIZE_FS: Ioctl = nix::request_code_write!(b'f', 16, size_of::<u64>());
/// `_IOW('X', 110, struct xfs_growfs_data)`.
const XFS_IOC_FSGROWFSDATA: Ioctl = nix::request_code_write!(b'X', 110, size_of::<XfsGrowfsData>());
/// `_IOR('X', 126, struct xfs_fsop_geom)`.
const XFS_IOC_FSGEOMETRY: Ioctl = nix::request_code_read!(b'X', 126, size_of::<XfsFsopGeom>());

/// `struct xfs_fsop_geom`; what is not needed here is left unnamed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct XfsFsopGeom {
    /// Bytes.
    pub(super) blocksize: u32,
    _rtextsize_to_inodesize: [u32; 6],
    /// Largest part of the space that inodes may take, in per cent.
    pub(super) imaxpct: u32,
    /// Blocks of the data section.
    pub(super) datablocks: u64,
    _rest: [u64; 27],
}

#[repr(C)]
struct XfsGrowfsData {
    newblocks: u64,
    imaxpct: u32,
}

/// Grows to `blocks` filesystem blocks.
pub(super) fn ext4_resize(mount_root: BorrowedFd<'_>, blocks: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads one u64 through the pointer (fs/ext4/ioctl.c).
    let code = unsafe {
        nix::libc::ioctl(
            mount_root.as_raw_fd(),
            EXT4_IOC_RESIZE_FS,
            &raw const blocks,
        )
    };
    Errno::result(code).map(drop)
}

pub(super) fn xfs_geometry(mount_root: BorrowedFd<'_>) -> Result<XfsFsopGeom, Errno> {
    let mut geometry = XfsFsopGeom {
        blocksize: 0,
        _rtextsize_to_inodesize: [0; 6],
        imaxpct: 0,
        datablocks: 0,
        _rest: [0; 27],
    };
    // SAFETY: the kernel writes one struct xfs_fsop_geom, whose size the request number carries.
    let code = unsafe {
        nix::libc::ioctl(
            mount_root.as_raw_fd(),
            XFS_IOC_FSGEOMETRY,
            &raw mut geometry,
        )
    };
    Errno::result(code).map(|_| geometry)
}

/// Grows the data section to `blocks` filesystem blocks; `imaxpct` is set too, so pass what it is.
pub(super) fn xfs_grow(mount_root: BorrowedFd<'_>, blocks: u64, imaxpct: u32) -> Result<(), Errno> {
    let data = XfsGrowfsData {
        newblocks: blocks,
        imaxpct,
    };
    // SAFETY: the kernel reads one struct xfs_growfs_data, whose size the request number carries.
    let code = unsafe {
        nix::libc::ioctl(
            mount_root.as_raw_fd(),
            XFS_IOC_FSGROWFSDATA,
            &raw const data,
        )
    };
    Errno::result(code).map(drop)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_and_numbers_are_those_of_the_headers() {
        assert_eq!(size_of::<XfsFsopGeom>(), 256);
        assert_eq!(offset_of!(XfsFsopGeom, imaxpct), 28);
        assert_eq!(offset_of!(XfsFsopGeom, datablocks), 32);
        assert_eq!(size_of::<XfsGrowfsData>(), 16);
        assert_eq!(offset_of!(XfsGrowfsData, imaxpct), 8);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(EXT4_IOC_RESIZE_FS, 0x4008_6610);
            assert_eq!(XFS_IOC_FSGROWFSDATA, 0x4010_586e);
            assert_eq!(XFS_IOC_FSGEOMETRY, 0x8100_587e);
        }
    }
}
