//! One attribute file of sysfs or configfs: one open, one read or write, no create, no truncate.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use nix::errno::Errno;

use crate::error::SysError;

/// The kernel gives an attribute whole, in at most one page.
const PAGE_BYTES: usize = 4096;

/// Reads an attribute, without its trailing white space.
pub fn read(path: &Path) -> Result<String, SysError> {
    let mut page = [0; PAGE_BYTES];
    let mut file = File::open(path).map_err(|e| SysError::io("open", path, &e))?;
    let length = file
        .read(&mut page)
        .map_err(|e| SysError::io("read", path, &e))?;
    Ok(String::from_utf8_lossy(&page[..length])
        .trim_end()
        .to_owned())
}

/// Whether an errno means that the object behind an attribute is gone: before the open (`ENOENT`), or
/// between the open and the read or write (`ENODEV`, `fs/kernfs/file.c`).
pub fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV)
}

/// Reads an attribute; `None` when the file, its directory or its device is not there.
pub fn read_if_present(path: &Path) -> Result<Option<String>, SysError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if is_gone(e.errno) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes an attribute in one `write` call.
pub fn write(path: &Path, value: &str) -> Result<(), SysError> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|e| SysError::io("open", path, &e))?;
    file.write_all(value.as_bytes())
        .map_err(|e| SysError::io("write", path, &e).with_detail(format!("wrote {value:?}")))
}
