//! Snapshots, single and in groups.

use super::*;
use crate::model::volume::reason;

impl Room {
    async fn group(
        &self,
        name: &str,
        volumes: &[&str],
    ) -> Result<csi::VolumeGroupSnapshot, Refusal> {
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: name.into(),
            source_volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
            ..Default::default()
        };
        let wanted = SnapshotWanted::group(&request)?;
        let answer = self.controller.create_group(wanted, soon()).await?;
        Ok(answer.group_snapshot.unwrap())
    }

    async fn delete_snapshot(&self, id: &str) -> Result<(), Refusal> {
        let id = id.split_once('@').unwrap();
        self.controller.delete_snapshot(id, soon()).await
    }

    async fn objects(&self) -> Vec<Snapshot> {
        self.controller.store.snapshots().list().await.unwrap()
    }

    /// The usual volume and two more, in these pools.
    async fn volumes(&self, pools: [&str; 2]) {
        self.made().await;
        for (name, pool) in ["pvc-2", "pvc-3"].into_iter().zip(pools) {
            let mut request = with_parameter("pool", pool);
            request.name = name.into();
            self.create(&request).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_snapshot_is_taken_once_and_says_what_zfs_says() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let taken = room.snapshot("snap-1", "pvc-1").await.unwrap();
    assert_eq!(taken.snapshot_id, "pvc-1@snap-1");
    assert_eq!(taken.source_volume_id, "pvc-1");
    assert_eq!(taken.size_bytes.unsigned_abs(), GIB + BLOCK);
    assert_eq!(taken.creation_time.unwrap().seconds, 1_767_225_599);
    assert!(taken.ready_to_use && taken.group_snapshot_id.is_empty());
    assert_eq!(room.snapshot("snap-1", "pvc-1").await.unwrap(), taken);
    let object = &room.objects().await[0];
    assert_eq!(object.metadata.finalizers.len(), 1);
    assert_eq!(object.spec.pool_guid, guid_of("tank"));
    assert_eq!(room.steps()[1], ["snapshot.create", "snapshot.await-ready"]);
    room.controller.delete("pvc-1", soon()).await.unwrap();
    assert_eq!(
        room.snapshot("snap-1", "pvc-1").await.unwrap(),
        taken,
        "it outlives its volume"
    );
    room.delete_snapshot("pvc-1@snap-1").await.unwrap();
    room.delete_snapshot("pvc-1@snap-1").await.unwrap();
    assert_eq!(room.objects().await, []);
}

#[tokio::test]
async fn a_name_stands_for_one_snapshot() {
    let room = Room::new(Fate::Ready);
    room.volumes(["tank", "tank"]).await;
    room.snapshot("snap-1", "pvc-1").await.unwrap();
    refused(
        room.snapshot("snap-1", "pvc-2").await,
        Kind::AlreadyExists,
        "pvc-1",
    );
    room.snapshot("My Snap", "pvc-1").await.unwrap();
    let handle = names::handle_of("My Snap");
    refused(
        room.snapshot(&handle, "pvc-1").await,
        Kind::AlreadyExists,
        "My Snap",
    );
    room.group("g", &["pvc-1"]).await.unwrap();
    refused(
        room.snapshot("group/g", "pvc-1").await,
        Kind::AlreadyExists,
        "Group",
    );
    // The same name, another volume.
    room.controller.delete("pvc-1", soon()).await.unwrap();
    room.made().await;
    refused(
        room.snapshot("snap-1", "pvc-1").await,
        Kind::AlreadyExists,
        "earlier",
    );
}

#[tokio::test]
async fn snapshots_of_what_is_not_there_or_not_ready() {
    let room = Room::new(Fate::Silent);
    for id in ["pvc-1", "No Handle"] {
        refused(room.snapshot("s", id).await, Kind::NotFound, id);
    }
    refused(
        room.snapshot("s", "a/b").await,
        Kind::InvalidArgument,
        "source_volume_id",
    );
    refused(
        room.snapshot("", "pvc-1").await,
        Kind::InvalidArgument,
        "name",
    );
    room.write_intent().await;
    refused(
        room.snapshot("s", "pvc-1").await,
        Kind::Unavailable,
        "pvc-1",
    );
    assert_eq!(room.objects().await, []);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_taken_leaves_nothing() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    for (reason, kind) in [
        (reason::NO_SPACE, Kind::ResourceExhausted),
        (reason::DATASET_MISSING, Kind::FailedPrecondition),
        (reason::KERNEL, Kind::Internal),
    ] {
        room.plays(Fate::Error(reason));
        refused(room.snapshot("s", "pvc-1").await, kind, "cannot be taken");
        assert_eq!(room.objects().await, [], "{reason}");
    }
}

#[tokio::test]
async fn rule_10_a_slow_snapshot_ends_its_call_and_is_found_by_the_next() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.plays(Fate::Silent);
    let request = csi::CreateSnapshotRequest {
        source_volume_id: "pvc-1".into(),
        name: "s".into(),
        ..Default::default()
    };
    let wanted = SnapshotWanted::single(&request).unwrap();
    let late = room.controller.create_snapshot(wanted, shortly()).await;
    refused(late, Kind::DeadlineExceeded, "snapshot s");
    let mut object = room.objects().await.remove(0);
    make_taken(&mut object);
    let snapshots = room.controller.store.snapshots();
    snapshots.update_status(object).await.unwrap();
    room.snapshot("s", "pvc-1").await.unwrap();
    let late = room.controller.delete_snapshot(("pvc-1", "s"), shortly());
    refused(late.await, Kind::DeadlineExceeded, "snapshot s");
    refused(room.snapshot("s", "pvc-1").await, Kind::Aborted, "deleted");
}

#[tokio::test]
async fn a_group_is_one_moment_of_one_pool() {
    let room = Room::new(Fate::Ready);
    room.volumes(["tank", "fast"]).await;
    let group = room.group("g", &["pvc-2", "pvc-1"]).await.unwrap();
    assert!(group.ready_to_use && group.creation_time.is_some());
    let ids: Vec<_> = group.snapshots.iter().map(|s| &s.snapshot_id).collect();
    let id = |volume: &str| format!("{volume}@{}", group.group_snapshot_id);
    assert_eq!(ids, [&id("pvc-1"), &id("pvc-2")]);
    assert!(
        group
            .snapshots
            .iter()
            .all(|s| s.group_snapshot_id == group.group_snapshot_id)
    );
    assert_eq!(
        room.group("g", &["pvc-1", "pvc-2"]).await.unwrap(),
        group,
        "in any order"
    );
    refused(
        room.group("g", &["pvc-1"]).await,
        Kind::AlreadyExists,
        "pvc-2",
    );
    let across = room.group("h", &["pvc-1", "pvc-3"]).await;
    refused(
        across.clone(),
        Kind::FailedPrecondition,
        "pvc-1 is in pool tank",
    );
    refused(across, Kind::FailedPrecondition, "pvc-3 is in pool fast");
    refused(
        room.group("h", &["pvc-1", "pvc-1"]).await,
        Kind::InvalidArgument,
        "twice",
    );
    refused(
        room.group("h", &[]).await,
        Kind::InvalidArgument,
        "source_volume_ids",
    );
    refused(
        room.group("h", &["pvc-1", "pvc-9"]).await,
        Kind::NotFound,
        "pvc-9",
    );
    assert_eq!(room.objects().await.len(), 1, "nothing was left behind");
}

#[tokio::test]
async fn a_group_is_deleted_whole() {
    let room = Room::new(Fate::Ready);
    room.volumes(["tank", "tank"]).await;
    let group = room.group("g", &["pvc-1", "pvc-2"]).await.unwrap();
    let id = &group.group_snapshot_id;
    let members: Vec<_> = group
        .snapshots
        .iter()
        .map(|s| s.snapshot_id.clone())
        .collect();
    refused(
        room.delete_snapshot(&members[0]).await,
        Kind::InvalidArgument,
        id,
    );
    for wrong in [&[][..], &members[..1], &["pvc-1@x".to_owned()]] {
        refused(
            room.controller.delete_group(id, wrong, soon()).await,
            Kind::InvalidArgument,
            "snapshot_ids",
        );
        refused(
            room.controller.get_group(id, wrong, soon()).await,
            Kind::InvalidArgument,
            "snapshot_ids",
        );
    }
    let found = room.controller.get_group(id, &members, soon()).await;
    assert_eq!(found.unwrap().group_snapshot, Some(group.clone()));
    room.controller
        .delete_group(id, &members, soon())
        .await
        .unwrap();
    room.controller
        .delete_group(id, &members, soon())
        .await
        .unwrap();
    refused(
        room.controller.get_group(id, &members, soon()).await,
        Kind::NotFound,
        id,
    );
    // A single snapshot is no group.
    room.snapshot("s", "pvc-1").await.unwrap();
    room.controller
        .delete_group("s", &[], soon())
        .await
        .unwrap();
    refused(
        room.controller.get_group("s", &[], soon()).await,
        Kind::NotFound,
        "s",
    );
    assert_eq!(room.objects().await.len(), 1);
}
