//! The mount table (`proc_pid_mountinfo(5)`), by mount ID.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::paths::mount_id_of;
use crate::block::DevId;
use crate::error::SysError;

/// One line of the table, as far as it is needed here.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    id: u64,
    device: DevId,
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
    let mut tags = fields.by_ref().skip(3).take_while(|field| *field != "-");
    let shared = tags.any(|tag| tag.starts_with("shared:"));
    // `any` stops at its find, before the dash.
    if shared {
        fields.by_ref().find(|field| *field == "-")?;
    }
    Some(Line {
        id,
        device,
        shared,
        fs_type: fields.next()?,
    })
}

fn table(proc: &Path) -> Result<(PathBuf, String), SysError> {
    let path = proc.join("self/mountinfo");
    let text = fs::read(&path).map_err(|e| SysError::io("read", &path, &e))?;
    Ok((path, String::from_utf8_lossy(&text).into_owned()))
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
    fn a_descriptor_and_a_path_give_the_same_mount() {
        let directory = tempfile::tempdir().unwrap();
        let opened = fs::File::open(directory.path()).unwrap();
        assert_eq!(
            mount_id(&opened),
            Some(mount_id_of(directory.path()).unwrap())
        );
    }
}
