//! Mounting a filesystem, and binding what is mounted somewhere else.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_path, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree,
};

use super::paths::{component, failed, shown};
use super::{Access, FsMount, ffi};
use crate::error::SysError;

/// Mounts a filesystem on the directory `name` in `parent`. The kernel's own sentences, read from
/// the fs context after a failure, are in the error's detail.
pub fn mount_at(mount: &FsMount<'_>, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    component(parent, name)?;
    let context = fsopen(mount.fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| {
        failed("fsopen", mount.fs_type, e)
            .with_detail(format!("is the module {} there?", mount.fs_type))
    })?;
    let configured = |call, subject: &str, outcome: rustix::io::Result<()>| {
        outcome.map_err(|e| failed(call, subject, e).with_detail(sentences(&context)))
    };
    let source = mount.source.display().to_string();
    configured(
        "fsconfig source",
        &source,
        set_source(context.as_fd(), mount.source),
    )?;
    let mut attributes = MountAttrFlags::empty();
    if mount.access == Access::ReadOnly {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        configured(
            "fsconfig ro",
            &source,
            fsconfig_set_flag(context.as_fd(), "ro"),
        )?;
    }
    for option in mount.options {
        if let Some(attribute) = attribute_of(option) {
            attributes |= attribute;
            continue;
        }
        let outcome = match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(context.as_fd(), key, value),
            None => fsconfig_set_flag(context.as_fd(), option.as_str()),
        };
        configured("fsconfig", option, outcome)?;
    }
    configured("fsconfig create", &source, fsconfig_create(context.as_fd()))?;
    let detached = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|e| failed("fsmount", &source, e).with_detail(sentences(&context)))?;
    attach(&detached, parent, name)
}

/// Binds what is mounted on `source_name` in `source_parent` onto the directory `name` in `parent`:
/// `open_tree(OPEN_TREE_CLONE)`, `mount_setattr` for a read-only bind, `move_mount`. A read-only bind
/// is never visible as a writable one, not for a moment.
pub fn bind_at(
    source_parent: BorrowedFd<'_>,
    source_name: &OsStr,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    access: Access,
) -> Result<(), SysError> {
    component(source_parent, source_name)?;
    component(parent, name)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let clone = open_tree(source_parent, source_name, flags)
        .map_err(|e| failed("open_tree", shown(source_parent, source_name), e))?;
    if access == Access::ReadOnly {
        ffi::set_read_only(clone.as_fd()).map_err(|errno| {
            SysError::new("mount_setattr", shown(source_parent, source_name), errno)
        })?;
    }
    attach(&clone, parent, name)
}

fn attach(detached: &OwnedFd, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), SysError> {
    // Without MOVE_MOUNT_T_SYMLINKS a link at the target is not followed.
    move_mount(
        detached,
        "",
        parent,
        name,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(|e| failed("move_mount", shown(parent, name), e))
}

fn set_source(context: BorrowedFd<'_>, source: &Path) -> rustix::io::Result<()> {
    fsconfig_set_string(context, "source", source).or_else(|e| match e {
        // A few filesystems take their source as a path only.
        rustix::io::Errno::INVAL => fsconfig_set_path(context, "source", source, rustix::fs::CWD),
        other => Err(other),
    })
}

/// The generic options, which are the mount's and not the filesystem's.
fn attribute_of(option: &str) -> Option<MountAttrFlags> {
    Some(match option {
        "noatime" => MountAttrFlags::MOUNT_ATTR_NOATIME,
        "strictatime" => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        "relatime" => MountAttrFlags::MOUNT_ATTR_RELATIME,
        "nodiratime" => MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        "nosuid" => MountAttrFlags::MOUNT_ATTR_NOSUID,
        "nodev" => MountAttrFlags::MOUNT_ATTR_NODEV,
        "noexec" => MountAttrFlags::MOUNT_ATTR_NOEXEC,
        "nosymfollow" => MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW,
        _ => return None,
    })
}

/// What the kernel has to say of an fs context: one message a read (`fscontext_read`), until there
/// is none (`ENODATA`).
fn sentences(context: &OwnedFd) -> String {
    let mut said = Vec::new();
    let mut buffer = [0_u8; 1024];
    while let Ok(length) = rustix::io::read(context, &mut buffer) {
        if length == 0 {
            break;
        }
        said.push(
            String::from_utf8_lossy(&buffer[..length])
                .trim_end()
                .to_owned(),
        );
    }
    said.join("; ")
}
