//! One measured call, and the watch that measures its steps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The driver, as its caller sees it.
    Driver,
    /// Straight-line system calls.
    Floor,
    /// Child processes.
    Baseline,
}

/// One measured piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Who.
    pub side: Side,
    /// What: `attach`, `detach`, `admit`, `expel`, `create`, `delete`.
    pub what: String,
    /// When it began, in nanoseconds since the Unix epoch.
    pub began: u64,
    /// Nanoseconds from its beginning to its end.
    pub nanos: u64,
    /// Its steps in order, in nanoseconds.
    pub steps: Vec<(String, u64)>,
}

impl Sample {
    /// The same work under another name.
    #[must_use]
    pub fn called(mut self, what: &str) -> Self {
        what.clone_into(&mut self.what);
        self
    }
}

/// Measures steps that follow each other.
#[derive(Debug)]
pub struct Watch {
    began: u64,
    begin: Instant,
    last: Instant,
    steps: Vec<(String, u64)>,
}

fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX)
}

impl Watch {
    /// Begins now.
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = Instant::now();
        Self {
            began: u64::try_from(since_epoch.unwrap_or_default().as_nanos()).unwrap_or_default(),
            begin: now,
            last: now,
            steps: Vec::with_capacity(16),
        }
    }

    /// What went on since the last step was this one.
    pub fn step(&mut self, name: &str) {
        let now = Instant::now();
        self.steps.push((name.to_owned(), nanos(self.last, now)));
        self.last = now;
    }

    /// Ends now.
    pub fn stop(self, side: Side, what: &str) -> Sample {
        Sample {
            side,
            what: what.to_owned(),
            began: self.began,
            nanos: nanos(self.begin, Instant::now()),
            steps: self.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_fit_into_the_whole() {
        let mut watch = Watch::start();
        watch.step("a");
        watch.step("b");
        let sample = watch.stop(Side::Floor, "attach");
        assert_eq!(sample.steps.len(), 2);
        let sum: u64 = sample.steps.iter().map(|(_, n)| n).sum();
        assert!(sum <= sample.nanos);
    }
}
