//! One volume's reconcile: look, plan, run the steps, until nothing is left to do. Blocking.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::observe::{Class, Failure, Host, Seen};
use super::plan::{self, Plan, Site};
use super::status;
use super::steps::{Act, Step};
use crate::model::names;
use crate::model::volume::{FINALIZER, Volume};
use crate::ops::{self, Journal, Stopped, Timeline};
use crate::store::{self, Objects, Store, time};

/// A reconcile that has not settled after so many plans lets others have their turn.
const ROUNDS: usize = 32;
/// The time of one reconcile; what is left is done by the next.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a reconcile begins with.
#[derive(Debug, Clone)]
pub(super) enum Begin {
    /// The newest state that anybody here has seen.
    Known(Arc<Volume>),
    /// The state must be read first: what the watch said may be older than what this agent wrote.
    Read,
}

/// What became of a reconcile.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The volume, by name.
    pub(super) name: String,
    /// Its newest state; `None` when it has vanished.
    pub(super) volume: Option<Arc<Volume>>,
    /// The resource versions that were read or written, oldest first: the watch will bring them too.
    pub(super) versions: Vec<String>,
    /// Whether to try again later without being asked.
    pub(super) retry: bool,
}

/// Why a plan's run ended early.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error("a change was refused: {0}")]
    Refused(Failure),
    #[error("somebody else wrote the Volume first")]
    Conflict,
    #[error("the Volume has vanished")]
    Vanished,
}

impl Stop {
    /// Whether the next try may succeed without somebody doing something.
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Failure(failure) if failure.class == Class::Final)
    }
}

impl From<store::Error> for Stop {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Conflict(..) => Self::Conflict,
            store::Error::NotFound(..) => Self::Vanished,
            error => Self::Failure(Failure::kernel(format!("the store: {error}"))),
        }
    }
}

/// A volume as start-up's first half leaves it.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its newest state.
    pub(super) volume: Arc<Volume>,
    /// Its resource versions, oldest first: the watch may bring them too.
    pub(super) versions: Vec<String>,
    /// What is to be linked.
    pub(super) built: Option<Built>,
}

/// What start-up has built and not linked yet.
#[derive(Debug)]
pub(super) struct Built {
    links: Vec<Act>,
    running: Running,
}

/// All that a reconcile needs; shared by all volumes.
#[derive(Debug)]
pub(super) struct Reconciler<S, H> {
    pub(super) store: Arc<S>,
    pub(super) host: H,
    pub(super) site: Site,
    pub(super) journal: Journal,
    pub(super) runtime: Handle,
}

/// The timeline of a reconcile; it reaches the journal only when something was done.
#[derive(Debug)]
struct Running {
    name: String,
    timeline: Timeline,
    operation: Option<&'static str>,
}

impl Running {
    fn start(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            timeline: Timeline::start("agent.reconcile", name, None),
            operation: None,
        }
    }

    /// Goes on as `operation`; another one that was running ends here.
    fn enter(&mut self, operation: &'static str, journal: &Journal) {
        if self.operation.is_some_and(|running| running != operation) {
            let next = Self::start(&self.name);
            std::mem::replace(self, next).finish(Ok(()), journal);
        }
        self.operation = Some(operation);
    }

    fn finish(self, outcome: Result<(), String>, journal: &Journal) {
        let Some(name) = self.operation else { return };
        let mut operation = self.timeline.finish(outcome);
        operation.name = Cow::Borrowed(name);
        // The look that finds nothing left to do is no part of it: it ended with its last act.
        while operation
            .steps
            .pop_if(|s| s.error.is_none() && s.name.ends_with(".observe"))
            .is_some()
        {}
        if let Some(last) = operation.steps.last() {
            operation.total = last.offset + last.duration;
        }
        let micros = operation.total / 1_000;
        match &operation.error {
            None => tracing::info!(operation = name, volume = operation.volume, micros, "done"),
            Some(error) => tracing::warn!(
                operation = name,
                volume = operation.volume,
                micros,
                error,
                "failed"
            ),
        }
        journal.push(operation);
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Brings one volume to where it should be, as far as that goes now.
    pub(super) fn reconcile(&self, name: String, begin: Begin) -> Outcome {
        let mut pass = Pass {
            all: self,
            running: Running::start(&name),
            versions: Vec::new(),
            deadline: Instant::now() + DEADLINE,
        };
        let ended = match begin {
            Begin::Known(volume) => pass.settle(volume),
            Begin::Read => pass.read(&name).and_then(|volume| pass.settle(volume)),
        };
        let (volume, retry) = match ended {
            Ok((volume, retry)) => (Some(volume), retry),
            Err(Stop::Vanished) => (None, false),
            Err(Stop::Failure(failure) | Stop::Refused(failure)) => {
                tracing::warn!(volume = name, error = %failure, "the store cannot be reached");
                return pass.unread(name);
            }
            Err(Stop::Conflict) => return pass.unread(name),
        };
        pass.running.finish(Ok(()), &self.journal);
        Outcome {
            name,
            volume,
            versions: pass.versions,
            retry,
        }
    }

    /// Start-up, first half: builds a volume's export without linking it.
    pub(super) fn prepare(&self, volume: Arc<Volume>) -> Prepared {
        let mut pass = Pass {
            all: self,
            running: Running::start(&volume.metadata.name),
            versions: vec![volume.metadata.resource_version.clone()],
            deadline: Instant::now() + DEADLINE,
        };
        let mut volume = volume;
        let links = pass.build(&mut volume);
        Prepared {
            volume,
            versions: pass.versions,
            built: links.map(|links| Built {
                links,
                running: pass.running,
            }),
        }
    }

    /// Start-up, second half: links all that was built, with nothing in between.
    pub(super) fn link(&self, all: Vec<Built>) {
        let deadline = Instant::now() + DEADLINE;
        let linked: Vec<_> = all
            .into_iter()
            .map(|mut built| {
                let timeline = &mut built.running.timeline;
                let outcome = built.links.iter().try_for_each(|link| {
                    timeline.step(link.name(), || self.host.act(link, deadline))
                });
                (built.running, outcome)
            })
            .collect();
        for (running, outcome) in linked {
            running.finish(outcome.map_err(|e| e.to_string()), &self.journal);
        }
    }

    fn look(&self, volume: &Volume, timeline: &mut Timeline) -> Result<Seen, Failure> {
        let nqn = names::subsystem_nqn(&volume.metadata.name);
        Ok(Seen {
            ports: self.host.ports(),
            export: timeline.step("nvmet.observe", || self.host.export(&nqn))?,
            storage: None,
            now: time::now(),
        })
    }

    fn look_at_storage(
        &self,
        volume: &Volume,
        seen: Seen,
        timeline: &mut Timeline,
    ) -> Result<Seen, Failure> {
        let pool = &volume.spec.pool;
        let dataset = names::zvol(pool, &volume.metadata.name);
        let storage = timeline.step("zfs.observe", || {
            self.host.storage(pool, &dataset, seen.export.as_ref())
        })?;
        Ok(Seen {
            storage: Some(storage),
            ..seen
        })
    }
}

/// One reconcile under way.
struct Pass<'a, S, H> {
    all: &'a Reconciler<S, H>,
    running: Running,
    versions: Vec<String>,
    deadline: Instant,
}

impl<S: Store, H: Host> Pass<'_, S, H> {
    /// Plans and runs until nothing is left. Gives the newest state, and whether to try again later.
    fn settle(&mut self, mut volume: Arc<Volume>) -> Result<(Arc<Volume>, bool), Stop> {
        for _ in 0..ROUNDS {
            if volume.spec.owner_node != self.all.site.node {
                return Ok((volume, false));
            }
            match self.round(&mut volume) {
                Ok(true) => return Ok((volume, false)),
                Ok(false) => {}
                Err(Stop::Conflict) => volume = self.read(&volume.metadata.name)?,
                Err(Stop::Vanished) => return Err(Stop::Vanished),
                Err(stop) => match self.tell(&volume, &stop) {
                    Ok(told) => {
                        let asked = told.status.was_ready || told.is_deleting();
                        return Ok((told, stop.may_pass() || asked));
                    }
                    Err(Stop::Conflict) => volume = self.read(&volume.metadata.name)?,
                    Err(stop) => return Err(stop),
                },
            }
        }
        Ok((volume, true))
    }

    /// One look, one plan, one run. Whether nothing is left to do.
    fn round(&mut self, volume: &mut Arc<Volume>) -> Result<bool, Stop> {
        let all = self.all;
        let mut seen = all.look(volume, &mut self.running.timeline)?;
        let mut plan = plan::plan(volume, &seen, &all.site)?;
        if plan == Plan::LookAtStorage {
            seen = all.look_at_storage(volume, seen, &mut self.running.timeline)?;
            plan = plan::plan(volume, &seen, &all.site)?;
        }
        let steps = match plan {
            Plan::Nothing => return Ok(true),
            Plan::LookAtStorage => {
                return Err(Failure::kernel("the plan asks for a second look").into());
            }
            Plan::Refuse(failure) => {
                self.running.enter(plan::operation::MODIFY, &all.journal);
                return Err(Stop::Refused(failure));
            }
            Plan::Run(operation, steps) => {
                self.running.enter(operation, &all.journal);
                steps
            }
        };
        let is_change = self.running.operation == Some(plan::operation::MODIFY);
        match self.run(volume, &steps) {
            Ok(()) => Ok(false),
            Err(Stop::Failure(failure)) if is_change => Err(Stop::Refused(failure)),
            Err(stop) => Err(stop),
        }
    }

    /// Runs steps in order. `volume` is its newest state, also when one of them fails.
    fn run(&mut self, volume: &mut Arc<Volume>, steps: &[Step]) -> Result<(), Stop> {
        let (all, versions) = (self.all, &mut self.versions);
        let mut vanished = false;
        let mut written = |next: Volume| {
            versions.push(next.metadata.resource_version.clone());
            Arc::new(next)
        };
        let deadline = self.deadline;
        let ran = ops::run(
            &mut self.running.timeline,
            deadline,
            steps,
            |step| match step {
                Step::Act(act) => Ok(all.host.act(act, deadline)?),
                Step::Status(status) => {
                    let mut wanted = (**volume).clone();
                    wanted.status = (**status).clone();
                    let write = all.store.volumes().update_status(wanted);
                    *volume = written(all.runtime.block_on(write)?);
                    Ok(())
                }
                Step::Finalize => {
                    let mut wanted = (**volume).clone();
                    wanted.metadata.finalizers.retain(|f| f != FINALIZER);
                    vanished = wanted.metadata.finalizers.is_empty();
                    let write = all.store.volumes().update_spec(wanted);
                    *volume = written(all.runtime.block_on(write)?);
                    Ok(())
                }
            },
        );
        match ran {
            Ok(()) if vanished => Err(Stop::Vanished),
            Ok(()) => Ok(()),
            Err(Stopped::Failed { error, .. }) => Err(error),
            Err(stopped @ Stopped::Deadline { .. }) => Err(Failure::kernel(stopped).into()),
        }
    }

    /// Start-up's build. Gives the links that are left to do; `None` when there is nothing to link, or something is
    /// wrong that the reconcile that follows tells.
    fn build(&mut self, volume: &mut Arc<Volume>) -> Option<Vec<Act>> {
        let all = self.all;
        let mut seen = all.look(volume, &mut self.running.timeline).ok()?;
        let prepared = loop {
            match plan::prepare(volume, &seen, &all.site) {
                Ok(Some(prepared)) => break prepared,
                Ok(None) if seen.storage.is_none() => {
                    let timeline = &mut self.running.timeline;
                    seen = all.look_at_storage(volume, seen, timeline).ok()?;
                }
                Ok(None) | Err(_) => return None,
            }
        };
        if prepared.build.is_empty() && prepared.links.is_empty() {
            return None;
        }
        self.running.enter(plan::operation::CONVERGE, &all.journal);
        match self.run(volume, &prepared.build) {
            Ok(()) => Some(prepared.links),
            Err(stop) => {
                let next = Running::start(&volume.metadata.name);
                std::mem::replace(&mut self.running, next)
                    .finish(Err(stop.to_string()), &all.journal);
                None
            }
        }
    }

    /// Tells in the status why it has stopped, unless it says so already.
    fn tell(&mut self, volume: &Arc<Volume>, stop: &Stop) -> Result<Arc<Volume>, Stop> {
        let (status, failure) = match stop {
            Stop::Refused(failure) => (status::refused(volume, failure, &time::now()), failure),
            Stop::Failure(failure) => (status::failed(volume, failure, &time::now()), failure),
            Stop::Conflict => return Err(Stop::Conflict),
            Stop::Vanished => return Err(Stop::Vanished),
        };
        let mut ended = Ok(volume.clone());
        if status != volume.status {
            if self.running.operation.is_none() {
                self.running
                    .enter(plan::likely_operation(volume), &self.all.journal);
            }
            let mut wanted = (**volume).clone();
            wanted.status = status;
            let all = self.all;
            ended = self.running.timeline.step("store.status", || {
                let written = all
                    .runtime
                    .block_on(all.store.volumes().update_status(wanted))?;
                Ok(Arc::new(written))
            });
            if let Ok(written) = &ended {
                self.versions
                    .push(written.metadata.resource_version.clone());
            }
        }
        if !matches!(ended, Err(Stop::Conflict)) {
            let next = Running::start(&volume.metadata.name);
            let failed = std::mem::replace(&mut self.running, next);
            failed.finish(
                Err(format!("{}: {failure}", failure.reason)),
                &self.all.journal,
            );
        }
        ended
    }

    fn read(&mut self, name: &str) -> Result<Arc<Volume>, Stop> {
        let volume = self
            .all
            .runtime
            .block_on(self.all.store.volumes().get(name))?
            .ok_or(Stop::Vanished)?;
        self.versions.push(volume.metadata.resource_version.clone());
        Ok(Arc::new(volume))
    }

    /// Ends a reconcile that does not know the Volume's state: it is read again, later.
    fn unread(self, name: String) -> Outcome {
        self.running
            .finish(Err("the store cannot be reached".into()), &self.all.journal);
        Outcome {
            name,
            volume: None,
            versions: self.versions,
            retry: true,
        }
    }
}
