//! The engine: every operation observes, plans, and runs its steps in order, with a timeline.
//!
//! A plan is data: a list of steps, each with a stable name, each idempotent, each one kernel
//! interface. A stop after any step is safe: the next call observes again and plans what is left.

pub mod fault;
pub mod locks;
pub mod timeline;

use std::time::Instant;

pub use timeline::{Journal, Operation, Timeline};

/// A step of a plan.
pub trait Step {
    /// The stable name: what `explain` prints, the metric's label, the fault tests' kill point.
    fn name(&self) -> &'static str;
}

/// Why a plan stopped.
#[derive(Debug, thiserror::Error)]
pub enum Stopped<E> {
    /// The call's deadline came before this step began.
    #[error("the deadline passed before {step}")]
    Deadline {
        /// The step that did not begin.
        step: &'static str,
    },
    /// A step failed.
    #[error("{step}: {error}")]
    Failed {
        /// The step.
        step: &'static str,
        /// What it said.
        error: E,
    },
}

/// Runs a plan's steps in order until one fails or the deadline comes, recording each.
pub fn run<S: Step, E: std::fmt::Display>(
    timeline: &mut Timeline,
    deadline: Instant,
    plan: &[S],
    mut act: impl FnMut(&S) -> Result<(), E>,
) -> Result<(), Stopped<E>> {
    for step in plan {
        if Instant::now() >= deadline {
            return Err(Stopped::Deadline { step: step.name() });
        }
        timeline
            .step(step.name(), || act(step))
            .map_err(|error| Stopped::Failed {
                step: step.name(),
                error,
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Named(&'static str);

    impl Step for Named {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    #[test]
    fn stops_at_the_first_failure_and_names_it() {
        let mut timeline = Timeline::start("test", "v", None);
        let plan = [Named("a"), Named("b"), Named("c")];
        let stopped = run(
            &mut timeline,
            Instant::now() + Duration::from_secs(1),
            &plan,
            |s| if s.0 == "b" { Err("no") } else { Ok(()) },
        );
        assert_eq!(stopped.unwrap_err().to_string(), "b: no");
        let operation = timeline.end(Err("no".into()));
        let names: Vec<_> = operation.steps.iter().map(|s| s.name.as_ref()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(operation.steps[1].error.as_deref(), Some("no"));
    }

    #[test]
    fn begins_no_step_past_the_deadline() {
        let mut timeline = Timeline::start("test", "v", None);
        let ran = std::cell::Cell::new(false);
        let stopped: Result<(), Stopped<String>> =
            run(&mut timeline, Instant::now(), &[Named("a")], |_| {
                ran.set(true);
                Ok(())
            });
        assert!(matches!(stopped, Err(Stopped::Deadline { step: "a" })));
        assert!(!ran.get());
    }
}
