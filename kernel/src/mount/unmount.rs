//! Unmounting, within a bound.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use nix::mount::{MntFlags, umount2};

use super::Unmounted;
use super::paths::{component, shown};
use crate::error::{Errno, SysError};

/// Unmounts the top mount on `name` in `parent` by `deadline`. Runs `umount2` on a thread of its
/// own, since a filesystem whose device does not answer holds the caller until it does; past the deadline detaches
/// (`MNT_DETACH`) and says so. Looks at nothing first: a dead mount cannot be looked at (C-47). Never follows a link.
pub fn unmount_at(
    parent: &OwnedFd,
    name: &OsStr,
    deadline: Instant,
) -> Result<Unmounted, SysError> {
    component(parent.as_fd(), name)?;
    let subject = shown(parent.as_fd(), name);
    let place = Place {
        parent: parent
            .try_clone()
            .map_err(|e| SysError::io("dup", std::path::Path::new(&subject), &e))?,
        name: name.to_owned(),
    };
    let (done, outcome) = channel();
    std::thread::Builder::new()
        .name("umount".into())
        .spawn(move || {
            let result = umount2(&place.path(), MntFlags::UMOUNT_NOFOLLOW);
            // Nobody listens any more once the deadline has passed.
            let _ = done.send(result);
        })
        .map_err(|e| SysError::io("clone", std::path::Path::new("umount"), &e))?;
    match outcome.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(())) => Ok(Unmounted::Clean),
        Ok(Err(Errno::EINVAL | Errno::ENOENT)) => Ok(Unmounted::WasNot),
        Ok(Err(errno)) => Err(SysError::new("umount2", subject, errno)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            detach(parent, name, subject)
        }
    }
}

/// Takes a mount that does not come off out of the tree. The stuck call may have done so itself.
fn detach(parent: &OwnedFd, name: &OsStr, subject: String) -> Result<Unmounted, SysError> {
    let path = path_of(parent, name);
    match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(Unmounted::DetachedStillBusy),
        Err(errno) => Err(SysError::new("umount2(MNT_DETACH)", subject, errno)),
    }
}

struct Place {
    parent: OwnedFd,
    name: OsString,
}

impl Place {
    fn path(&self) -> PathBuf {
        path_of(&self.parent, &self.name)
    }
}

/// `umount2` takes paths only: this one begins at the open parent, whatever has become of its own path.
fn path_of(parent: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name)
}
