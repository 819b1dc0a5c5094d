//! Lists, single looks, and ValidateVolumeCapabilities.

use super::super::page::{Entries, Page};
use super::super::snapshot::Filter;
use super::super::validate::validated;
use super::*;

fn page(most: i32, token: &str, entries: Entries) -> Page {
    Page::new(most, token, entries).unwrap()
}

impl Room {
    async fn snapshots(&self, volume: Option<&str>, snapshot: Option<&str>) -> Vec<String> {
        let filter = Filter {
            volume: volume.map(str::to_owned),
            snapshot: snapshot.map(str::to_owned),
        };
        let page = page(0, "", Entries::Snapshots);
        let answer = self.controller.list_snapshots(filter, page, soon()).await;
        let entries = answer.unwrap().entries.into_iter();
        entries.map(|e| e.snapshot.unwrap().snapshot_id).collect()
    }
}

#[tokio::test]
async fn volumes_are_listed_in_pages_with_who_has_them() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    for name in ["pvc-2", "pvc-3"] {
        room.create(&with(|r| r.name = name.into())).await.unwrap();
    }
    room.publish("node0").await.unwrap();
    let list = async |most, token: &str| {
        let page = page(most, token, Entries::Volumes);
        room.controller.list(page, soon()).await.unwrap()
    };
    let first = list(2, "").await;
    let ids = |answer: &csi::ListVolumesResponse| -> Vec<String> {
        let volumes = answer.entries.iter().map(|e| e.volume.clone().unwrap());
        volumes.map(|v| v.volume_id).collect()
    };
    assert_eq!(ids(&first), ["pvc-1", "pvc-2"]);
    let nodes = |entry: &csi::list_volumes_response::Entry| {
        entry.status.clone().unwrap().published_node_ids
    };
    assert_eq!(nodes(&first.entries[0]), ["node0"]);
    assert_eq!(nodes(&first.entries[1]), [""; 0]);
    room.controller.delete("pvc-2", soon()).await.unwrap();
    let rest = list(2, &first.next_token).await;
    assert_eq!(
        (ids(&rest), rest.next_token.as_str()),
        (vec!["pvc-3".to_owned()], ""),
        "the page before has lost its last, and nothing moves"
    );
    let one = room.controller.get("pvc-1", soon()).await.unwrap();
    assert_eq!(one.volume, first.entries[0].volume);
    assert_eq!(one.status.unwrap().published_node_ids, ["node0"]);
    refused(
        room.controller.get("pvc-2", soon()).await,
        Kind::NotFound,
        "pvc-2",
    );
}

#[tokio::test]
async fn snapshots_are_listed_by_what_is_asked_for() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.create(&with(|r| r.name = "pvc-2".into()))
        .await
        .unwrap();
    room.snapshot("b", "pvc-1").await.unwrap();
    room.snapshot("a", "pvc-2").await.unwrap();
    room.snapshot("c", "pvc-2").await.unwrap();
    assert_eq!(
        room.snapshots(None, None).await,
        ["pvc-2@a", "pvc-1@b", "pvc-2@c"]
    );
    assert_eq!(
        room.snapshots(Some("pvc-2"), None).await,
        ["pvc-2@a", "pvc-2@c"]
    );
    assert_eq!(room.snapshots(None, Some("pvc-1@b")).await, ["pvc-1@b"]);
    let none = [""; 0];
    for (volume, snapshot) in [
        (Some("pvc-9"), None),
        (Some("pvc-2"), Some("pvc-1@b")),
        (None, Some("pvc-2@b")),
        (None, Some("none-exist-id")),
        (None, Some("pvc-1@none")),
    ] {
        assert_eq!(room.snapshots(volume, snapshot).await, none);
    }
    let controller = &room.controller;
    let first = controller
        .list_snapshots(Filter::default(), page(2, "", Entries::Snapshots), soon())
        .await
        .unwrap();
    let next = page(2, &first.next_token, Entries::Snapshots);
    let rest = controller
        .list_snapshots(Filter::default(), next, soon())
        .await
        .unwrap();
    assert_eq!((first.entries.len(), rest.entries.len()), (2, 1));
    assert_eq!(rest.next_token, "");
    for id in ["none-exist-id", "pvc-2@b", "pvc-1@none"] {
        refused(
            controller.get_snapshot(id, soon()).await,
            Kind::NotFound,
            id,
        );
    }
}

#[tokio::test]
async fn a_snapshot_that_is_not_taken_yet_is_got_but_not_listed() {
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
    assert_eq!(room.snapshots(None, None).await, [""; 0]);
    let pending = room.controller.get_snapshot("pvc-1@s", soon()).await;
    let pending = pending.unwrap().snapshot.unwrap();
    assert!(!pending.ready_to_use && pending.creation_time.is_some());
    assert_eq!(pending.size_bytes, 0);
}

fn validate(
    volume: &Volume,
    change: impl Fn(&mut csi::ValidateVolumeCapabilitiesRequest),
) -> Result<(), String> {
    let mut request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: "pvc-1".into(),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        ..Default::default()
    };
    change(&mut request);
    let answer = validated(&request, volume);
    match answer.confirmed {
        Some(confirmed) => {
            assert_eq!(confirmed.volume_capabilities, request.volume_capabilities);
            Ok(())
        }
        None => Err(answer.message),
    }
}

#[tokio::test]
async fn what_holds_is_confirmed_and_what_does_not_is_told() {
    let room = Room::new(Fate::Ready);
    room.create(&with_parameter("compression", "lz4"))
        .await
        .unwrap();
    let volume = room.volume().await.unwrap();
    for mode in [
        Mode::SingleNodeWriter,
        Mode::SingleNodeReaderOnly,
        Mode::SingleNodeSingleWriter,
        Mode::SingleNodeMultiWriter,
        Mode::MultiNodeReaderOnly,
    ] {
        let fine = validate(&volume, |r| r.volume_capabilities = vec![mount(mode)]);
        assert_eq!(fine, Ok(()), "{mode:?}");
    }
    let parameter = |key: &str, value: &str| {
        let given = [("pool", "tank"), (key, value)];
        let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
        validate(&volume, |r| r.parameters = given.clone().into())
    };
    let mutable = |key: &str, value: &str| {
        let given = [(key.to_owned(), value.to_owned())];
        validate(&volume, |r| r.mutable_parameters = given.clone().into())
    };
    for fine in [
        parameter("compression", "lz4"),
        parameter("fsType", "ext4"),
        parameter("pool", "other,tank"),
        mutable("compression", "lz4"),
        mutable("refreservation", "none"),
    ] {
        assert_eq!(fine, Ok(()));
    }
    for (wrong, word) in [
        (parameter("compression", "zstd"), "lz4"),
        (parameter("sync", "always"), "properties"),
        (parameter("fsType", "xfs"), "ext4"),
        (parameter("pool", "other"), "tank"),
        (parameter("volBlockSize", "8k"), "16k"),
        (parameter("reclaimPolicy", "Retain"), "Delete"),
        (parameter("colour", "blue"), "colour"),
        (mutable("sync", "always"), "properties"),
        (
            validate(&volume, |r| {
                r.volume_capabilities = vec![block(Mode::SingleNodeWriter)];
            }),
            "filesystem",
        ),
        (
            validate(&volume, |r| {
                r.volume_capabilities = vec![mount(Mode::MultiNodeMultiWriter)];
            }),
            "raw block",
        ),
    ] {
        let message = wrong.unwrap_err();
        assert!(message.contains(word), "{word} is missing in {message}");
    }
}
