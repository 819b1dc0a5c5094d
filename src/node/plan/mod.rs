//! What is left to do: pure, from what was asked and what the kernel says.

mod expand;
mod publish;
mod stage;
#[cfg(test)]
mod tests;

use std::path::Path;

use uuid::Uuid;
use zvolt_kernel::mount::Access;

use crate::model::names::{self, Pooled};
use crate::model::publish::Target;
use crate::ops::Step as Named;

use super::observe::{Link, Mounted, Source};
use super::{Error, ErrorKind};

pub(super) use expand::expand;
pub(super) use publish::{publish, unpublish};
pub(super) use stage::{stage, unstage};

/// A step of a node plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Waits until an existing controller that is not live is live again, or gone.
    AwaitController,
    /// One write to `/dev/nvme-fabrics`.
    Connect,
    /// Waits for the uevent of the namespace with the volume's UUID.
    AwaitNamespace,
    /// Waits for the device of a zvol of this machine.
    AwaitZvol,
    /// Rule 3: the right device or none.
    Verify,
    /// Keeps requests within what the target takes.
    BoundRequests,
    /// Makes the kernel refuse writes to a zvol of this machine, or take them again.
    SetAccess(Access),
    /// Makes the directory that is mounted on.
    MakeDirectory,
    /// Makes the file that a device's node is bound onto.
    MakeFile,
    /// Mounts the filesystem.
    Attach,
    /// Binds the staged mount onto the target.
    Bind(Access),
    /// Binds the device's node onto the target.
    BindNode(Access),
    /// Waits until the device has the size that it is to have.
    AwaitSize,
    /// Grows the filesystem to its device.
    Grow,
    /// Unmounts, within the deadline.
    Detach,
    /// Sees that nothing else uses the volume's device.
    Released(String),
    /// Writes what the page cache still holds for the volume's device.
    Flush(String),
    /// The same for the volume's zvol on this machine, and forgets what was read from it.
    FlushZvol,
    /// Deletes these controllers and sees them gone.
    Disconnect(Vec<String>),
    /// Removes the empty directory that was mounted on.
    RemoveDirectory,
    /// Removes the empty file that was bound onto.
    RemoveFile,
}

impl Named for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::AwaitController => "controller.await",
            Self::Connect => "fabrics.connect",
            Self::AwaitNamespace => "namespace.await",
            Self::AwaitZvol => "zvol.await",
            Self::Verify => "device.verify",
            Self::BoundRequests => "queue.bound",
            Self::SetAccess(_) => "zvol.access",
            Self::MakeDirectory => "directory.make",
            Self::MakeFile => "file.make",
            Self::Attach => "mount.attach",
            Self::Bind(_) | Self::BindNode(_) => "mount.bind",
            Self::AwaitSize => "size.await",
            Self::Grow => "filesystem.grow",
            Self::Detach => "mount.detach",
            Self::Released(_) => "device.released",
            Self::Flush(_) => "device.flush",
            Self::FlushZvol => "zvol.flush",
            Self::Disconnect(_) => "fabrics.disconnect",
            Self::RemoveDirectory => "directory.remove",
            Self::RemoveFile => "file.remove",
        }
    }
}

/// A publish context is of this volume, or it is none of ours.
fn belongs(volume: &str, target: &Target) -> Result<(), Error> {
    let refuse = |key: &str, value: &str, what: &str| {
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "publish_context {key:?} is {value}, which is not the {what} of volume {volume}"
            ),
        ))
    };
    let is_subsystem = match Pooled::parse(&target.nqn) {
        // Whose namespace it is, in a subsystem that is for many, its NGUID says.
        Some(pooled) => pooled.owner == target.owner_node,
        None => target.nqn == names::subsystem_nqn(volume),
    };
    if !is_subsystem {
        return refuse("nqn", &target.nqn, "subsystem");
    }
    if is_pooled(target) && names::tag_of(&target.nguid) != names::tag(volume) {
        let nguid = Uuid::from_bytes(target.nguid).simple().to_string();
        return refuse("nguid", &nguid, "namespace");
    }
    if names::handle_of_zvol(&target.dataset) != Some(volume) {
        return refuse("dataset", &target.dataset, "zvol");
    }
    Ok(())
}

/// Whether the volume is in a subsystem with others: its controller is theirs too, and is never taken from them.
pub(super) fn is_pooled(target: &Target) -> bool {
    Pooled::parse(&target.nqn).is_some()
}

/// Rule 5: a raw device is read-only by itself, or it is not: no bind of it can hold that.
fn device_access(volume: &str, access: Access, target: &Target) -> Result<(), Error> {
    if access == Access::ReadWrite || target.read_only.is_set() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "volume {volume} is a raw device that this node may write to, and one publish of it alone cannot be read-only: \
             ask for readonly, or for a reader's access mode, in ControllerPublishVolume (in Kubernetes, readOnly of the \
             PersistentVolume's csi source, or ReadOnlyMany)"
        ),
    ))
}

/// Whether this is the volume, or what is left of some volume whose device is gone: nobody can say of
/// which, but it is on a path that is this volume's.
fn is_ours_or_gone(mounted: &Mounted, volume: &str) -> bool {
    match &mounted.source {
        Source::Volume(found) => found.owner.is(volume),
        Source::Gone => true,
        Source::Foreign => false,
    }
}

fn describe(source: &Source) -> String {
    match source {
        Source::Volume(found) => match &found.link {
            Link::Fabric { namespace, .. } => match namespace.uuid {
                Some(uuid) => format!("{}, NVMe namespace {uuid}", found.owner),
                None => found.owner.to_string(),
            },
            Link::Local { dataset } => format!("{}, zvol {dataset}", found.owner),
        },
        Source::Gone => "a device that is gone".into(),
        Source::Foreign => "something that is no volume of ours".into(),
    }
}

/// Paths for a message: the first few of them.
fn listed(paths: &[std::path::PathBuf]) -> String {
    let shown: Vec<_> = paths
        .iter()
        .take(3)
        .map(|p| p.display().to_string())
        .collect();
    match paths.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn no_directory(what: &str, path: &Path) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{what} {} is no directory", path.display()),
    )
}

fn precondition(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::FailedPrecondition, message)
}
