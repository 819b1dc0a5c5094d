//! The controller on a real store, with an agent that answers in place of the real one.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use zvolt_proto::csi;

use super::create::Wanted;
use super::*;
use crate::csi::status::{Kind, Refusal};
use crate::model::names;
use crate::model::publish::Target;
use crate::model::volume::{Condition, State, Volume, reason};
use crate::store::dir::DirStore;
use crate::store::{Change, Objects, Store};

/// What the agent makes of a new volume.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Ready,
    Error(&'static str),
    /// Nothing: it is slow, or not there.
    Silent,
}

struct Room {
    controller: Controller<DirStore>,
    _dir: TempDir,
}

impl Room {
    fn new(fate: Fate) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(DirStore::open(dir.path()).unwrap());
        tokio::spawn(answer(store.clone(), store.volumes().watch(None), fate));
        let journal = Journal::new(64);
        Self {
            controller: Controller {
                store,
                owner: "storage0".into(),
                journal,
            },
            _dir: dir,
        }
    }

    async fn create(&self, request: &csi::CreateVolumeRequest) -> Result<csi::Volume, Refusal> {
        let wanted = Wanted::parse(request, "storage0")?;
        let answer = self.controller.create(wanted, soon()).await?;
        Ok(answer.volume.unwrap())
    }

    async fn publish(&self, node: &str) -> Result<Target, Refusal> {
        let context = self.controller.publish("pvc-1", node, None, soon()).await?;
        Ok(Target::from_context(&context).unwrap())
    }

    async fn unpublish(&self, node: &str) -> Result<(), Refusal> {
        self.controller.unpublish("pvc-1", Some(node), soon()).await
    }

    /// The object alone, as after a controller that has died.
    async fn write_intent(&self) {
        let wanted = Wanted::parse(&request(), "storage0").unwrap();
        self.controller
            .store
            .volumes()
            .create(wanted.volume)
            .await
            .unwrap();
    }

    async fn volume(&self) -> Option<Volume> {
        self.controller.store.volumes().get("pvc-1").await.unwrap()
    }

    /// Writes as somebody else would.
    async fn change(&self, change: impl Fn(&mut Volume)) {
        loop {
            let mut volume = self.volume().await.unwrap();
            change(&mut volume);
            if self
                .controller
                .store
                .volumes()
                .update_status(volume)
                .await
                .is_ok()
            {
                return;
            }
        }
    }

    fn steps(&self) -> Vec<Vec<String>> {
        let operations = self.controller.journal.operations(None);
        operations
            .into_iter()
            .map(|o| o.steps.into_iter().map(|s| s.name.into_owned()).collect())
            .collect()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(400)
}

/// Plays the agent: makes it ready, admits who is mapped, fences who is not, lets go.
async fn answer(store: Arc<DirStore>, mut watch: crate::store::Watch<Volume>, fate: Fate) {
    while let Some(change) = watch.next().await {
        let Change::Put(volume) = change else {
            continue;
        };
        let mut volume = (*volume).clone();
        if let Fate::Silent = fate {
            continue;
        }
        // A conflict is somebody's newer write, which comes as a change.
        if volume.is_deleting() {
            volume.metadata.finalizers.clear();
            let _ = store.volumes().update_spec(volume).await;
            continue;
        }
        let status = &mut volume.status;
        match (status.state, fate) {
            (State::Pending, Fate::Ready) => make_ready(&mut volume),
            (State::Pending, Fate::Error(reason)) => {
                status.state = State::Error;
                status.conditions = vec![trouble(reason, "cannot be made")];
            }
            _ => {
                let mapped = status.mapped_initiators.iter();
                status.published_initiators = mapped.map(|m| m.initiator_id.clone()).collect();
            }
        }
        let _ = store.volumes().update_status(volume).await;
    }
}

fn make_ready(volume: &mut Volume) {
    let status = &mut volume.status;
    status.state = State::Ready;
    status.was_ready = true;
    status.target_nqn = Some(names::subsystem_nqn(&volume.metadata.name));
    status.portal = Some("[fd00::1]:4420".into());
    status.device_uuid = Some(uuid::Uuid::from_u128(1));
    status.device_guid = Some("77".repeat(16));
    status.filesystem_uuid = Some(uuid::Uuid::from_u128(2));
    status.actual_capacity = Some(volume.spec.capacity);
}

fn trouble(reason: &str, message: &str) -> Condition {
    Condition {
        kind: "Ready".into(),
        status: "False".into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: "2026-01-01T00:00:00Z".into(),
        observed_generation: 1,
    }
}

fn request() -> csi::CreateVolumeRequest {
    use csi::volume_capability::access_mode::Mode;
    use csi::volume_capability::{AccessMode, AccessType, MountVolume};
    csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: (1 << 30) + 1,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        parameters: [("pool".to_owned(), "tank".to_owned())].into(),
        ..Default::default()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, kind: Kind, word: &str) {
    let refusal = outcome.expect_err("must be refused");
    assert_eq!(refusal.kind, kind, "{}", refusal.message);
    assert!(
        refusal.message.contains(word),
        "{word} is missing in {}",
        refusal.message
    );
}

#[tokio::test]
async fn a_volume_is_made_once_and_found_again() {
    let room = Room::new(Fate::Ready);
    let made = room.create(&request()).await.unwrap();
    assert_eq!(made.volume_id, "pvc-1");
    assert_eq!(made.capacity_bytes, (1 << 30) + (16 << 10));
    let before = room.volume().await.unwrap();
    assert_eq!(
        before.metadata.finalizers,
        [crate::model::volume::FINALIZER]
    );
    assert_eq!(room.create(&request()).await.unwrap(), made);
    assert_eq!(room.volume().await.unwrap(), before, "nothing was written");
    assert_eq!(room.steps()[0], ["volume.create", "volume.await-ready"]);
}

#[tokio::test]
async fn rule_07_a_retry_that_asks_for_something_else_is_refused() {
    let room = Room::new(Fate::Ready);
    room.create(&request()).await.unwrap();
    let with = |change: fn(&mut csi::CreateVolumeRequest)| {
        let mut request = request();
        change(&mut request);
        request
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
        (
            with(|r| drop(r.parameters.insert("fsType".into(), "xfs".into()))),
            "xfs",
        ),
        (
            with(|r| drop(r.parameters.insert("pool".into(), "other".into()))),
            "other",
        ),
        (
            with(|r| drop(r.parameters.insert("volBlockSize".into(), "8k".into()))),
            "8k",
        ),
        (
            with(|r| drop(r.parameters.insert("compression".into(), "lz4".into()))),
            "lz4",
        ),
    ] {
        refused(room.create(&other).await, Kind::AlreadyExists, word);
    }
    room.create(&with(|r| r.capacity_range = None))
        .await
        .expect("any size will do");
}

fn range(required_bytes: i64, limit_bytes: i64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

#[tokio::test]
async fn the_full_name_is_compared() {
    let room = Room::new(Fate::Ready);
    let mut odd = request();
    odd.name = "My Volume".into();
    let id = room.create(&odd).await.unwrap().volume_id;
    let mut twin = odd.clone();
    twin.name = id.clone();
    refused(room.create(&twin).await, Kind::AlreadyExists, "My Volume");
}

#[tokio::test]
async fn a_volume_that_cannot_be_made_leaves_nothing() {
    for (reason, kind) in [
        (reason::POOL_NOT_FOUND, Kind::InvalidArgument),
        (reason::NO_SPACE, Kind::ResourceExhausted),
        (reason::BAD_PROPERTY, Kind::InvalidArgument),
        (reason::DATASET_FOREIGN, Kind::FailedPrecondition),
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
    room.create(&request()).await.unwrap();
    room.change(|v| {
        v.status.state = State::Error;
        v.status.conditions = vec![trouble(reason::DATASET_MISSING, "the dataset is gone")];
    })
    .await;
    refused(
        room.create(&request()).await,
        Kind::FailedPrecondition,
        "the dataset is gone",
    );
    refused(
        room.publish("node0").await,
        Kind::FailedPrecondition,
        "the dataset is gone",
    );
    let volume = room.volume().await.unwrap();
    assert!(!volume.is_deleting() && volume.status.mapped_initiators.is_empty());
}

#[tokio::test]
async fn rule_10_every_wait_ends_and_says_what_it_waited_for() {
    let room = Room::new(Fate::Silent);
    let wanted = Wanted::parse(&request(), "storage0").unwrap();
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
    let late = room
        .controller
        .publish("pvc-1", "node0", None, shortly())
        .await;
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
    let wanted = Wanted::parse(&request(), "storage0").unwrap();
    refused(
        room.controller.create(wanted, soon()).await,
        Kind::Aborted,
        "being deleted",
    );
}

#[tokio::test]
async fn rule_04_one_writer_until_it_is_fenced() {
    let room = Room::new(Fate::Ready);
    room.create(&request()).await.unwrap();
    let target = room.publish("node0").await.unwrap();
    assert_eq!(target.nqn, names::subsystem_nqn("pvc-1"));
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
        room.controller.delete("pvc-1", soon()).await,
        Kind::FailedPrecondition,
        "node0",
    );
    let back = room
        .controller
        .publish("pvc-1", "node0", None, shortly())
        .await;
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
    room.create(&request()).await.unwrap();
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
async fn what_is_not_there_is_deleted_and_unpublished_but_not_published() {
    let room = Room::new(Fate::Ready);
    room.controller.delete("pvc-1", soon()).await.unwrap();
    room.unpublish("node0").await.unwrap();
    refused(room.publish("node0").await, Kind::NotFound, "pvc-1");
    room.create(&request()).await.unwrap();
    let xfs = Some(crate::model::volume::FsType::Xfs);
    refused(
        room.controller
            .publish("pvc-1", "node0", xfs, soon())
            .await
            .map(drop),
        Kind::InvalidArgument,
        "ext4",
    );
    room.controller.delete("pvc-1", soon()).await.unwrap();
    assert_eq!(room.volume().await, None);
    room.create(&request())
        .await
        .expect("the name is free again");
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let refuse = |change: fn(&mut csi::CreateVolumeRequest), word: &str| {
        let mut request = request();
        change(&mut request);
        refused(Wanted::parse(&request, "s"), Kind::InvalidArgument, word);
    };
    refuse(|r| r.name.clear(), "name");
    refuse(|r| r.volume_capabilities.clear(), "volume_capabilities");
    refuse(
        |r| drop(r.parameters.insert("colour".into(), "blue".into())),
        "colour",
    );
    refuse(
        |r| drop(r.mutable_parameters.insert("a".into(), "b".into())),
        "mutable_parameters",
    );
    refuse(
        |r| r.volume_content_source = Some(Default::default()),
        "volume_content_source",
    );
    refuse(|r| r.capacity_range = Some(range(-1, 0)), "required_bytes");
}
