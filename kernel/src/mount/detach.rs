//! Unmounting, with an end to the waiting.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::paths::{open_entry, state_at};
use super::{Unmounted, entry, failed_at, info};
use crate::error::SysError;

/// Unmounts the top mount on `name` in `parent` by `deadline`. Runs `umount2` on a thread of its
/// own; past the deadline detaches (`MNT_DETACH`) and says so. Never follows a link.
///
/// Nothing is asked of the filesystem before the unmount (C-47). `EBUSY` when something in it is
/// open; `ETIMEDOUT`, and nothing done, when the deadline has passed already.
pub fn unmount_at(
    parent: &OwnedFd,
    name: &OsStr,
    deadline: Instant,
) -> Result<Unmounted, SysError> {
    entry("umount2", name)?;
    let failed = |call, errno| failed_at(call, parent.as_fd(), name, errno);
    if Instant::now() >= deadline {
        return Err(failed("umount2", Errno::TIMEDOUT)
            .with_detail("the deadline had passed before the unmount"));
    }
    // The thread may outlive this call: what it works on is its own.
    let own_parent = parent
        .try_clone()
        .map_err(|e| SysError::io("fcntl(F_DUPFD_CLOEXEC)", &info::descriptor_path(parent), &e))?;
    let path = info::descriptor_path(&own_parent).join(name);
    let before = mount_id_at(parent, name);
    let (answer, answered) = channel();
    spawn("umount", move || {
        let outcome = unmount(&path, UnmountFlags::NOFOLLOW);
        drop(own_parent);
        // The receiver is gone when the deadline was faster.
        let _ = answer.send(outcome);
    })?;
    match answered.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(())) => Ok(Unmounted::Clean),
        Ok(Err(Errno::NOENT)) => Ok(Unmounted::WasNot),
        // Also said of a mount that cannot be taken off, locked by a user namespace.
        Ok(Err(Errno::INVAL)) => match state_at(parent.as_fd(), name)? {
            Some(state) if state.is_mount_root => Err(failed("umount2", Errno::INVAL)),
            _ => Ok(Unmounted::WasNot),
        },
        Ok(Err(errno)) => Err(failed("umount2", errno)),
        Err(RecvTimeoutError::Timeout) => {
            detach(parent, name, before)?;
            Ok(Unmounted::DetachedStillBusy)
        }
        Err(RecvTimeoutError::Disconnected) => Err(failed("umount2", Errno::CANCELED)),
    }
}

/// Takes the mount off its place without waiting for its filesystem.
///
/// The kernel takes a mount off first and then waits for the filesystem, so there is mostly nothing
/// left to do. The mount below, if any, is another one and stays.
fn detach(parent: &OwnedFd, name: &OsStr, mount: Option<u64>) -> Result<(), SysError> {
    let failed = |call, errno| failed_at(call, parent.as_fd(), name, errno);
    if mount.is_none() || mount_id_at(parent, name) != mount {
        return Ok(());
    }
    // Held open, the filesystem cannot end in the call below, only in the thread that lets it go.
    let held = open_entry(parent.as_fd(), name).map_err(|e| failed("openat", e))?;
    let path: PathBuf = info::descriptor_path(parent).join(name);
    let outcome = unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
    spawn("umount", move || drop(held))?;
    match outcome {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("umount2(MNT_DETACH)", errno)),
    }
}

/// The ID of the mount on `name` in `parent`, `None` where nothing is mounted; nothing is asked of its
/// filesystem.
pub fn mount_id_at(parent: &OwnedFd, name: &OsStr) -> Option<u64> {
    let entry = open_entry(parent.as_fd(), name).ok()?;
    let id = info::mount_id(&entry)?;
    (info::mount_id(parent)? != id).then_some(id)
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), SysError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .map_err(|e| SysError::io("clone3", name.as_ref(), &e))
}
