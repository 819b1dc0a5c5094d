//! What is told of volumes with which something is wrong.

use zvolt_proto::csi::VolumeHealthErrorType as Health;

use super::super::page::{Entries, Page};
use super::*;
use crate::model::volume::reason;

impl Room {
    /// Statuses with their reasons, as Get says them; List must say the same.
    async fn health(&self) -> Vec<(Health, String)> {
        let one = self.controller.health("pvc-1", soon()).await.unwrap();
        let one = one.volume_health.unwrap();
        let page = Page::new(0, "", Entries::Volumes).unwrap();
        let all = self.controller.list_health(page, soon()).await.unwrap();
        match one.health_statuses.is_empty() {
            true => assert_eq!(all.entries, []),
            false => assert_eq!(all.entries, std::slice::from_ref(&one)),
        }
        let entries = one.health_statuses.into_iter();
        entries.map(|e| (e.status(), e.reason)).collect()
    }
}

fn told(entries: &[(Health, &str)]) -> Vec<(Health, String)> {
    let owned = |(status, reason): &(Health, &str)| (*status, (*reason).to_owned());
    entries.iter().map(owned).collect()
}

#[tokio::test]
async fn a_healthy_volume_has_nothing_to_tell() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    assert_eq!(room.health().await, [], "no host has said anything");
    room.host("storage0", vec![pool("tank", GIB)]).await;
    assert_eq!(room.health().await, []);
    refused(
        room.controller.health("pvc-2", soon()).await,
        Kind::NotFound,
        "pvc-2",
    );
}

#[tokio::test]
async fn what_an_agent_says_of_a_volume() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    for (reason, state, expected) in [
        (reason::DATASET_MISSING, State::Error, Health::DataLoss),
        (reason::POOL_REPLACED, State::Error, Health::Inaccessible),
        (reason::POOL_NOT_FOUND, State::Ready, Health::Inaccessible),
        (reason::DATASET_FOREIGN, State::Error, Health::Inaccessible),
        (reason::KERNEL, State::Error, Health::Inaccessible),
        (reason::KERNEL, State::Ready, Health::Degraded),
    ] {
        room.change(|v| {
            v.status.state = state;
            v.status.conditions = vec![trouble(reason, "so it is")];
        })
        .await;
        assert_eq!(room.health().await, told(&[(expected, reason)]));
    }
    room.change(|v| {
        make_ready(v);
        answer_change(v, Fate::Error(reason::BAD_PROPERTY));
    })
    .await;
    assert_eq!(
        room.health().await,
        told(&[(Health::Degraded, reason::BAD_PROPERTY)])
    );
    room.change(|v| v.status.was_ready = false).await;
    assert_eq!(room.health().await, [], "it never was");
}

#[tokio::test]
async fn what_is_wrong_with_its_pool() {
    let room = Room::new(Fate::Ready);
    room.made().await;
    let with_health = |health: &str| {
        let mut pool = pool("tank", GIB);
        pool.health = health.into();
        vec![pool]
    };
    for (pools, expected) in [
        (
            with_health("DEGRADED"),
            told(&[(Health::Degraded, "PoolDegraded")]),
        ),
        (
            with_health("SUSPENDED"),
            told(&[(Health::Inaccessible, "PoolSuspended")]),
        ),
        (
            vec![pool("tank", 0)],
            told(&[(Health::Degraded, "PoolFull")]),
        ),
        (
            vec![pool("other", GIB)],
            told(&[(Health::Inaccessible, reason::POOL_NOT_FOUND)]),
        ),
        (
            vec![PoolStatus {
                guid: "8".into(),
                ..pool("tank", GIB)
            }],
            told(&[(Health::Inaccessible, reason::POOL_NOT_FOUND)]),
        ),
        (
            vec![PoolStatus {
                name: "renamed".into(),
                ..pool("tank", GIB)
            }],
            Vec::new(),
        ),
    ] {
        room.host("storage0", pools).await;
        assert_eq!(room.health().await, expected);
    }
}
