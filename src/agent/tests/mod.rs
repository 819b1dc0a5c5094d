//! The agent on a store in a directory and a simulated host.

mod pooled;
mod rig;
mod snapshots;

use std::time::Duration;

use tokio::task::JoinHandle;

use super::observe::Class;
use super::sim::{Content, SimHost};
use super::*;
use crate::model::names;
use crate::model::volume::{State, WriteProtect, reason};
use crate::ops::timeline::Operation;
use crate::store::conformance::{initiator, volume};
use crate::store::dir::DirStore;
use rig::{Rig, ask_to_delete, soon, version};

#[tokio::test(flavor = "multi_thread")]
async fn a_volumes_whole_life() {
    let mut rig = Rig::new().await;
    assert!(rig.host.world.lock().unwrap().ports_made);
    let made = rig.store.volumes().create(volume("v")).await.unwrap();
    let ready = rig.until_ready("v").await;
    assert_eq!(
        version(&ready),
        version(&made) + 1,
        "one write a transition"
    );
    assert_eq!(ready.status.portal.as_deref(), Some("192.0.2.1:4420"));

    let looks = rig.looks();
    rig.map("v", &["node0"]).await;
    let published = rig.until_published("v", &["node0"]).await;
    assert_eq!(
        version(&published),
        version(&ready) + 2,
        "the controller's write and the agent's"
    );
    assert_eq!(rig.looks(), looks, "a publish asks ZFS nothing");

    rig.map("v", &["node1"]).await;
    rig.until_published("v", &["node1"]).await;
    ask_to_delete(rig.store.volumes(), "v").await;
    rig.until("v", |v| v.is_none()).await;
    rig.settled().await;
    let world = rig.host.world.lock().unwrap().clone();
    assert!(
        world.zvols.is_empty() && world.subsystems.is_empty() && world.controllers.is_empty(),
        "{world:?}"
    );
    let expected = [
        "agent.create",
        "agent.publish",
        "agent.fence",
        "agent.publish",
        "agent.delete",
    ];
    assert_eq!(rig.names("v", 5).await, expected);
    assert!(
        rig.operations("v", 5)
            .await
            .iter()
            .all(|o| o.error.is_none() && o.steps.iter().all(|s| s.error.is_none()))
    );
    let create = &rig.operations("v", 5).await[0];
    assert_eq!(
        create.steps.last().unwrap().name,
        "store.status",
        "it ends with its last act"
    );
    let steps: Vec<_> = create
        .steps
        .iter()
        .map(|s| s.name.as_ref())
        .filter(|n| !n.ends_with("observe"))
        .collect();
    assert_eq!(
        steps,
        [
            "zfs.create",
            "zvol.appear",
            "zvol.format",
            "zfs.record-format",
            "nvmet.subsystem",
            "zvol.appear",
            "nvmet.namespace",
            "nvmet.link",
            "nvmet.link",
            "store.status",
        ]
    );
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_well_is_left_alone_and_leaves_no_trace() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.settled().await;
    let (before, acts) = (rig.get("v").await, rig.host.done.lock().unwrap().len());
    rig.stop().await;
    rig.start().await;
    assert_eq!(rig.get("v").await, before, "no write");
    assert_eq!(rig.names("v", 1).await, ["agent.create"]);
    assert_eq!(rig.host.done.lock().unwrap().len(), acts);
    // A change that needs nothing done, and its own writes' events, start no loop.
    let mut other = rig.get("v").await;
    other.metadata.finalizers.push("example.com/other".into());
    rig.store.volumes().update_spec(other).await.unwrap();
    rig.settled().await;
    assert_eq!(rig.names("v", 1).await, ["agent.create"]);
    assert_eq!(version(&rig.get("v").await), version(&before) + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_04_however_fast_the_mapping_turns_there_is_one_writer() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    for round in 0..30 {
        let node = format!("node{}", round % 3);
        rig.map("v", &[node.as_str()]).await;
        if round % 4 == 0 {
            rig.until_published("v", &[node.as_str()]).await;
            let world = rig.host.world.lock().unwrap();
            let host = names::host_nqn(&node);
            assert!(
                world.controllers.iter().all(|(_, h)| *h == host),
                "{:?}",
                world.controllers
            );
            assert!(
                world.in_flight.iter().all(|(_, _, h)| *h == host),
                "{:?}",
                world.in_flight
            );
        }
    }
    rig.map("v", &[]).await;
    // The word may be true before the agent has looked: a start ends with all done.
    rig.stop().await;
    rig.start().await;
    assert!(rig.get("v").await.status.published_initiators.is_empty());
    let world = rig.host.world.lock().unwrap();
    assert!(world.controllers.is_empty() && world.in_flight.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_for_a_while_is_told_and_tried_again() {
    let rig = Rig::new().await;
    let failure = Failure::passing(reason::KERNEL, "write enable: EAGAIN");
    *rig.host.fails.lock().unwrap() = Some(("nvmet.namespace", 2, failure));
    rig.store.volumes().create(volume("v")).await.unwrap();
    let told = rig
        .until("v", |v| v.is_some_and(|v| !v.status.conditions.is_empty()))
        .await
        .unwrap();
    assert_eq!(told.status.conditions[0].reason, reason::KERNEL);
    assert_eq!(told.trouble(), Some("write enable: EAGAIN"));
    assert_eq!(told.status.state, State::Pending);
    let ready = rig.until_ready("v").await;
    assert_eq!(ready.trouble(), None);
    let errors: Vec<_> = rig
        .operations("v", 3)
        .await
        .into_iter()
        .map(|o| o.error.is_some())
        .collect();
    assert_eq!(errors, [true, true, false]);
    let done = rig.host.done.lock().unwrap();
    assert_eq!(
        done.iter().filter(|a| *a == "zvol.format").count(),
        1,
        "and what is done is not done again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_zfs_refuses_is_told_while_the_volume_serves_and_is_tried_again() {
    let rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    let failure = Failure::lasting(reason::NO_SPACE, "tank: no space left");
    *rig.host.fails.lock().unwrap() = Some(("zfs.set", 3, failure));
    let mut larger = rig.get("v").await;
    larger.spec.capacity *= 2;
    rig.store.volumes().update_spec(larger).await.unwrap();
    let refused = rig
        .until("v", |v| v.is_some_and(|v| v.condition("Applied").is_some()))
        .await
        .unwrap();
    let applied = refused.condition("Applied").unwrap();
    assert_eq!(
        (applied.status.as_str(), applied.reason.as_str()),
        ("False", reason::NO_SPACE)
    );
    assert_eq!(refused.status.observed_generation, 2);
    assert_eq!(
        (refused.status.state, refused.trouble()),
        (State::Ready, None)
    );
    rig.map("v", &["node0"]).await;
    rig.until_published("v", &["node0"]).await;
    let grown = rig
        .until("v", |v| {
            v.is_some_and(|v| v.condition("Applied").unwrap().status == "True")
        })
        .await
        .unwrap();
    assert_eq!(grown.status.actual_capacity, Some(2 << 30));
    assert_eq!(
        rig.host.world.lock().unwrap().shown[&(names::subsystem_nqn("v"), 1)],
        2 << 30,
        "what its consumer sees"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_must_wait_says_why() {
    let rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.host
        .world
        .lock()
        .unwrap()
        .zvols
        .get_mut("tank/csi/block/v")
        .unwrap()
        .busy = true;
    ask_to_delete(rig.store.volumes(), "v").await;
    let waiting = rig
        .until("v", |v| v.is_some_and(|v| v.trouble().is_some()))
        .await
        .unwrap();
    assert_eq!(waiting.status.state, State::Deleting);
    assert_eq!(waiting.status.conditions[0].reason, reason::BUSY);
    rig.host
        .world
        .lock()
        .unwrap()
        .zvols
        .get_mut("tank/csi/block/v")
        .unwrap()
        .busy = false;
    rig.until("v", |v| v.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_waits_for_somebody() {
    let mut rig = Rig::new().await;
    let mut lost = volume("v");
    lost.spec.pool = "other".into();
    rig.store.volumes().create(lost).await.unwrap();
    let error = rig
        .until("v", |v| v.is_some_and(|v| v.status.state == State::Error))
        .await
        .unwrap();
    assert_eq!(error.status.conditions[0].reason, reason::POOL_NOT_FOUND);
    assert!(
        error.trouble().unwrap().contains("zpool import other"),
        "{:?}",
        error.trouble()
    );
    rig.settled().await;
    assert_eq!(
        rig.names("v", 1).await,
        ["agent.create"],
        "no retry by itself"
    );
    rig.host
        .world
        .lock()
        .unwrap()
        .pools
        .insert("other".into(), (5, "ONLINE".into()));
    rig.stop().await;
    rig.start().await;
    assert_eq!(rig.get("v").await.status.state, State::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_02_a_ready_volume_whose_pool_is_away_comes_back_with_it() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.map("v", &["node0"]).await;
    rig.until_published("v", &["node0"]).await;
    rig.stop().await;
    rig.host.reboot();
    let pool = rig.host.world.lock().unwrap().pools.remove("tank").unwrap();
    rig.start().await;
    let away = rig.get("v").await;
    assert_eq!(
        (away.status.state, away.status.was_ready),
        (State::Error, true)
    );
    assert_eq!(away.status.conditions[0].reason, reason::POOL_NOT_FOUND);
    assert_eq!(
        away.status.published_initiators.len(),
        1,
        "nothing else is forgotten"
    );
    rig.host
        .world
        .lock()
        .unwrap()
        .pools
        .insert("tank".into(), pool);
    rig.until_ready("v").await;
    assert_eq!(
        rig.host.world.lock().unwrap().controllers.len(),
        1,
        "its consumer is back"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_comes_late_is_heard_of() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.stop().await;
    rig.host.reboot();
    let pool = rig.host.world.lock().unwrap().pools.remove("tank").unwrap();
    rig.start().await;
    // Far enough into the back-off that a retry by itself would come too late for this test.
    let looked = rig.looks();
    soon(async {
        while rig.looks() < looked + 5 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.host
        .world
        .lock()
        .unwrap()
        .pools
        .insert("tank".into(), pool);
    rig.news(News::Zvol("tank/csi/block/v".into()));
    let told = std::time::Instant::now();
    rig.until_ready("v").await;
    assert!(
        told.elapsed() < Duration::from_secs(5),
        "{:?}",
        told.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_comes_late_holds_up_nothing_and_is_linked_when_it_comes() {
    let mut rig = Rig::idle();
    rig.host.away.lock().unwrap().insert(1);
    rig.start().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    let ready = rig.until_ready("v").await;
    let nqn = names::subsystem_nqn("v");
    let ports = |rig: &Rig| {
        rig.host.world.lock().unwrap().subsystems[&nqn]
            .ports
            .clone()
    };
    assert_eq!(ports(&rig), [2]);
    rig.host.come();
    let ends = |done: &[String]| done.last().is_some_and(|act| act == "ports.open");
    soon(async {
        while !ends(&rig.host.done.lock().unwrap()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(ports(&rig), [1, 2]);
    let done = rig.host.done.lock().unwrap().clone();
    assert!(done.ends_with(&["ports.hold", "link 1", "ports.open"].map(String::from)));
    rig.settled().await;
    assert_eq!(rig.get("v").await, ready, "and nothing is written for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_05_after_a_reboot_readers_find_the_target_protected() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.map_readers("v", &["node0"]).await;
    rig.until_published("v", &["node0"]).await;
    rig.stop().await;
    rig.host.reboot();
    rig.host.done.lock().unwrap().clear();
    rig.start().await;
    let done = rig.host.done.lock().unwrap().clone();
    let at = |what: &str| done.iter().position(|act| act == what).unwrap();
    assert!(at("nvme.write-protect") < at("nvmet.allow-host"));
    assert!(at("nvme.write-protect") < at("link 1"));
    assert_eq!(
        done.iter()
            .filter(|act| *act == "nvme.write-protect")
            .count(),
        1,
        "once is enough"
    );
    let status = rig.get("v").await.status;
    assert_eq!(status.write_protect, WriteProtect::On);
    assert_eq!(rig.host.world.lock().unwrap().controllers.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_all_is_built_before_the_first_link_and_before_ready() {
    const MANY: usize = 12;
    let mut rig = Rig::new().await;
    for n in 0..MANY {
        let name = format!("v{n}");
        rig.store.volumes().create(volume(&name)).await.unwrap();
        rig.until_ready(&name).await;
        rig.map(&name, &["node0"]).await;
        rig.until_published(&name, &["node0"]).await;
    }
    rig.stop().await;
    rig.host.reboot();
    rig.host.done.lock().unwrap().clear();
    rig.start().await;
    let done = rig.host.done.lock().unwrap().clone();
    let links = done.iter().position(|a| a == "ports.hold").unwrap();
    let (build, link) = done.split_at(links);
    assert_eq!(
        build.iter().filter(|a| *a == "nvmet.allow-host").count(),
        MANY
    );
    let [held, link @ .., open] = link else {
        panic!("{link:?}");
    };
    assert_eq!((held.as_str(), open.as_str()), ("ports.hold", "ports.open"));
    assert_eq!(link.len(), 2 * MANY, "{link:?}");
    assert!(link.iter().all(|a| a.starts_with("link")));
    assert_eq!(rig.host.world.lock().unwrap().controllers.len(), MANY);
    let last = rig.operations("v3", 3).await.pop().unwrap();
    assert_eq!(last.name, "agent.converge");
    assert_eq!(last.steps.last().unwrap().name, "nvmet.link");
}

/// A node that asked for such a volume now would be told that there is none, and never ask again.
#[tokio::test(flavor = "multi_thread")]
async fn no_port_answers_before_the_pool_of_an_attached_volume_is_there() {
    let mut rig = Rig::new().await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    rig.until_ready("v").await;
    rig.map("v", &["node0"]).await;
    rig.until_published("v", &["node0"]).await;
    rig.stop().await;
    rig.host.reboot();
    let pool = rig.host.world.lock().unwrap().pools.remove("tank").unwrap();
    rig.start().await;
    assert!(rig.host.world.lock().unwrap().ports_held, "and it is ready");
    rig.host
        .world
        .lock()
        .unwrap()
        .pools
        .insert("tank".into(), pool);
    rig.news(News::Zvol("tank/csi/block/v".into()));
    soon(async {
        while rig.host.world.lock().unwrap().ports_held {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let done = rig.host.done.lock().unwrap().clone();
    let at = |what: &str| done.iter().rposition(|act| act == what).unwrap();
    assert!(at("link 1") < at("ports.open"));
    assert!(at("ports.hold") < at("link 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_while_no_agent_ran_is_done_before_ready() {
    let mut rig = Rig::idle();
    rig.store.volumes().create(volume("new")).await.unwrap();
    let mut foreign = volume("foreign");
    foreign.spec.owner_node = "storage1".into();
    rig.store.volumes().create(foreign).await.unwrap();
    rig.store
        .volumes()
        .create(volume("unwanted"))
        .await
        .unwrap();
    ask_to_delete(rig.store.volumes(), "unwanted").await;
    rig.start().await;
    assert_eq!(rig.get("new").await.status.state, State::Ready);
    assert_eq!(rig.store.volumes().get("unwanted").await.unwrap(), None);
    assert_eq!(
        rig.get("foreign").await.status,
        Default::default(),
        "another agent's"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_used_again_is_another_volume() {
    let rig = Rig::new().await;
    let mut kept = volume("v");
    kept.spec.deletion_policy = crate::model::volume::DeletionPolicy::Retain;
    rig.store.volumes().create(kept).await.unwrap();
    rig.until_ready("v").await;
    rig.host
        .world
        .lock()
        .unwrap()
        .zvols
        .get_mut("tank/csi/block/v")
        .unwrap()
        .content = Content::Data;
    ask_to_delete(rig.store.volumes(), "v").await;
    rig.until("v", |v| v.is_none()).await;
    rig.store.volumes().create(volume("v")).await.unwrap();
    let refused = rig
        .until("v", |v| v.is_some_and(|v| v.status.state == State::Error))
        .await
        .unwrap();
    assert_eq!(refused.status.conditions[0].reason, reason::DATASET_FOREIGN);
    ask_to_delete(rig.store.volumes(), "v").await;
    rig.until("v", |v| v.is_none()).await;
    let world = rig.host.world.lock().unwrap();
    assert_eq!(
        world.zvols["tank/csi/block/v"].content,
        Content::Data,
        "neither formatted nor destroyed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_volumes_at_once() {
    const MANY: usize = 24;
    let rig = Rig::new().await;
    for n in 0..MANY {
        rig.store
            .volumes()
            .create(volume(&format!("v{n}")))
            .await
            .unwrap();
    }
    for n in 0..MANY {
        rig.until_ready(&format!("v{n}")).await;
        ask_to_delete(rig.store.volumes(), &format!("v{n}")).await;
    }
    for n in 0..MANY {
        rig.until(&format!("v{n}"), |v| v.is_none()).await;
    }
    assert!(rig.host.world.lock().unwrap().zvols.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_its_store_ends_with_an_error() {
    let mut rig = Rig::new().await;
    let dir = rig.dir.path().join("volumes");
    std::fs::remove_dir_all(dir).unwrap();
    let ended = soon(rig.agent.take().unwrap()).await.unwrap();
    assert!(matches!(ended, Err(Error::WatchEnded)), "{ended:?}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let new = |portals: Vec<SocketAddr>, base| {
        let config = AgentConfig {
            node_name: "storage0".into(),
            portals,
            port_id_base: base,
            roots: Roots::default(),
            parallel: 1,
            await_pools: Duration::ZERO,
            namespaces: 1024,
        };
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(DirStore::open(dir.path()).unwrap());
        Agent::on(SimHost::default(), config, store, Journal::new(1)).err()
    };
    let portal = "192.0.2.1:4420".parse().unwrap();
    assert!(matches!(new(vec![], 1), Some(Error::Config(_))));
    assert!(matches!(
        new(vec![portal, portal], u16::MAX - 1),
        Some(Error::Config(_))
    ));
    assert!(matches!(
        new(vec![portal], u16::MAX),
        Some(Error::Config(_))
    ));
    assert!(new(vec![portal], u16::MAX - 1).is_none());
    assert_eq!(Failure::kernel("x").class, Class::Retry);
}
