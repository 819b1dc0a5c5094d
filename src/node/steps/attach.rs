//! Stage: from a publish context to a device, and to a mounted filesystem.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use uuid::Uuid;
use zvolt_kernel::block::{self, DevId};
use zvolt_kernel::error::Errno;
use zvolt_kernel::mount::{self, Access, FsMount};
use zvolt_kernel::nvme::{self, ConnectOptions, Transport};

use crate::model::volume::FsType;

use super::super::observe::Attach;
use super::super::paths::Place;
use super::super::plan::is_pooled;
use super::super::waiters::Waiter;
use super::super::{Error, ErrorKind, Node, StageRequest};
use super::verify::{AWAITS_REPLAY, Verified, Wanted};
use super::{detach, expand, queue};

/// What a stage learns on its way.
#[derive(Debug)]
pub(super) struct Staging<'a> {
    request: &'a StageRequest,
    attach: Attach,
    place: &'a Place,
    namespaces: Waiter<Uuid>,
    controllers: Waiter<String>,
    zvols: Waiter<String>,
    /// I/O queues to ask for; fewer after a refusal for want of online CPUs.
    nr_io_queues: Option<u32>,
    /// A connect was refused for want of online CPUs, and is to be tried again.
    pub(super) try_fewer_queues: bool,
    /// Made by this very plan.
    connected: Option<String>,
    device: Option<DevId>,
    verified: Option<Verified>,
    is_mounted: bool,
}

impl<'a> Staging<'a> {
    /// The waiters are registered here, before any step acts: no uevent can be missed.
    pub(super) fn new(
        node: &'a Node,
        request: &'a StageRequest,
        attach: Attach,
        place: &'a Place,
    ) -> Self {
        Self {
            request,
            attach,
            place,
            namespaces: node.devices.watch_namespace(request.target.namespace_uuid),
            controllers: node.devices.watch_controllers(&request.target.nqn),
            zvols: node.devices.zvols().watch(&request.target.dataset),
            nr_io_queues: node.config.nr_io_queues,
            try_fewer_queues: false,
            connected: None,
            device: None,
            verified: None,
            is_mounted: false,
        }
    }

    /// The controller that this plan has made, as long as nothing is mounted from it, and it is not for others too.
    pub(super) fn to_take_back(&self) -> Option<&str> {
        self.connected
            .as_deref()
            .filter(|_| !self.is_mounted && !is_pooled(&self.request.target))
    }

    fn wanted(&self) -> Wanted<'a> {
        Wanted {
            volume: &self.request.volume,
            target: &self.request.target,
            attach: self.attach,
        }
    }

    /// Waits for a controller of the subsystem to be live. The kernel tells of every reconnect
    /// (`NVME_EVENT=connected`) and of every removal.
    pub(super) fn await_controller(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
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

    pub(super) fn connect(&mut self, node: &Node) -> Result<(), Error> {
        self.try_fewer_queues = false;
        let options = ConnectOptions {
            transport: Transport::Tcp {
                portal: self.request.target.portal,
                host_traddr: node.config.host_traddr,
                host_iface: node.config.host_iface.clone(),
            },
            subsystem_nqn: self.request.target.nqn.clone(),
            host: node.host.clone(),
            nr_io_queues: self.nr_io_queues,
            queue_size: None,
            ctrl_loss_tmo: Some(-1),
            reconnect_delay: Some(node.config.reconnect_delay),
            fast_io_fail_tmo: Some(node.config.fast_io_fail_tmo),
            keep_alive_tmo: Some(node.config.keep_alive_tmo),
        };
        match nvme::connect_once(&node.config.roots.dev, &options) {
            Ok(connected) => {
                let name = format!("nvme{}", connected.instance);
                self.connected = Some(name.clone());
                // Its namespace may be heard of before it: nobody shall look for it in vain.
                Ok(node.devices.connected(&name)?)
            }
            // Somebody was faster, or the index has not heard of it yet: its namespace is waited for all the same.
            Err(nvme::Error::Already { .. }) => Ok(()),
            Err(nvme::Error::Sys(error)) => {
                if error.errno == Errno::EXDEV
                    && let Some(fewer) = nvme::fewer_queues(self.nr_io_queues)
                {
                    self.nr_io_queues = Some(fewer);
                    self.try_fewer_queues = true;
                }
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
            Errno::EXDEV => {
                "a queue would have no online CPU: bring CPUs online, or lower --nr-io-queues"
                    .into()
            }
            _ => format!(
                "the target at {portal} refused this host, or does not know the subsystem: has ControllerPublishVolume \
                 succeeded for this node? The kernel log has the reason (dmesg | grep nvme)"
            ),
        };
        format!("{error}; {meaning}")
    }

    /// Waits for the namespace, and for it to have the size and the access that it is to have. What this very plan
    /// has connected shows both from its first moment on.
    pub(super) fn await_namespace(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
        let mut rescanned = self.connected.is_some();
        loop {
            let found = self.namespace(node)?;
            let problem = match found {
                Some(id) if self.connected.is_none() => self.wanted().unsettled(node, id)?,
                _ => None,
            };
            if found.is_some() && problem.is_none() {
                self.device = found; // what may be wrong with it, verify says
                return Ok(());
            }
            if !rescanned {
                // C-37: a live controller that lacks the namespace, or its news, may have missed the event.
                rescanned = true;
                for controller in node.devices.controllers(&self.request.target.nqn)? {
                    if controller.state == "live" {
                        nvme::rescan(&node.config.roots.sys, &controller.name)?;
                    }
                }
            }
            if !self.namespaces.news(deadline) {
                return Err(self.no_namespace(problem));
            }
        }
    }

    /// The namespace's device; one that no controller leads to is none (C-54).
    fn namespace(&self, node: &Node) -> Result<Option<DevId>, Error> {
        let sys = &node.config.roots.sys;
        let uuid = self.request.target.namespace_uuid;
        let Some(namespace) = node.devices.namespace(uuid)? else {
            return Ok(None);
        };
        match nvme::subsystem_of(sys, &namespace.block)? {
            Some(subsystem) if !subsystem.controllers.is_empty() => {
                Ok(block::number(sys, &namespace.block)?)
            }
            _ => Ok(None),
        }
    }

    fn no_namespace(&self, problem: Option<String>) -> Error {
        let target = &self.request.target;
        if let Some(problem) = problem {
            let what = format!("the namespace of {}", target.nqn);
            return self.wanted().refuse(Path::new(&what), &problem);
        }
        Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "connected to {}, but no namespace with UUID {} appeared: on the storage host, read \
                 /sys/kernel/config/nvmet/subsystems/{}/namespaces/*/enable",
                target.nqn, target.namespace_uuid, target.nqn
            ),
        )
    }

    pub(super) fn await_zvol(&mut self, node: &Node, deadline: Instant) -> Result<(), Error> {
        let dataset = &self.request.target.dataset;
        let found = node
            .devices
            .zvols()
            .appear(dataset, &self.zvols, deadline)?;
        let Some(zvol) = found else {
            return Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!(
                    "no device of zvol {dataset} has appeared on this host: is its pool imported (zpool list), and \
                     is volmode dev (zfs get volmode {dataset})?"
                ),
            ));
        };
        self.device = Some(zvol.id);
        Ok(())
    }

    pub(super) fn verify(&mut self, node: &Node) -> Result<(), Error> {
        let device = self
            .device
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the device was not waited for"))?;
        if self.attach == Attach::Local {
            // What this machine read before another node wrote is no longer so.
            let zvol = block::node(&node.config.roots.sys, &node.config.roots.dev, device)?;
            block::flush(&zvol.open()?, &zvol.path)?;
        }
        let verified = self.wanted().verify(node, device)?;
        let awaits_replay = verified.superblock.is_some_and(|s| s.needs_recovery);
        if awaits_replay && self.request.access == Access::ReadOnly {
            return Err(self.wanted().refuse(&verified.node.path, AWAITS_REPLAY));
        }
        self.verified = Some(verified);
        Ok(())
    }

    fn verified(&self) -> Result<&Verified, Error> {
        self.verified
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the device was not verified"))
    }

    pub(super) fn bound_requests(&self, node: &Node, deadline: Instant) -> Result<(), Error> {
        let sys = &node.config.roots.sys;
        let block = block::kernel_name(sys, self.verified()?.id)?;
        Ok(queue::bound(sys, &block, &self.namespaces, deadline)?)
    }

    /// Rule 5 for a zvol of this machine: nothing but this keeps it from being written to.
    pub(super) fn set_access(&self, access: Access) -> Result<(), Error> {
        let Verified { node, .. } = self.verified()?;
        if block::set_access(&node.open()?, &node.path, access)? == access {
            return Ok(());
        }
        let dataset = &self.request.target.dataset;
        let why = format!("writes to it cannot be allowed: see zfs get readonly {dataset}");
        Err(self.wanted().refuse(&node.path, &why))
    }

    pub(super) fn mount(&mut self, deadline: Instant) -> Result<(), Error> {
        let (fs_type, _) = self.wanted().expected_filesystem()?;
        let Verified { id, node, .. } = self.verified()?;
        let (id, source) = (*id, node.path.clone());
        let options = self.options(fs_type);
        let mount = FsMount {
            fs_type: fs_type.as_str(),
            source: &source,
            access: self.request.access,
            options: &options,
        };
        mount::mount_at(&mount, self.place.parent.as_fd(), &self.place.name).map_err(|error| {
            let kind = match error.errno {
                Errno::EINVAL if !self.request.mount_flags.is_empty() => ErrorKind::InvalidArgument,
                Errno::EROFS => return self.wanted().refuse(&source, AWAITS_REPLAY),
                Errno::EBUSY => ErrorKind::FailedPrecondition,
                _ => ErrorKind::Internal,
            };
            Error::new(kind, error.to_string())
        })?;
        self.is_mounted = true;
        self.is_the_verified(id, &source, deadline)
    }

    /// The source is a path: what was mounted must be the very device that was verified.
    fn is_the_verified(
        &mut self,
        id: DevId,
        source: &Path,
        deadline: Instant,
    ) -> Result<(), Error> {
        let seen = mount::state_at(self.place.parent.as_fd(), &self.place.name)?;
        match seen {
            Some(seen) if seen.is_mount_root && seen.dev == id => Ok(()),
            _ => {
                detach(self.place, deadline)?;
                self.is_mounted = false;
                Err(self.wanted().refuse(source, "another device took its name"))
            }
        }
    }

    fn options(&self, fs_type: FsType) -> Vec<String> {
        let mut options = self.request.mount_flags.clone();
        let mut add = |option: &str| {
            if !options.iter().any(|o| o == option) {
                options.push(option.to_owned());
            }
        };
        match (fs_type, self.request.access) {
            // C-25: a clone has its origin's UUID, and both may be mounted here.
            (FsType::Xfs, Access::ReadWrite) => add("nouuid"),
            (FsType::Xfs, Access::ReadOnly) => {
                add("nouuid");
                // Rule 5: a log is never replayed. On a device that takes no writes the kernel refuses one that would
                // have to be; elsewhere it must be told, and shows what is there without it.
                if !self.request.target.read_only.is_set() {
                    add("norecovery");
                }
            }
            (FsType::Ext4, Access::ReadOnly) => add("noload"), // rule 5
            (FsType::Ext4, Access::ReadWrite) => {}
        }
        options
    }

    /// C-26: a restored or expanded volume may have come with a smaller filesystem.
    pub(super) fn grow(&self, node: &Node) -> Result<(), Error> {
        let superblock = self.verified.as_ref().and_then(|v| v.superblock);
        expand::grow(node, self.place, superblock.map(|s| s.size_bytes)).map(drop)
    }
}
