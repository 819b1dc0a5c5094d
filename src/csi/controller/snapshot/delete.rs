//! DeleteSnapshot and DeleteVolumeGroupSnapshot. What has clones is deleted as well: the agent keeps their
//! data until they are gone.

use std::collections::BTreeSet;
use std::time::Instant;

use super::super::Controller;
use super::super::follow::{gone, within};
use super::group_to_csi;
use crate::csi::status::{Kind, Refusal};
use crate::model::names::is_handle;
use crate::model::shown;
use crate::model::snapshot::{Snapshot, SnapshotKind};
use crate::ops::Timeline;
use crate::store::{Objects, Store};

impl<S: Store> Controller<S> {
    /// Deletes the snapshot of `volume` in `object` and waits until it is gone; fine when it is gone already.
    pub(in crate::csi) async fn delete_snapshot(
        &self,
        (volume, object): (&str, &str),
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let mut timeline = Timeline::start("DeleteSnapshot", volume, Some(&self.journal));
        let judge = |snapshot: &Snapshot| {
            if snapshot.member(volume).is_none() {
                return Ok(Doomed::No);
            }
            match snapshot.spec.kind {
                SnapshotKind::Single => Ok(Doomed::Yes),
                SnapshotKind::Group => Err(Refusal::invalid(format!(
                    "snapshot {} is one of a group: delete that, by DeleteVolumeGroupSnapshot of {object}",
                    snapshot.member_id(volume)
                ))),
            }
        };
        let outcome = self
            .snapshot_gone(&mut timeline, object, judge, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    /// Deletes the group and waits until it is gone; fine when it is gone already.
    pub(in crate::csi) async fn delete_group(
        &self,
        object: &str,
        snapshot_ids: &[String],
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let mut timeline =
            Timeline::start("DeleteVolumeGroupSnapshot", object, Some(&self.journal));
        let judge = |snapshot: &Snapshot| match snapshot.spec.kind {
            SnapshotKind::Single => Ok(Doomed::No),
            SnapshotKind::Group => same_members(snapshot, snapshot_ids).map(|()| Doomed::Yes),
        };
        let outcome = self
            .snapshot_gone(&mut timeline, object, judge, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    /// One group.
    pub(in crate::csi) async fn get_group(
        &self,
        id: &str,
        snapshot_ids: &[String],
        deadline: Instant,
    ) -> Result<zvolt_proto::csi::GetVolumeGroupSnapshotResponse, Refusal> {
        let found = match is_handle(id) {
            true => within(deadline, self.store.snapshots().get(id)).await?,
            false => None,
        };
        let group = found
            .filter(|snapshot| snapshot.spec.kind == SnapshotKind::Group)
            .ok_or_else(|| {
                Refusal::new(
                    Kind::NotFound,
                    format!("group snapshot {} does not exist", shown(id)),
                )
            })?;
        same_members(&group, snapshot_ids)?;
        Ok(zvolt_proto::csi::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(group_to_csi(&group)?),
        })
    }

    async fn snapshot_gone(
        &self,
        timeline: &mut Timeline,
        object: &str,
        judge: impl Fn(&Snapshot) -> Result<Doomed, Refusal>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let snapshots = self.store.snapshots();
        let mut watch = snapshots.watch(Some(object));
        let Some(snapshot) = within(deadline, snapshots.get(object)).await? else {
            return Ok(());
        };
        match judge(&snapshot)? {
            Doomed::No => Ok(()),
            Doomed::Yes => {
                timeline
                    .wait(
                        "snapshot.delete",
                        gone(snapshots, &mut watch, snapshot, |_| Ok(()), deadline),
                    )
                    .await
            }
        }
    }
}

/// Whether an object is what the caller means by a snapshot, or a group, that is to go.
enum Doomed {
    Yes,
    No,
}

/// The caller's list of a group's snapshots must be the group's.
fn same_members(group: &Snapshot, given: &[String]) -> Result<(), Refusal> {
    let has: BTreeSet<String> = group
        .spec
        .members
        .iter()
        .map(|member| group.member_id(&member.volume_id))
        .collect();
    let given: BTreeSet<String> = given.iter().cloned().collect();
    if given == has {
        return Ok(());
    }
    let listed = |ids: &BTreeSet<String>| ids.iter().cloned().collect::<Vec<_>>().join(", ");
    Err(Refusal::invalid(format!(
        "snapshot_ids is [{}], but group snapshot {} has [{}]",
        shown(&listed(&given)),
        group.metadata.name,
        listed(&has)
    )))
}
