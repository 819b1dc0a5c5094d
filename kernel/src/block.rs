//! Block devices: size, read-only flag, the zvol's name, and the way from a number to sysfs and to the node.
//!
//! Needs read access to the device nodes, and `CAP_SYS_ADMIN` to set the read-only flag and to flush.
//! Nothing on a device is ever written.

mod ioctl;

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::attr;
use crate::error::SysError;

/// Whether writes are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes.
    ReadWrite,
    /// Reads only.
    ReadOnly,
}

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
    ioctl::get_size(device)
        .map_err(|errno| SysError::new("ioctl(BLKGETSIZE64)", path.display(), errno))
}

/// Whether the kernel refuses writes to the device (`BLKROGET`).
pub fn is_read_only(device: &File, path: &Path) -> Result<bool, SysError> {
    ioctl::get_read_only(device)
        .map_err(|errno| SysError::new("ioctl(BLKROGET)", path.display(), errno))
}

/// Makes the kernel refuse writes to the device, or take them again (`BLKROSET`), and gives what it says
/// afterwards: a device that is read-only of its own accord, as a zvol with `readonly=on` is, stays so. A
/// filesystem that is mounted for writing is not stopped.
pub fn set_access(device: &File, path: &Path, access: Access) -> Result<Access, SysError> {
    ioctl::set_read_only(device, access == Access::ReadOnly)
        .map_err(|errno| SysError::new("ioctl(BLKROSET)", path.display(), errno))?;
    Ok(match is_read_only(device, path)? {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    })
}

/// Writes what the page cache still holds for the device, and drops it (`BLKFLSBUF`). Blocks for as long as
/// the device does not answer, if there is something to write.
pub fn flush(device: &File, path: &Path) -> Result<(), SysError> {
    ioctl::flush(device).map_err(|errno| SysError::new("ioctl(BLKFLSBUF)", path.display(), errno))
}

/// What sysfs says of a device, without opening it: nothing here can block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether writes are allowed.
    pub access: Access,
}

/// Size and read-only flag of the device `name` (`<sys>/block/<name>/{size,ro}`); `None` when it is gone.
pub fn extent(sys: &Path, name: &str) -> Result<Option<Extent>, SysError> {
    let directory = sys.join("block").join(component(name)?);
    let get = |attribute: &str| attr::read_if_present(&directory.join(attribute));
    let (Some(size), Some(ro)) = (get("size")?, get("ro")?) else {
        return Ok(None);
    };
    let unreadable = |attribute: &str, value: &str| {
        SysError::new("read", directory.join(attribute).display(), Errno::EBADMSG)
            .with_detail(format!("{value:?}"))
    };
    // Units of 512 bytes, whatever the device's own are.
    let bytes = size.parse().ok().and_then(|s: u64| s.checked_mul(512));
    Ok(Some(Extent {
        bytes: bytes.ok_or_else(|| unreadable("size", &size))?,
        access: match ro.as_str() {
            "0" => Access::ReadWrite,
            "1" => Access::ReadOnly,
            other => return Err(unreadable("ro", other)),
        },
    }))
}

/// A device's node, known by its number.
#[derive(Debug)]
pub struct Node {
    /// Opened with `O_PATH`: the device itself has not been touched.
    pub fd: OwnedFd,
    /// Where it is.
    pub path: PathBuf,
}

impl Node {
    /// Opens the device of this very node for reading, whatever its name leads to by now.
    pub fn open(&self) -> Result<File, SysError> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|e| SysError::io("open", &self.path, &e))
    }
}

/// The node of a device below `dev`, which must be the kernel's own devtmpfs: found by the number and
/// checked against it, so that no name is ever guessed (C-34). `ESTALE` when the node is another device's.
pub fn node(sys: &Path, dev: &Path, id: DevId) -> Result<Node, SysError> {
    let path = dev.join(component(&kernel_name(sys, id)?)?);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|e| SysError::io("open(O_PATH)", &path, &e))?;
    let metadata = opened
        .metadata()
        .map_err(|e| SysError::io("fstat", &path, &e))?;
    let found = number_of(metadata.rdev());
    if !metadata.file_type().is_block_device() || found != id {
        return Err(SysError::new("fstat", path.display(), Errno::ESTALE)
            .with_detail(format!("it is {found}, not {id}")));
    }
    Ok(Node {
        fd: opened.into(),
        path,
    })
}

/// Refuses what is more than one name (rule 12). sysfs writes a `/` of a device's name as `!`.
fn component(name: &str) -> Result<&str, SysError> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '!', '\0']) {
        return Err(SysError::new("open", format!("{name:?}"), Errno::EINVAL)
            .with_detail("this is no device's name"));
    }
    Ok(name)
}

/// The dataset behind a zvol's device node (`BLKZNAME`, OpenZFS `sys/fs/zfs.h`).
/// `ENOTTY` for a device that is no zvol.
pub fn zvol_name(device: &File, path: &Path) -> Result<String, SysError> {
    let failed = |errno| SysError::new("ioctl(BLKZNAME)", path.display(), errno);
    let name = ioctl::get_zvol_name(device).map_err(failed)?;
    match String::from_utf8(name) {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => Err(failed(Errno::EBADMSG).with_detail("the device answered with no dataset name")),
    }
}

/// The number of the device node at `path` (`stat`); `ENOTBLK` for anything else.
pub fn dev_id(path: &Path) -> Result<DevId, SysError> {
    let metadata = fs::metadata(path).map_err(|e| SysError::io("stat", path, &e))?;
    if !metadata.file_type().is_block_device() {
        return Err(SysError::new("stat", path.display(), Errno::ENOTBLK));
    }
    Ok(number_of(metadata.rdev()))
}

fn number_of(rdev: u64) -> DevId {
    DevId {
        major: rustix::fs::major(rdev),
        minor: rustix::fs::minor(rdev),
    }
}

/// The number of the device `name`, from `<sys>/block/<name>/dev`; `None` when it is gone.
pub fn number(sys: &Path, name: &str) -> Result<Option<DevId>, SysError> {
    let path = sys.join("block").join(component(name)?).join("dev");
    let Some(text) = attr::read_if_present(&path)? else {
        return Ok(None);
    };
    let id = text.split_once(':').and_then(|(major, minor)| {
        Some(DevId {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    });
    id.map(Some).ok_or_else(|| {
        SysError::new("read", path.display(), Errno::EBADMSG).with_detail(format!("{text:?}"))
    })
}

/// The device's kernel name (`nvme0n1`, `zd16`), by `<sys>/dev/block/<major>:<minor>`.
pub fn kernel_name(sys: &Path, id: DevId) -> Result<String, SysError> {
    let link = number_link(sys, id);
    let target = fs::read_link(&link).map_err(|e| SysError::io("readlink", &link, &e))?;
    target
        .file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
        .ok_or_else(|| {
            SysError::new("readlink", link.display(), Errno::EBADMSG)
                .with_detail(target.display().to_string())
        })
}

/// The device's directory below `<sys>/devices`, with links resolved.
pub fn sysfs_dir(sys: &Path, id: DevId) -> Result<PathBuf, SysError> {
    let link = number_link(sys, id);
    fs::canonicalize(&link).map_err(|e| SysError::io("realpath", &link, &e))
}

fn number_link(sys: &Path, id: DevId) -> PathBuf {
    sys.join("dev/block").join(id.to_string())
}

/// Whether some filesystem, device-mapper table or other exclusive user holds the device
/// (`open(O_EXCL)` gives `EBUSY`).
///
/// While it looks, it is the exclusive user itself: a mount at that very moment gets `EBUSY`.
pub fn is_held(path: &Path) -> Result<bool, SysError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_NONBLOCK)
        .open(path);
    match opened {
        // On anything else O_EXCL means nothing, and "not held" would be a lie.
        Ok(file) => match file.metadata() {
            Ok(metadata) if metadata.file_type().is_block_device() => Ok(false),
            Ok(_) => Err(SysError::new(
                "open(O_EXCL)",
                path.display(),
                Errno::ENOTBLK,
            )),
            Err(e) => Err(SysError::io("fstat", path, &e)),
        },
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err(e) => Err(SysError::io("open(O_EXCL)", path, &e)),
    }
}

/// The processes, other than this one, that have the device open, by `<proc>/<pid>/fd`, sorted. The device's number
/// counts, whatever the node is called. Sees what the PID namespace of `proc` has; grows with all open files.
/// A process that has only a mapping of it left is not seen.
pub fn openers(proc: &Path, id: DevId) -> Result<Vec<u32>, SysError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc).map_err(|e| SysError::io("readdir", proc, &e))? {
        let entry = entry.map_err(|e| SysError::io("readdir", proc, &e))?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if pid != std::process::id() && has_open(&entry.path().join("fd"), id)? {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Processes and descriptors that go meanwhile have nothing open; what cannot be looked at is an error.
fn has_open(descriptors: &Path, id: DevId) -> Result<bool, SysError> {
    let is_gone = |e: &std::io::Error| matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    let entries = match fs::read_dir(descriptors) {
        Err(e) if is_gone(&e) => return Ok(false),
        entries => entries.map_err(|e| SysError::io("readdir", descriptors, &e))?,
    };
    for entry in entries {
        let path = match entry {
            Err(e) if is_gone(&e) => return Ok(false),
            entry => entry.map_err(|e| SysError::io("readdir", descriptors, &e))?,
        }
        .path();
        // A file on a server that is dead must not hold this up.
        let flags = AtFlags::STATX_DONT_SYNC;
        let is_it = match statx(CWD, &path, flags, StatxFlags::TYPE) {
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.stx_mode.into());
                let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
                kind == FileType::BlockDevice && DevId { major, minor } == id
            }
            Err(rustix::io::Errno::NOENT) => false,
            Err(e) => {
                let errno = Errno::from_raw(e.raw_os_error());
                return Err(SysError::new("statx", path.display(), errno)
                    .with_detail("to see who has a device open needs CAP_SYS_PTRACE"));
            }
        };
        if is_it {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The block devices whose kernel name starts with `prefix` (`zd`), from `<sys>/block`, sorted.
/// Grows with the number of devices: for start-up and repair only.
pub fn list(sys: &Path, prefix: &str) -> Result<Vec<String>, SysError> {
    let directory = sys.join("block");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(|e| SysError::io("readdir", &directory, &e))? {
        let entry = entry.map_err(|e| SysError::io("readdir", &directory, &e))?;
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with(prefix)
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in ["zd0", "zd16", "sda"] {
            fs::create_dir_all(root.path().join("devices/virtual/block").join(name)).unwrap();
        }
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        symlink(
            "../../devices/virtual/block/zd16",
            root.path().join("dev/block/230:16"),
        )
        .unwrap();
        fs::create_dir(root.path().join("block")).unwrap();
        for name in ["zd16", "sda", "zd0"] {
            symlink(
                format!("../devices/virtual/block/{name}"),
                root.path().join("block").join(name),
            )
            .unwrap();
        }
        root
    }

    #[test]
    fn a_number_leads_to_the_name_and_the_directory() {
        let root = sysfs();
        let id = DevId {
            major: 230,
            minor: 16,
        };
        assert_eq!(kernel_name(root.path(), id).unwrap(), "zd16");
        let directory = sysfs_dir(root.path(), id).unwrap();
        assert_eq!(
            directory,
            fs::canonicalize(root.path())
                .unwrap()
                .join("devices/virtual/block/zd16")
        );
    }

    #[test]
    fn an_unknown_number_is_enoent_with_the_path() {
        let root = sysfs();
        let error = kernel_name(root.path(), DevId { major: 8, minor: 1 }).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
        assert!(error.subject.ends_with("dev/block/8:1"), "{error}");
    }

    #[test]
    fn size_and_access_come_from_sysfs() {
        let root = sysfs();
        let put = |attribute: &str, value: &str| {
            fs::write(root.path().join("block/zd16").join(attribute), value).unwrap();
        };
        assert_eq!(extent(root.path(), "zd16").unwrap(), None);
        put("size", "2048\n");
        put("ro", "1\n");
        put("dev", "230:16\n");
        let id = DevId {
            major: 230,
            minor: 16,
        };
        assert_eq!(number(root.path(), "zd16").unwrap(), Some(id));
        assert_eq!(number(root.path(), "zd0").unwrap(), None);
        let expected = Extent {
            bytes: 1 << 20,
            access: Access::ReadOnly,
        };
        assert_eq!(extent(root.path(), "zd16").unwrap(), Some(expected));
        put("size", "many\n");
        let error = extent(root.path(), "zd16").unwrap_err();
        assert!(error.to_string().contains("zd16/size"), "{error}");
        assert_eq!(extent(root.path(), "zd32").unwrap(), None);
        for name in ["", "..", "../x", "a/b", "cciss!c0d0"] {
            let errno = extent(root.path(), name).unwrap_err().errno;
            assert_eq!(errno, Errno::EINVAL, "{name:?}");
        }
    }

    #[test]
    fn bug_c_34_a_node_that_is_no_such_device_is_refused() {
        let root = sysfs();
        let dev = tempfile::tempdir().unwrap();
        let id = DevId {
            major: 230,
            minor: 16,
        };
        let open = || node(root.path(), dev.path(), id).map(drop).unwrap_err();
        assert_eq!(open().errno, Errno::ENOENT);
        fs::write(dev.path().join("zd16"), "").unwrap();
        assert_eq!(open().errno, Errno::ESTALE);
    }

    #[test]
    fn list_takes_the_prefix_and_sorts() {
        let root = sysfs();
        assert_eq!(list(root.path(), "zd").unwrap(), ["zd0", "zd16"]);
        assert!(list(root.path(), "nvme").unwrap().is_empty());
    }

    #[test]
    fn openers_are_other_processes_with_this_very_device() {
        let proc = tempfile::tempdir().unwrap();
        let put = |pid: &str, target: &str| {
            let dir = proc.path().join(pid).join("fd");
            fs::create_dir_all(&dir).unwrap();
            symlink(target, dir.join("3")).unwrap();
        };
        put("100", "/dev/null");
        put("101", "/no/such/file");
        put(&std::process::id().to_string(), "/dev/null");
        fs::create_dir_all(proc.path().join("102")).unwrap();
        fs::create_dir_all(proc.path().join("sys/fd")).unwrap();
        let null = DevId { major: 1, minor: 3 };
        // /dev/null has that number among the character devices.
        assert!(openers(proc.path(), null).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_block_device_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(dev_id(file.path()).unwrap_err().errno, Errno::ENOTBLK);
        assert_eq!(is_held(file.path()).unwrap_err().errno, Errno::ENOTBLK);
        assert_eq!(
            size_bytes(file.as_file(), file.path()).unwrap_err().errno,
            Errno::ENOTTY
        );
        assert_eq!(
            zvol_name(file.as_file(), file.path()).unwrap_err().errno,
            Errno::ENOTTY
        );
    }
}
