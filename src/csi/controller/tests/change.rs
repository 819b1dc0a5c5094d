//! ControllerExpandVolume and ControllerModifyVolume.

use std::collections::HashMap;

use super::*;
use crate::model::parameters::Changes;
use crate::model::volume::{Provisioning, Tuning, reason};

fn changes(key: &str, value: &str) -> Changes {
    Changes::parse(&HashMap::from([(key.to_owned(), value.to_owned())])).unwrap()
}

impl Room {
    async fn modify(&self, key: &str, value: &str) -> Result<(), Refusal> {
        self.controller
            .modify("pvc-1", changes(key, value), soon())
            .await
    }

    async fn tuning(&self) -> Tuning {
        self.volume().await.unwrap().spec.tuning
    }

    /// The agent answers to the spec as it is now, once.
    async fn answers(&self, fate: Fate) {
        self.change(|v| answer_change(v, fate)).await;
    }
}

#[tokio::test]
async fn rule_07_a_volume_grows_once_and_is_found_grown() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    assert_eq!(room.expand(2 * GIB + 1, 0).await, Ok(2 * GIB + BLOCK));
    let before = room.volume().await.unwrap();
    assert_eq!(before.spec.capacity, 2 * GIB + BLOCK);
    for (required, limit) in [
        (2 * GIB + 1, 0),
        (GIB, 0),
        (0, 3 * GIB),
        (1, 2 * GIB + BLOCK),
    ] {
        assert_eq!(
            room.expand(required, limit).await,
            Ok(2 * GIB + BLOCK),
            "{required} {limit}"
        );
    }
    assert_eq!(room.volume().await.unwrap(), before, "nothing was written");
    let steps = room.steps();
    assert!(
        steps.contains(&vec![
            "volume.expand".into(),
            "volume.await-expanded".into()
        ]),
        "{steps:?}"
    );
}

#[tokio::test]
async fn rule_07_limits_hold_and_nothing_shrinks() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    for (required, limit) in [(2 * GIB + 1, 2 * GIB + 2), (1, GIB), (0, 5), (u64::MAX, 0)] {
        refused(
            room.expand(required, limit).await,
            Kind::OutOfRange,
            "capacity_range",
        );
    }
    room.host("storage0", vec![pool("tank", 10 * GIB)]).await;
    refused(room.expand(11 * GIB, 0).await, Kind::OutOfRange, "tank");
    let volume = room.volume().await.unwrap();
    assert_eq!(
        (volume.spec.capacity, volume.metadata.generation),
        (GIB + BLOCK, 1)
    );
    refused(
        room.controller
            .expand(
                "pvc-2",
                Range {
                    required: 1,
                    limit: 0,
                },
                None,
                soon(),
            )
            .await,
        Kind::NotFound,
        "pvc-2",
    );
    let raw = check::capability(Some(&block(Mode::SingleNodeWriter))).unwrap();
    let range = Range {
        required: 2 * GIB,
        limit: 0,
    };
    refused(
        room.controller
            .expand("pvc-1", range, Some(raw), soon())
            .await,
        Kind::InvalidArgument,
        "raw device",
    );
}

#[tokio::test]
async fn rule_07_an_expand_that_zfs_refuses_leaves_nothing() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.plays(Fate::Error(reason::NO_SPACE));
    refused(
        room.expand(5 * GIB, 0).await,
        Kind::OutOfRange,
        "ZFS says no",
    );
    assert_eq!(
        room.volume().await.unwrap().spec.capacity,
        GIB + BLOCK,
        "the agent has nothing left to try"
    );
    // Each call asks anew, and gets an answer of its own.
    refused(
        room.expand(5 * GIB, 0).await,
        Kind::OutOfRange,
        "ZFS says no",
    );
    room.plays(Fate::Ready);
    assert_eq!(
        room.expand(2 * GIB, 0).await,
        Ok(2 * GIB),
        "less can be had"
    );
    assert_eq!(room.expand(5 * GIB, 0).await, Ok(5 * GIB));
}

#[tokio::test]
async fn rule_09_an_expand_is_answered_when_it_was_read_back() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.plays(Fate::Silent);
    let range = Range {
        required: 2 * GIB,
        limit: 0,
    };
    let late = room.controller.expand("pvc-1", range, None, shortly());
    refused(late.await, Kind::DeadlineExceeded, "expanded");
    // A size without the agent's word for it is one half only.
    room.change(|v| v.status.actual_capacity = Some(2 * GIB))
        .await;
    let late = room.controller.expand("pvc-1", range, None, shortly());
    refused(late.await, Kind::DeadlineExceeded, "expanded");
    room.answers(Fate::Error(reason::KERNEL)).await;
    let late = room.controller.expand("pvc-1", range, None, shortly());
    refused(late.await, Kind::DeadlineExceeded, "ZFS says no");
    assert_eq!(
        room.volume().await.unwrap().spec.capacity,
        2 * GIB,
        "what the agent tries again stays"
    );
    room.answers(Fate::Ready).await;
    assert_eq!(room.expand(2 * GIB, 0).await, Ok(2 * GIB));
}

#[tokio::test]
async fn a_refusal_that_nobody_took_back_is_no_answer_to_the_next_call() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.plays(Fate::Silent);
    let range = Range {
        required: 5 * GIB,
        limit: 0,
    };
    let late = room.controller.expand("pvc-1", range, None, shortly());
    refused(late.await, Kind::DeadlineExceeded, "expanded");
    // The refusal comes when the call has given up.
    room.answers(Fate::Error(reason::NO_SPACE)).await;
    let generation = room.volume().await.unwrap().metadata.generation;
    room.plays(Fate::Ready);
    assert_eq!(
        room.expand(5 * GIB, 0).await,
        Ok(5 * GIB),
        "there is room meanwhile"
    );
    assert_eq!(
        room.volume().await.unwrap().metadata.generation,
        generation + 2
    );
}

#[tokio::test]
async fn properties_are_changed_once_and_only_those_that_are_named() {
    let room = Room::new(Fate::Ready);
    room.create(&with_parameter("compression", "lz4"))
        .await
        .unwrap();
    room.modify("sync", "always").await.unwrap();
    room.modify("refreservation", "auto").await.unwrap();
    let expected = Tuning {
        compression: "lz4".into(),
        sync: "always".into(),
        provisioning: Provisioning::Thick,
        ..Tuning::default()
    };
    let volume = room.volume().await.unwrap();
    assert_eq!(
        (&volume.spec.tuning, &volume.spec.tuning_before),
        (&expected, &None)
    );
    room.modify("sync", "always").await.unwrap();
    assert_eq!(
        room.volume().await.unwrap().spec,
        volume.spec,
        "nothing was written"
    );
    refused(
        room.controller
            .modify("pvc-2", changes("sync", "always"), soon())
            .await,
        Kind::NotFound,
        "pvc-2",
    );
}

#[tokio::test]
async fn properties_that_zfs_refuses_are_taken_back() {
    let room = Room::new(Fate::Ready);
    room.create(&with_parameter("sync", "always"))
        .await
        .unwrap();
    let before = room.tuning().await;
    for (reason, kind) in [
        (reason::BAD_PROPERTY, Kind::InvalidArgument),
        (reason::NO_SPACE, Kind::ResourceExhausted),
    ] {
        room.plays(Fate::Error(reason));
        refused(
            room.modify("refreservation", "auto").await,
            kind,
            "ZFS says no",
        );
        let volume = room.volume().await.unwrap();
        assert_eq!(
            (volume.spec.tuning, volume.spec.tuning_before),
            (before.clone(), None)
        );
    }
    room.plays(Fate::Ready);
    room.modify("refreservation", "auto").await.unwrap();
    assert_eq!(room.tuning().await.provisioning, Provisioning::Thick);
}

#[tokio::test]
async fn a_refused_modify_that_nobody_took_back_spoils_no_expand() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let before = room.tuning().await;
    room.plays(Fate::Silent);
    let late = room
        .controller
        .modify("pvc-1", changes("compression", "zstd"), shortly());
    refused(late.await, Kind::DeadlineExceeded, "modified");
    room.answers(Fate::Error(reason::BAD_PROPERTY)).await;
    room.plays(Fate::Ready);
    assert_eq!(room.expand(2 * GIB, 0).await, Ok(2 * GIB));
    assert_eq!(room.tuning().await, before);
}

#[tokio::test]
async fn a_refused_expand_leaves_a_modify_that_was_done() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.modify("sync", "always").await.unwrap();
    room.plays(Fate::Error(reason::NO_SPACE));
    refused(
        room.expand(5 * GIB, 0).await,
        Kind::OutOfRange,
        "ZFS says no",
    );
    assert_eq!(room.tuning().await.sync, "always");
}

#[tokio::test]
async fn a_refusal_that_turns_while_it_is_taken_back_is_none() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    room.plays(Fate::Silent);
    let range = Range {
        required: 2 * GIB,
        limit: 0,
    };
    let late = room.controller.expand("pvc-1", range, None, shortly());
    refused(late.await, Kind::DeadlineExceeded, "expanded");
    room.answers(Fate::Error(reason::NO_SPACE)).await;
    let refused_then = room.volume().await.unwrap();
    room.answers(Fate::Ready).await;
    let now = room
        .controller
        .taken_back(refused_then, soon())
        .await
        .unwrap();
    assert_eq!(
        now.unwrap().status.actual_capacity,
        Some(2 * GIB),
        "it was done after all"
    );
    assert_eq!(room.volume().await.unwrap().spec.capacity, 2 * GIB);
}
