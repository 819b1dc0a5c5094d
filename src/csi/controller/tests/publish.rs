//! ControllerPublishVolume and ControllerUnpublishVolume.

use super::*;
use crate::model::access::ReadOnly;
use crate::model::publish::Content;
use crate::model::volume::{FsType, reason};

#[tokio::test]
async fn rule_04_one_writer_until_it_is_fenced() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let target = room.publish("node0").await.unwrap();
    assert_eq!(target.nqn, names::subsystem_nqn("pvc-1"));
    assert_eq!(target.dataset, "tank/csi/block/pvc-1");
    assert_eq!(target.read_only, ReadOnly::No);
    assert_eq!(
        room.publish("node0").await.unwrap(),
        target,
        "the same again"
    );
    refused(
        room.publish("node1").await,
        Kind::FailedPrecondition,
        "node0",
    );
    refused(
        room.controller.delete("pvc-1", soon()).await,
        Kind::FailedPrecondition,
        "node0",
    );
    room.unpublish("node1").await.expect("it never had it");
    refused(
        room.publish("node1").await,
        Kind::FailedPrecondition,
        "node0",
    );
    room.unpublish("node0").await.unwrap();
    room.unpublish("node0").await.unwrap();
    room.publish("node1").await.unwrap();
    room.controller
        .unpublish("pvc-1", None, soon())
        .await
        .expect("from all");
    assert_eq!(
        room.volume().await.unwrap().status.published_initiators,
        [""; 0]
    );
}

#[tokio::test]
async fn rule_04_a_node_that_is_not_fenced_yet_still_holds_the_volume() {
    let room = Room::new(Fate::Silent);
    room.write_intent().await;
    room.change(|v| {
        make_ready(v);
        v.status.published_initiators = vec![names::host_nqn("node0")];
    })
    .await;
    // The unpublish gave up: node0 is not wanted any more, and may still write.
    refused(
        room.publish("node1").await,
        Kind::FailedPrecondition,
        "node0",
    );
    refused(
        room.publish_as("node1", &mount(Mode::MultiNodeReaderOnly), false)
            .await,
        Kind::FailedPrecondition,
        "fenced",
    );
    refused(
        room.controller.delete("pvc-1", soon()).await,
        Kind::FailedPrecondition,
        "node0",
    );
    let capability = check::capability(Some(&mount(Mode::SingleNodeWriter))).unwrap();
    let node0 = Consumer::new("node0", capability, false);
    let back = room.controller.publish("pvc-1", &node0, shortly()).await;
    refused(back, Kind::DeadlineExceeded, "fenced");
    let volume = room.volume().await.unwrap();
    assert!(
        volume.status.mapped_initiators.is_empty(),
        "it is not admitted in the middle of its fence"
    );
}

#[tokio::test]
async fn two_nodes_at_once_make_one_writer() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    // Without the volume's lock, as two controllers would.
    let (one, other) = tokio::join!(room.publish("node0"), room.publish("node1"));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert_eq!(
        room.volume().await.unwrap().status.mapped_initiators.len(),
        1
    );
}

#[tokio::test]
async fn a_wish_that_comes_to_nothing_is_taken_back() {
    let room = Room::new(Fate::Silent);
    room.write_intent().await;
    room.change(make_ready).await;
    let mut watch = room.controller.store.volumes().watch(Some("pvc-1"));
    let fails = async {
        while let Some(Change::Put(volume)) = watch.next().await {
            if !volume.status.mapped_initiators.is_empty() {
                break;
            }
        }
        room.change(|v| {
            v.status.state = State::Error;
            v.status.conditions = vec![trouble(reason::POOL_REPLACED, "another pool")];
        })
        .await;
    };
    let (published, ()) = tokio::join!(room.publish("node0"), fails);
    refused(published, Kind::FailedPrecondition, "another pool");
    assert!(
        room.volume()
            .await
            .unwrap()
            .status
            .mapped_initiators
            .is_empty()
    );
}

#[tokio::test]
async fn rule_05_readers_share_a_volume_and_no_writer_joins_them() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let readers = mount(Mode::MultiNodeReaderOnly);
    for node in ["node0", "node1"] {
        let target = room.publish_as(node, &readers, false).await.unwrap();
        assert_eq!(target.read_only, ReadOnly::Yes);
    }
    refused(
        room.publish("node2").await,
        Kind::FailedPrecondition,
        "node0",
    );
    let mapped = room.volume().await.unwrap().status.mapped_initiators;
    assert!(mapped.iter().all(|m| m.read_only) && mapped.len() == 2);
    room.unpublish("node0").await.unwrap();
    refused(
        room.publish("node2").await,
        Kind::FailedPrecondition,
        "node1",
    );
    room.unpublish("node1").await.unwrap();
    room.publish("node2").await.expect("alone again");
    refused(
        room.publish_as("node0", &readers, false).await,
        Kind::FailedPrecondition,
        "node2",
    );
}

#[tokio::test]
async fn rule_05_a_readonly_publish_of_a_writable_volume() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let writer = mount(Mode::SingleNodeMultiWriter);
    let target = room.publish_as("node0", &writer, true).await.unwrap();
    assert_eq!(target.read_only, ReadOnly::Yes);
    refused(
        room.publish_as("node0", &writer, false).await,
        Kind::AlreadyExists,
        "readonly=true",
    );
    refused(
        room.publish_as("node1", &writer, true).await,
        Kind::FailedPrecondition,
        "node0",
    );
}

#[tokio::test]
async fn another_mode_on_the_same_node_is_refused_but_an_old_name_of_it_is_not() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let as_mode = |mode| {
        let capability = mount(mode);
        let room = &room;
        async move { room.publish_as("node0", &capability, false).await }
    };
    as_mode(Mode::SingleNodeWriter).await.unwrap();
    as_mode(Mode::SingleNodeMultiWriter)
        .await
        .expect("its newer name");
    for mode in [
        Mode::SingleNodeSingleWriter,
        Mode::MultiNodeReaderOnly,
        Mode::SingleNodeReaderOnly,
    ] {
        refused(as_mode(mode).await, Kind::AlreadyExists, mode.as_str_name());
    }
}

#[tokio::test]
async fn raw_devices_can_be_written_by_many_nodes() {
    let room = Room::new(Fate::Ready);
    let many = block(Mode::MultiNodeMultiWriter);
    room.create(&with(|r| r.volume_capabilities = vec![many.clone()]))
        .await
        .unwrap();
    for node in ["node0", "node1", "node2"] {
        let target = room.publish_as(node, &many, false).await.unwrap();
        assert_eq!(
            (target.content, target.read_only),
            (Content::Raw, ReadOnly::No)
        );
    }
    refused(
        room.publish_as("node3", &block(Mode::SingleNodeWriter), false)
            .await,
        Kind::FailedPrecondition,
        "node0",
    );
    refused(
        room.publish("node3").await,
        Kind::InvalidArgument,
        "raw device",
    );
}

#[tokio::test]
async fn a_capability_must_fit_the_volume() {
    let room = Room::new(Fate::Ready);
    refused(room.publish("node0").await, Kind::NotFound, "pvc-1");
    room.unpublish("node0")
        .await
        .expect("what is not there is not published");
    room.made().await;
    refused(
        room.publish_as("node0", &block(Mode::SingleNodeWriter), false)
            .await,
        Kind::InvalidArgument,
        "filesystem",
    );
    let mut xfs = mount(Mode::SingleNodeWriter);
    xfs.access_type = Some(AccessType::Mount(MountVolume {
        fs_type: "xfs".into(),
        ..Default::default()
    }));
    refused(
        room.publish_as("node0", &xfs, false).await,
        Kind::InvalidArgument,
        "ext4",
    );
    let target = room.publish("node0").await.unwrap();
    assert!(
        matches!(target.content, Content::Filesystem { fs_type: FsType::Ext4, uuid } if uuid.as_u128() == 2)
    );
}

#[tokio::test]
async fn only_consumers_get_a_volume_when_they_are_known() {
    let room = Room::for_consumers(Fate::Ready, &["node0"]);
    room.made().await;
    refused(room.publish("node1").await, Kind::NotFound, "node1");
    room.unpublish("node1").await.expect("it has nothing");
    room.publish("node0").await.unwrap();
    room.unpublish("node0").await.unwrap();
    room.publish("storage0")
        .await
        .expect("the host itself always may");
}
