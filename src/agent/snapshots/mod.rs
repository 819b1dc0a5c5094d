//! Snapshots: brings the Snapshot objects of this node's pools to where they should be.

pub mod host;
pub mod observe;
pub mod plan;
#[cfg(test)]
mod tests;

use self::plan::{Member, Seen};
use super::observe::{Failure, Host};
use super::plan::operation;
use super::reconcile::{Pass, Planned, Reconciled, Stop};
use crate::model::names;
use crate::model::snapshot::{FINALIZER, Snapshot, SnapshotStatus, Source};
use crate::model::volume::reason;
use crate::store::{Objects, Store, time};
use observe::is_of;

impl Reconciled for Snapshot {
    type Status = SnapshotStatus;
    const FINALIZER: &'static str = FINALIZER;

    fn objects<S: Store>(store: &S) -> &impl Objects<Self> {
        store.snapshots()
    }

    fn owner(&self) -> &str {
        &self.spec.owner_node
    }

    fn status_mut(&mut self) -> &mut SnapshotStatus {
        &mut self.status
    }

    fn was_ready(&self) -> bool {
        self.status.was_ready
    }

    fn failed(&self, failure: &Failure, now: &str) -> SnapshotStatus {
        plan::failed(self, failure, now)
    }

    fn likely_operation(&self) -> &'static str {
        if self.metadata.deletion_timestamp.is_some() {
            operation::DELETE_SNAPSHOT
        } else if self.status.was_ready {
            operation::FOLLOW_SNAPSHOT
        } else {
            operation::SNAPSHOT
        }
    }

    fn plan<S: Store, H: Host>(&self, pass: &mut Pass<'_, S, H>) -> Result<Planned<Self>, Stop> {
        let seen = pass.look_at_members(self)?;
        Ok(plan::plan(self, &seen, &pass.all.site)?)
    }
}

impl<S: Store, H: Host> Pass<'_, S, H> {
    fn look_at_members(&mut self, snapshot: &Snapshot) -> Result<Seen, Failure> {
        let (host, spec) = (&self.all.host, &snapshot.spec);
        let timeline = &mut self.running.timeline;
        let mut seen = Seen {
            pool: timeline.step("zfs.observe", || host.pool(&spec.pool))?,
            members: vec![Member::default(); spec.members.len()],
            strays: Vec::new(),
            now: time::now(),
        };
        // Every other question to a suspended pool would hang, and another pool's answers say nothing.
        let is_right = seen
            .pool
            .as_ref()
            .is_some_and(|p| p.health != "SUSPENDED" && p.guid.to_string() == spec.pool_guid);
        if !is_right {
            return Ok(seen);
        }
        for (member, source) in seen.members.iter_mut().zip(&spec.members) {
            *member = self.look_at_member(snapshot, source)?;
        }
        if seen.members.iter().any(|m| m.found.is_none()) {
            if snapshot.metadata.deletion_timestamp.is_some() && !snapshot.status.was_ready {
                seen.strays = self.strays(snapshot)?;
            }
            self.is_still(&spec.pool, &spec.pool_guid)?;
        }
        Ok(seen)
    }

    fn look_at_member(&mut self, snapshot: &Snapshot, source: &Source) -> Result<Member, Failure> {
        let (pool, volume) = (&snapshot.spec.pool, &source.volume_id);
        let is_it = |found: &_| plan::is_member(snapshot, volume, found);
        if let Some((_, Some(taken))) = snapshot.member(volume) {
            return Ok(Member {
                found: self.locate(pool, &taken.snapshot_path, is_it)?,
                source: None,
            });
        }
        if source.dataset_path != names::zvol(pool, volume) {
            return Ok(Member::default());
        }
        let host = &self.all.host;
        self.running.timeline.step("zfs.observe", || {
            let dataset = host.dataset(&source.dataset_path)?;
            let found = match dataset {
                Some(_) => host.snapshot(&plan::first_path(snapshot, source))?,
                None => None,
            };
            Ok(Member {
                found: found.filter(is_it),
                source: dataset,
            })
        })
    }

    /// What was taken for an object that was never Ready, and moved before anybody could say so.
    fn strays(&mut self, snapshot: &Snapshot) -> Result<Vec<zvolt_kernel::zfs::Snapshot>, Failure> {
        self.take_turn(&snapshot.spec.pool)?;
        let (host, pool) = (&self.all.host, &snapshot.spec.pool);
        let timeline = &mut self.running.timeline;
        let mut found = timeline.step("zfs.observe", || host.called(pool, &snapshot.zfs_name()))?;
        found.retain(|s| is_of(s, &snapshot.metadata.uid));
        Ok(found)
    }

    /// A pool that has just gone makes all its snapshots missing.
    fn is_still(&mut self, pool: &str, guid: &str) -> Result<(), Failure> {
        let host = &self.all.host;
        let timeline = &mut self.running.timeline;
        let now = timeline.step("zfs.observe", || host.pool(pool))?;
        if now.is_some_and(|now| now.guid.to_string() == guid) {
            return Ok(());
        }
        Err(Failure::passing(
            reason::POOL_NOT_FOUND,
            format!("pool {pool} went away while its snapshots were looked for"),
        ))
    }
}
