//! The mount table (`proc_pid_mountinfo(5)`), by mount ID.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::paths::{mount_id_of, open_at};
use crate::block::DevId;
use crate::error::SysError;

/// One line of the table, as far as it is needed here.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    id: u64,
    device: DevId,
    /// What of the filesystem is mounted, and where; both escaped.
    root: &'a str,
    place: &'a str,
    /// Options of the mount, and of the filesystem.
    options: &'a str,
    super_options: &'a str,
    shared: bool,
    fs_type: &'a str,
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw,errors=continue`; the tags
/// before the dash are as many as there are.
fn parse(line: &str) -> Option<Line<'_>> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = DevId {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let (root, place, options) = (fields.next()?, fields.next()?, fields.next()?);
    let mut tags = fields.by_ref().take_while(|field| *field != "-");
    let shared = tags.any(|tag| tag.starts_with("shared:"));
    // `any` stops at its find, before the dash.
    if shared {
        fields.by_ref().find(|field| *field == "-")?;
    }
    let (fs_type, _source, super_options) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Line {
        id,
        device,
        root,
        place,
        options,
        super_options,
        shared,
        fs_type,
    })
}

fn table(proc: &Path) -> Result<(PathBuf, String), SysError> {
    let path = proc.join("self/mountinfo");
    let text = fs::read(&path).map_err(|e| SysError::io("read", &path, &e))?;
    Ok((path, String::from_utf8_lossy(&text).into_owned()))
}

/// What a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown<'a> {
    /// A filesystem, by its device.
    Filesystem(DevId),
    /// A device's node, bound out of the filesystem that has it.
    Node {
        /// The device number of that filesystem (`/dev`'s).
        filesystem: DevId,
        /// The node's name in its root directory.
        name: &'a str,
    },
}

/// One mount of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedAt {
    /// The mount's ID.
    pub id: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// The mounts of something in this process's mount namespace. Reads the whole table: not for the common
/// way of a publish.
pub fn mounts_of(proc: &Path, shown: Shown<'_>) -> Result<Vec<MountedAt>, SysError> {
    let (_, text) = table(proc)?;
    let shows = |line: &Line<'_>| match shown {
        Shown::Filesystem(device) => line.device == device,
        Shown::Node { filesystem, name } => {
            line.device == filesystem && line.root.strip_prefix('/') == Some(name)
        }
    };
    let lines = text.lines().filter_map(parse).filter(shows);
    let mounts = lines.map(|line| MountedAt {
        id: line.id,
        path: unescaped(line.place),
    });
    Ok(mounts.collect())
}

/// The table writes a blank, a tab, a newline and a backslash as `\` and three octal digits.
fn unescaped(place: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(place.len());
    let mut rest = place.as_bytes();
    while let [first, tail @ ..] = rest {
        match tail {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if *first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The options of one mount, as the mount table has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Those of the mount: what this driver asked for.
    pub mount: String,
    /// Those of the filesystem: what the kernel has made of it since.
    pub filesystem: String,
}

impl Options {
    /// Whether the mount was made read-only.
    pub fn mount_is_read_only(&self) -> bool {
        self.mount.split(',').any(|option| option == "ro")
    }

    /// Whether the filesystem refuses writes; `emergency_ro` is what ext4 says from Linux 6.14 on.
    pub fn filesystem_is_read_only(&self) -> bool {
        let mut options = self.filesystem.split(',');
        options.any(|option| matches!(option, "ro" | "emergency_ro" | "shutdown"))
    }
}

/// The options of the mount on `name` in `parent`; nothing is asked of its filesystem. Reads the whole
/// table: not for the publish path.
pub fn options_at(proc: &Path, parent: BorrowedFd<'_>, name: &OsStr) -> Result<Options, SysError> {
    let opened = open_at(parent, name)?;
    let id = mount_id(&opened).ok_or_else(|| {
        SysError::new("read", "/proc/self/fdinfo", Errno::EBADMSG).with_detail("it has no mnt_id")
    })?;
    line_of(proc, id, |line| Options {
        mount: line.options.to_owned(),
        filesystem: line.super_options.to_owned(),
    })
}

fn line_of<T>(proc: &Path, id: u64, take: impl Fn(&Line<'_>) -> T) -> Result<T, SysError> {
    let (path, text) = table(proc)?;
    let mut lines = text.lines().filter_map(parse);
    lines
        .find(|line| line.id == id)
        .map(|line| take(&line))
        .ok_or_else(|| {
            SysError::new("read", path.display(), Errno::ENOENT)
                .with_detail(format!("it has no mount {id}"))
        })
}

/// Whether the mount that `path` lies on is in a shared peer group (`shared:N` in
/// `<proc>/self/mountinfo`). Reads the whole table: start-up only.
pub fn is_shared(proc: &Path, path: &Path) -> Result<bool, SysError> {
    line_of(proc, mount_id_of(path)?, |line| line.shared)
}

/// The type of the filesystem that `path` lies on, as the mount table names it (`devtmpfs`, `tmpfs`,
/// `ext4`). Reads the whole table: start-up only.
pub fn fs_type(proc: &Path, path: &Path) -> Result<String, SysError> {
    line_of(proc, mount_id_of(path)?, |line| line.fs_type.to_owned())
}

/// The device of a mount of this process.
pub(super) fn device(id: u64) -> Option<DevId> {
    line_of(Path::new("/proc"), id, |line| line.device).ok()
}

/// The ID of the mount that an open descriptor is on (`proc_pid_fdinfo(5)`), without asking the filesystem.
pub(super) fn mount_id(fd: &impl AsFd) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = fs::read_to_string(path).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?
        .trim()
        .parse()
        .ok()
}

/// A descriptor as a path, for the calls that take no descriptor.
pub(super) fn descriptor_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(tags: &str, fs_type: &str) -> (tempfile::TempDir, PathBuf) {
        let proc = tempfile::tempdir().unwrap();
        let id = mount_id_of(proc.path()).unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        let text = format!(
            "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
             {id} 1 0:57 / /a\\040b rw,nosuid{tags} - {fs_type} none rw,mode=755\n"
        );
        fs::write(proc.path().join("self/mountinfo"), text).unwrap();
        let path = proc.path().to_owned();
        (proc, path)
    }

    #[test]
    fn a_line_is_read_with_any_number_of_tags() {
        for (tags, shared) in [
            ("", false),
            (" shared:7", true),
            (" master:3", false),
            (" shared:7 master:3", true),
            (" master:3 shared:7 propagate_from:2", true),
            (" unbindable", false),
        ] {
            let line = format!("36 35 98:3 /a /b\\040c rw,noatime{tags} - ext4 /dev/x rw");
            let expected = Line {
                id: 36,
                device: DevId {
                    major: 98,
                    minor: 3,
                },
                root: "/a",
                place: "/b\\040c",
                options: "rw,noatime",
                super_options: "rw",
                shared,
                fs_type: "ext4",
            };
            assert_eq!(parse(&line), Some(expected), "{line}");
        }
        for junk in [
            "",
            "36 35",
            "x 35 98:3 / / rw - ext4 x rw",
            "36 35 98:3 / / rw shared:1",
            "36 35 98:3 / / rw - ext4 /dev/x",
        ] {
            assert_eq!(parse(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn rule_13_propagation_is_that_of_the_very_mount_a_path_lies_on() {
        let (_keep, proc) = fake(" shared:9", "tmpfs");
        assert!(is_shared(&proc, &proc).unwrap());
        let (_keep, proc) = fake(" master:1", "tmpfs");
        assert!(!is_shared(&proc, &proc).unwrap());
    }

    #[test]
    fn a_path_that_is_not_there_and_a_mount_that_is_not_listed_are_errors() {
        let (_keep, proc) = fake("", "tmpfs");
        assert_eq!(
            is_shared(&proc, &proc.join("none")).unwrap_err().errno,
            Errno::ENOENT
        );
        fs::write(
            proc.join("self/mountinfo"),
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n",
        )
        .unwrap();
        let error = is_shared(&proc, &proc).unwrap_err();
        assert!(error.detail.contains("no mount"), "{error}");
    }

    #[test]
    fn the_type_is_the_tables() {
        let (_keep, proc) = fake(" shared:2", "devtmpfs");
        assert_eq!(fs_type(&proc, &proc).unwrap(), "devtmpfs");
    }

    #[test]
    fn a_device_is_found_wherever_it_is_mounted() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        let text = "1 0 259:1 / /staging rw - ext4 /dev/nvme0n1 rw\n\
                    2 0 259:1 /sub /a\\040b\\134c ro - ext4 /dev/nvme0n1 rw\n\
                    3 0 0:6 / /dev rw - devtmpfs udev rw\n\
                    4 0 0:6 /nvme0n1 /raw rw - devtmpfs udev rw\n\
                    5 0 0:6 /nvme0n1//deleted /old rw - devtmpfs udev rw\n\
                    6 0 0:6 /nvme0n10 /other rw - devtmpfs udev rw\n";
        fs::write(proc.path().join("self/mountinfo"), text).unwrap();
        let places = |shown| {
            let mounts = mounts_of(proc.path(), shown).unwrap();
            mounts.into_iter().map(|m| m.path).collect::<Vec<_>>()
        };
        let id = |major, minor| DevId { major, minor };
        assert_eq!(
            places(Shown::Filesystem(id(259, 1))),
            [PathBuf::from("/staging"), PathBuf::from("/a b\\c")]
        );
        let node = Shown::Node {
            filesystem: id(0, 6),
            name: "nvme0n1",
        };
        assert_eq!(places(node), [PathBuf::from("/raw")]);
        assert!(places(Shown::Filesystem(id(8, 1))).is_empty());
    }

    #[test]
    fn what_the_kernel_made_read_only_is_told_from_what_was_mounted_so() {
        let options = |mount: &str, filesystem: &str| Options {
            mount: mount.into(),
            filesystem: filesystem.into(),
        };
        let remounted = options("rw,relatime", "ro,errors=remount-ro");
        assert!(!remounted.mount_is_read_only() && remounted.filesystem_is_read_only());
        assert!(options("rw", "rw,emergency_ro").filesystem_is_read_only());
        assert!(!options("rw", "rw,errors=remount-ro").filesystem_is_read_only());
        assert!(options("nosuid,ro", "ro").mount_is_read_only());
    }

    #[test]
    fn a_descriptor_and_a_path_give_the_same_mount() {
        let directory = tempfile::tempdir().unwrap();
        let opened = fs::File::open(directory.path()).unwrap();
        assert_eq!(
            mount_id(&opened),
            Some(mount_id_of(directory.path()).unwrap())
        );
    }
}
