//! The objects of one kind at work: which waits, which runs, which is tried again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::Error;
use super::observe::Host;
use super::reconcile::{Begin, Effects, Outcome, Reconciled, Reconciler};
use super::slot::{Next, Slot};
use crate::store::{Change, Store, Watch};

/// The objects of one kind.
pub(super) struct Queue<T, S, H> {
    reconciler: Arc<Reconciler<S, H>>,
    watch: Watch<T>,
    parallel: usize,
    slots: HashMap<String, Slot<T>>,
    /// Counts slots.
    made: u64,
    /// Objects with a reconcile that runs, and the slot that it runs for.
    busy: HashMap<String, u64>,
    /// Reconciles that wait for their turn.
    waiting: VecDeque<(String, u64, Begin<T>)>,
    /// When to try which object again.
    retries: BTreeSet<(Instant, String)>,
    tasks: JoinSet<Outcome<T>>,
}

/// What ends a wait.
pub(super) enum Happened<T> {
    Change(Option<Change<T>>),
    Ended(Result<Outcome<T>, JoinError>),
    Time,
}

impl<T: Reconciled, S: Store, H: Host> Queue<T, S, H> {
    /// Watches the objects from now on; at most `parallel` are worked on at a time.
    pub(super) fn new(
        reconciler: &Arc<Reconciler<S, H>>,
        watch: Watch<T>,
        parallel: usize,
    ) -> Self {
        Self {
            reconciler: reconciler.clone(),
            watch,
            parallel,
            slots: HashMap::new(),
            made: 0,
            busy: HashMap::new(),
            waiting: VecDeque::new(),
            retries: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Takes in an object out of a list, with its versions since.
    pub(super) fn listed(&mut self, object: &Arc<T>, versions: Vec<String>) {
        self.made += 1;
        let mut slot = Slot::listed(self.made, object, versions);
        let next = slot.again();
        let name = &object.metadata().name;
        self.slots.insert(name.clone(), slot);
        self.follow(name, next);
    }

    /// Waits until something happens. Nothing is lost when the wait is given up.
    pub(super) async fn happens(&mut self) -> Happened<T> {
        let happens = async {
            tokio::select! {
                change = self.watch.next() => Happened::Change(change),
                Some(done) = self.tasks.join_next() => Happened::Ended(done),
            }
        };
        match self.retries.first() {
            None => happens.await,
            Some((at, _)) => timeout_at(*at, happens).await.unwrap_or(Happened::Time),
        }
    }

    /// Deals with what happened. Gives what a reconcile did that concerns others.
    pub(super) fn deal(&mut self, happened: Happened<T>) -> Result<Effects, Error> {
        match happened {
            Happened::Change(None) => return Err(Error::WatchEnded),
            Happened::Change(Some(Change::Gone(name))) => self.vanished(&name),
            Happened::Change(Some(Change::Put(object))) => self.changed(object),
            Happened::Ended(done) => return Ok(self.ended(done?)),
            Happened::Time => {
                if let Some((_, name)) = self.retries.pop_first()
                    && let Some(slot) = self.slots.get_mut(&name)
                {
                    let next = slot.again();
                    self.follow(&name, next);
                }
            }
        }
        Ok(Effects::default())
    }

    /// The next reconcile that ends; `None` when none runs.
    pub(super) async fn next_ended(&mut self) -> Result<Option<Effects>, Error> {
        match self.tasks.join_next().await {
            Some(done) => Ok(Some(self.ended(done?))),
            None => Ok(None),
        }
    }

    /// Reconciles the objects of which `concerns` is true, though nobody has changed them.
    pub(super) fn nudge(&mut self, concerns: impl Fn(&T) -> bool) {
        let names: Vec<String> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.newest().is_none_or(&concerns))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            if let Some(slot) = self.slots.get_mut(&name) {
                let next = slot.nudged();
                self.follow(&name, next);
            }
        }
    }

    /// The newest state of an object.
    pub(super) fn newest(&self, name: &str) -> Option<&T> {
        self.slots.get(name)?.newest()
    }

    /// Whether nothing runs or waits for its turn.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.tasks.is_empty()
    }

    /// Starts nothing more.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
    }

    fn changed(&mut self, object: Arc<T>) {
        let name = object.metadata().name.clone();
        let next = match self.slots.get_mut(&name) {
            Some(slot) if slot.is_of(&object) => slot.event(object),
            _ if object.owner() != self.reconciler.site.node => return,
            _ => {
                self.made += 1;
                let mut slot = Slot::seen(self.made, &object);
                let next = slot.again();
                self.slots.insert(name.clone(), slot);
                next
            }
        };
        self.follow(&name, next);
    }

    fn vanished(&mut self, name: &str) {
        self.slots.remove(name);
        self.retries.retain(|(_, waiting)| waiting != name);
    }

    fn ended(&mut self, outcome: Outcome<T>) -> Effects {
        let (name, effects) = (outcome.name.clone(), outcome.effects.clone());
        let id = self.busy.remove(&name);
        if let Some(slot) = self.slots.get_mut(&name).filter(|slot| Some(slot.id) == id) {
            let next = slot.ended(outcome);
            self.follow(&name, next);
        }
        self.spawn();
        effects
    }

    fn follow(&mut self, name: &str, next: Next<T>) {
        match next {
            Next::Rest => {}
            Next::Retry(at) => {
                self.retries.insert((at, name.to_owned()));
            }
            Next::Reconcile(begin) => {
                self.retries.retain(|(_, waiting)| waiting != name);
                if let Some(slot) = self.slots.get(name) {
                    self.waiting.push_back((name.to_owned(), slot.id, begin));
                }
                self.spawn();
            }
        }
    }

    /// Starts what waits, as far as the bound goes; one object is never worked on twice at a time.
    fn spawn(&mut self) {
        while self.tasks.len() < self.parallel
            && let Some(at) = self
                .waiting
                .iter()
                .position(|(name, ..)| !self.busy.contains_key(name))
            && let Some((name, id, begin)) = self.waiting.remove(at)
        {
            let Some(slot) = self.slots.get(&name).filter(|slot| slot.id == id) else {
                continue;
            };
            let begin = slot.begin(begin);
            self.busy.insert(name.clone(), id);
            let reconciler = self.reconciler.clone();
            self.tasks
                .spawn_blocking(move || reconciler.reconcile(name, begin));
        }
    }
}
