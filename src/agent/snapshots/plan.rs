//! The rules of snapshots: from what is wanted and what is there to steps. Pure.

use zvolt_kernel::zfs::{self, Destroy, Pool};

use super::super::observe::{Class, Dataset, Failure, property};
use super::super::plan::{Site, judge, operation};
use super::super::steps::{Act, Step};
use super::observe::is_of;
use crate::model::names;
use crate::model::object::{Verdict, set_condition};
use crate::model::snapshot::{
    FINALIZER, Snapshot, SnapshotKind, SnapshotState, SnapshotStatus, Source, Taken,
};
use crate::model::volume::reason;

/// All that a plan looks at besides the Snapshot.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The pool; `None` when none of that name is imported.
    pub pool: Option<Pool>,
    /// The members, in the order of the spec.
    pub members: Vec<Member>,
    /// Snapshots of this object elsewhere, of one that is deleted and was never Ready.
    pub strays: Vec<zfs::Snapshot>,
    /// The moment, RFC 3339.
    pub now: String,
}

/// One member.
#[derive(Debug, Clone, Default)]
pub struct Member {
    /// Its snapshot, wherever it is now.
    pub found: Option<zfs::Snapshot>,
    /// The zvol that it is to be taken of; looked at while it is not taken.
    pub source: Option<Dataset>,
}

/// The operation and its steps; `None` when all is as it should be.
pub type Plan = Option<(&'static str, Vec<Step<SnapshotStatus>>)>;

/// What to do for a Snapshot now.
pub fn plan(snapshot: &Snapshot, seen: &Seen, site: &Site) -> Result<Plan, Failure> {
    if snapshot.metadata.deletion_timestamp.is_some() {
        return delete(snapshot, seen, site);
    }
    let pool = pool(snapshot, seen, site)?;
    let found: Vec<_> = seen.members.iter().map(|m| m.found.as_ref()).collect();
    let all: Option<Vec<&zfs::Snapshot>> = found.iter().copied().collect();
    let status = match all {
        Some(all) => ready(snapshot, &all, &seen.now)?,
        None if snapshot.status.was_ready => return Err(lost(snapshot, &found, pool, site)),
        None => return take(snapshot, seen, site).map(Some),
    };
    if status == snapshot.status {
        return Ok(None);
    }
    let operation = match snapshot.status.was_ready {
        true => operation::FOLLOW_SNAPSHOT,
        false => operation::SNAPSHOT,
    };
    Ok(Some((operation, vec![Step::Status(Box::new(status))])))
}

fn pool<'a>(snapshot: &Snapshot, seen: &'a Seen, site: &Site) -> Result<&'a Pool, Failure> {
    let spec = &snapshot.spec;
    judge::usable(&spec.pool, Some(&spec.pool_guid), seen.pool.as_ref(), site)
}

/// All members in one transaction group. What an interrupted or meddled try has left goes first: it was never
/// told to anybody.
fn take(
    snapshot: &Snapshot,
    seen: &Seen,
    site: &Site,
) -> Result<(&'static str, Vec<Step<SnapshotStatus>>), Failure> {
    let spec = &snapshot.spec;
    for (source, member) in spec.members.iter().zip(&seen.members) {
        if member.found.is_none() {
            is_the_source(snapshot, source, member.source.as_ref(), site)?;
        }
    }
    let halves = seen.members.iter().filter_map(|m| m.found.as_ref());
    let mut steps: Vec<Step<SnapshotStatus>> = halves
        .map(|half| Act::DestroySnapshot {
            snapshot: half.name.clone(),
            when: Destroy::Now,
        })
        .map(Step::from)
        .collect();
    if steps.is_empty() {
        let kind = match spec.kind {
            SnapshotKind::Single => "single",
            SnapshotKind::Group => "group",
        };
        let names = spec.members.iter().map(|m| first_path(snapshot, m));
        steps.push(
            Act::Snapshot {
                names: names.collect(),
                properties: vec![
                    (property("handle"), snapshot.metadata.name.clone()),
                    (property("uid"), snapshot.metadata.uid.clone()),
                    (property("name"), spec.snap_name.clone()),
                    (property("kind"), kind.to_owned()),
                ],
            }
            .into(),
        );
    }
    Ok((operation::SNAPSHOT, steps))
}

/// Where a member is right after it was taken.
pub fn first_path(snapshot: &Snapshot, source: &Source) -> String {
    format!("{}@{}", source.dataset_path, snapshot.zfs_name())
}

/// Refuses to take a snapshot of anything else than the volume that was meant.
fn is_the_source(
    snapshot: &Snapshot,
    source: &Source,
    found: Option<&Dataset>,
    site: &Site,
) -> Result<(), Failure> {
    let (path, volume) = (&source.dataset_path, &source.volume_id);
    if *path != names::zvol(&snapshot.spec.pool, volume) {
        return Err(Failure::lasting(
            reason::BAD_PROPERTY,
            format!(
                "{path:?} is not where volume {volume} can be in pool {}",
                snapshot.spec.pool
            ),
        ));
    }
    let is_it = |found: &&Dataset| {
        found.volsize.is_some()
            && found.handle.as_ref() == Some(volume)
            && found.uid.as_ref() == Some(&source.volume_uid)
    };
    match found {
        Some(found) if is_it(&found) => Ok(()),
        found => Err(Failure::lasting(
            reason::SOURCE_MISSING,
            format!(
                "{path} on {} {}: there is no snapshot of volume {volume} to take",
                site.node,
                found.map_or("does not exist", |_| {
                    "is another volume of the same name, or somebody else's"
                })
            ),
        )),
    }
}

/// The moment has passed: a snapshot that was Ready is never taken again.
fn lost(
    snapshot: &Snapshot,
    found: &[Option<&zfs::Snapshot>],
    pool: &Pool,
    site: &Site,
) -> Failure {
    let missing: Vec<_> = (snapshot.status.members.iter().zip(found))
        .filter(|(_, found)| found.is_none())
        .map(|(taken, _)| format!("{} (guid {})", taken.snapshot_path, taken.guid))
        .collect();
    Failure::lasting(
        reason::DATASET_MISSING,
        format!(
            "{} is missing on {} though pool {} is the one that held it: somebody has destroyed it; delete the \
             snapshot",
            missing.join(", "),
            site.node,
            pool.name
        ),
    )
}

/// The status when all members are there.
fn ready(
    snapshot: &Snapshot,
    found: &[&zfs::Snapshot],
    now: &str,
) -> Result<SnapshotStatus, Failure> {
    let members = (snapshot.spec.members.iter().zip(found))
        .map(|(source, found)| {
            let size = found
                .volsize
                .ok_or_else(|| Failure::kernel(format!("{}: ZFS tells no volsize", found.name)))?;
            Ok(Taken {
                volume_id: source.volume_id.clone(),
                snapshot_path: found.name.clone(),
                guid: found.guid.to_string(),
                created: found.creation,
                size,
            })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut status = SnapshotStatus {
        state: SnapshotState::Ready,
        members,
        was_ready: true,
        ..snapshot.status.clone()
    };
    let verdict = Verdict {
        kind: "Ready",
        status: "True",
        reason: reason::RECONCILED,
        message: "the snapshot is taken",
    };
    let generation = snapshot.metadata.generation;
    set_condition(&mut status.conditions, verdict, generation, now);
    Ok(status)
}

/// The status after a failure.
pub fn failed(snapshot: &Snapshot, failure: &Failure, now: &str) -> SnapshotStatus {
    let mut status = snapshot.status.clone();
    if snapshot.metadata.deletion_timestamp.is_some() {
        status.state = SnapshotState::Deleting;
    } else if failure.class == Class::Final {
        status.state = SnapshotState::Error;
    }
    let verdict = Verdict {
        kind: "Ready",
        status: "False",
        reason: failure.reason,
        message: &failure.message,
    };
    let generation = snapshot.metadata.generation;
    set_condition(&mut status.conditions, verdict, generation, now);
    status
}

/// Each member is destroyed, or by ZFS with its last clone.
fn delete(snapshot: &Snapshot, seen: &Seen, site: &Site) -> Result<Plan, Failure> {
    if !snapshot.metadata.finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(None);
    }
    // Missing is believed only of the right pool: a snapshot in a pool that is away must not leak.
    if seen.pool.is_some() || snapshot.status.was_ready {
        pool(snapshot, seen, site)?;
    }
    let members = seen.members.iter().filter_map(|m| m.found.as_ref());
    let mut paths: Vec<_> = members
        .chain(&seen.strays)
        .filter(|found| !found.is_deferred)
        .map(|found| found.name.clone())
        .collect();
    paths.sort();
    paths.dedup();
    let mut steps: Vec<Step<SnapshotStatus>> = paths
        .into_iter()
        .map(|snapshot| Act::DestroySnapshot {
            snapshot,
            when: Destroy::Deferred,
        })
        .map(Step::from)
        .collect();
    steps.push(Step::Finalize);
    Ok(Some((operation::DELETE_SNAPSHOT, steps)))
}

/// Whether `found` is the member, by its GUID once that is known.
pub fn is_member(snapshot: &Snapshot, volume: &str, found: &zfs::Snapshot) -> bool {
    match snapshot.member(volume) {
        Some((_, Some(taken))) => taken.guid == found.guid.to_string(),
        Some((_, None)) => is_of(found, &snapshot.metadata.uid),
        None => false,
    }
}
