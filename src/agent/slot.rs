//! What the agent knows of one object between its reconciles: whether an event is news, and when to
//! try again.
//!
//! The watch lags behind what this agent writes itself. To act on a state older than its own last
//! write would be wrong (a host that was fenced would be admitted again), and resource versions are
//! opaque. So the versions that were read or written are kept until the watch has brought the last
//! of them; while it has not, an event with any other version makes the state be read anew.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reconcile::{Begin, Outcome};
use crate::model::object::Object;

/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// One object.
#[derive(Debug)]
pub(super) struct Slot<T> {
    /// Tells a slot from an earlier one of the same name.
    pub(super) id: u64,
    uid: String,
    /// The newest state; `None` when it could not be read.
    object: Option<Arc<T>>,
    /// Versions that the watch has not brought yet, oldest first.
    ahead: Vec<String>,
    /// The version of the event that made a reconcile read anew.
    asked: Option<String>,
    running: bool,
    /// Events that came while a reconcile ran.
    queued: Vec<Arc<T>>,
    /// Somebody asked for a reconcile while one ran.
    nudged: bool,
    /// It has vanished; what the watch still brings of it is old.
    gone: bool,
    failures: u32,
}

/// What to do now.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// Nothing.
    Rest,
    /// Reconcile.
    Reconcile(Begin<T>),
    /// Reconcile at that moment, unless something comes first.
    Retry(Instant),
}

impl<T: Object> Slot<T> {
    /// An object out of a list, with its versions since: events of these, and older ones, may still come.
    pub(super) fn listed(id: u64, object: &Arc<T>, versions: Vec<String>) -> Self {
        Self {
            ahead: versions,
            ..Self::seen(id, object)
        }
    }

    /// An object that the watch brought first.
    pub(super) fn seen(id: u64, object: &Arc<T>) -> Self {
        Self {
            id,
            uid: object.metadata().uid.clone(),
            object: Some(object.clone()),
            ahead: Vec::new(),
            asked: None,
            running: false,
            queued: Vec::new(),
            nudged: false,
            gone: false,
            failures: 0,
        }
    }

    /// Whether an event is of this very object, not of another with its name.
    pub(super) fn is_of(&self, object: &T) -> bool {
        self.uid == object.metadata().uid
    }

    /// The newest state; `None` when it could not be read.
    pub(super) fn newest(&self) -> Option<&T> {
        self.object.as_deref()
    }

    /// The watch brought a state.
    pub(super) fn event(&mut self, object: Arc<T>) -> Next<T> {
        if self.gone {
            return Next::Rest;
        }
        if self.running {
            self.queued.push(object);
            return Next::Rest;
        }
        let version = &object.metadata().resource_version;
        if let Some(at) = self.ahead.iter().position(|known| known == version) {
            self.ahead.drain(..=at);
            return Next::Rest;
        }
        self.failures = 0;
        if self.ahead.is_empty() {
            self.object = Some(object);
        } else {
            self.asked = Some(version.clone());
        }
        self.again()
    }

    /// The wait after a failure is over, or start-up begins.
    pub(super) fn again(&mut self) -> Next<T> {
        if self.running || self.gone {
            return Next::Rest;
        }
        self.running = true;
        let known = self.object.clone().filter(|_| self.asked.is_none());
        Next::Reconcile(known.map_or(Begin::Read, Begin::Known))
    }

    /// Something has changed that the object's state does not tell.
    pub(super) fn nudged(&mut self) -> Next<T> {
        self.nudged = self.running;
        self.again()
    }

    /// A reconcile that had to wait for its turn begins: what it was to begin with may be old by now.
    pub(super) fn begin(&self, begin: Begin<T>) -> Begin<T> {
        if self.queued.is_empty() {
            begin
        } else {
            Begin::Read
        }
    }

    /// A reconcile has ended.
    pub(super) fn ended(&mut self, outcome: Outcome<T>) -> Next<T> {
        self.running = false;
        let asked = self.asked.take();
        for version in outcome.versions {
            if !self.ahead.contains(&version) {
                self.ahead.push(version);
            }
        }
        if let Some(at) =
            asked.and_then(|asked| self.ahead.iter().position(|known| *known == asked))
        {
            self.ahead.drain(..=at);
        }
        self.gone = outcome.object.is_none() && !outcome.retry;
        self.object = outcome.object;
        let mut next = Next::Rest;
        for event in std::mem::take(&mut self.queued) {
            match self.event(event) {
                Next::Reconcile(begin) => next = Next::Reconcile(begin),
                Next::Rest | Next::Retry(_) => {}
            }
        }
        if std::mem::take(&mut self.nudged) && matches!(next, Next::Rest) {
            next = self.again();
        }
        match (next, outcome.retry) {
            (Next::Rest, true) => {
                let wait = self.wait();
                self.failures = self.failures.saturating_add(1);
                Next::Retry(Instant::now() + wait)
            }
            (next, retry) => {
                self.failures = if retry { self.failures } else { 0 };
                next
            }
        }
    }
}

impl<T> Slot<T> {
    fn wait(&self) -> Duration {
        FIRST_WAIT
            .saturating_mul(2u32.saturating_pow(self.failures))
            .min(LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::volume::Volume;
    use crate::store::conformance::volume;

    fn version(version: u32) -> Arc<Volume> {
        let mut volume = volume("v");
        volume.metadata.resource_version = version.to_string();
        Arc::new(volume)
    }

    fn outcome(newest: u32, versions: &[u32], retry: bool) -> Outcome<Volume> {
        Outcome {
            name: "v".into(),
            object: Some(version(newest)),
            versions: versions.iter().map(ToString::to_string).collect(),
            retry,
            effects: Default::default(),
        }
    }

    fn known(next: &Next<Volume>) -> Option<&str> {
        match next {
            Next::Reconcile(Begin::Known(volume)) => Some(&volume.metadata.resource_version),
            _ => None,
        }
    }

    fn reads(next: &Next<Volume>) -> bool {
        matches!(next, Next::Reconcile(Begin::Read))
    }

    #[test]
    fn what_it_wrote_itself_is_no_news() {
        let mut slot = Slot::seen(0, &version(1));
        assert_eq!(known(&slot.again()), Some("1"));
        assert!(matches!(slot.ended(outcome(3, &[2, 3], false)), Next::Rest));
        assert!(matches!(slot.event(version(2)), Next::Rest));
        assert!(matches!(slot.event(version(3)), Next::Rest));
        assert_eq!(
            known(&slot.event(version(4))),
            Some("4"),
            "the watch has caught up: no read"
        );
    }

    #[test]
    fn rule_04_a_state_older_than_its_own_write_is_never_acted_on() {
        let mut slot = Slot::seen(0, &version(1));
        slot.again();
        slot.ended(outcome(9, &[9], false));
        assert!(
            reads(&slot.event(version(5))),
            "older or newer: it must be read"
        );
        assert!(matches!(slot.ended(outcome(9, &[9], false)), Next::Rest));
        assert!(matches!(slot.event(version(9)), Next::Rest));
        assert_eq!(known(&slot.event(version(10))), Some("10"));
    }

    #[test]
    fn events_that_came_meanwhile_are_sorted_out_at_the_end() {
        let mut slot = Slot::seen(0, &version(1));
        slot.again();
        assert!(matches!(slot.event(version(2)), Next::Rest));
        assert!(
            matches!(slot.ended(outcome(2, &[2], false)), Next::Rest),
            "its own"
        );
        slot.event(version(3));
        assert!(matches!(slot.event(version(4)), Next::Rest));
        assert!(matches!(slot.event(version(5)), Next::Rest));
        let next = slot.ended(outcome(4, &[4], false));
        assert_eq!(
            known(&next),
            Some("5"),
            "it came after what this agent wrote"
        );
        slot.event(version(6));
        assert!(
            reads(&slot.ended(outcome(7, &[7], false))),
            "6 may be older than 7"
        );
        assert!(matches!(slot.ended(outcome(7, &[7], false)), Next::Rest));
        assert!(matches!(slot.event(version(7)), Next::Rest));
        assert_eq!(known(&slot.event(version(8))), Some("8"));
    }

    #[test]
    fn events_from_before_a_list_are_no_news_to_act_on() {
        let mut slot = Slot::listed(0, &version(7), vec!["7".into()]);
        assert_eq!(known(&slot.again()), Some("7"));
        slot.ended(outcome(7, &[], false));
        assert!(reads(&slot.event(version(6))));
        slot.ended(outcome(7, &[7], false));
        assert!(matches!(slot.event(version(7)), Next::Rest));
    }

    #[test]
    fn a_vanished_volume_stays_so() {
        let mut slot = Slot::seen(0, &version(1));
        slot.again();
        slot.event(version(2));
        let vanished = Outcome {
            object: None,
            ..outcome(3, &[3], false)
        };
        assert!(matches!(slot.ended(vanished), Next::Rest));
        assert!(matches!(slot.event(version(3)), Next::Rest));
        assert!(matches!(slot.again(), Next::Rest));
    }

    #[test]
    fn a_nudge_while_a_reconcile_runs_is_not_forgotten() {
        let mut slot = Slot::seen(0, &version(1));
        assert_eq!(known(&slot.nudged()), Some("1"));
        assert!(matches!(slot.nudged(), Next::Rest));
        assert_eq!(known(&slot.ended(outcome(2, &[2], false))), Some("2"));
        assert!(matches!(slot.ended(outcome(2, &[], false)), Next::Rest));
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let mut slot = Slot::seen(0, &version(1));
        let mut waits = Vec::new();
        for _ in 0..40 {
            waits.push(slot.wait().as_millis());
            slot.again();
            assert!(matches!(slot.ended(outcome(1, &[], true)), Next::Retry(_)));
        }
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!((waits[10], waits[39]), (60_000, 60_000));
        slot.event(version(2));
        assert_eq!(slot.wait().as_millis(), 100, "news begin anew");
        slot.ended(outcome(2, &[], true));
        slot.again();
        slot.ended(outcome(2, &[], false));
        assert_eq!(slot.wait().as_millis(), 100, "so does success");
    }
}
