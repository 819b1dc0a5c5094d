//! Zvols of deleted volumes go as soon as no snapshot of theirs is wanted any more.
//!
//! Who deletes a snapshot, or a volume that was made from one, collects what hung on it. A crash in between
//! leaves it; so the agent looks everywhere once when it starts, and after a collection that failed.

use std::sync::atomic::Ordering;

use super::observe::{Failure, Host};
use super::plan::delete::{self, Next};
use super::plan::operation;
use super::reconcile::{Pass, Reconciler};
use super::snapshots::observe::{Family, is_ours};
use super::steps::Act;
use crate::store::Store;

/// The acts of one zvol: each of its snapshots moves or goes once.
const ROUNDS: usize = 4096;

impl<S: Store, H: Host> Pass<'_, S, H> {
    /// Collects what may go. What cannot go now is nobody's failure: it is looked at later.
    pub(super) fn collect(&mut self) {
        while let Some(dataset) = self.collect.pop() {
            if let Err(error) = self.collect_one(&dataset) {
                tracing::warn!(%error, dataset, "a deleted volume's zvol is left for later");
                self.all.left_behind.store(true, Ordering::Relaxed);
            }
        }
    }

    fn collect_one(&mut self, dataset: &str) -> Result<(), Failure> {
        self.take_turn(dataset.split('/').next().unwrap_or_default())?;
        let host = &self.all.host;
        for _ in 0..ROUNDS {
            let look = || {
                let found = host.dataset(dataset)?;
                match found.is_some() && is_ours(dataset, found.as_ref()) {
                    true => Family::look(host, dataset).map(Some),
                    false => Ok(None),
                }
            };
            let Some(family) = self.running.timeline.step("zfs.observe", look)? else {
                return Ok(());
            };
            match delete::next(dataset, &family) {
                Next::Act(act) => self.act(&act)?,
                Next::Destroy => {
                    return self.act(&Act::Destroy {
                        dataset: dataset.to_owned(),
                    });
                }
                Next::Keep(_) => return Ok(()),
                Next::Wait(why) => {
                    tracing::debug!(dataset, why, "a deleted volume's zvol stays for now");
                    self.all.left_behind.store(true, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(), Failure> {
        let (host, deadline) = (&self.all.host, self.deadline);
        self.running.enter_or_stay(operation::COLLECT);
        let timeline = &mut self.running.timeline;
        timeline.step(act.name(), || host.act(act, deadline))?;
        self.all.took_effect(act, &mut self.effects);
        Ok(())
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Looks at the zvols of all deleted volumes of these pools. Gives the datasets whose snapshots have moved.
    pub(super) fn collect_all(&self, pools: &[String]) -> Vec<String> {
        let mut moved = Vec::new();
        for pool in pools {
            let buried = match self.host.buried(pool) {
                Ok(buried) => buried,
                Err(error) => {
                    tracing::warn!(%error, pool, "the zvols of deleted volumes cannot be listed");
                    self.left_behind.store(true, Ordering::Relaxed);
                    continue;
                }
            };
            for dataset in buried {
                let name = dataset.rsplit('/').next().unwrap_or_default();
                let mut pass = Pass::start(self, name);
                pass.collect.push(dataset.clone());
                pass.collect();
                moved.append(&mut pass.effects.moved);
                pass.running.finish(Ok(()), &self.journal);
            }
        }
        moved
    }
}
