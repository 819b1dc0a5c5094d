//! CreateVolume and DeleteVolume.

use super::*;
use crate::model::volume::{FINALIZER, reason};

#[tokio::test]
async fn a_volume_is_made_once_and_found_again() {
    let room = Room::new(Fate::Ready);
    let made = room.made().await;
    assert_eq!(made.volume_id, "pvc-1");
    assert_eq!(made.capacity_bytes, (1 << 30) + (16 << 10));
    let before = room.volume().await.unwrap();
    assert_eq!(before.metadata.finalizers, [FINALIZER]);
    assert_eq!(room.made().await, made);
    assert_eq!(room.volume().await.unwrap(), before, "nothing was written");
    assert_eq!(
        room.steps()[0],
        ["volume.place", "volume.create", "volume.await-ready"]
    );
    assert_eq!(room.steps()[1], ["volume.await-ready"]);
}

#[tokio::test]
async fn rule_07_a_retry_that_asks_for_something_else_is_refused() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let source = |r: &mut csi::CreateVolumeRequest| {
        r.volume_content_source = Some(sources::from_volume("pvc-2"));
    };
    for (other, word) in [
        (
            with(|r| r.capacity_range = Some(range(2 << 30, 0))),
            "required_bytes",
        ),
        (
            with(|r| r.capacity_range = Some(range(0, 1 << 30))),
            "limit_bytes",
        ),
        (with_parameter("fsType", "xfs"), "xfs"),
        (with_parameter("pool", "other"), "other"),
        (with_parameter("volBlockSize", "8k"), "8k"),
        (with_parameter("compression", "lz4"), "lz4"),
        (with_parameter("provisioning", "thick"), "Thick"),
        (with_parameter("reclaimPolicy", "Retain"), "Retain"),
        (
            with(|r| r.volume_capabilities = vec![block(Mode::SingleNodeWriter)]),
            "Block",
        ),
        (with(source), "pvc-2"),
    ] {
        refused(room.create(&other).await, Kind::AlreadyExists, word);
    }
    room.create(&with(|r| r.capacity_range = None))
        .await
        .expect("any size will do");
    room.create(&with_parameter("pool", "other,tank"))
        .await
        .expect("it is in one of them");
    room.create(&with(|r| {
        r.volume_capabilities = vec![mount(Mode::MultiNodeReaderOnly)];
    }))
    .await
    .expect("it can be used that way as well");
}

#[tokio::test]
async fn the_full_name_is_compared() {
    let room = Room::new(Fate::Ready);
    let odd = with(|r| r.name = "My Volume".into());
    let id = room.create(&odd).await.unwrap().volume_id;
    let twin = with(|r| r.name = id.clone());
    refused(room.create(&twin).await, Kind::AlreadyExists, "My Volume");
}

#[tokio::test]
async fn a_volume_that_cannot_be_made_leaves_nothing() {
    for (reason, kind) in [
        (reason::POOL_NOT_FOUND, Kind::InvalidArgument),
        (reason::NO_SPACE, Kind::ResourceExhausted),
        (reason::BAD_PROPERTY, Kind::InvalidArgument),
        (reason::DATASET_FOREIGN, Kind::FailedPrecondition),
        (reason::SOURCE_MISSING, Kind::NotFound),
        ("Unheard", Kind::Internal),
    ] {
        let room = Room::new(Fate::Error(reason));
        refused(room.create(&request()).await, kind, "cannot be made");
        assert_eq!(room.volume().await, None, "{reason}");
    }
}

#[tokio::test]
async fn rule_02_a_volume_that_was_ready_is_not_taken_back() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.change(|v| {
        v.status.state = State::Error;
        v.status.conditions = vec![trouble(reason::DATASET_MISSING, "the dataset is gone")];
    })
    .await;
    let gone = "the dataset is gone";
    refused(
        room.create(&request()).await,
        Kind::FailedPrecondition,
        gone,
    );
    refused(room.publish("node0").await, Kind::FailedPrecondition, gone);
    refused(
        room.expand(2 * GIB, 0).await,
        Kind::FailedPrecondition,
        gone,
    );
    refused(
        room.snapshot("snap", "pvc-1").await,
        Kind::FailedPrecondition,
        gone,
    );
    let volume = room.volume().await.unwrap();
    assert!(!volume.is_deleting() && volume.status.mapped_initiators.is_empty());
    assert_eq!(volume.spec.capacity, GIB + BLOCK);
}

#[tokio::test]
async fn rule_10_every_wait_ends_and_says_what_it_waited_for() {
    let room = Room::new(Fate::Silent);
    let wanted = Wanted::parse(&request()).unwrap();
    let late = room.controller.create(wanted.clone(), shortly()).await;
    refused(late, Kind::DeadlineExceeded, "storage0");
    room.change(|v| v.status.conditions = vec![trouble(reason::KERNEL, "the disk is slow")])
        .await;
    refused(
        room.controller.create(wanted, shortly()).await,
        Kind::DeadlineExceeded,
        "the disk is slow",
    );
    refused(
        room.publish("node0").await,
        Kind::Unavailable,
        "the disk is slow",
    );
    room.change(make_ready).await;
    let node0 = Consumer::new(
        "node0",
        check::capability(Some(&mount(Mode::SingleNodeWriter))).unwrap(),
        false,
    );
    let late = room.controller.publish("pvc-1", &node0, shortly()).await;
    refused(late, Kind::DeadlineExceeded, "node0");
    room.change(|v| v.status.published_initiators = vec![names::host_nqn("node0")])
        .await;
    let late = room
        .controller
        .unpublish("pvc-1", Some("node0"), shortly())
        .await;
    refused(late, Kind::DeadlineExceeded, "node0");
    room.change(|v| v.status.published_initiators.clear()).await;
    refused(
        room.controller.delete("pvc-1", shortly()).await,
        Kind::DeadlineExceeded,
        "pvc-1",
    );
    refused(
        room.create(&request()).await,
        Kind::Aborted,
        "being deleted",
    );
    refused(
        room.expand(2 * GIB, 0).await,
        Kind::FailedPrecondition,
        "being deleted",
    );
}

#[tokio::test]
async fn what_is_not_there_is_deleted_and_the_name_is_free_again() {
    let room = Room::new(Fate::Ready);
    room.controller.delete("pvc-1", soon()).await.unwrap();
    room.made().await;
    room.controller.delete("pvc-1", soon()).await.unwrap();
    assert_eq!(room.volume().await, None);
    room.made().await;
}

#[tokio::test]
async fn a_raw_device_gets_no_filesystem_and_any_size() {
    let room = Room::new(Fate::Ready);
    let raw = with(|r| {
        r.volume_capabilities = vec![block(Mode::MultiNodeMultiWriter)];
        r.parameters.insert("fsType".into(), "xfs".into());
        r.capacity_range = Some(range(1, 0));
    });
    let made = room.create(&raw).await.unwrap();
    assert_eq!(made.capacity_bytes.unsigned_abs(), BLOCK);
    let volume = room.volume().await.unwrap();
    assert_eq!(volume.spec.volume_mode, VolumeMode::Block);
    room.create(&raw).await.expect("the same again");
    let plain = with(|r| {
        r.volume_capabilities = raw.volume_capabilities.clone();
        r.capacity_range = raw.capacity_range;
    });
    room.create(&plain).await.expect("its class may change");
}

#[tokio::test]
async fn mutable_parameters_go_before_parameters() {
    let room = Room::new(Fate::Ready);
    let both = with(|r| {
        r.parameters.insert("compression".into(), "lz4".into());
        r.parameters.insert("sync".into(), "always".into());
        let mutable = [("compression", "zstd"), ("refreservation", "auto")];
        r.mutable_parameters = mutable
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    });
    room.create(&both).await.unwrap();
    let tuning = room.volume().await.unwrap().spec.tuning;
    assert_eq!(
        (tuning.compression.as_str(), tuning.sync.as_str()),
        ("zstd", "always")
    );
    assert_eq!(
        tuning.provisioning,
        crate::model::volume::Provisioning::Thick
    );
    room.create(&both).await.expect("the same again");
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let refuse = |change: fn(&mut csi::CreateVolumeRequest), word: &str| {
        refused(Wanted::parse(&with(change)), Kind::InvalidArgument, word);
    };
    refuse(|r| r.name.clear(), "name");
    refuse(|r| r.volume_capabilities.clear(), "volume_capabilities");
    refuse(
        |r| r.volume_capabilities.push(block(Mode::SingleNodeWriter)),
        "mount and block",
    );
    refuse(
        |r| r.volume_capabilities = vec![mount(Mode::MultiNodeMultiWriter)],
        "raw block",
    );
    refuse(
        |r| drop(r.parameters.insert("colour".into(), "blue".into())),
        "colour",
    );
    refuse(
        |r| drop(r.mutable_parameters.insert("pool".into(), "b".into())),
        "pool",
    );
    refuse(
        |r| r.volume_content_source = Some(Default::default()),
        "volume_content_source",
    );
    refuse(
        |r| r.volume_content_source = Some(sources::from_snapshot("")),
        "snapshot_id",
    );
    refuse(
        |r| r.volume_content_source = Some(sources::from_volume("a\0")),
        "volume_id",
    );
    refuse(
        |r| {
            r.accessibility_requirements = Some(csi::TopologyRequirement {
                requisite: vec![csi::Topology::default()],
                preferred: Vec::new(),
            });
        },
        "accessibility_requirements",
    );
    refuse(|r| r.capacity_range = Some(range(-1, 0)), "required_bytes");
}
