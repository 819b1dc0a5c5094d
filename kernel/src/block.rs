//! Block devices: size, read-only flag, the zvol's name, and the way from a number to sysfs.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::SysError;

/// A block device's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevId {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl std::fmt::Display for DevId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Size in bytes (`BLKGETSIZE64`, `linux/fs.h`).
pub fn size_bytes(device: &File, path: &Path) -> Result<u64, SysError> {
    let _ = (device, path);
    unimplemented!()
}

/// Whether the kernel refuses writes to the device (`BLKROGET`).
pub fn is_read_only(device: &File, path: &Path) -> Result<bool, SysError> {
    let _ = (device, path);
    unimplemented!()
}

/// The dataset behind a zvol's device node (`BLKZNAME`, OpenZFS `sys/fs/zfs.h`).
/// `ENOTTY` for a device that is no zvol.
pub fn zvol_name(device: &File, path: &Path) -> Result<String, SysError> {
    let _ = (device, path);
    unimplemented!()
}

/// The number of the device node at `path` (`stat`); `ENOTBLK` for anything else.
pub fn dev_id(path: &Path) -> Result<DevId, SysError> {
    let _ = path;
    unimplemented!()
}

/// The device's kernel name (`nvme0n1`, `zd16`), by `<sys>/dev/block/<major>:<minor>`.
pub fn kernel_name(sys: &Path, id: DevId) -> Result<String, SysError> {
    let _ = (sys, id);
    unimplemented!()
}

/// The device's directory below `<sys>/devices`, with links resolved.
pub fn sysfs_dir(sys: &Path, id: DevId) -> Result<PathBuf, SysError> {
    let _ = (sys, id);
    unimplemented!()
}

/// Whether some filesystem, device-mapper table or other exclusive user holds the device
/// (`open(O_EXCL)` gives `EBUSY`).
pub fn is_held(path: &Path) -> Result<bool, SysError> {
    let _ = path;
    unimplemented!()
}

/// The block devices whose kernel name starts with `prefix` (`zd`), from `<sys>/block`.
/// Grows with the number of devices: for start-up and repair only.
pub fn list(sys: &Path, prefix: &str) -> Result<Vec<String>, SysError> {
    let _ = (sys, prefix);
    unimplemented!()
}
