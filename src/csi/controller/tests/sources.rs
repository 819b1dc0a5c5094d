//! Volumes that are made from snapshots and from other volumes.

use zvolt_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::*;
use crate::model::volume::FsType;

pub(super) fn from_snapshot(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource {
            snapshot_id: id.into(),
        })),
    }
}

pub(super) fn from_volume(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource {
            volume_id: id.into(),
        })),
    }
}

/// A copy called `pvc-2`, of any size.
fn copy(source: csi::VolumeContentSource) -> csi::CreateVolumeRequest {
    with(|r| {
        r.name = "pvc-2".into();
        r.capacity_range = None;
        r.volume_content_source = Some(source.clone());
    })
}

impl Room {
    async fn copied(&self) -> Volume {
        let volumes = self.controller.store.volumes();
        volumes.get("pvc-2").await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_copy_inherits_what_a_copy_cannot_change() {
    let room = Room::new(Fate::Ready);
    let source = with(|r| {
        r.parameters.insert("volBlockSize".into(), "32k".into());
        r.parameters.insert("fsType".into(), "xfs".into());
    });
    let size = room.create(&source).await.unwrap().capacity_bytes;
    room.snapshot("snap-1", "pvc-1").await.unwrap();
    for (origin, snapshot, volume) in [
        (from_snapshot("pvc-1@snap-1"), Some("pvc-1@snap-1"), None),
        (from_volume("pvc-1"), None, Some("pvc-1")),
    ] {
        let request = copy(origin.clone());
        let made = room.create(&request).await.unwrap();
        assert_eq!(made.content_source, Some(origin));
        // The snapshot's size is ZFS's, which the agent of these tests makes up.
        let expected = snapshot.map_or(size, |_| (GIB + BLOCK).cast_signed());
        assert_eq!(made.capacity_bytes, expected);
        let spec = room.copied().await.spec;
        assert_eq!(
            (spec.vol_block_size.as_str(), spec.fs_type),
            ("32k", FsType::Xfs)
        );
        assert_eq!(
            (
                spec.source_snapshot_id.as_deref(),
                spec.source_volume_id.as_deref()
            ),
            (snapshot, volume)
        );
        assert_eq!(room.create(&request).await.unwrap(), made, "a retry");
        let other = copy(from_volume("pvc-3"));
        refused(room.create(&other).await, Kind::AlreadyExists, "pvc-3");
        let none = with(|r| r.name = "pvc-2".into());
        refused(room.create(&none).await, Kind::AlreadyExists, "nothing");
        room.controller.delete("pvc-2", soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_retry_needs_no_source_any_more() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let request = copy(from_volume("pvc-1"));
    let made = room.create(&request).await.unwrap();
    room.controller.delete("pvc-1", soon()).await.unwrap();
    assert_eq!(room.create(&request).await.unwrap(), made);
}

#[tokio::test]
async fn rule_07_a_copy_is_never_smaller_than_its_source() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let sized = |required, limit| {
        let mut request = copy(from_volume("pvc-1"));
        request.capacity_range = Some(range(required, limit));
        request
    };
    for (required, limit) in [(1 << 30, 0), (0, 1 << 30), (1, 2)] {
        refused(
            room.create(&sized(required, limit)).await,
            Kind::OutOfRange,
            "source",
        );
    }
    let made = room.create(&sized((1 << 30) + 1, 0)).await.unwrap();
    assert_eq!(made.capacity_bytes, (1 << 30) + (16 << 10));
    room.controller.delete("pvc-2", soon()).await.unwrap();
    let larger = room.create(&sized(3 << 30, 0)).await.unwrap();
    assert_eq!(larger.capacity_bytes, 3 << 30);
}

#[tokio::test]
async fn sources_that_are_not_there_are_not_found() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.snapshot("snap-1", "pvc-1").await.unwrap();
    for (origin, word) in [
        (from_snapshot("non-existing-snapshot-id"), "non-existing"),
        (from_snapshot("pvc-1@none"), "pvc-1@none"),
        (from_snapshot("pvc-9@snap-1"), "pvc-9@snap-1"),
        (from_volume("pvc-9"), "pvc-9"),
        (from_volume("No Handle"), "No Handle"),
        (from_volume("pvc-2"), "pvc-2"),
    ] {
        refused(room.create(&copy(origin)).await, Kind::NotFound, word);
    }
    room.plays(Fate::Silent);
    let late = room
        .controller
        .delete_snapshot(("pvc-1", "snap-1"), shortly())
        .await;
    refused(late, Kind::DeadlineExceeded, "snap-1");
    refused(
        room.create(&copy(from_snapshot("pvc-1@snap-1"))).await,
        Kind::NotFound,
        "snap-1",
    );
}

#[tokio::test]
async fn sources_that_are_not_ready_are_waited_for_elsewhere() {
    let room = Room::new(Fate::Silent);
    room.write_intent().await;
    refused(
        room.create(&copy(from_volume("pvc-1"))).await,
        Kind::Unavailable,
        "pvc-1",
    );
    room.change(make_ready).await;
    let request = csi::CreateSnapshotRequest {
        source_volume_id: "pvc-1".into(),
        name: "snap-1".into(),
        ..Default::default()
    };
    let wanted = SnapshotWanted::single(&request).unwrap();
    let late = room.controller.create_snapshot(wanted, shortly()).await;
    refused(late, Kind::DeadlineExceeded, "storage0");
    refused(
        room.create(&copy(from_snapshot("pvc-1@snap-1"))).await,
        Kind::Unavailable,
        "snap-1",
    );
}

#[tokio::test]
async fn copies_that_cannot_be_made_are_refused() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let with = |key: &str, value: &str| {
        let mut request = copy(from_volume("pvc-1"));
        request.parameters.insert(key.into(), value.into());
        request
    };
    for (request, word) in [
        (with("pool", "other,fast"), "tank"),
        (with("volBlockSize", "8k"), "16k"),
        (with("fsType", "xfs"), "ext4"),
    ] {
        refused(room.create(&request).await, Kind::InvalidArgument, word);
    }
    room.create(&with("pool", "other,tank"))
        .await
        .expect("the source's pool is one of them");
    let mut volume = room.volume().await.unwrap();
    volume.spec.vol_block_size = String::new();
    room.controller
        .store
        .volumes()
        .update_spec(volume)
        .await
        .unwrap();
    let mut third = copy(from_volume("pvc-1"));
    third.name = "pvc-3".into();
    refused(
        room.create(&third).await,
        Kind::FailedPrecondition,
        "volBlockSize",
    );
}

#[tokio::test]
async fn rule_01_nobody_knows_what_is_on_a_raw_device() {
    let room = Room::new(Fate::Ready);
    let raw = vec![block(Mode::SingleNodeWriter)];
    room.create(&with(|r| r.volume_capabilities = raw.clone()))
        .await
        .unwrap();
    room.snapshot("snap-1", "pvc-1").await.unwrap();
    for origin in [from_volume("pvc-1"), from_snapshot("pvc-1@snap-1")] {
        refused(
            room.create(&copy(origin.clone())).await,
            Kind::InvalidArgument,
            "not formatted",
        );
        let mut request = copy(origin);
        request.volume_capabilities = raw.clone();
        room.create(&request).await.expect("raw from raw");
        room.controller.delete("pvc-2", soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_raw_copy_of_a_filesystem_is_fine() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let mut request = copy(from_volume("pvc-1"));
    request.volume_capabilities = vec![block(Mode::SingleNodeWriter)];
    room.create(&request).await.unwrap();
    assert_eq!(room.copied().await.spec.volume_mode, VolumeMode::Block);
}
