//! What becomes of the zvol of a deleted volume (rule 6).
//!
//! It is never destroyed with what hangs on it. A snapshot with clones goes to one of them by promotion,
//! with all older ones; what is left of internal snapshots is destroyed. When only snapshots remain that
//! Snapshot objects stand for, the zvol is kept out of the way until they are deleted too. One act at a
//! time, and a new look after it: a stop anywhere leaves nothing that the next look does not see.

use zvolt_kernel::zfs::{self, Destroy};

use super::super::observe::{Failure, Seen};
use super::super::snapshots::observe::{Family, Owner, owner};
use super::super::steps::{Act, Step};
use super::access::Access;
use super::pooled::Places;
use super::{Plan, Site, judge, operation, source};
use crate::model::names;
use crate::model::volume::{DeletionPolicy, FINALIZER, State, Volume, VolumeStatus, reason};

/// What stands between a zvol and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Next<'a> {
    /// Do this, and look again.
    Act(Act),
    /// Nothing.
    Destroy,
    /// Snapshots that are still wanted; this is the newest.
    Keep(&'a zfs::Snapshot),
    /// Somebody else, who is told how to let go.
    Wait(String),
}

/// The next act on the way to the end of `dataset`.
pub(in super::super) fn next<'a>(dataset: &str, family: &'a Family) -> Next<'a> {
    let snapshots = &family.snapshots;
    if let Some(newest) = snapshots.iter().rfind(|s| !s.clones.is_empty()) {
        let ours = |clone: &&String| !family.strangers.contains(*clone);
        return match newest.clones.iter().find(ours) {
            Some(clone) => Next::Act(Act::Promote {
                from: dataset.to_owned(),
                clone: clone.clone(),
            }),
            None => Next::Wait(format!(
                "its snapshot {} has a clone that zvolt has not made, {}: destroy that, or make it independent \
                 (zfs promote {1})",
                newest.name,
                newest.clones.join(", ")
            )),
        };
    }
    if let Some(stranger) = snapshots.iter().find(|s| owner(s) == Owner::Stranger) {
        return Next::Wait(format!(
            "it has a snapshot that zvolt has not made: zfs destroy {}, once nobody needs it",
            stranger.name
        ));
    }
    let is_wanted = |s: &&zfs::Snapshot| owner(s) == Owner::Object && !s.is_deferred;
    let mut unwanted = snapshots.iter().filter(|s| !is_wanted(s));
    if let Some(held) = unwanted.clone().find(|s| s.holds > 0) {
        return Next::Wait(format!(
            "its snapshot {} is held: see zfs holds {0}, then zfs release its tag",
            held.name
        ));
    }
    if let Some(unwanted) = unwanted.next() {
        return Next::Act(Act::DestroySnapshot {
            snapshot: unwanted.name.clone(),
            when: Destroy::Deferred,
        });
    }
    snapshots.last().map_or(Next::Destroy, Next::Keep)
}

/// The acts that put a zvol out of the way: it costs nothing from then on but what its snapshots hold.
fn bury(volume: &Volume, newest: &zfs::Snapshot) -> [Act; 3] {
    let (pool, handle) = (&volume.spec.pool, &volume.metadata.name);
    let dataset = names::zvol(pool, handle);
    [
        Act::Unreserve {
            dataset: dataset.clone(),
        },
        Act::Rollback {
            snapshot: newest.name.clone(),
        },
        Act::Bury {
            from: dataset,
            to: names::buried(pool, handle, &volume.metadata.uid),
        },
    ]
}

/// Deletion: fence, teardown, destroy or put away, let go.
pub(super) fn plan(volume: &Volume, seen: &Seen, site: &Site) -> Result<Plan, Failure> {
    if !volume.metadata.finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(Plan::Nothing);
    }
    let mut steps: Vec<Step> = Places::of(volume, seen, site).remove_all().collect();
    if let Some(export) = &seen.export {
        // Its first act is to unlink the ports: whoever was admitted is cut by that.
        steps.push(Step::Act(Act::Teardown {
            nqn: export.nqn.clone(),
            hosts: Access::of(volume, Some(export), site).admitted(),
        }));
    }
    let status = &volume.status;
    if !(status.published_initiators.is_empty() && status.placements.is_empty()) {
        steps.push(Step::Status(Box::new(VolumeStatus {
            state: State::Deleting,
            published_initiators: Vec::new(),
            placements: Vec::new(),
            ..status.clone()
        })));
    }
    if !steps.is_empty() {
        return Ok(Plan::Run(operation::DELETE, steps));
    }
    if volume.spec.deletion_policy == DeletionPolicy::Retain || judge::supported(volume).is_err() {
        return Ok(Plan::Run(operation::DELETE, vec![Step::Finalize]));
    }
    let Some(storage) = &seen.storage else {
        return Ok(Plan::LookAtStorage);
    };
    let is_there = judge::is_to_destroy(volume, storage, site)?;
    let mut steps = Vec::new();
    if storage.pool.is_some() && source::has_snapshot_of_its_own(volume) {
        let Some(source) = &seen.source else {
            return Ok(Plan::LookAtSource);
        };
        steps.extend(source::let_go(source).map(Step::from));
    }
    if is_there {
        let Some(family) = &seen.family else {
            return Ok(Plan::LookAtSnapshots);
        };
        let dataset = names::zvol(&volume.spec.pool, &volume.metadata.name);
        match next(&dataset, family) {
            Next::Act(act) => {
                steps.push(act.into());
                return Ok(Plan::Run(operation::DELETE, steps));
            }
            Next::Wait(why) if steps.is_empty() => {
                return Err(Failure::passing(
                    reason::BUSY,
                    format!("{dataset} on {} is not destroyed yet: {why}", site.node),
                ));
            }
            Next::Wait(_) => return Ok(Plan::Run(operation::DELETE, steps)),
            Next::Keep(newest) => steps.extend(bury(volume, newest).map(Step::from)),
            Next::Destroy => steps.push(Act::Destroy { dataset }.into()),
        }
    }
    steps.push(Step::Finalize);
    Ok(Plan::Run(operation::DELETE, steps))
}
