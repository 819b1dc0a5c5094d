//! Pooled volumes by the whole agent: two fit into a subsystem of the rig.

use super::rig::Rig;
use super::*;
use crate::model::volume::{AttachMode, Placement};

const MANY: usize = 5;

/// Volumes that are published to node0; their places.
async fn publish(rig: &Rig) -> Vec<Placement> {
    let mut places = Vec::new();
    for n in 0..MANY {
        let name = format!("v{n}");
        let mut pooled = volume(&name);
        pooled.spec.attach = AttachMode::Pooled;
        rig.store.volumes().create(pooled).await.unwrap();
        rig.until_ready(&name).await;
        rig.map(&name, &["node0"]).await;
        let published = rig.until_published(&name, &["node0"]).await;
        places.extend(published.status.placements);
    }
    assert_eq!(places.len(), MANY, "told with the admission");
    places
}

async fn places(rig: &Rig) -> Vec<Placement> {
    let mut places = Vec::new();
    for n in 0..MANY {
        places.extend(rig.get(&format!("v{n}")).await.status.placements);
    }
    places
}

fn subsystems(rig: &Rig) -> Vec<usize> {
    let world = rig.host.world.lock().unwrap();
    let subsystems = world.subsystems.values();
    subsystems.map(|s| s.namespaces.len()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_every_namespace_is_built_where_it_was_before_its_subsystem_is_linked() {
    let mut rig = Rig::new().await;
    let told = publish(&rig).await;
    assert_eq!(
        subsystems(&rig),
        [2, 2, 1],
        "a full one is followed by another"
    );
    assert_eq!(rig.host.world.lock().unwrap().controllers.len(), 3);
    rig.stop().await;
    rig.host.reboot();
    rig.host.done.lock().unwrap().clear();
    rig.start().await;
    let done = rig.host.done.lock().unwrap().clone();
    let links = done.iter().position(|a| a.starts_with("link")).unwrap();
    let (build, link) = done.split_at(links);
    let built = build.iter().filter(|act| *act == "namespace");
    assert_eq!(built.count(), MANY, "{done:?}");
    let (opened, link) = link.split_last().unwrap();
    assert!(link.iter().all(|a| a.starts_with("link")), "{link:?}");
    assert_eq!(opened, "ports.open");
    assert_eq!(places(&rig).await, told);
    assert_eq!(subsystems(&rig), [2, 2, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_changes_nothing_and_takes_away_what_is_empty() {
    let mut rig = Rig::new().await;
    let told = publish(&rig).await;
    rig.map("v4", &[]).await;
    rig.until_published("v4", &[]).await;
    assert_eq!(subsystems(&rig), [2, 2, 0], "kept for the next volume");
    rig.stop().await;
    rig.host.done.lock().unwrap().clear();
    rig.start().await;
    let done = rig.host.done.lock().unwrap().clone();
    assert!(
        !done.iter().any(|act| act.contains("namespace")),
        "{done:?}"
    );
    assert_eq!(subsystems(&rig), [2, 2]);
    assert_eq!(places(&rig).await, told[..4]);
    rig.map("v4", &["node0"]).await;
    let published = rig.until_published("v4", &["node0"]).await;
    assert_eq!(published.status.placements, told[4..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_04_fencing_one_leaves_the_other_and_a_deleted_one_gives_its_place_back() {
    let rig = Rig::new().await;
    let told = publish(&rig).await;
    rig.host.done.lock().unwrap().clear();
    rig.map("v0", &[]).await;
    let fenced = rig.until_published("v0", &[]).await;
    assert_eq!(fenced.status.placements, []);
    let done = rig.host.done.lock().unwrap().clone();
    assert_eq!(done, ["remove namespace"], "and nothing else in the target");
    ask_to_delete(rig.store.volumes(), "v1").await;
    rig.until("v1", |v| v.is_none()).await;
    assert_eq!(subsystems(&rig), [0, 2, 1]);
    for name in ["w0", "w1"] {
        let mut pooled = volume(name);
        pooled.spec.attach = AttachMode::Pooled;
        rig.store.volumes().create(pooled).await.unwrap();
        rig.until_ready(name).await;
        rig.map(name, &["node0"]).await;
        let published = rig.until_published(name, &["node0"]).await;
        let place = &published.status.placements[0];
        assert_eq!(place.target_nqn, told[0].target_nqn);
    }
    assert_eq!(subsystems(&rig), [2, 2, 1]);
}
