//! Labs side by side: a test mostly waits for one machine at a time, so two labs do nearly twice as much.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Counts, vm};
use crate::machine::Spec;
use crate::{Lab, Started, cleanup, own_run_dir, progress};

/// At most so many of several machines each: more would have two cores switch between machines all the time.
const LABS: usize = 2;
/// At most so many of one machine.
const SINGLE: usize = 3;

/// What a tier does with labs.
pub(super) struct Plan<'a, J> {
    /// The machines of each lab.
    pub(super) machines: &'a [Spec],
    /// What is done once with each lab before its first job.
    pub(super) prepare: &'a (dyn Fn(&Lab) -> Result<()> + Sync),
    /// One job. Any of them runs on any lab, in any order.
    pub(super) work: &'a (dyn Fn(&Lab, &J, &mut Counts) -> Result<()> + Sync),
}

/// Does all jobs, longest first if they come so: on the lab that runs, or on as many as this host has memory for,
/// which end with them. A lab in which a job failed is not used again.
pub(super) fn run<J: Send>(plan: &Plan<'_, J>, jobs: Vec<J>, counts: &mut Counts) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let many = how_many(plan.machines)?.min(jobs.len());
    let shared = Shared {
        jobs: Mutex::new(jobs.into()),
        counts: Mutex::new(Counts::default()),
        starting: Mutex::new(()),
    };
    let outcome = if let Ok(lab) = Lab::attach() {
        progress::note(format!(
            "using the lab that runs at {}",
            lab.run_dir().display()
        ));
        shared.serve(plan, &lab, Patience::Endless)
    } else {
        let shared = &shared;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..many)
                .map(|number| scope.spawn(move || shared.work_on_own_labs(plan, number)))
                .collect();
            let outcomes: Vec<Result<()>> = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
                .collect();
            outcomes.into_iter().collect()
        })
    };
    let Shared {
        jobs, counts: done, ..
    } = shared;
    counts.add(done.into_inner().unwrap_or_else(PoisonError::into_inner));
    let left = jobs
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .len();
    outcome.and_then(|()| match left {
        0 => Ok(()),
        _ => bail!("{left} parts of the tier found no lab to run on"),
    })
}

/// When a worker lets go of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Not before the last job.
    Endless,
    /// With the first job that failed.
    UntilAFailure,
}

struct Shared<J> {
    jobs: Mutex<VecDeque<J>>,
    counts: Mutex<Counts>,
    /// One lab starts at a time: the first has work while the second boots.
    starting: Mutex<()>,
}

impl<J: Send> Shared<J> {
    fn next(&self) -> Option<J> {
        cleanup::yield_to_signal();
        self.lock(&self.jobs).pop_front()
    }

    fn lock<'a, T>(&self, what: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        what.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work_on_own_labs(&self, plan: &Plan<'_, J>, number: usize) -> Result<()> {
        let usual = own_run_dir();
        let name = usual.file_name().unwrap_or_default().to_string_lossy();
        let letter = ["", "b", "c"][number % SINGLE];
        let run_dir = usual.with_file_name(format!("{name}{letter}"));
        while !self.lock(&self.jobs).is_empty() {
            let started = {
                let _turn = self.lock(&self.starting);
                Started::new(&run_dir, plan.machines)?
            };
            self.serve(plan, started.lab(), Patience::UntilAFailure)?;
        }
        Ok(())
    }

    /// Does jobs on a lab. An error says that no job can run on it.
    fn serve(&self, plan: &Plan<'_, J>, lab: &Lab, patience: Patience) -> Result<()> {
        (plan.prepare)(lab)?;
        while let Some(job) = self.next() {
            let mut counts = Counts::default();
            let outcome = (plan.work)(lab, &job, &mut counts);
            if let Err(error) = &outcome {
                println!("FAILED  {error:#}");
                counts.failed += 1;
            }
            self.lock(&self.counts).add(counts);
            if counts.is_worse_than(Counts::default()) {
                vm::collect(lab);
                if patience == Patience::UntilAFailure {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// As many labs as there is memory for, by `MemAvailable` (proc_meminfo(5)).
fn how_many(machines: &[Spec]) -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let available = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?
                .trim()
                .strip_suffix(" kB")
        })
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .context("/proc/meminfo does not say MemAvailable")?;
    let each: u64 = machines.iter().map(|m| u64::from(m.memory)).sum();
    let most = if machines.len() == 1 { SINGLE } else { LABS };
    Ok(fitting(available / 1024, each, most))
}

/// Labs of `each` MiB on a host that has `available` MiB: emulators take half as much again, and what
/// builds beside them some too.
fn fitting(available: u64, each: u64, most: usize) -> usize {
    let labs = available.saturating_sub(2048) / (each + each / 2).max(1);
    usize::try_from(labs).unwrap_or(most).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_are_as_many_as_fit_and_at_least_one() {
        assert_eq!(fitting(24_000, 4096, 2), 2);
        assert_eq!(fitting(14_336, 4096, 2), 2);
        assert_eq!(fitting(14_335, 4096, 2), 1);
        assert_eq!(fitting(1_000, 4096, 2), 1);
        assert_eq!(fitting(500_000, 4096, 3), 3);
    }
}
