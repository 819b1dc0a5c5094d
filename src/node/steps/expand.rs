//! Growth: the device's, which is waited for, and the filesystem's.

use std::os::fd::AsFd;
use std::time::Instant;

use zvolt_kernel::{block, format, mount, nvme};

use super::super::observe::{Link, Volume};
use super::super::paths::Place;
use super::super::waiters::Waiter;
use super::super::{Error, ErrorKind, ExpandRequest, Node};

/// What a filesystem may leave of its device: a last group that is too small to use. ext4's groups are of 128 MiB with
/// blocks of 4 KiB; XFS leaves less.
const LEFT_OVER: u64 = 128 << 20;

/// What an expand learns on its way.
#[derive(Debug)]
pub(super) struct Expanding<'a> {
    request: &'a ExpandRequest,
    volume: &'a Volume,
    disk: Waiter<String>,
    /// The device's size in bytes, read back.
    pub(super) capacity: u64,
}

impl<'a> Expanding<'a> {
    /// The waiter is registered here, before the size is looked at.
    pub(super) fn new(node: &Node, request: &'a ExpandRequest, volume: &'a Volume) -> Self {
        Self {
            request,
            volume,
            disk: node.devices.watch_disk(&volume.block),
            capacity: 0,
        }
    }

    /// The kernel tells of a new size by itself, after an event from the target (C-36) or from ZFS; a rescan is
    /// asked for once, in case the event was lost (C-33).
    pub(super) fn await_size(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
        let sys = &node.config.roots.sys;
        let mut rescanned = false;
        loop {
            let Some(extent) = block::extent(sys, &self.volume.block)? else {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("/dev/{} is gone: call again", self.volume.block),
                ));
            };
            if extent.bytes >= self.request.required_bytes {
                self.capacity = extent.bytes;
                return self.is_within_the_limit();
            }
            if !rescanned {
                rescanned = true;
                self.rescan(node)?;
            }
            if !self.disk.news(deadline) {
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!(
                        "/dev/{} has {} bytes, and volume {} is to have {}: the controller's half of the expansion is \
                         missing (ControllerExpandVolume), or the target has not told of it (revalidate_size of its \
                         namespace)",
                        self.volume.block,
                        extent.bytes,
                        self.request.volume,
                        self.request.required_bytes
                    ),
                ));
            }
        }
    }

    fn rescan(&self, node: &Node) -> Result<(), Error> {
        let Link::Fabric { controllers, .. } = &self.volume.link else {
            return Ok(()); // ZFS sets the size of its own device
        };
        for controller in controllers.iter().filter(|c| c.state == "live") {
            nvme::rescan(&node.config.roots.sys, &controller.name)?;
        }
        Ok(())
    }

    fn is_within_the_limit(&self) -> Result<(), Error> {
        match self.request.limit_bytes {
            Some(limit) if self.capacity > limit => Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "volume {} has {} bytes, more than limit_bytes={limit}, and never shrinks",
                    self.request.volume, self.capacity
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Grows what is mounted on `place` to its device, and reads its size back (rule 9). `known` is the size that its
/// superblock has, where that was read already. Never shrinks, and does nothing when nothing is to be done.
pub(super) fn grow(node: &Node, place: &Place, known: Option<u64>) -> Result<(), Error> {
    let roots = &node.config.roots;
    let Some(state) = mount::state_at(place.parent.as_fd(), &place.name)? else {
        return Err(gone(place));
    };
    let name = block::kernel_name(&roots.sys, state.dev)?;
    let Some(extent) = block::extent(&roots.sys, &name)? else {
        return Err(gone(place));
    };
    if known.is_some_and(|size| size >= extent.bytes) {
        return Ok(());
    }
    let device = block::node(&roots.sys, &roots.dev, state.dev)?;
    let root = mount::open_root(place.parent.as_fd(), &place.name)?;
    let kind = format::mounted_kind(root.as_fd(), &place.path)?;
    let size = format::grow(kind, root.as_fd(), &device.path, extent.bytes)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    if size.saturating_add(LEFT_OVER) > extent.bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Internal,
        format!(
            "the {} on {} has {size} bytes after it was grown, and {} has {}: call again; dmesg may have the reason",
            kind.name(),
            place.path.display(),
            device.path.display(),
            extent.bytes
        ),
    ))
}

fn gone(place: &Place) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "what was mounted on {} is gone: call again",
            place.path.display()
        ),
    )
}
