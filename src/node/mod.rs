//! The consumer side: attach, mount, publish, and back.
//!
//! Each call observes the kernel, plans, and runs the plan's steps. There are no state files: after a
//! crash the next call observes again and plans what is left. The node never formats (rule 1).

mod bounded;
mod devices;
pub mod health;
mod limits;
mod observe;
mod owner;
mod paths;
mod plan;
mod stats;
mod steps;
mod udev;
mod waiters;
mod zvols;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use zvolt_kernel::mount::Access;
use zvolt_kernel::nvme::{self, HostIdentity};
use zvolt_kernel::{SysError, preflight};

use crate::model::access::AccessMode;
use crate::model::names;
use crate::model::publish::Target;
use crate::ops::locks::Locks;
use crate::ops::{self, Journal, Step as _, Stopped, Timeline};

pub use stats::Stats;
pub use udev::RULES_DIR;

use devices::Devices;
use observe::Observer;
use paths::{Base, Place};
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
    /// Local address of connections; `None` leaves it to the routes.
    pub host_traddr: Option<IpAddr>,
    /// Local interface of connections; a link-local portal needs it.
    pub host_iface: Option<String>,
    /// How many volumes fit on this node; `None` derives it from what the kernel has.
    pub max_volumes: Option<u32>,
    /// Where udevd is told to leave our namespaces alone; `None` leaves it as it is.
    pub udev_rules: Option<PathBuf>,
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
    /// Where to mount it. A raw device leaves it as it is.
    pub staging_path: PathBuf,
    /// Whether this node may write: from the access mode, the publish context and the mount options.
    pub access: Access,
    /// The caller's mount options, without `ro` and `rw`.
    pub mount_flags: Vec<String>,
}

/// NodePublishVolume, checked.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// Volume handle.
    pub volume: String,
    /// What must be found where it is staged.
    pub target: Target,
    /// Where it is staged.
    pub staging_path: PathBuf,
    /// Where the pod expects it.
    pub target_path: PathBuf,
    /// Who may use it at the same time.
    pub mode: AccessMode,
    /// Whether this publish may write.
    pub access: Access,
}

/// NodeExpandVolume, checked.
#[derive(Debug, Clone)]
pub struct ExpandRequest {
    /// Volume handle.
    pub volume: String,
    /// Where it is: published or staged.
    pub path: PathBuf,
    /// Where it is staged, when the caller says so.
    pub staging_path: Option<PathBuf>,
    /// The least size in bytes; 0 when the caller leaves it to the device.
    pub required_bytes: u64,
    /// The largest size in bytes.
    pub limit_bytes: Option<u64>,
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
    /// A size that cannot be.
    OutOfRange,
    /// The target does not answer or refuses us, or something must be called again.
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
    /// Volumes whose filesystem has been asked how full it is and has not answered yet.
    asked: Locks,
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
        if let Some(dir) = &config.udev_rules
            && let Err(error) = udev::quiet(dir)
        {
            tracing::warn!(%error, "udevd reads every namespace in search of what it may hold: stages take longer");
        }
        let devices = Devices::follow(&config.roots.sys, &config.roots.dev, &host.nqn)?;
        Ok(Arc::new(Self {
            config,
            host,
            base,
            devices,
            asked: Locks::default(),
            journal,
        }))
    }

    /// Attaches the volume and, unless it is raw, mounts its filesystem on the staging path.
    pub fn stage(&self, request: &StageRequest, deadline: Instant) -> Result<(), Error> {
        self.operation("NodeStageVolume", &request.volume, deadline, |timeline| {
            let staging = self.base.resolve(&request.staging_path)?;
            let observed = timeline.step("observe", || self.observer().stage(request, &staging))?;
            let plan = plan::stage(request, &observed)?;
            let mut runner = Runner::stage(self, request, observed.attach, &staging, deadline);
            let outcome = run_staging(timeline, deadline, &plan, &mut runner);
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
            let zvol = observed.zvol.map(|(zvol, _)| zvol);
            let mut runner = Runner::teardown(self, staging.as_ref(), zvol, deadline);
            Ok(ops::run(timeline, deadline, &plan, |step| {
                runner.run(step)
            })?)
        })
    }

    /// Binds the staged volume, or its device, onto the pod's path.
    pub fn publish(&self, request: &PublishRequest, deadline: Instant) -> Result<(), Error> {
        self.operation("NodePublishVolume", &request.volume, deadline, |timeline| {
            let staging = self.base.resolve(&request.staging_path)?;
            let target = self.base.resolve(&request.target_path)?;
            let observed = timeline.step("observe", || {
                self.observer().publish(request, &staging, &target)
            })?;
            let plan = plan::publish(request, &observed)?;
            let found = (observed.attach, observed.device);
            let mut runner = Runner::publish(self, request, (&staging, &target), found, deadline);
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
            let observed = timeline.step("observe", || self.observer().at(&target))?;
            let plan = plan::unpublish(volume, &observed)?;
            let mut runner = Runner::teardown(self, Some(&target), None, deadline);
            Ok(ops::run(timeline, deadline, &plan, |step| {
                runner.run(step)
            })?)
        })
    }

    /// Waits for the device to have grown, and grows the filesystem on it; gives the device's size in bytes.
    pub fn expand(&self, request: &ExpandRequest, deadline: Instant) -> Result<u64, Error> {
        self.operation("NodeExpandVolume", &request.volume, deadline, |timeline| {
            let place = self.present(&request.volume, &request.path)?;
            let is_staging = request
                .staging_path
                .as_ref()
                .is_none_or(|path| *path == request.path);
            let observed = timeline.step("observe", || {
                self.observer().expand(&request.volume, &place, is_staging)
            })?;
            let plan = plan::expand(request, &observed)?;
            let Some(volume) = &observed.volume else {
                return Ok(0); // without a volume there is no plan
            };
            let mut runner = Runner::expand(self, request, &place, volume, deadline);
            ops::run(timeline, deadline, &plan, |step| runner.run(step))?;
            Ok(runner.capacity())
        })
    }

    /// The place of a path that a volume is on; not found where it cannot be.
    fn present(&self, volume: &str, path: &Path) -> Result<Place, Error> {
        let found = match path.starts_with(&self.config.kubelet_dir) {
            true => self.base.resolve_if_present(path)?,
            false => None,
        };
        found.ok_or_else(|| not_there(volume, path))
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
            node_id: &self.config.node_id,
            sys: &self.config.roots.sys,
            dev: &self.config.roots.dev,
            proc: &self.config.roots.proc,
            devices: &self.devices,
        }
    }

    fn operation<T>(
        &self,
        name: &'static str,
        volume: &str,
        deadline: Instant,
        work: impl FnOnce(&mut Timeline) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut timeline = Timeline::start(name, volume, Some(&self.journal));
        let outcome = if Instant::now() < deadline {
            work(&mut timeline)
        } else {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "the deadline passed before the work began",
            ))
        };
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }
}

/// Runs a stage's plan; a connect that is refused for want of online CPUs is tried again with fewer queues, as a step
/// of its own (C-55).
fn run_staging(
    timeline: &mut Timeline,
    deadline: Instant,
    plan: &[plan::Step],
    runner: &mut Runner<'_>,
) -> Result<(), Stopped<Error>> {
    let mut rest = plan;
    loop {
        match ops::run(timeline, deadline, rest, |step| runner.run(step)) {
            Err(Stopped::Failed { step, .. }) if runner.has_fewer_queues() => {
                let at = rest.iter().position(|s| s.name() == step).unwrap_or(0);
                rest = &rest[at..];
            }
            outcome => return outcome,
        }
    }
}

fn not_there(volume: &str, path: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("volume {volume} is not at {}", path.display()),
    )
}
