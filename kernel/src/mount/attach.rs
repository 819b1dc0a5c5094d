//! Making mounts: filesystems and binds.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::{Access, FsMount, entry, errno_of, failed_at, ffi, full_path, info};
use crate::error::SysError;

/// What an option of the caller is.
#[derive(Debug, PartialEq, Eq)]
enum Setting<'a> {
    /// An attribute of the mount.
    Attribute(MountAttrFlags),
    /// `fsconfig(FSCONFIG_SET_FLAG)`.
    Flag(&'a str),
    /// `fsconfig(FSCONFIG_SET_STRING)`.
    Text(&'a str, &'a str),
    /// Something for `mount(8)` alone.
    Nothing,
}

fn setting(option: &str) -> Result<Setting<'_>, &'static str> {
    Ok(match option {
        "noatime" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOATIME),
        "nodiratime" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        "relatime" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_RELATIME),
        "strictatime" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        "nosuid" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOSUID),
        "nodev" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NODEV),
        "noexec" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOEXEC),
        "nosymfollow" => Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
        "defaults" | "_netdev" | "nofail" => Setting::Nothing,
        "" => return Err("it is empty"),
        "ro" | "rw" => return Err("whether writes are allowed is not an option here"),
        _ => match option.split_once('=') {
            None => Setting::Flag(option),
            Some(("", _)) => return Err("it has no name"),
            Some(("source", _)) => return Err("the device is not an option here"),
            Some((key, value)) => Setting::Text(key, unquoted(key, value)),
        },
    })
}

/// SELinux contexts come quoted, for the sake of the commas in them; `fsconfig` takes no quotes.
fn unquoted<'a>(key: &str, value: &'a str) -> &'a str {
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    inner.filter(|_| key.ends_with("context")).unwrap_or(value)
}

/// Mounts a filesystem on the directory `name` in `parent`. The kernel's own sentences, read from
/// the fs context after a failure, are in the error's detail.
///
/// `EINVAL` for an option that the filesystem does not know or a superblock that it does not like;
/// `EBUSY` when the device is mounted elsewhere with the other access or held by somebody.
pub fn mount_at(mount: &FsMount<'_>, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    entry("move_mount", name)?;
    let subject = || {
        let at = full_path(parent, name);
        format!(
            "{} of {} on {}",
            mount.fs_type,
            mount.source.display(),
            at.display()
        )
    };
    let mut attributes = MountAttrFlags::empty();
    let mut settings = Vec::with_capacity(mount.options.len());
    for option in mount.options {
        match setting(option) {
            Ok(Setting::Attribute(attribute)) => attributes |= attribute,
            Ok(setting) => settings.push((option, setting)),
            Err(why) => {
                return Err(SysError::new("fsconfig", subject(), Errno::EINVAL)
                    .with_detail(format!("option {option:?}: {why}")));
            }
        }
    }
    if mount.access == Access::ReadOnly {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }

    let context = fsopen(mount.fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| {
        let error = SysError::new("fsopen", subject(), errno_of(errno));
        match error.errno {
            Errno::ENODEV => error.with_detail(format!(
                "the kernel does not know this filesystem: modprobe {}",
                mount.fs_type
            )),
            _ => error,
        }
    })?;
    let failed = |call, about: &str, errno| {
        let words = log_of(&context);
        let detail = match (about.is_empty(), words.is_empty()) {
            (_, true) if call == "fsconfig(create)" => {
                "the kernel log has the reason: dmesg | tail".to_owned()
            }
            (true, _) => words,
            (false, true) => about.to_owned(),
            (false, false) => format!("{about}: {words}"),
        };
        SysError::new(call, subject(), errno_of(errno)).with_detail(detail)
    };
    fsconfig_set_string(context.as_fd(), "source", mount.source)
        .map_err(|e| failed("fsconfig", "source", e))?;
    if mount.access == Access::ReadOnly {
        fsconfig_set_flag(context.as_fd(), "ro").map_err(|e| failed("fsconfig", "ro", e))?;
    }
    for (option, setting) in settings {
        match setting {
            Setting::Flag(key) => fsconfig_set_flag(context.as_fd(), key),
            Setting::Text(key, value) => fsconfig_set_string(context.as_fd(), key, value),
            Setting::Attribute(_) | Setting::Nothing => Ok(()),
        }
        .map_err(|e| failed("fsconfig", &format!("option {option:?}"), e))?;
    }
    fsconfig_create(context.as_fd()).map_err(|e| failed("fsconfig(create)", "", e))?;
    let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|e| failed("fsmount", "", e))?;
    attach(&tree, parent, name)
}

/// Binds what is mounted on `source_name` in `source_parent` onto the directory `name` in `parent`:
/// `open_tree(OPEN_TREE_CLONE)`, `mount_setattr` where `access` asks for it, `move_mount`. `EINVAL` when
/// nothing is mounted there: a pod never gets the directory below in place of its volume (C-100).
/// A read-only bind is never visible as a writable one, not for a moment; a writable bind of a
/// read-only mount is read-only.
pub fn bind_at(
    source_parent: BorrowedFd<'_>,
    source_name: &OsStr,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    access: Access,
) -> Result<(), SysError> {
    entry("open_tree", source_name)?;
    entry("move_mount", name)?;
    let failed = |call, errno| failed_at(call, source_parent, source_name, errno);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(source_parent, source_name, flags, Mode::empty())
        .map_err(|e| failed("openat", e))?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = statx(&source, "", flags, StatxFlags::empty()).map_err(|e| failed("statx", e))?;
    if !seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(
            failed("open_tree", rustix::io::Errno::INVAL).with_detail("nothing is mounted here")
        );
    }
    let tree = clone_of(source.as_fd(), access).map_err(|(call, errno)| failed(call, errno))?;
    attach(&tree, parent, name)
}

/// Binds a device's node, held open (`O_PATH`) and known by its number, onto the file `name` in `parent`.
///
/// The kernel asks a device for its own read-only flag and never the mount; `access` only leaves a mark
/// on the mount that [`super::access_at`] reads.
pub fn bind_node_at(
    node: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    access: Access,
) -> Result<(), SysError> {
    entry("move_mount", name)?;
    let tree = clone_of(node, access)
        .map_err(|(call, errno)| SysError::new(call, node_path(node).display(), errno_of(errno)))?;
    attach(&tree, parent, name)
}

fn node_path(node: BorrowedFd<'_>) -> PathBuf {
    let link = info::descriptor_path(node);
    std::fs::read_link(&link).unwrap_or(link)
}

/// A detached mount of what is open, with its access set before anybody can see it.
fn clone_of(
    source: BorrowedFd<'_>,
    access: Access,
) -> Result<OwnedFd, (&'static str, rustix::io::Errno)> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, "", flags).map_err(|e| ("open_tree", e))?;
    if access == Access::ReadOnly {
        ffi::set_read_only(tree.as_fd()).map_err(|errno| {
            let errno = rustix::io::Errno::from_raw_os_error(errno as i32);
            ("mount_setattr", errno)
        })?;
    }
    Ok(tree)
}

/// The one call that makes a mount visible. The last component is not followed when it is a link.
fn attach(tree: &OwnedFd, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    move_mount(
        tree,
        "",
        parent,
        name,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(|errno| failed_at("move_mount", parent, name, errno))
}

/// What the kernel had to say about a failed fs context: one message a read, each with a letter and
/// a space before it (`e ext4: Unknown parameter 'x'`), `ENODATA` after the last.
fn log_of(context: &OwnedFd) -> String {
    let mut words = String::new();
    let mut message = [0; 1024];
    while let Ok(length) = rustix::io::read(context, &mut message) {
        let text = String::from_utf8_lossy(&message[..length]);
        let text = text.trim();
        if text.is_empty() {
            break;
        }
        if !words.is_empty() {
            words.push_str("; ");
        }
        words.push_str(text.split_once(' ').map_or(text, |(_, sentence)| sentence));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_an_attribute_a_flag_or_a_string() {
        for (option, expected) in [
            (
                "noatime",
                Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOATIME),
            ),
            (
                "nosuid",
                Setting::Attribute(MountAttrFlags::MOUNT_ATTR_NOSUID),
            ),
            ("nouuid", Setting::Flag("nouuid")),
            ("logbsize=64k", Setting::Text("logbsize", "64k")),
            ("data=a=b,c", Setting::Text("data", "a=b,c")),
            ("_netdev", Setting::Nothing),
        ] {
            assert_eq!(setting(option), Ok(expected), "{option}");
        }
    }

    #[test]
    fn a_selinux_context_loses_its_quotes_and_keeps_its_commas() {
        let context = "system_u:object_r:container_file_t:s0:c1,c2";
        assert_eq!(
            setting(&format!("context=\"{context}\"")),
            Ok(Setting::Text("context", context))
        );
        assert_eq!(
            setting("usrjquota=\"x\""),
            Ok(Setting::Text("usrjquota", "\"x\""))
        );
    }

    #[test]
    fn rule_05_no_option_says_whether_writes_are_allowed() {
        for option in ["ro", "rw", "", "=x", "source=/dev/sda"] {
            assert!(setting(option).is_err(), "{option:?}");
        }
    }
}
