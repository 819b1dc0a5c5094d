//! The steps of a node plan, each one kernel interface.

mod attach;
mod expand;
mod queue;
mod verify;

use std::os::fd::AsFd;
use std::time::Instant;

use zvolt_kernel::block::{self, DevId};
use zvolt_kernel::error::Errno;
use zvolt_kernel::mount::{self, Access, Unmounted};
use zvolt_kernel::nvme;

use super::bounded::bounded;
use super::observe::{Attach, Volume};
use super::paths::Place;
use super::plan::Step;
use super::zvols::Zvol;
use super::{Error, ErrorKind, ExpandRequest, Node, PublishRequest, StageRequest};

use attach::Staging;
use expand::Expanding;
use verify::{Verified, Wanted};

/// Runs the steps of one plan.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    node: &'a Node,
    deadline: Instant,
    /// Where something is mounted or taken off; none when the path is gone.
    place: Option<&'a Place>,
    work: Work<'a>,
}

/// What the plan works on.
#[derive(Debug)]
enum Work<'a> {
    Stage(Box<Staging<'a>>),
    Publish(Publishing<'a>),
    Expand(Expanding<'a>),
    Teardown { zvol: Option<Zvol> },
}

/// What a publish learns on its way.
#[derive(Debug)]
struct Publishing<'a> {
    request: &'a PublishRequest,
    staging: &'a Place,
    attach: Attach,
    device: Option<DevId>,
    verified: Option<Verified>,
}

impl<'a> Runner<'a> {
    pub(super) fn stage(
        node: &'a Node,
        request: &'a StageRequest,
        attach: Attach,
        place: &'a Place,
        deadline: Instant,
    ) -> Self {
        let staging = Staging::new(node, request, attach, place);
        Self {
            node,
            deadline,
            place: Some(place),
            work: Work::Stage(Box::new(staging)),
        }
    }

    pub(super) fn publish(
        node: &'a Node,
        request: &'a PublishRequest,
        (staging, target): (&'a Place, &'a Place),
        (attach, device): (Attach, Option<DevId>),
        deadline: Instant,
    ) -> Self {
        Self {
            node,
            deadline,
            place: Some(target),
            work: Work::Publish(Publishing {
                request,
                staging,
                attach,
                device,
                verified: None,
            }),
        }
    }

    pub(super) fn expand(
        node: &'a Node,
        request: &'a ExpandRequest,
        place: &'a Place,
        volume: &'a Volume,
        deadline: Instant,
    ) -> Self {
        Self {
            node,
            deadline,
            place: Some(place),
            work: Work::Expand(Expanding::new(node, request, volume)),
        }
    }

    pub(super) fn teardown(
        node: &'a Node,
        place: Option<&'a Place>,
        zvol: Option<Zvol>,
        deadline: Instant,
    ) -> Self {
        Self {
            node,
            deadline,
            place,
            work: Work::Teardown { zvol },
        }
    }

    pub(super) fn run(&mut self, step: &Step) -> Result<(), Error> {
        let (node, deadline) = (self.node, self.deadline);
        match (&mut self.work, step, self.place) {
            (Work::Stage(s), Step::AwaitController, _) => s.await_controller(node, deadline),
            (Work::Stage(s), Step::Connect, _) => s.connect(node),
            (Work::Stage(s), Step::AwaitNamespace, _) => s.await_namespace(node, deadline),
            (Work::Stage(s), Step::AwaitZvol, _) => s.await_zvol(node, deadline),
            (Work::Stage(s), Step::Verify, _) => s.verify(node),
            (Work::Stage(s), Step::BoundRequests, _) => s.bound_requests(node, deadline),
            (Work::Stage(s), Step::SetAccess(access), _) => s.set_access(*access),
            (Work::Stage(s), Step::Attach, _) => s.mount(deadline),
            (Work::Stage(s), Step::Grow, _) => s.grow(node),
            (Work::Publish(p), Step::Verify, _) => p.verify(node),
            (Work::Publish(p), Step::Bind(access), Some(target)) => p.bind(target, *access),
            (Work::Publish(p), Step::BindNode(access), Some(target)) => {
                p.bind_node(target, *access)
            }
            (Work::Expand(e), Step::AwaitSize, _) => e.await_size(node, deadline),
            (Work::Expand(_), Step::Grow, Some(place)) => expand::grow(node, place, None),
            (Work::Teardown { zvol: Some(zvol) }, Step::SetAccess(access), _) => {
                set_access(node, zvol, *access)
            }
            (Work::Teardown { zvol: Some(zvol) }, Step::FlushZvol, _) => {
                flush_device(node, zvol.id, deadline)
            }
            (_, Step::MakeDirectory, Some(place)) => {
                Ok(mount::make_dir(place.parent.as_fd(), &place.name)?)
            }
            (_, Step::MakeFile, Some(place)) => {
                Ok(mount::make_file(place.parent.as_fd(), &place.name)?)
            }
            (_, Step::Detach, Some(place)) => detach(place, deadline),
            (_, Step::RemoveDirectory, Some(place)) => {
                Ok(mount::remove_dir(place.parent.as_fd(), &place.name)?)
            }
            (_, Step::RemoveFile, Some(place)) => {
                Ok(mount::remove_file(place.parent.as_fd(), &place.name)?)
            }
            (_, Step::Released(volume), _) => released(node, volume),
            (_, Step::Flush(volume), _) => flush(node, volume, deadline),
            (_, Step::Disconnect(controllers), _) => disconnect(node, controllers),
            (work, step, _) => Err(Error::new(
                ErrorKind::Internal,
                format!("{step:?} is no step of {work:?}"),
            )),
        }
    }

    /// The controller that this plan has made, when it must be taken back.
    pub(super) fn connected(&self) -> Option<&str> {
        match &self.work {
            Work::Stage(staging) => staging.to_take_back(),
            _ => None,
        }
    }

    /// Whether the step that has just failed is to be tried again, with fewer queues (C-55).
    pub(super) fn has_fewer_queues(&self) -> bool {
        matches!(&self.work, Work::Stage(staging) if staging.try_fewer_queues)
    }

    /// The size of an expanded volume's device, in bytes.
    pub(super) fn capacity(&self) -> u64 {
        match &self.work {
            Work::Expand(expanding) => expanding.capacity,
            _ => 0,
        }
    }
}

impl Publishing<'_> {
    fn verify(&mut self, node: &Node) -> Result<(), Error> {
        let wanted = Wanted {
            volume: &self.request.volume,
            target: &self.request.target,
            attach: self.attach,
        };
        let device = self
            .device
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the device was not found"))?;
        let verified = wanted.verify(node, device)?;
        wanted.has_its_access(&verified)?;
        self.verified = Some(verified);
        Ok(())
    }

    fn bind(&self, target: &Place, access: Access) -> Result<(), Error> {
        Ok(mount::bind_at(
            self.staging.parent.as_fd(),
            &self.staging.name,
            target.parent.as_fd(),
            &target.name,
            access,
        )?)
    }

    /// The node that was verified, by its descriptor: its name is not looked up a second time.
    fn bind_node(&self, target: &Place, access: Access) -> Result<(), Error> {
        let verified = self
            .verified
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the device was not verified"))?;
        let node = verified.node.fd.as_fd();
        Ok(mount::bind_node_at(
            node,
            target.parent.as_fd(),
            &target.name,
            access,
        )?)
    }
}

/// What was refused on this zvol is allowed again. One that stays read-only is so by its own property.
fn set_access(node: &Node, zvol: &Zvol, access: Access) -> Result<(), Error> {
    let roots = &node.config.roots;
    let found = block::node(&roots.sys, &roots.dev, zvol.id)?;
    block::set_access(&found.open()?, &found.path, access)?;
    Ok(())
}

/// Rule 10: bounded, then detached lazily, then reported.
fn detach(place: &Place, deadline: Instant) -> Result<(), Error> {
    match mount::unmount_at(&place.parent, &place.name, deadline) {
        Ok(Unmounted::Clean | Unmounted::WasNot) => Ok(()),
        Ok(Unmounted::DetachedStillBusy) => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "{} was detached, but its filesystem still waits for the target with data to write: bring the \
                 storage host back and call again",
                place.path.display()
            ),
        )),
        Err(error) if error.errno == Errno::EBUSY => Err(Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "{error}; something uses it: fuser -vm {}",
                place.path.display()
            ),
        )),
        Err(error) => Err(error.into()),
    }
}

/// A device that another mount still uses keeps its controller: cutting it would lose what is not
/// written yet.
fn released(node: &Node, volume: &str) -> Result<(), Error> {
    for block in node.devices.blocks(volume) {
        let path = node.config.roots.dev.join(&block);
        if block::is_held(&path)? {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "{} is still in use, by another mount (NodeUnpublishVolume comes first) or another mount \
                     namespace: grep -l ' {} ' /proc/*/mountinfo",
                    path.display(),
                    path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// A raw device has no unmount that would write what is left: whoever had it open may have closed it, or may
/// not. With a dead target this ends by the deadline, and the controller stays.
fn flush(node: &Node, volume: &str, deadline: Instant) -> Result<(), Error> {
    for block in node.devices.blocks(volume) {
        let roots = &node.config.roots;
        if let Some(id) = block::number(&roots.sys, &block)? {
            flush_device(node, id, deadline)?;
        }
    }
    Ok(())
}

fn flush_device(node: &Node, id: DevId, deadline: Instant) -> Result<(), Error> {
    let roots = &node.config.roots;
    let device = block::node(&roots.sys, &roots.dev, id)?;
    let path = device.path.clone();
    let flushed = bounded("flush", deadline, move || {
        block::flush(&device.open()?, &device.path)
    })?;
    match flushed {
        // Gone with its last controller: there is nothing to write to any more.
        Some(Err(error)) if matches!(error.errno, Errno::ENXIO | Errno::ENODEV) => Ok(()),
        Some(outcome) => Ok(outcome?),
        None => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "{} still has data that is not taken: bring the storage host back and call again",
                path.display()
            ),
        )),
    }
}

/// C-45: unstage succeeds only once the controllers are gone from sysfs.
pub(super) fn disconnect(node: &Node, controllers: &[String]) -> Result<(), Error> {
    let sys = &node.config.roots.sys;
    for name in controllers {
        nvme::delete(sys, name)?;
        if let Some(left) = nvme::controller(sys, name)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{name} was deleted but is still there, in state {}: call again",
                    left.state
                ),
            ));
        }
    }
    Ok(())
}
