//! ListSnapshots and GetSnapshot.

use std::time::Instant;

use zvolt_proto::csi;

use super::super::Controller;
use super::super::follow::within;
use super::super::page::Page;
use super::{member_to_csi, members_to_csi, unknown};
use crate::csi::status::Refusal;
use crate::model::snapshot::parse_id;
use crate::store::{Objects, Store};

/// Which snapshots; nothing is any.
#[derive(Debug, Clone, Default)]
pub(in crate::csi::controller) struct Filter {
    pub(in crate::csi::controller) volume: Option<String>,
    pub(in crate::csi::controller) snapshot: Option<String>,
}

impl<S: Store> Controller<S> {
    /// What has been taken, a page at a time. What is only wished for yet is not listed (CSI, ListSnapshots).
    pub(in crate::csi::controller) async fn list_snapshots(
        &self,
        filter: Filter,
        page: Page,
        deadline: Instant,
    ) -> Result<csi::ListSnapshotsResponse, Refusal> {
        let snapshots = match &filter.snapshot {
            None => within(deadline, self.store.snapshots().list()).await?,
            Some(id) => match parse_id(id) {
                Some((_, object)) => {
                    let found = within(deadline, self.store.snapshots().get(object)).await?;
                    found.into_iter().collect()
                }
                None => Vec::new(),
            },
        };
        let taken = snapshots.iter().filter(|s| !s.status.members.is_empty());
        let mut members = Vec::new();
        for snapshot in taken {
            members.extend(members_to_csi(snapshot)?);
        }
        let is = |wanted: &Option<String>, has: &String| wanted.as_ref().is_none_or(|w| w == has);
        members.retain(|member| {
            is(&filter.snapshot, &member.snapshot_id)
                && is(&filter.volume, &member.source_volume_id)
        });
        let (members, next_token) = page.of(members, |member| member.snapshot_id.clone());
        let entry = |snapshot| csi::list_snapshots_response::Entry {
            snapshot: Some(snapshot),
        };
        Ok(csi::ListSnapshotsResponse {
            entries: members.into_iter().map(entry).collect(),
            next_token,
        })
    }

    /// One snapshot, taken or not yet.
    pub(in crate::csi::controller) async fn get_snapshot(
        &self,
        id: &str,
        deadline: Instant,
    ) -> Result<csi::GetSnapshotResponse, Refusal> {
        let (volume, object) = parse_id(id).ok_or_else(|| unknown(id))?;
        let found = within(deadline, self.store.snapshots().get(object)).await?;
        let snapshot = found.ok_or_else(|| unknown(id))?;
        let (source, taken) = snapshot.member(volume).ok_or_else(|| unknown(id))?;
        Ok(csi::GetSnapshotResponse {
            snapshot: Some(member_to_csi(&snapshot, source, taken)?),
        })
    }
}
