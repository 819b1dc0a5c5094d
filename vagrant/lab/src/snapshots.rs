//! What an orchestrator asks about snapshots, groups of them, and volumes that are made from something.

use tonic::Status;
use zvolt_proto::csi;
use zvolt_proto::csi::group_controller_client::GroupControllerClient;
use zvolt_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::orchestrator::{Csi, Wanted, create_request};

/// What a volume is made from.
#[derive(Debug, Clone, Copy)]
pub enum From<'a> {
    /// The snapshot with this ID.
    Snapshot(&'a str),
    /// The volume with this ID.
    Volume(&'a str),
}

impl From<'_> {
    /// As a request has it.
    pub fn to_csi(self) -> csi::VolumeContentSource {
        csi::VolumeContentSource {
            r#type: Some(match self {
                Self::Snapshot(id) => Type::Snapshot(SnapshotSource {
                    snapshot_id: id.into(),
                }),
                Self::Volume(id) => Type::Volume(VolumeSource {
                    volume_id: id.into(),
                }),
            }),
        }
    }
}

impl Csi {
    /// CreateVolume from something.
    pub fn create_from(&self, wanted: &Wanted, source: From<'_>) -> Result<csi::Volume, Status> {
        self.create_raw(csi::CreateVolumeRequest {
            volume_content_source: Some(source.to_csi()),
            ..create_request(wanted)
        })
    }

    /// CreateSnapshot; gives the snapshot.
    pub fn create_snapshot(&self, name: &str, volume_id: &str) -> Result<csi::Snapshot, Status> {
        let request = csi::CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: volume_id.into(),
            ..csi::CreateSnapshotRequest::default()
        };
        let reply = self.call(self.controller().create_snapshot(self.request(request)))?;
        reply
            .snapshot
            .ok_or_else(|| Status::internal("the reply has no snapshot"))
    }

    /// DeleteSnapshot.
    pub fn delete_snapshot(&self, snapshot_id: &str) -> Result<(), Status> {
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: snapshot_id.into(),
            ..csi::DeleteSnapshotRequest::default()
        };
        self.call(self.controller().delete_snapshot(self.request(request)))
            .map(drop)
    }

    /// All snapshots, page by page, `page` on each.
    pub fn snapshots(&self, page: i32) -> Result<Vec<csi::Snapshot>, Status> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let request = csi::ListSnapshotsRequest {
                max_entries: page,
                starting_token: token,
                ..csi::ListSnapshotsRequest::default()
            };
            let reply = self.call(self.controller().list_snapshots(self.request(request)))?;
            all.extend(reply.entries.into_iter().filter_map(|e| e.snapshot));
            if reply.next_token.is_empty() {
                return Ok(all);
            }
            token = reply.next_token;
        }
    }

    /// CreateVolumeGroupSnapshot; gives the group.
    pub fn create_group(
        &self,
        name: &str,
        volume_ids: &[&str],
    ) -> Result<csi::VolumeGroupSnapshot, Status> {
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: name.into(),
            source_volume_ids: volume_ids.iter().map(|id| (*id).to_owned()).collect(),
            ..csi::CreateVolumeGroupSnapshotRequest::default()
        };
        let mut client = GroupControllerClient::new(self.channel());
        let reply = self.call(client.create_volume_group_snapshot(self.request(request)))?;
        reply
            .group_snapshot
            .ok_or_else(|| Status::internal("the reply has no group"))
    }

    /// DeleteVolumeGroupSnapshot.
    pub fn delete_group(&self, group: &csi::VolumeGroupSnapshot) -> Result<(), Status> {
        let members = group.snapshots.iter();
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: members.map(|s| s.snapshot_id.clone()).collect(),
            ..csi::DeleteVolumeGroupSnapshotRequest::default()
        };
        let mut client = GroupControllerClient::new(self.channel());
        self.call(client.delete_volume_group_snapshot(self.request(request)))
            .map(drop)
    }
}
