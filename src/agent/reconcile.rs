//! One object's reconcile: look, plan, run the steps, until nothing is left to do. Blocking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::moves::Moves;
use super::observe::{Class, Failure, Host};
use super::places::Places;
use super::plan::Site;
use super::report::Told;
use super::running::Running;
use super::steps::{Act, Step};
use super::turn::{Turn, Turns};
use crate::model::names;
use crate::model::object::Object;
use crate::ops::{self, Journal, Stopped};
use crate::store::{self, Objects, Store, time};

/// A reconcile that has not settled after so many plans lets others have their turn.
const ROUNDS: usize = 32;
/// The time of one reconcile; what is left is done by the next.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// What a reconcile begins with.
#[derive(Debug, Clone)]
pub(super) enum Begin<T> {
    /// The newest state that anybody here has seen.
    Known(Arc<T>),
    /// The state must be read first: what the watch said may be older than what this agent wrote.
    Read,
}

/// What became of a reconcile.
#[derive(Debug)]
pub(super) struct Outcome<T> {
    /// The object, by name.
    pub(super) name: String,
    /// Its newest state; `None` when it has vanished.
    pub(super) object: Option<Arc<T>>,
    /// The resource versions that were read or written, oldest first: the watch will bring them too.
    pub(super) versions: Vec<String>,
    /// Whether to try again later without being asked.
    pub(super) retry: bool,
    /// What it did to the pools.
    pub(super) effects: Effects,
}

/// What a reconcile did that concerns others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Datasets whose snapshots are elsewhere now.
    pub(super) moved: Vec<String>,
    /// Whether something was made or destroyed: pools have more or less to give.
    pub(super) space: bool,
}

/// Why a plan's run ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error("a change was refused: {0}")]
    Refused(Failure),
    #[error("somebody else wrote the object first")]
    Conflict,
    #[error("the object has vanished")]
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

/// A plan's operation and steps; `None` when nothing is left to do.
pub(super) type Planned<T> = Option<(&'static str, Vec<Step<<T as Reconciled>::Status>>)>;

/// A kind of object that this agent makes true.
pub(super) trait Reconciled: Object {
    /// Its status.
    type Status: Clone + PartialEq + std::fmt::Debug;
    /// Ours: held until all that it stands for is gone.
    const FINALIZER: &'static str;

    /// Where such objects are kept.
    fn objects<S: Store>(store: &S) -> &impl Objects<Self>;
    /// The node that serves it.
    fn owner(&self) -> &str;
    /// Its status.
    fn status_mut(&mut self) -> &mut Self::Status;
    /// Whether it was Ready once: then it is tried again whatever fails.
    fn was_ready(&self) -> bool;
    /// The status that tells of a failure.
    fn failed(&self, failure: &Failure, now: &str) -> Self::Status;
    /// The status that tells of a change that was refused: the object goes on as it was.
    fn refused(&self, failure: &Failure, now: &str) -> Self::Status {
        self.failed(failure, now)
    }
    /// Whether a failure of this operation is a change refused.
    fn is_change(_operation: &str) -> bool {
        false
    }
    /// The operation that its next step most likely belongs to, for failures before any step.
    fn likely_operation(&self) -> &'static str;
    /// Looks, and plans.
    fn plan<S: Store, H: Host>(&self, pass: &mut Pass<'_, S, H>) -> Result<Planned<Self>, Stop>;
}

/// All that a reconcile needs; shared by all objects.
#[derive(Debug)]
pub(super) struct Reconciler<S, H> {
    pub(super) store: Arc<S>,
    pub(super) host: H,
    pub(super) site: Site,
    pub(super) journal: Journal,
    pub(super) runtime: Handle,
    pub(super) turns: Turns,
    pub(super) moves: Moves,
    pub(super) places: Places,
    pub(super) told: Told,
    /// Something that was kept for snapshots may have been left behind: look everywhere.
    pub(super) left_behind: AtomicBool,
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// What is needed at `site`.
    pub(super) fn new(
        store: Arc<S>,
        host: H,
        site: Site,
        journal: Journal,
        places: Places,
    ) -> Self {
        Self {
            store,
            host,
            site,
            journal,
            runtime: Handle::current(),
            turns: Turns::default(),
            moves: Moves::default(),
            places,
            told: Told::default(),
            left_behind: AtomicBool::new(false),
        }
    }

    /// Brings one object to where it should be, as far as that goes now.
    pub(super) fn reconcile<T: Reconciled>(&self, name: String, begin: Begin<T>) -> Outcome<T> {
        let mut pass = Pass::start(self, &name);
        let ended = match begin {
            Begin::Known(object) => pass.settle(object),
            Begin::Read => pass.read(&name).and_then(|object| pass.settle(object)),
        };
        let (object, retry) = match ended {
            Ok((object, retry)) => (Some(object), retry),
            Err(Stop::Vanished) => (None, false),
            Err(Stop::Failure(failure) | Stop::Refused(failure)) => {
                tracing::warn!(object = name, error = %failure, "the store cannot be reached");
                return pass.unread(name);
            }
            Err(Stop::Conflict) => return pass.unread(name),
        };
        pass.running.finish(Ok(()), &self.journal);
        Outcome {
            name,
            object,
            versions: pass.versions,
            retry,
            effects: pass.effects,
        }
    }
}

/// One reconcile under way.
pub(super) struct Pass<'a, S, H> {
    pub(super) all: &'a Reconciler<S, H>,
    pub(super) running: Running,
    pub(super) deadline: Instant,
    /// The turn of the object's pool, once it is needed: kept to the end.
    turn: Option<Turn>,
    /// Zvols of deleted volumes that may go once this plan has run.
    pub(super) collect: Vec<String>,
    pub(super) effects: Effects,
    pub(super) versions: Vec<String>,
}

impl<'a, S: Store, H: Host> Pass<'a, S, H> {
    pub(super) fn start(all: &'a Reconciler<S, H>, name: &str) -> Self {
        Self {
            all,
            running: Running::start(name),
            deadline: Instant::now() + DEADLINE,
            turn: None,
            collect: Vec::new(),
            effects: Effects::default(),
            versions: Vec::new(),
        }
    }

    /// Waits for the pool's turn, and keeps it.
    pub(super) fn take_turn(&mut self, pool: &str) -> Result<(), Failure> {
        if self.turn.is_none() {
            let (turns, deadline) = (&self.all.turns, self.deadline);
            let timeline = &mut self.running.timeline;
            self.turn = Some(timeline.step("pool.turn", || turns.take(pool, deadline))?);
        }
        Ok(())
    }

    /// Whether the pool's turn is taken.
    pub(super) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// Plans and runs until nothing is left. Gives the newest state, and whether to try again later.
    fn settle<T: Reconciled>(&mut self, mut object: Arc<T>) -> Result<(Arc<T>, bool), Stop> {
        for _ in 0..ROUNDS {
            if object.owner() != self.all.site.node {
                return Ok((object, false));
            }
            match self.round(&mut object) {
                Ok(true) => return Ok((object, false)),
                Ok(false) => {}
                Err(Stop::Conflict) => object = self.read(&object.metadata().name)?,
                Err(Stop::Vanished) => return Err(Stop::Vanished),
                Err(stop) => match self.tell(&object, &stop) {
                    Ok(told) => {
                        let asked = told.was_ready() || Object::is_deleting(&*told);
                        return Ok((told, stop.may_pass() || asked));
                    }
                    Err(Stop::Conflict) => object = self.read(&object.metadata().name)?,
                    Err(stop) => return Err(stop),
                },
            }
        }
        Ok((object, true))
    }

    /// One look, one plan, one run. Whether nothing is left to do.
    fn round<T: Reconciled>(&mut self, object: &mut Arc<T>) -> Result<bool, Stop> {
        let Some((operation, steps)) = object.plan(self)? else {
            return Ok(true);
        };
        self.running.enter(operation, &self.all.journal);
        let acts = steps.iter().take_while(|s| !matches!(s, Step::Finalize));
        let (acts, last) = steps.split_at(acts.count());
        match self.run(object, acts) {
            Err(Stop::Failure(failure)) if T::is_change(operation) => {
                return Err(Stop::Refused(failure));
            }
            ran => ran?,
        }
        if !last.is_empty() {
            // What was kept for it goes first: nobody would come back for it.
            self.collect();
            self.run(object, last)?;
            if object.metadata().finalizers.is_empty() {
                return Err(Stop::Vanished);
            }
        }
        Ok(false)
    }

    /// Runs steps in order. `object` is its newest state, also when one of them fails.
    pub(super) fn run<T: Reconciled>(
        &mut self,
        object: &mut Arc<T>,
        steps: &[Step<T::Status>],
    ) -> Result<(), Stop> {
        let (all, deadline) = (self.all, self.deadline);
        let (versions, effects, collect) =
            (&mut self.versions, &mut self.effects, &mut self.collect);
        let mut write = |object: &mut Arc<T>, written: Result<T, store::Error>| {
            let written = written?;
            versions.push(written.metadata().resource_version.clone());
            *object = Arc::new(written);
            Ok(())
        };
        let ran = ops::run(
            &mut self.running.timeline,
            deadline,
            steps,
            |step| match step {
                Step::Act(act) => {
                    all.host.act(act, deadline)?;
                    all.took_effect(act, effects);
                    if let Act::DestroySnapshot { snapshot, .. } = act {
                        collect.extend(buried_dataset(snapshot));
                    }
                    Ok(())
                }
                Step::Status(status) => {
                    let mut wanted = T::clone(object);
                    wanted.status_mut().clone_from(status);
                    let update = T::objects(&*all.store).update_status(wanted);
                    write(object, all.runtime.block_on(update))
                }
                Step::Finalize => {
                    let mut wanted = T::clone(object);
                    let finalizers = &mut wanted.metadata_mut().finalizers;
                    finalizers.retain(|f| f != T::FINALIZER);
                    let update = T::objects(&*all.store).update_spec(wanted);
                    write(object, all.runtime.block_on(update))
                }
            },
        );
        match ran {
            Ok(()) => Ok(()),
            Err(Stopped::Failed { error, .. }) => Err(error),
            Err(stopped @ Stopped::Deadline { .. }) => Err(Failure::kernel(stopped).into()),
        }
    }

    /// Tells why it has stopped in the status, unless it says so already.
    fn tell<T: Reconciled>(&mut self, object: &Arc<T>, stop: &Stop) -> Result<Arc<T>, Stop> {
        let (status, failure) = match stop {
            Stop::Refused(failure) => (object.refused(failure, &time::now()), failure),
            Stop::Failure(failure) => (object.failed(failure, &time::now()), failure),
            Stop::Conflict => return Err(Stop::Conflict),
            Stop::Vanished => return Err(Stop::Vanished),
        };
        let mut wanted = T::clone(object);
        *wanted.status_mut() = status;
        let mut ended = Ok(object.clone());
        if wanted != **object {
            if self.running.operation.is_none() {
                self.running
                    .enter(object.likely_operation(), &self.all.journal);
            }
            let all = self.all;
            ended = self.running.timeline.step("store.status", || {
                let update = T::objects(&*all.store).update_status(wanted);
                Ok(Arc::new(all.runtime.block_on(update)?))
            });
            if let Ok(written) = &ended {
                self.versions
                    .push(written.metadata().resource_version.clone());
            }
        }
        if !matches!(ended, Err(Stop::Conflict)) {
            let next = Running::start(&object.metadata().name);
            let failed = std::mem::replace(&mut self.running, next);
            failed.finish(
                Err(format!("{}: {failure}", failure.reason)),
                &self.all.journal,
            );
        }
        ended
    }

    fn read<T: Reconciled>(&mut self, name: &str) -> Result<Arc<T>, Stop> {
        let get = T::objects(&*self.all.store).get(name);
        let object = self.all.runtime.block_on(get)?.ok_or(Stop::Vanished)?;
        self.versions
            .push(object.metadata().resource_version.clone());
        Ok(Arc::new(object))
    }

    /// Ends a reconcile that does not know the object's state: it is read again, later.
    fn unread<T>(self, name: String) -> Outcome<T> {
        self.running
            .finish(Err("the store cannot be reached".into()), &self.all.journal);
        Outcome {
            name,
            object: None,
            versions: self.versions,
            retry: true,
            effects: self.effects,
        }
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Notes what an act has done that concerns others.
    pub(super) fn took_effect(&self, act: &Act, effects: &mut Effects) {
        effects.space |= act.name().starts_with("zfs.");
        let (from, to) = match act {
            Act::Promote { from, clone } => (from, clone),
            Act::Bury { from, to } => (from, to),
            _ => return,
        };
        self.moves.note(from, to);
        effects.moved.push(from.clone());
    }

    /// Whether something may have been left behind; it is then for the caller to look.
    pub(super) fn was_left_behind(&self) -> bool {
        self.left_behind.swap(false, Ordering::Relaxed)
    }
}

/// The dataset of a snapshot, when it is a deleted volume's.
fn buried_dataset(snapshot: &str) -> Option<String> {
    let (dataset, _) = names::snapshot_halves(snapshot);
    let pool = dataset.split('/').next().unwrap_or_default();
    names::is_below(dataset, &names::deleted_parent(pool)).then(|| dataset.to_owned())
}
