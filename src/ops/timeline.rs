//! The timeline: name, start, duration and outcome of every step, always on, kept in a ring.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::fault::{self, Side};

/// One finished operation. Times are nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// `CreateVolume`, `NodeStageVolume`, `agent.reconcile`, …
    pub name: Cow<'static, str>,
    /// Volume handle.
    pub volume: String,
    /// Nanoseconds since the Unix epoch.
    pub started: u64,
    /// The whole, in nanoseconds.
    pub total: u64,
    /// Why it failed; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In the order in which they ran.
    pub steps: Vec<StepRecord>,
}

/// One step of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// The step's stable name.
    pub name: Cow<'static, str>,
    /// Nanoseconds from the operation's start.
    pub offset: u64,
    /// Nanoseconds.
    pub duration: u64,
    /// Why it failed; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An operation that is running. Dropped unfinished, it is kept as one that was cut short.
#[derive(Debug)]
pub struct Timeline {
    operation: Operation,
    began: Instant,
    journal: Option<Journal>,
}

impl Timeline {
    /// Starts an operation; `journal` is where it goes when it ends.
    pub fn start(name: &'static str, volume: &str, journal: Option<&Journal>) -> Self {
        Self {
            operation: Operation {
                name: Cow::Borrowed(name),
                volume: volume.to_owned(),
                started: nanos(
                    SystemTime::now()
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or_default(),
                ),
                total: 0,
                error: None,
                steps: Vec::with_capacity(12),
            },
            began: Instant::now(),
            journal: journal.cloned(),
        }
    }

    /// Runs one step and records it.
    pub fn step<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        fault::point(name, Side::Before);
        let begin = self.began.elapsed();
        let outcome = act();
        self.record(name, begin, &outcome);
        outcome
    }

    /// The same for a step that waits for the store.
    pub async fn wait<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        fault::point(name, Side::Before);
        let begin = self.began.elapsed();
        let outcome = act.await;
        self.record(name, begin, &outcome);
        outcome
    }

    fn record<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        begin: Duration,
        outcome: &Result<T, E>,
    ) {
        let end = self.began.elapsed();
        self.operation.steps.push(StepRecord {
            name: Cow::Borrowed(name),
            offset: nanos(begin),
            duration: nanos(end - begin),
            error: outcome.as_ref().err().map(ToString::to_string),
        });
        if outcome.is_ok() {
            fault::point(name, Side::After);
        }
    }

    /// Ends the operation and keeps it in the journal.
    pub fn finish(mut self, outcome: Result<(), String>) {
        let journal = self.journal.take();
        let operation = self.end(outcome);
        if let Some(journal) = journal {
            journal.push(operation);
        }
    }

    /// Ends the operation and gives it to the caller, who keeps it.
    pub fn end(mut self, outcome: Result<(), String>) -> Operation {
        self.journal = None;
        self.operation.total = nanos(self.began.elapsed());
        self.operation.error = outcome.err();
        std::mem::take(&mut self.operation)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if let Some(journal) = self.journal.take() {
            self.operation.total = nanos(self.began.elapsed());
            self.operation.error = Some("cut short".into());
            journal.push(self.operation.clone());
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The last operations of this process.
#[derive(Debug, Clone)]
pub struct Journal {
    ring: Arc<Mutex<VecDeque<Operation>>>,
    capacity: usize,
}

impl Journal {
    /// A journal that keeps the last `capacity` operations.
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: Arc::new(Mutex::new(VecDeque::with_capacity(capacity))),
            capacity,
        }
    }

    /// Keeps an operation; the oldest goes when the ring is full.
    pub fn push(&self, operation: Operation) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == self.capacity {
            ring.pop_front();
        }
        ring.push_back(operation);
    }

    /// The operations kept, oldest first; only those of `volume` when it is given.
    pub fn operations(&self, volume: Option<&str>) -> Vec<Operation> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter()
            .filter(|o| volume.is_none_or(|v| o.volume == v))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_operations() {
        let journal = Journal::new(2);
        for volume in ["a", "b", "c"] {
            Timeline::start("op", volume, Some(&journal)).finish(Ok(()));
        }
        let kept: Vec<_> = journal
            .operations(None)
            .into_iter()
            .map(|o| o.volume)
            .collect();
        assert_eq!(kept, ["b", "c"]);
        assert_eq!(journal.operations(Some("c")).len(), 1);
    }

    #[test]
    fn an_operation_that_is_dropped_is_kept_as_cut_short() {
        let journal = Journal::new(2);
        drop(Timeline::start("op", "a", Some(&journal)));
        assert_eq!(
            journal.operations(None)[0].error.as_deref(),
            Some("cut short")
        );
    }
}
