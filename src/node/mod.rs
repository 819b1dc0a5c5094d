//! The consumer side: attach, mount, publish, and back.
//!
//! Each call observes the kernel, plans, and runs the plan's steps. There are no state files: after a
//! crash the next call observes again and plans what is left. The node never formats (rule 1).

mod devices;
mod observe;
mod paths;
mod plan;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use zvolt_kernel::nvme::{self, HostIdentity};
use zvolt_kernel::{SysError, preflight};

use crate::model::names;
use crate::model::publish::Target;
use crate::ops::{self, Journal, Stopped, Timeline};

use devices::Devices;
use observe::Observer;
use paths::Base;
use steps::Runner;

/// What a node needs to know.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// CSI node ID.
    pub node_id: String,
    /// All staging and target paths lie below it.
    pub kubelet_dir: PathBuf,
    /// I/O queues of a controller; `None` leaves it to the kernel.
    pub nr_io_queues: Option<u32>,
    /// Seconds until I/O queued for a lost target fails; -1: never.
    pub fast_io_fail_tmo: i32,
    /// Keep-alive time-out in seconds.
    pub keep_alive_tmo: u32,
    /// Seconds between tries to reconnect.
    pub reconnect_delay: u32,
    /// Where `/sys` and `/dev` are.
    pub roots: preflight::Roots,
}

/// NodeStageVolume, checked.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// Volume handle.
    pub volume: String,
    /// Where it is and what must be found there.
    pub target: Target,
    /// Where to mount it.
    pub staging_path: PathBuf,
    /// The caller's mount options.
    pub mount_flags: Vec<String>,
}

/// NodePublishVolume, checked.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// Volume handle.
    pub volume: String,
    /// Where it is staged.
    pub staging_path: PathBuf,
    /// Where the pod expects it.
    pub target_path: PathBuf,
    /// Reads only.
    pub read_only: bool,
}

/// What kind of trouble it is: the CSI edge turns it into a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request cannot be served as it is.
    InvalidArgument,
    /// The machine is not in the state that the request needs.
    FailedPrecondition,
    /// Something that the request names is not there.
    NotFound,
    /// What is published has other properties than those asked for.
    AlreadyExists,
    /// The target does not answer or refuses us.
    Unavailable,
    /// The deadline came first.
    DeadlineExceeded,
    /// A system call failed that should not.
    Internal,
}

/// Why a node call failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl From<SysError> for Error {
    fn from(error: SysError) -> Self {
        Self::new(ErrorKind::Internal, error.to_string())
    }
}

impl From<nvme::Error> for Error {
    fn from(error: nvme::Error) -> Self {
        let kind = match &error {
            // The kernel gives the reason in its log only: EIO is a refusal by the target, the rest is the network.
            nvme::Error::Sys(sys) if sys.call == "write" => ErrorKind::Unavailable,
            nvme::Error::BadOption { .. } => ErrorKind::InvalidArgument,
            nvme::Error::Sys(_) | nvme::Error::Already { .. } | nvme::Error::BadReply { .. } => {
                ErrorKind::Internal
            }
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Stopped<Error>> for Error {
    fn from(stopped: Stopped<Error>) -> Self {
        match stopped {
            Stopped::Deadline { .. } => Self::new(ErrorKind::DeadlineExceeded, stopped.to_string()),
            Stopped::Failed { step, error } => {
                Self::new(error.kind, format!("{step}: {}", error.message))
            }
        }
    }
}

/// The consumer side of one machine.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    host: HostIdentity,
    base: Base,
    devices: Arc<Devices>,
    journal: Journal,
}

impl Node {
    /// Opens the kubelet directory and starts to follow the kernel's devices.
    pub fn start(config: NodeConfig, journal: Journal) -> Result<Arc<Self>, Error> {
        let nqn = names::host_nqn(&config.node_id);
        let host = HostIdentity {
            id: names::host_id(&nqn),
            nqn,
        };
        let base = Base::open(&config.kubelet_dir)?;
        let devices = Devices::follow(&config.roots.sys)?;
        Ok(Arc::new(Self {
            config,
            host,
            base,
            devices,
            journal,
        }))
    }

    /// Attaches the volume and mounts its filesystem on the staging path.
    pub fn stage(&self, request: &StageRequest, deadline: Instant) -> Result<(), Error> {
        self.operation("NodeStageVolume", &request.volume, deadline, |timeline| {
            let staging = self.base.resolve(&request.staging_path)?;
            let observed = timeline.step("observe", || self.observer().stage(request, &staging))?;
            let plan = plan::stage(request, &observed)?;
            let mut runner = Runner::stage(self, request, &staging, deadline);
            let outcome = ops::run(timeline, deadline, &plan, |step| runner.run(step));
            outcome.map_err(|stopped| self.take_back(timeline, &runner, stopped.into()))
        })
    }

    /// Unmounts the staging path and detaches the volume.
    pub fn unstage(
        &self,
        volume: &str,
        staging_path: &Path,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.operation("NodeUnstageVolume", volume, deadline, |timeline| {
            let staging = self.base.resolve_if_present(staging_path)?;
            let observed = timeline.step("observe", || {
                self.observer().unstage(volume, staging.as_ref())
            })?;
            let plan = plan::unstage(volume, &observed)?;
            let mut runner = Runner::teardown(self, staging.as_ref(), deadline);
            Ok(ops::run(timeline, deadline, &plan, |step| {
                runner.run(step)
            })?)
        })
    }

    /// Binds the staged volume onto the pod's path.
    pub fn publish(&self, request: &PublishRequest, deadline: Instant) -> Result<(), Error> {
        self.operation("NodePublishVolume", &request.volume, deadline, |timeline| {
            let staging = self.base.resolve(&request.staging_path)?;
            let target = self.base.resolve(&request.target_path)?;
            let observed =
                timeline.step("observe", || self.observer().publish(&staging, &target))?;
            let plan = plan::publish(request, &observed)?;
            let mut runner = Runner::publish(self, &staging, &target, deadline);
            Ok(ops::run(timeline, deadline, &plan, |step| {
                runner.run(step)
            })?)
        })
    }

    /// Takes the volume off the pod's path, and the path with it.
    pub fn unpublish(
        &self,
        volume: &str,
        target_path: &Path,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.operation("NodeUnpublishVolume", volume, deadline, |timeline| {
            let Some(target) = self.base.resolve_if_present(target_path)? else {
                return Ok(()); // C-97: the pod's directory is gone, and with it what was in it.
            };
            let observed = timeline.step("observe", || self.observer().unpublish(&target))?;
            let plan = plan::unpublish(volume, &observed)?;
            let mut runner = Runner::teardown(self, Some(&target), deadline);
            Ok(ops::run(timeline, deadline, &plan, |step| {
                runner.run(step)
            })?)
        })
    }

    /// A stage that fails leaves no controller behind that it has made.
    fn take_back(&self, timeline: &mut Timeline, runner: &Runner<'_>, cause: Error) -> Error {
        let Some(controller) = runner.connected() else {
            return cause;
        };
        let controllers = [controller.to_owned()];
        match timeline.step("fabrics.disconnect", || {
            steps::disconnect(self, &controllers)
        }) {
            Ok(()) => cause,
            Err(undo) => Error::new(
                cause.kind,
                format!(
                    "{cause}; and {controller}, made by this call, could not be deleted: {undo}"
                ),
            ),
        }
    }

    fn observer(&self) -> Observer<'_> {
        Observer {
            sys: &self.config.roots.sys,
            dev: &self.config.roots.dev,
            devices: &self.devices,
        }
    }

    fn operation(
        &self,
        name: &'static str,
        volume: &str,
        deadline: Instant,
        work: impl FnOnce(&mut Timeline) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut timeline = Timeline::start(name, volume, Some(&self.journal));
        let outcome = if Instant::now() < deadline {
            work(&mut timeline)
        } else {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "the deadline passed before the work began",
            ))
        };
        timeline.finish(outcome.as_ref().copied().map_err(ToString::to_string));
        outcome
    }
}
