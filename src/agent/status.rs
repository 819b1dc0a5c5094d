//! What the agent writes into a Volume's status. Pure.

use uuid::Uuid;
use zvolt_kernel::zfs::Pool;

use super::observe::{Class, Dataset, Failure};
use super::plan::Site;
use crate::model::names::{subsystem_nqn, zvol};
use crate::model::object::{Verdict, set_condition};
use crate::model::volume::{Placement, State, Volume, VolumeStatus, WriteProtect, reason};

const READY: &str = "Ready";
const APPLIED: &str = "Applied";

/// Whether ZFS has all that the spec asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// It has.
    Applied,
    /// Something is still to be changed.
    Pending,
}

/// What a volume that is exported is known by.
#[derive(Debug)]
pub struct Exported<'a> {
    /// Its pool.
    pub pool: &'a Pool,
    /// Its dataset.
    pub dataset: &'a Dataset,
    /// The filesystem's UUID; `None` for a raw volume.
    pub filesystem: Option<Uuid>,
    /// The hosts that are admitted.
    pub published: Vec<String>,
    /// Where those of them find it that have it in a subsystem with others.
    pub placements: Vec<Placement>,
    /// What the target does with writes.
    pub write_protect: WriteProtect,
    /// Whether the generation is reached.
    pub changes: Changes,
}

/// The status of a volume that is exported.
pub fn ready(volume: &Volume, it: Exported<'_>, site: &Site, now: &str) -> VolumeStatus {
    let identity = volume.identity(it.pool.guid, it.dataset.guid);
    let path = zvol(&volume.spec.pool, &volume.metadata.name);
    let old = &volume.status;
    let mut status = VolumeStatus {
        state: State::Ready,
        target_nqn: Some(subsystem_nqn(&volume.metadata.name)),
        portal: Some(site.portal.clone()),
        device_guid: Some(identity.nguid_hex()),
        device_uuid: Some(identity.namespace_uuid),
        published_initiators: it.published,
        placements: it.placements,
        zvol_path: Some(format!("/dev/zvol/{path}")),
        dataset_path: Some(path),
        actual_capacity: it.dataset.volsize,
        pool_guid: Some(it.pool.guid.to_string()),
        filesystem_uuid: it.filesystem,
        write_protect: it.write_protect,
        was_ready: true,
        ..old.clone()
    };
    let generation = volume.metadata.generation;
    if it.changes == Changes::Applied {
        status.observed_generation = generation;
        let was_refused = volume
            .condition(APPLIED)
            .is_some_and(|c| c.status != "True");
        if old.was_ready && (old.observed_generation != generation || was_refused) {
            let verdict = ("True", reason::RECONCILED, "ZFS has what was changed");
            set(&mut status, APPLIED, verdict, generation, now);
        }
    }
    let reached = status.observed_generation;
    let verdict = ("True", reason::RECONCILED, "the volume is exported");
    set(&mut status, READY, verdict, reached, now);
    status
}

/// The status after a failure. The generation is not reached by it: whoever waits for a change goes on waiting.
pub fn failed(volume: &Volume, failure: &Failure, now: &str) -> VolumeStatus {
    let mut status = volume.status.clone();
    if volume.is_deleting() {
        status.state = State::Deleting;
    } else if failure.class == Class::Final {
        status.state = State::Error;
    }
    let verdict = ("False", failure.reason, failure.message.as_str());
    set(&mut status, READY, verdict, volume.metadata.generation, now);
    status
}

/// The status after a change that ZFS has refused: the volume goes on as it was.
pub fn refused(volume: &Volume, failure: &Failure, now: &str) -> VolumeStatus {
    let generation = volume.metadata.generation;
    let mut status = VolumeStatus {
        observed_generation: generation,
        ..volume.status.clone()
    };
    let verdict = ("False", failure.reason, failure.message.as_str());
    set(&mut status, APPLIED, verdict, generation, now);
    status
}

/// Whether the status says that the volume is exported and well.
pub fn serves(volume: &Volume) -> bool {
    let status = &volume.status;
    status.was_ready
        && status.state == State::Ready
        && volume.condition(READY).is_some_and(|c| c.status == "True")
}

/// Whether the status says that ZFS has all of the newest generation.
pub fn is_current(volume: &Volume) -> bool {
    volume.status.observed_generation == volume.metadata.generation
        && volume.condition(APPLIED).is_none_or(|c| c.status == "True")
}

fn set(
    status: &mut VolumeStatus,
    kind: &str,
    (truth, reason, message): (&str, &str, &str),
    generation: i64,
    now: &str,
) {
    let verdict = Verdict {
        kind,
        status: truth,
        reason,
        message,
    };
    set_condition(&mut status.conditions, verdict, generation, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::volume;

    #[test]
    fn a_failure_that_stays_changes_nothing_more() {
        let mut volume = volume("v");
        let failure = Failure::passing(reason::KERNEL, "no");
        volume.status = failed(&volume, &failure, "2026-01-01T00:00:00Z");
        assert_eq!(volume.status.state, State::Pending);
        assert_eq!(volume.trouble(), Some("no"));
        assert_eq!(
            failed(&volume, &failure, "2026-01-01T00:00:01Z"),
            volume.status
        );
        let lasting = failed(
            &volume,
            &Failure::lasting(reason::NO_SPACE, "full"),
            "2026-01-01T00:00:02Z",
        );
        assert_eq!(lasting.state, State::Error);
        assert_eq!(lasting.conditions.len(), 1);
        assert_eq!(
            lasting.conditions[0].last_transition_time,
            "2026-01-01T00:00:00Z"
        );
    }

    #[test]
    fn rule_09_a_failure_does_not_reach_the_generation_that_somebody_waits_for() {
        let mut volume = volume("v");
        volume.metadata.generation = 2;
        volume.status.observed_generation = 1;
        let failure = Failure::passing(reason::KERNEL, "no");
        assert_eq!(failed(&volume, &failure, "").observed_generation, 1);
        let refused = refused(&volume, &failure, "");
        assert_eq!(refused.observed_generation, 2);
        assert_eq!(refused.state, volume.status.state);
        volume.status = refused;
        assert_eq!(volume.trouble(), None, "Ready is not touched");
        assert!(!is_current(&volume));
    }
}
