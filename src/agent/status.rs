//! What the agent writes into a Volume's status. Pure.

use uuid::Uuid;
use zvolt_kernel::zfs::Pool;

use super::observe::{Class, Dataset, Failure};
use super::plan::Site;
use crate::model::names::{Identity, subsystem_nqn, zvol};
use crate::model::volume::{Condition, State, Volume, VolumeStatus, reason};

const READY: &str = "Ready";

/// The status of a volume that is exported; `published` are the hosts that are admitted.
pub fn ready(
    volume: &Volume,
    (pool, dataset): (&Pool, &Dataset),
    filesystem: Uuid,
    published: Vec<String>,
    site: &Site,
    now: &str,
) -> VolumeStatus {
    let identity = Identity::new(pool.guid, dataset.guid);
    let path = zvol(&volume.spec.pool, &volume.metadata.name);
    let mut status = VolumeStatus {
        state: State::Ready,
        target_nqn: Some(subsystem_nqn(&volume.metadata.name)),
        portal: Some(site.portal.clone()),
        device_guid: Some(identity.nguid_hex()),
        device_uuid: Some(identity.namespace_uuid),
        published_initiators: published,
        zvol_path: Some(format!("/dev/zvol/{path}")),
        dataset_path: Some(path),
        actual_capacity: dataset.volsize,
        pool_guid: Some(pool.guid.to_string()),
        filesystem_uuid: Some(filesystem),
        was_ready: true,
        ..volume.status.clone()
    };
    condition(
        &mut status,
        volume,
        ("True", reason::RECONCILED, "the volume is exported"),
        now,
    );
    status
}

/// The status after a failure.
pub fn failed(volume: &Volume, failure: &Failure, now: &str) -> VolumeStatus {
    let mut status = volume.status.clone();
    if volume.is_deleting() {
        status.state = State::Deleting;
    } else if failure.class == Class::Final {
        status.state = State::Error;
    }
    condition(
        &mut status,
        volume,
        ("False", failure.reason, &failure.message),
        now,
    );
    status
}

/// Whether the status says that all was well with the newest generation.
pub fn is_ready(volume: &Volume) -> bool {
    let status = &volume.status;
    status.was_ready
        && status.state == State::Ready
        && status.observed_generation == volume.metadata.generation
        && status
            .conditions
            .iter()
            .any(|c| c.kind == READY && c.status == "True")
}

/// Sets the `Ready` condition; its time moves only when it turns over.
fn condition(
    status: &mut VolumeStatus,
    volume: &Volume,
    (truth, reason, message): (&str, &str, &str),
    now: &str,
) {
    status.observed_generation = volume.metadata.generation;
    let since = status
        .conditions
        .iter()
        .find(|c| c.kind == READY && c.status == truth)
        .map_or(now, |c| &c.last_transition_time)
        .to_owned();
    let new = Condition {
        kind: READY.into(),
        status: truth.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: since,
        observed_generation: volume.metadata.generation,
    };
    match status.conditions.iter_mut().find(|c| c.kind == READY) {
        Some(old) => *old = new,
        None => status.conditions.push(new),
    }
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
}
