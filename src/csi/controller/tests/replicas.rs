//! Several controllers on one store. Each test has them decide at the worst moment; on the left is who acts last.

use super::super::delete::is_held_by_none;
use super::super::follow::gone;
use super::*;
use crate::model::volume::reason;

impl Room {
    /// Another process that serves the same.
    fn other(&self) -> Self {
        let (store, site) = (self.controller.store.clone(), self.controller.site.clone());
        Self {
            controller: Arc::new(Controller::new(store, site, Journal::new(64))),
            play: self.play.clone(),
            dir: self.dir.clone(),
        }
    }

    /// What DeleteVolume does once it has seen the volume in this state.
    async fn delete_seen(&self, seen: Volume) -> Result<(), Refusal> {
        let volumes = self.controller.store.volumes();
        let mut watch = volumes.watch(Some("pvc-1"));
        gone(volumes, &mut watch, seen, is_held_by_none, shortly()).await
    }
}

#[tokio::test]
async fn one_name_at_two_controllers_makes_one_volume() {
    let one = Room::new(Fate::Ready);
    let other = one.other();
    let [request, larger] = [(1 << 30, 2 << 30), (4 << 30, 0)]
        .map(|(required, limit)| with(|r| r.capacity_range = Some(range(required, limit))));
    let (made, same) = tokio::join!(one.create(&request), other.create(&request));
    assert_eq!(made.unwrap(), same.unwrap());
    assert_eq!(
        one.controller.store.volumes().list().await.unwrap().len(),
        1
    );
    one.controller.delete("pvc-1", soon()).await.unwrap();
    let (made, differs) = tokio::join!(one.create(&request), other.create(&larger));
    let (refusal, fine) = match (made, differs) {
        (Ok(fine), Err(refusal)) | (Err(refusal), Ok(fine)) => (refusal, fine),
        both => panic!("{both:?}"),
    };
    assert_eq!(refusal.kind, Kind::AlreadyExists, "{refusal}");
    assert_eq!(
        one.volume().await.unwrap().spec.capacity,
        fine.capacity_bytes.unsigned_abs()
    );
}

#[tokio::test]
async fn rule_04_a_volume_that_another_controller_has_just_published_is_not_deleted() {
    let deletes = Room::new(Fate::Ready);
    let publishes = deletes.other();
    deletes.made().await;
    let seen = deletes.volume().await.unwrap();
    publishes.publish("node0").await.unwrap();
    refused(
        deletes.delete_seen(seen).await,
        Kind::FailedPrecondition,
        "node0",
    );
    let volume = deletes.volume().await.unwrap();
    assert!(!volume.is_deleting(), "the node has it");
}

#[tokio::test]
async fn rule_04_a_volume_that_another_controller_has_just_deleted_is_not_published() {
    let publishes = Room::new(Fate::Silent);
    publishes.write_intent().await;
    publishes.change(make_ready).await;
    let mut watch = publishes.controller.store.volumes().watch(Some("pvc-1"));
    let deletes = publishes.other();
    let seen = publishes.volume().await.unwrap();
    let late = deletes.controller.delete("pvc-1", shortly()).await;
    refused(late, Kind::DeadlineExceeded, "not gone");
    let capability = check::capability(Some(&mount(Mode::SingleNodeWriter))).unwrap();
    let node0 = Consumer::new("node0", capability, false);
    let mapped = publishes.controller.map(seen, &node0, soon()).await;
    refused(mapped, Kind::FailedPrecondition, "being deleted");
    while let Some(Change::Put(volume)) = watch.next().await {
        assert_eq!(volume.status.mapped_initiators, []);
        if volume.is_deleting() {
            break;
        }
    }
}

#[tokio::test]
async fn rule_02_what_another_controller_has_made_anew_is_not_taken_back() {
    let takes_back = Room::new(Fate::Silent);
    let makes = takes_back.other();
    takes_back.write_intent().await;
    takes_back
        .change(|v| {
            v.status.state = State::Error;
            v.status.conditions = vec![trouble(reason::NO_SPACE, "full")];
        })
        .await;
    let failed = takes_back.volume().await.unwrap();
    takes_back.plays(Fate::Ready);
    makes.controller.delete("pvc-1", soon()).await.unwrap();
    makes.made().await;
    takes_back
        .delete_seen(failed)
        .await
        .expect("what it means is gone");
    let volume = takes_back.volume().await.expect("another volume");
    assert!(volume.status.was_ready && !volume.is_deleting());
}

#[tokio::test]
async fn rule_04_a_node_that_is_admitted_after_all_keeps_the_volume() {
    let takes_back = Room::new(Fate::Ready);
    let publishes = takes_back.other();
    takes_back.made().await;
    publishes.publish("node0").await.unwrap();
    // The other controller has answered that the node may stage it.
    let host = names::host_nqn("node0");
    let controller = &takes_back.controller;
    controller.take_back("pvc-1", &host, soon()).await.unwrap();
    let status = takes_back.volume().await.unwrap().status;
    assert_eq!(status.mapped_initiators.len(), 1);
    takes_back.plays(Fate::Silent);
    takes_back
        .change(|v| v.status.published_initiators.clear())
        .await;
    controller.take_back("pvc-1", &host, soon()).await.unwrap();
    let status = takes_back.volume().await.unwrap().status;
    assert_eq!(status.mapped_initiators, [], "nobody has admitted it");
}

#[tokio::test]
async fn rule_07_a_room_that_two_controllers_have_promised_is_given_once() {
    let one = Room::new(Fate::Ready);
    let other = one.other();
    one.host(
        "storage0",
        vec![pool("fast", GIB / 2), pool("tank", 3 * GIB)],
    )
    .await;
    let thick = |name: &str| {
        with(|r| {
            r.name = name.into();
            r.capacity_range = Some(range(2 << 30, 0));
            r.parameters.insert("pool".into(), "tank,fast".into());
            r.parameters.insert("provisioning".into(), "thick".into());
        })
    };
    // Neither volume is in the store when the other is placed.
    let mut kept = Vec::new();
    for (room, name) in [(&one, "a"), (&other, "b")] {
        let wanted = Wanted::parse(&thick(name)).unwrap();
        let placed = room.controller.placed(&wanted, soon()).await.unwrap();
        assert_eq!(placed.1.place.pool, "tank");
        kept.push(placed);
    }
    drop(kept);
    one.create(&thick("a")).await.unwrap();
    one.plays(Fate::Error(reason::NO_SPACE));
    one.host(
        "storage0",
        vec![pool("fast", 4 * GIB), pool("tank", 3 * GIB)],
    )
    .await;
    refused(
        other.create(&thick("b")).await,
        Kind::ResourceExhausted,
        "cannot be made",
    );
    let volumes = one.controller.store.volumes();
    assert_eq!(volumes.get("b").await.unwrap(), None, "nothing is left");
    // Asked again, it goes where there is room.
    one.plays(Fate::Ready);
    other.create(&thick("b")).await.unwrap();
    let home = volumes.get("b").await.unwrap().unwrap().spec.pool;
    assert_eq!(home, "fast");
}

#[tokio::test]
async fn one_snapshot_at_two_controllers_is_taken_once() {
    let one = Room::new(Fate::Ready);
    let other = one.other();
    one.made().await;
    let (taken, same) = tokio::join!(one.snapshot("s", "pvc-1"), other.snapshot("s", "pvc-1"));
    assert_eq!(taken.unwrap(), same.unwrap());
    let snapshots = one.controller.store.snapshots();
    assert_eq!(snapshots.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn rule_09_two_sizes_at_two_controllers_end_with_the_larger() {
    let one = Room::new(Fate::Ready);
    let other = one.other();
    one.made().await;
    let (small, large) = tokio::join!(one.expand(2 * GIB, 0), other.expand(3 * GIB, 0));
    assert!(small.unwrap() >= 2 * GIB && large.unwrap() >= 3 * GIB);
    let volume = one.volume().await.unwrap();
    assert_eq!(volume.spec.capacity, volume.status.actual_capacity.unwrap());
}
