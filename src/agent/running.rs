//! The timeline of a reconcile under way.

use std::borrow::Cow;

use crate::ops::{Journal, Timeline};

/// The timeline of a reconcile; it reaches the journal only when something was done.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    pub(super) timeline: Timeline,
    pub(super) operation: Option<&'static str>,
}

impl Running {
    pub(super) fn start(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            timeline: Timeline::start("agent.reconcile", name, None),
            operation: None,
        }
    }

    /// Goes on as `operation`; another one that was running ends here.
    pub(super) fn enter(&mut self, operation: &'static str, journal: &Journal) {
        if self.operation.is_some_and(|running| running != operation) {
            let next = Self::start(&self.name);
            std::mem::replace(self, next).finish(Ok(()), journal);
        }
        self.operation = Some(operation);
    }

    /// Goes on as what it is, or as `operation` when it is nothing yet.
    pub(super) fn enter_or_stay(&mut self, operation: &'static str) {
        self.operation.get_or_insert(operation);
    }

    pub(super) fn finish(self, outcome: Result<(), String>, journal: &Journal) {
        let Some(name) = self.operation else { return };
        let mut operation = self.timeline.end(outcome);
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
