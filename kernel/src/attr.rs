//! One attribute file of sysfs or configfs: one open, one read or write, no create, no truncate.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;

use crate::error::SysError;

/// Reads an attribute, without its trailing white space.
pub fn read(path: &Path) -> Result<String, SysError> {
    let mut text = String::new();
    let mut file = std::fs::File::open(path).map_err(|e| SysError::io("open", path, &e))?;
    file.read_to_string(&mut text)
        .map_err(|e| SysError::io("read", path, &e))?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// Reads an attribute; `None` when the file or its directory is not there.
pub fn read_if_present(path: &Path) -> Result<Option<String>, SysError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.errno == nix::errno::Errno::ENOENT => Ok(None),
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
