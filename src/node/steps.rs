//! The steps of a node plan, each one kernel interface.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use uuid::Uuid;
use zvolt_kernel::block;
use zvolt_kernel::error::Errno;
use zvolt_kernel::mount::{self, Access, FsMount, Unmounted};
use zvolt_kernel::nvme::{self, ConnectOptions, Transport};
use zvolt_kernel::probe::{self, Content, FsKind};

use crate::model::names;
use crate::model::publish;
use crate::model::volume::FsType;

use super::devices::Waiter;
use super::paths::Place;
use super::plan::Step;
use super::{Error, ErrorKind, Node, StageRequest};

/// Largest request, in KiB: a quarter of what nvmet-tcp takes at most, so that the target's scatter list
/// is a small allocation.
const MAX_REQUEST_KIB: u32 = 1024;

/// Runs the steps of one plan.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    node: &'a Node,
    deadline: Instant,
    work: Work<'a>,
}

/// What the plan works on.
#[derive(Debug)]
enum Work<'a> {
    Stage(Staging<'a>),
    Publish {
        staging: &'a Place,
        target: &'a Place,
    },
    Teardown {
        place: Option<&'a Place>,
    },
}

/// What a stage learns on its way.
#[derive(Debug)]
struct Staging<'a> {
    request: &'a StageRequest,
    place: &'a Place,
    namespaces: Waiter,
    controllers: Waiter,
    /// Made by this very plan.
    connected: Option<String>,
    device: Option<PathBuf>,
}

impl<'a> Runner<'a> {
    /// The waiters are registered here, before any step acts: no uevent can be missed.
    pub(super) fn stage(
        node: &'a Node,
        request: &'a StageRequest,
        place: &'a Place,
        deadline: Instant,
    ) -> Self {
        let work = Work::Stage(Staging {
            request,
            place,
            namespaces: node.devices.watch_namespace(request.target.namespace_uuid),
            controllers: node.devices.watch_controllers(&request.target.nqn),
            connected: None,
            device: None,
        });
        Self {
            node,
            deadline,
            work,
        }
    }

    pub(super) fn publish(
        node: &'a Node,
        staging: &'a Place,
        target: &'a Place,
        deadline: Instant,
    ) -> Self {
        let work = Work::Publish { staging, target };
        Self {
            node,
            deadline,
            work,
        }
    }

    pub(super) fn teardown(node: &'a Node, place: Option<&'a Place>, deadline: Instant) -> Self {
        let work = Work::Teardown { place };
        Self {
            node,
            deadline,
            work,
        }
    }

    pub(super) fn run(&mut self, step: &Step) -> Result<(), Error> {
        let (node, deadline) = (self.node, self.deadline);
        match (&mut self.work, step) {
            (Work::Stage(s), Step::AwaitController) => s.await_controller(node, deadline),
            (Work::Stage(s), Step::Connect) => s.connect(node),
            (Work::Stage(s), Step::AwaitNamespace) => s.await_namespace(node, deadline),
            (Work::Stage(s), Step::Verify) => s.verify(node),
            (Work::Stage(s), Step::BoundRequests) => s.bound_requests(node),
            (Work::Stage(s), Step::Attach) => s.attach(),
            (
                Work::Stage(Staging { place, .. }) | Work::Publish { target: place, .. },
                Step::MakeDirectory,
            ) => Ok(mount::make_dir(place.parent.as_fd(), &place.name)?),
            (Work::Publish { staging, target }, Step::Bind(access)) => Ok(mount::bind_at(
                staging.parent.as_fd(),
                &staging.name,
                target.parent.as_fd(),
                &target.name,
                *access,
            )?),
            (Work::Teardown { place: Some(place) }, Step::Detach) => detach(place, deadline),
            (Work::Teardown { place: Some(place) }, Step::RemoveDirectory) => {
                Ok(mount::remove_dir(place.parent.as_fd(), &place.name)?)
            }
            (Work::Teardown { .. }, Step::Released(volume)) => released(node, volume),
            (Work::Teardown { .. }, Step::Disconnect(controllers)) => disconnect(node, controllers),
            (work, step) => Err(Error::new(
                ErrorKind::Internal,
                format!("{step:?} is no step of {work:?}"),
            )),
        }
    }

    /// The controller that this plan has made, when it must be taken back.
    pub(super) fn connected(&self) -> Option<&str> {
        match &self.work {
            Work::Stage(staging) => staging.connected.as_deref(),
            _ => None,
        }
    }
}

impl Staging<'_> {
    /// Waits for a controller of the subsystem to be live. The kernel tells of every reconnect
    /// (`NVME_EVENT=connected`) and of every removal.
    fn await_controller(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
        loop {
            let controllers = node.devices.controllers(&self.request.target.nqn)?;
            if controllers.is_empty() {
                return self.connect(node);
            }
            if controllers.iter().any(|c| c.state == "live") {
                return Ok(());
            }
            if !self.controllers.news(deadline) {
                let states: Vec<_> = controllers
                    .iter()
                    .map(|c| format!("{} is {}", c.name, c.state))
                    .collect();
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!(
                        "{} and did not come back: is the storage host at {} up and reachable?",
                        states.join(", "),
                        self.request.target.portal
                    ),
                ));
            }
        }
    }

    fn connect(&mut self, node: &Node) -> Result<(), Error> {
        let options = ConnectOptions {
            transport: Transport::Tcp {
                portal: self.request.target.portal,
                host_traddr: None,
                host_iface: None,
            },
            subsystem_nqn: self.request.target.nqn.clone(),
            host: node.host.clone(),
            nr_io_queues: node.config.nr_io_queues,
            queue_size: None,
            ctrl_loss_tmo: Some(-1),
            reconnect_delay: Some(node.config.reconnect_delay),
            fast_io_fail_tmo: Some(node.config.fast_io_fail_tmo),
            keep_alive_tmo: Some(node.config.keep_alive_tmo),
        };
        match nvme::connect(&node.config.roots.dev, &options) {
            Ok(connected) => {
                self.connected = Some(format!("nvme{}", connected.instance));
                Ok(())
            }
            // Somebody was faster, or the index has not heard of it yet: its namespace is waited for all the same.
            Err(nvme::Error::Already { .. }) => Ok(()),
            Err(nvme::Error::Sys(error)) => {
                Err(Error::new(ErrorKind::Unavailable, self.explain(&error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What an errno of a connect means (`nvmf_create_ctrl`, `nvme_tcp_setup_ctrl`).
    fn explain(&self, error: &zvolt_kernel::SysError) -> String {
        let portal = self.request.target.portal;
        let meaning = match error.errno {
            Errno::ECONNREFUSED => {
                format!("nothing listens at {portal}: is the agent running on the storage host?")
            }
            Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
                format!(
                    "{portal} does not answer: check the network between this node and the storage host"
                )
            }
            Errno::ENOENT | Errno::ENODEV => "run: modprobe nvme-tcp".into(),
            _ => format!(
                "the target at {portal} refused this host, or does not know the subsystem: has ControllerPublishVolume \
                 succeeded for this node? The kernel log has the reason (dmesg | grep nvme)"
            ),
        };
        format!("{error}; {meaning}")
    }

    fn await_namespace(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
        let target = &self.request.target;
        let mut rescanned = self.connected.is_some();
        loop {
            if let Some(namespace) = node.devices.namespace(target.namespace_uuid)? {
                self.device = Some(node.config.roots.dev.join(namespace.block));
                return Ok(());
            }
            if !rescanned {
                // C-37: a live controller that lacks the namespace may have missed the event.
                rescanned = true;
                for controller in node.devices.controllers(&target.nqn)? {
                    if controller.state == "live" {
                        nvme::rescan(&node.config.roots.sys, &controller.name)?;
                    }
                }
            }
            if !self.namespaces.news(deadline) {
                return Err(Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!(
                        "connected to {}, but no namespace with UUID {} appeared: on the storage host, read \
                         /sys/kernel/config/nvmet/subsystems/{}/namespaces/1/enable",
                        target.nqn, target.namespace_uuid, target.nqn
                    ),
                ));
            }
        }
    }

    /// Rule 3: the right device or none. What can't be read is a refusal.
    fn verify(&self, node: &Node) -> Result<(), Error> {
        let sys = &node.config.roots.sys;
        let target = &self.request.target;
        let path = self.device()?;
        let file = File::open(path).map_err(|e| zvolt_kernel::SysError::io("open", path, &e))?;
        let block = block::kernel_name(sys, block::dev_id(path)?)?;
        let namespace = nvme::namespace(sys, &block)?;
        let subsystem = nvme::subsystem_of(sys, &block)?;
        let (Some(namespace), Some(subsystem)) = (namespace, subsystem) else {
            return Err(self.refuse(path, "it is gone again"));
        };
        if subsystem.nqn != target.nqn {
            return Err(self.refuse(path, &format!("it belongs to subsystem {}", subsystem.nqn)));
        }
        if namespace.uuid != Some(target.namespace_uuid) || namespace.nguid != Some(target.nguid) {
            return Err(self.refuse(
                path,
                &format!(
                    "its UUID is {:?} and its NGUID {:?}; expected {} and {:?}",
                    namespace.uuid, namespace.nguid, target.namespace_uuid, target.nguid
                ),
            ));
        }
        let mut live = false;
        for name in &subsystem.controllers {
            live |= nvme::controller(sys, name)?.is_some_and(|c| c.state == "live");
        }
        if !live {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{}: no controller of {} is live",
                    path.display(),
                    target.nqn
                ),
            ));
        }
        let size = block::size_bytes(&file, path)?;
        if size < target.size_bytes {
            return Err(self.refuse(
                path,
                &format!("it has {size} bytes; expected {}", target.size_bytes),
            ));
        }
        self.verify_filesystem(path, &file)
    }

    fn verify_filesystem(&self, path: &Path, file: &File) -> Result<(), Error> {
        let (fs_type, uuid) = self.filesystem()?;
        let found = match probe::superblock(file, path)? {
            Content::Filesystem(superblock) => superblock,
            Content::Zeros => {
                return Err(self.refuse(
                    path,
                    "it has no filesystem (all zeros), and a node never makes one",
                ));
            }
            Content::Foreign(what) => return Err(self.refuse(path, &format!("it holds {what}"))),
        };
        if found.kind != kind_of(fs_type) || found.uuid != uuid {
            return Err(self.refuse(
                path,
                &format!(
                    "it holds {} {}; expected {} {}",
                    found.kind.name(),
                    found.uuid,
                    fs_type.as_str(),
                    uuid
                ),
            ));
        }
        if found.has_errors {
            return Err(self.refuse(
                path,
                "its superblock says that the filesystem has errors: unpublish the volume everywhere, then run \
                 e2fsck -p on its zvol on the storage host",
            ));
        }
        Ok(())
    }

    fn bound_requests(&self, node: &Node) -> Result<(), Error> {
        for controller in node.devices.controllers(&self.request.target.nqn)? {
            nvme::bound_requests(&node.config.roots.sys, &controller.name, MAX_REQUEST_KIB)?;
        }
        Ok(())
    }

    fn attach(&self) -> Result<(), Error> {
        let (fs_type, _) = self.filesystem()?;
        let mut options = self.request.mount_flags.clone();
        let mut access = Access::ReadWrite;
        options.retain(|option| match option.as_str() {
            "ro" => {
                access = Access::ReadOnly;
                false
            }
            "rw" => false,
            _ => true,
        });
        let mut add = |option: &str| {
            if !options.iter().any(|o| o == option) {
                options.push(option.to_owned());
            }
        };
        match (fs_type, access) {
            // C-25: a clone has its origin's UUID, and both may be mounted here.
            (FsType::Xfs, Access::ReadWrite) => add("nouuid"),
            (FsType::Xfs, Access::ReadOnly) => {
                add("nouuid");
                add("norecovery"); // rule 5: a read-only mount never replays a journal
            }
            (FsType::Ext4, Access::ReadOnly) => add("noload"), // rule 5
            (FsType::Ext4, Access::ReadWrite) => {}
        }
        let mount = FsMount {
            fs_type: fs_type.as_str(),
            source: self.device()?,
            access,
            options: &options,
        };
        mount::mount_at(&mount, self.place.parent.as_fd(), &self.place.name).map_err(|error| {
            let kind = match error.errno {
                Errno::EINVAL if !self.request.mount_flags.is_empty() => ErrorKind::InvalidArgument,
                Errno::EBUSY => ErrorKind::FailedPrecondition,
                _ => ErrorKind::Internal,
            };
            Error::new(kind, error.to_string())
        })
    }

    fn filesystem(&self) -> Result<(FsType, Uuid), Error> {
        match self.request.target.content {
            publish::Content::Filesystem { fs_type, uuid } => Ok((fs_type, uuid)),
            publish::Content::Raw => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a raw device has no filesystem to mount",
            )),
        }
    }

    fn device(&self) -> Result<&Path, Error> {
        self.device
            .as_deref()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the namespace was not waited for"))
    }

    fn refuse(&self, path: &Path, why: &str) -> Error {
        Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "{} is not mounted as volume {}: {why}",
                path.display(),
                self.request.volume
            ),
        )
    }
}

fn kind_of(fs_type: FsType) -> FsKind {
    match fs_type {
        FsType::Ext4 => FsKind::Ext4,
        FsType::Xfs => FsKind::Xfs,
    }
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
    for block in node.devices.blocks(&names::subsystem_nqn(volume)) {
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
