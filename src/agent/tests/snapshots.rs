//! Snapshots and the report, by the agent's watches.

use super::*;
use crate::agent::sim::zfs::snapshot;
use crate::model::snapshot::{Snapshot, SnapshotState};
use crate::model::storage_node::StorageNode;

impl Rig {
    async fn take(&self, name: &str, of: &[&Volume]) -> Snapshot {
        let wanted = snapshot(name, of);
        self.store.snapshots().create(wanted).await.unwrap();
        self.until_snapshot(name, |s| {
            s.is_some_and(|s| s.status.state == SnapshotState::Ready)
        })
        .await
        .unwrap()
    }

    /// Waits until the Snapshot is so; `None` is one that has vanished.
    async fn until_snapshot(
        &self,
        name: &str,
        so: impl Fn(Option<&Snapshot>) -> bool,
    ) -> Option<Snapshot> {
        let mut watch = self.store.snapshots().watch(Some(name));
        soon(async {
            loop {
                let now = self.store.snapshots().get(name).await.unwrap();
                if so(now.as_ref()) {
                    return now;
                }
                watch.next().await.expect("the store is there");
            }
        })
        .await
    }

    async fn delete(&self, volume: &str) {
        ask_to_delete(self.store.volumes(), volume).await;
        self.until(volume, |v| v.is_none()).await;
    }

    fn zvols(&self) -> Vec<String> {
        let world = self.host.world.lock().unwrap();
        world.zvols.keys().cloned().collect()
    }

    async fn node(&self) -> StorageNode {
        let nodes = self.store.storage_nodes();
        nodes.get("storage0").await.unwrap().expect("it was told")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_outlives_its_volume_and_is_followed() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    let source = rig.until_ready("v").await;
    let taken = rig.take("s", &[&source]).await;
    let path = |s: &Snapshot| s.status.members[0].snapshot_path.clone();
    assert!(path(&taken).starts_with("tank/csi/block/v@s."));

    rig.delete("v").await;
    let moved = rig
        .until_snapshot("s", |s| path(s.unwrap()).starts_with("tank/csi/deleted/v."))
        .await
        .unwrap();
    assert_eq!(moved.status.members[0].guid, taken.status.members[0].guid);
    assert_eq!(
        *rig.host.searches.lock().unwrap(),
        0,
        "nobody had to search"
    );

    let mut restored = volume("w");
    restored.spec.source_snapshot_id = Some("v@s".into());
    rig.store.volumes().create(restored).await.unwrap();
    let restored = rig.until_ready("w").await;
    assert_eq!(
        restored.status.filesystem_uuid,
        source.status.filesystem_uuid
    );
    assert_ne!(restored.status.device_uuid, source.status.device_uuid);

    ask_to_delete(rig.store.snapshots(), "s").await;
    rig.until_snapshot("s", |s| s.is_none()).await;
    assert_eq!(rig.zvols(), ["tank/csi/block/w"], "v is collected");
    assert!(
        rig.host.world.lock().unwrap().zvols["tank/csi/block/w"]
            .snapshots
            .is_empty()
    );
    rig.delete("w").await;
    assert!(rig.zvols().is_empty());
    let names = rig.names("s", 3).await;
    assert_eq!(
        names,
        [
            "agent.snapshot",
            "agent.follow-snapshot",
            "agent.delete-snapshot"
        ]
    );
    let steps = &rig.operations("s", 3).await[2].steps;
    for step in ["zfs.destroy-snapshot", "zfs.promote", "zfs.destroy"] {
        assert!(steps.iter().any(|s| s.name == step), "{step}: {steps:?}");
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_of_snapshots_while_no_agent_ran_is_done() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    let source = rig.until_ready("v").await;
    let taken = rig.take("s", &[&source]).await;
    rig.stop().await;
    // Somebody has renamed it, and a dead agent has left the zvol of a volume that nobody knows any more.
    {
        let mut world = rig.host.world.lock().unwrap();
        let zvol = world.zvols["tank/csi/block/v"].clone();
        let mut left = zvol.clone();
        left.snapshots.clear();
        left.properties.insert("guid".into(), "99".into());
        world
            .zvols
            .insert("tank/csi/deleted/x.00000000".into(), left);
        let mut moved = zvol;
        moved.properties.insert("guid".into(), "98".into());
        world.zvols.insert("tank/csi/block/moved".into(), moved);
        let source = world.zvols.get_mut("tank/csi/block/v").unwrap();
        source.snapshots.clear();
    }
    rig.start().await;
    let found = rig
        .until_snapshot("s", |s| {
            s.is_some_and(|s| s.status.members != taken.status.members)
        })
        .await
        .unwrap();
    assert!(
        found.status.members[0]
            .snapshot_path
            .starts_with("tank/csi/block/moved@s.")
    );
    soon(async {
        while rig.zvols().iter().any(|z| z.contains("/deleted/")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_02_a_snapshot_whose_pool_is_away_comes_back_with_it() {
    let rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    let source = rig.until_ready("v").await;
    rig.take("s", &[&source]).await;
    let pools = std::mem::take(&mut rig.host.world.lock().unwrap().pools);
    ask_to_delete(rig.store.snapshots(), "s").await;
    let waiting = rig
        .until_snapshot("s", |s| {
            s.is_some_and(|s| s.trouble().is_some() && s.status.state == SnapshotState::Deleting)
        })
        .await
        .unwrap();
    assert_eq!(waiting.trouble().unwrap().0, reason::POOL_NOT_FOUND);
    rig.host.world.lock().unwrap().pools = pools;
    rig.until_snapshot("s", |s| s.is_none()).await;
    let world = rig.host.world.lock().unwrap();
    assert!(world.zvols["tank/csi/block/v"].snapshots.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_nothing_is_an_error_that_waits_for_somebody() {
    let rig = Rig::new().await;
    let wanted = snapshot("s", &[&volume("v")]);
    rig.store.snapshots().create(wanted).await.unwrap();
    let error = rig
        .until_snapshot("s", |s| {
            s.is_some_and(|s| s.status.state == SnapshotState::Error)
        })
        .await
        .unwrap();
    assert_eq!(error.trouble().unwrap().0, reason::SOURCE_MISSING);
    ask_to_delete(rig.store.snapshots(), "s").await;
    rig.until_snapshot("s", |s| s.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_can_give_is_told_before_ready_and_when_it_changes() {
    let rig = Rig::new().await;
    let first = rig.node().await;
    assert_eq!(first.spec.node_name, "storage0");
    let [pool] = first.status.pools.as_slice() else {
        panic!("{first:?}");
    };
    assert_eq!(
        (pool.name.as_str(), pool.guid.as_str(), pool.available),
        ("tank", "77", 100 << 30)
    );
    let mut watch = rig.store.storage_nodes().watch(None);
    for name in ["v", "w", "x"] {
        rig.store.volumes().create(volume(name)).await.unwrap();
        rig.until_ready(name).await;
    }
    soon(watch.next()).await.expect("the store is there");
    let now = rig.node().await;
    assert!(now.status.pools[0].available < 99 << 30, "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_comes_is_told_when_the_kernel_says_so() {
    let rig = Rig::new().await;
    let mut watch = rig.store.storage_nodes().watch(None);
    {
        let mut world = rig.host.world.lock().unwrap();
        world.pools.insert("dozer".into(), (78, "ONLINE".into()));
    }
    rig.news(News::Pools);
    let has_both = async {
        while rig.node().await.status.pools.len() < 2 {
            watch.next().await.expect("the store is there");
        }
    };
    soon(has_both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_has_told_comes_back_when_somebody_removes_it() {
    let rig = Rig::new().await;
    let first = rig.node().await;
    let nodes = rig.store.storage_nodes();
    let mut watch = nodes.watch(None);
    nodes.delete(&first).await.unwrap();
    let again = soon(async {
        loop {
            if let Change::Put(node) = watch.next().await.expect("the store is there")
                && node.metadata.uid != first.metadata.uid
                && !node.status.observed_at.is_empty()
            {
                return node;
            }
        }
    });
    assert_eq!(again.await.status.pools, first.status.pools);
}
