//! Block device ioctls: `linux/fs.h`, and OpenZFS `sys/fs/zfs.h` for `BLKZNAME`.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc::{Ioctl, c_int};

/// `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: Ioctl = nix::request_code_read!(0x12, 114, size_of::<usize>());
/// `_IO(0x12, 93)`.
const BLKROSET: Ioctl = nix::request_code_none!(0x12, 93);
/// `_IO(0x12, 97)`.
const BLKFLSBUF: Ioctl = nix::request_code_none!(0x12, 97);
/// `_IO(0x12, 94)`.
const BLKROGET: Ioctl = nix::request_code_none!(0x12, 94);
/// `_IOR(0x12, 125, char[ZFS_MAX_DATASET_NAME_LEN])`.
const BLKZNAME: Ioctl = nix::request_code_read!(0x12, 125, 256);

pub(super) fn get_size(device: impl AsFd) -> Result<u64, Errno> {
    let mut size: u64 = 0;
    // SAFETY: the kernel writes one u64 through the pointer (block/ioctl.c, put_u64).
    let code = unsafe { nix::libc::ioctl(device.as_fd().as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    Errno::result(code).map(|_| size)
}

pub(super) fn get_read_only(device: impl AsFd) -> Result<bool, Errno> {
    let mut flag: c_int = 0;
    // SAFETY: the kernel writes one int through the pointer (block/ioctl.c, put_int).
    let code = unsafe { nix::libc::ioctl(device.as_fd().as_raw_fd(), BLKROGET, &raw mut flag) };
    Errno::result(code).map(|_| flag != 0)
}

pub(super) fn set_read_only(device: impl AsFd, read_only: bool) -> Result<(), Errno> {
    let flag = c_int::from(read_only);
    // SAFETY: the kernel reads one int through the pointer (block/ioctl.c, blkdev_roset).
    let code = unsafe { nix::libc::ioctl(device.as_fd().as_raw_fd(), BLKROSET, &raw const flag) };
    Errno::result(code).map(drop)
}

pub(super) fn flush(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the argument is not looked at (block/ioctl.c, blkdev_flushbuf).
    let code = unsafe { nix::libc::ioctl(device.as_fd().as_raw_fd(), BLKFLSBUF, 0) };
    Errno::result(code).map(drop)
}

pub(super) fn get_zvol_name(device: impl AsFd) -> Result<Vec<u8>, Errno> {
    // The module copies MAXNAMELEN bytes, 256 today; the room above that is for a module that grows it.
    let mut name = vec![0_u8; 4096];
    // SAFETY: the buffer is larger than what zvol_os.c copies to it.
    let code = unsafe { nix::libc::ioctl(device.as_fd().as_raw_fd(), BLKZNAME, name.as_mut_ptr()) };
    // loop devices say EINVAL to what they don't know; zvols never do.
    Errno::result(code).map_err(|errno| {
        if errno == Errno::EINVAL {
            Errno::ENOTTY
        } else {
            errno
        }
    })?;
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(0));
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_numbers_are_those_of_the_headers() {
        assert_eq!(BLKGETSIZE64, 0x8008_1272);
        assert_eq!(BLKROGET, 0x125e);
        assert_eq!(BLKROSET, 0x125d);
        assert_eq!(BLKFLSBUF, 0x1261);
        assert_eq!(BLKZNAME, 0x8100_127d);
    }
}
