//! The controller on a real store, with an agent that answers in place of the real one.

mod change;
mod create;
mod health;
mod lists;
mod placement;
mod publish;
mod replicas;
mod snapshots;
mod sources;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::create::Wanted;
use super::holders::Consumer;
use super::{Controller, Site, SnapshotWanted};
use crate::csi::check;
use crate::csi::status::{Kind, Refusal};
use crate::model::capacity::Range;
use crate::model::names;
use crate::model::object::{Metadata, Verdict, set_condition};
use crate::model::publish::Target;
use crate::model::snapshot::{Snapshot, SnapshotState, Taken};
use crate::model::storage_node::{PoolStatus, StorageNode, StorageNodeSpec, StorageNodeStatus};
use crate::model::volume::{Condition, State, Volume, VolumeMode};
use crate::ops::Journal;
use crate::store::dir::DirStore;
use crate::store::{Change, Objects, Store, Watch, time};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const BLOCK: u64 = 16 << 10;

/// What the agent makes of something new.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    Ready,
    Error(&'static str),
    /// Nothing: it is slow, or not there.
    Silent,
}

/// What the agent does, also for a changed spec.
type Play = Arc<Mutex<Fate>>;

pub(super) struct Room {
    pub(super) controller: Arc<Controller<DirStore>>,
    play: Play,
    /// Kept while the store is used.
    dir: Arc<TempDir>,
}

impl Room {
    pub(super) fn new(fate: Fate) -> Self {
        Self::for_consumers(fate, &[])
    }

    pub(super) fn for_consumers(fate: Fate, consumers: &[&str]) -> Self {
        Self::of_site(
            fate,
            Site {
                owner: Some("storage0".into()),
                consumers: consumers.iter().map(|node| (*node).to_owned()).collect(),
            },
        )
    }

    /// Several hosts, none of which is this.
    pub(super) fn of_many_hosts(fate: Fate) -> Self {
        Self::of_site(
            fate,
            Site {
                owner: None,
                consumers: Default::default(),
            },
        )
    }

    fn of_site(fate: Fate, site: Site) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(DirStore::open(dir.path()).unwrap());
        let play = Arc::new(Mutex::new(fate));
        let watch = store.volumes().watch(None);
        tokio::spawn(answer_volumes(store.clone(), watch, play.clone()));
        let watch = store.snapshots().watch(None);
        tokio::spawn(answer_snapshots(store.clone(), watch, play.clone()));
        Self {
            controller: Arc::new(Controller::new(store, site, Journal::new(64))),
            play,
            dir: Arc::new(dir),
        }
    }

    /// A storage host says what it has.
    pub(super) async fn host(&self, node: &str, pools: Vec<PoolStatus>) {
        let status = StorageNodeStatus {
            pools,
            observed_at: time::now(),
        };
        let nodes = self.controller.store.storage_nodes();
        let object = StorageNode {
            metadata: Metadata {
                name: node.into(),
                ..Metadata::default()
            },
            spec: StorageNodeSpec {
                node_name: node.into(),
            },
            status: Default::default(),
        };
        let made = match nodes.get(node).await.unwrap() {
            Some(there) => there,
            None => nodes.create(object).await.unwrap(),
        };
        nodes
            .update_status(StorageNode { status, ..made })
            .await
            .unwrap();
    }

    /// From now on the agent does this.
    pub(super) fn plays(&self, fate: Fate) {
        *self.play.lock().unwrap() = fate;
    }

    pub(super) async fn create(
        &self,
        request: &csi::CreateVolumeRequest,
    ) -> Result<csi::Volume, Refusal> {
        let wanted = Wanted::parse(request)?;
        let answer = self.controller.create(wanted, soon()).await?;
        Ok(answer.volume.unwrap())
    }

    /// The usual volume, which must work.
    pub(super) async fn made(&self) -> csi::Volume {
        self.create(&request()).await.unwrap()
    }

    pub(super) async fn publish_as(
        &self,
        node: &str,
        capability: &csi::VolumeCapability,
        readonly: bool,
    ) -> Result<Target, Refusal> {
        let capability = check::capability(Some(capability))?;
        let consumer = Consumer::new(node, capability, readonly);
        let context = self.controller.publish("pvc-1", &consumer, soon()).await?;
        Ok(Target::from_context(&context).unwrap())
    }

    pub(super) async fn publish(&self, node: &str) -> Result<Target, Refusal> {
        self.publish_as(node, &mount(Mode::SingleNodeWriter), false)
            .await
    }

    pub(super) async fn unpublish(&self, node: &str) -> Result<(), Refusal> {
        self.controller.unpublish("pvc-1", Some(node), soon()).await
    }

    pub(super) async fn expand(&self, required: u64, limit: u64) -> Result<u64, Refusal> {
        let range = Range { required, limit };
        let answer = self.controller.expand("pvc-1", range, None, soon()).await?;
        assert!(answer.node_expansion_required);
        Ok(answer.capacity_bytes.unsigned_abs())
    }

    pub(super) async fn snapshot(
        &self,
        name: &str,
        volume: &str,
    ) -> Result<csi::Snapshot, Refusal> {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume.into(),
            name: name.into(),
            ..Default::default()
        };
        let wanted = SnapshotWanted::single(&request)?;
        let answer = self.controller.create_snapshot(wanted, soon()).await?;
        Ok(answer.snapshot.unwrap())
    }

    /// The object alone, as after a controller that has died.
    pub(super) async fn write_intent(&self) {
        self.plays(Fate::Silent);
        let wanted = Wanted::parse(&request()).unwrap();
        let late = self.controller.create(wanted, shortly()).await;
        refused(late, Kind::DeadlineExceeded, "pvc-1");
    }

    pub(super) async fn volume(&self) -> Option<Volume> {
        self.controller.store.volumes().get("pvc-1").await.unwrap()
    }

    /// Writes as somebody else would.
    pub(super) async fn change(&self, change: impl Fn(&mut Volume)) {
        loop {
            let mut volume = self.volume().await.unwrap();
            change(&mut volume);
            let volumes = self.controller.store.volumes();
            if volumes.update_status(volume).await.is_ok() {
                return;
            }
        }
    }

    pub(super) fn steps(&self) -> Vec<Vec<String>> {
        let operations = self.controller.journal.operations(None);
        operations
            .into_iter()
            .map(|o| o.steps.into_iter().map(|s| s.name.into_owned()).collect())
            .collect()
    }
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Long enough for a busy disk to take an object, so that it is the agent who is late.
pub(super) fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(1500)
}

/// Plays the agent: makes it ready, admits who is mapped, fences who is not, applies changes, lets go.
async fn answer_volumes(store: Arc<DirStore>, mut watch: Watch<Volume>, play: Play) {
    while let Some(change) = watch.next().await {
        let Change::Put(volume) = change else {
            continue;
        };
        let mut volume = (*volume).clone();
        let fate = *play.lock().unwrap();
        if let Fate::Silent = fate {
            continue;
        }
        // A conflict is somebody's newer write, which comes as a change.
        if volume.is_deleting() {
            volume.metadata.finalizers.clear();
            let _ = store.volumes().update_spec(volume).await;
            continue;
        }
        let generation = volume.metadata.generation;
        let status = &mut volume.status;
        match (status.state, fate) {
            (State::Pending, Fate::Ready) => make_ready(&mut volume),
            (State::Pending, Fate::Error(reason)) => {
                status.state = State::Error;
                status.conditions = vec![trouble(reason, "cannot be made")];
            }
            _ if status.observed_generation < generation => answer_change(&mut volume, fate),
            _ => {
                let mapped = status.mapped_initiators.iter();
                status.published_initiators = mapped.map(|m| m.initiator_id.clone()).collect();
            }
        }
        let _ = store.volumes().update_status(volume).await;
    }
}

/// What ZFS says to a changed spec.
pub(super) fn answer_change(volume: &mut Volume, fate: Fate) {
    let generation = volume.metadata.generation;
    let status = &mut volume.status;
    status.observed_generation = generation;
    let (verdict, reason, message) = match fate {
        Fate::Error(reason) => ("False", reason, "ZFS says no"),
        _ => {
            let grown = status.actual_capacity.max(Some(volume.spec.capacity));
            status.actual_capacity = grown;
            ("True", "Reconciled", "all is in ZFS")
        }
    };
    let verdict = Verdict {
        kind: "Applied",
        status: verdict,
        reason,
        message,
    };
    set_condition(&mut status.conditions, verdict, generation, &time::now());
}

/// Plays the agent for snapshots.
async fn answer_snapshots(store: Arc<DirStore>, mut watch: Watch<Snapshot>, play: Play) {
    while let Some(change) = watch.next().await {
        let Change::Put(snapshot) = change else {
            continue;
        };
        let mut snapshot = (*snapshot).clone();
        let fate = *play.lock().unwrap();
        if let Fate::Silent = fate {
            continue;
        }
        if snapshot.metadata.deletion_timestamp.is_some() {
            snapshot.metadata.finalizers.clear();
            let _ = store.snapshots().update_spec(snapshot).await;
            continue;
        }
        match (snapshot.status.state, fate) {
            (SnapshotState::Pending, Fate::Error(reason)) => {
                snapshot.status.state = SnapshotState::Error;
                snapshot.status.conditions = vec![trouble(reason, "cannot be taken")];
            }
            (SnapshotState::Pending, _) => make_taken(&mut snapshot),
            _ => continue,
        }
        let _ = store.snapshots().update_status(snapshot).await;
    }
}

pub(super) fn make_taken(snapshot: &mut Snapshot) {
    let member = |m: &crate::model::snapshot::Source| Taken {
        volume_id: m.volume_id.clone(),
        snapshot_path: format!("{}@{}", m.dataset_path, snapshot.metadata.name),
        guid: "7".into(),
        created: 1_767_225_599,
        size: GIB + BLOCK,
    };
    snapshot.status.members = snapshot.spec.members.iter().map(member).collect();
    snapshot.status.state = SnapshotState::Ready;
    snapshot.status.was_ready = true;
}

pub(super) fn make_ready(volume: &mut Volume) {
    let generation = volume.metadata.generation;
    let status = &mut volume.status;
    status.state = State::Ready;
    status.was_ready = true;
    status.observed_generation = generation;
    status.target_nqn = Some(names::subsystem_nqn(&volume.metadata.name));
    status.portal = Some("[fd00::1]:4420".into());
    status.device_uuid = Some(uuid::Uuid::from_u128(1));
    status.device_guid = Some("77".repeat(16));
    status.dataset_path = Some(names::zvol(&volume.spec.pool, &volume.metadata.name));
    status.pool_guid = Some(guid_of(&volume.spec.pool));
    if volume.spec.volume_mode == VolumeMode::Filesystem {
        status.filesystem_uuid = Some(uuid::Uuid::from_u128(2));
    }
    status.actual_capacity = Some(volume.spec.capacity);
    let verdict = Verdict {
        kind: "Ready",
        status: "True",
        reason: "Reconciled",
        message: "the volume is exported",
    };
    set_condition(&mut status.conditions, verdict, generation, &time::now());
}

/// Each pool has a GUID of its own.
pub(super) fn guid_of(pool: &str) -> String {
    pool.bytes().map(u64::from).sum::<u64>().to_string()
}

pub(super) fn pool(name: &str, available: u64) -> PoolStatus {
    PoolStatus {
        name: name.into(),
        guid: guid_of(name),
        health: "ONLINE".into(),
        available,
        ..PoolStatus::default()
    }
}

pub(super) fn trouble(reason: &str, message: &str) -> Condition {
    Condition {
        kind: "Ready".into(),
        status: "False".into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: "2026-01-01T00:00:00Z".into(),
        observed_generation: 1,
    }
}

pub(super) fn mount(mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub(super) fn block(mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

pub(super) fn request() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        capacity_range: Some(range((1 << 30) + 1, 0)),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        parameters: [("pool".to_owned(), "tank".to_owned())].into(),
        ..Default::default()
    }
}

/// The usual request, a little different.
pub(super) fn with(change: impl Fn(&mut csi::CreateVolumeRequest)) -> csi::CreateVolumeRequest {
    let mut request = request();
    change(&mut request);
    request
}

/// The usual request with this parameter.
pub(super) fn with_parameter(key: &str, value: &str) -> csi::CreateVolumeRequest {
    with(|r| drop(r.parameters.insert(key.into(), value.into())))
}

pub(super) fn range(required_bytes: i64, limit_bytes: i64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, kind: Kind, word: &str) {
    let refusal = outcome.expect_err("must be refused");
    assert_eq!(refusal.kind, kind, "{}", refusal.message);
    assert!(
        refusal.message.contains(word),
        "{word} is missing in {}",
        refusal.message
    );
}
