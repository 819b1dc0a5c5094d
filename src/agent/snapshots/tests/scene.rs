//! A host with ZFS, the store beside it, and the agent between them, as a value.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::observe::property;
use crate::agent::places::Places;
use crate::agent::plan::Site;
use crate::agent::reconcile::{Begin, Effects, Reconciled, Reconciler};
use crate::agent::sim::store::MemoryStore;
use crate::agent::sim::zfs::snapshot;
use crate::agent::sim::{Content, SimHost, World};
use crate::model::names;
use crate::model::snapshot::{Snapshot, SnapshotState};
use crate::model::volume::{State, Volume, reason};
use crate::ops::Journal;
use crate::store::conformance;

/// What a client can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// A new, empty volume.
    Make,
    /// One snapshot of these at one moment.
    Take(Vec<String>),
    /// A volume from this member of a snapshot.
    Restore(String, String),
    /// A volume from a volume.
    Clone(String),
    DeleteVolume(String),
    DeleteSnapshot(String),
}

/// Everything that lasts, and what the clients were told.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) world: World,
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    /// What each volume's users wrote last.
    written: BTreeMap<String, u64>,
    /// What it was when each member was taken.
    taken: BTreeMap<(String, String), u64>,
    clock: u64,
    pub(super) volumes_made: usize,
    pub(super) snapshots_made: usize,
}

/// How the agent's life goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life<'a> {
    /// On and on.
    Long,
    /// It is killed before this elementary act, and starts again; it then comes to the volumes in this order. Meanwhile
    /// a client may have asked for a deletion.
    Killed(usize, Order, Option<&'a Op>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    ByName,
    Reversed,
}

/// An agent at work on a scene.
struct Rig {
    host: Arc<SimHost>,
    store: Arc<MemoryStore>,
    agent: Reconciler<MemoryStore, Arc<SimHost>>,
}

#[derive(Debug, Clone)]
enum Work {
    Volume(String),
    Snapshot(String),
}

impl Scene {
    pub(super) fn new() -> Self {
        let host = SimHost::with_pool();
        let world = host.world.lock().unwrap().clone();
        Self {
            world,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            written: BTreeMap::new(),
            taken: BTreeMap::new(),
            clock: 0,
            volumes_made: 0,
            snapshots_made: 0,
        }
    }

    /// What a client can ask for now, with at most so many volumes and snapshots ever made.
    pub(super) fn ops(&self, volumes: usize, snapshots: usize) -> Vec<Op> {
        let mut ops = Vec::new();
        let names: Vec<&String> = self.volumes.keys().collect();
        if self.volumes_made < volumes {
            if names.is_empty() && self.snapshots.is_empty() {
                ops.push(Op::Make);
            }
            ops.extend(names.iter().map(|v| Op::Clone((*v).clone())));
            for (name, snapshot) in &self.snapshots {
                let members = &snapshot.spec.members;
                ops.extend(
                    members
                        .iter()
                        .map(|m| Op::Restore(name.clone(), m.volume_id.clone())),
                );
            }
        }
        if self.snapshots_made < snapshots {
            ops.extend(names.iter().map(|v| Op::Take(vec![(*v).clone()])));
            for (at, one) in names.iter().enumerate() {
                let pairs = names[..at]
                    .iter()
                    .map(|two| vec![(*two).clone(), (*one).clone()]);
                ops.extend(pairs.map(Op::Take));
            }
        }
        ops.extend(names.into_iter().map(|v| Op::DeleteVolume(v.clone())));
        ops.extend(self.snapshots.keys().map(|s| Op::DeleteSnapshot(s.clone())));
        ops
    }

    /// Does it, and gives the scene once the agent has settled; `None` when the agent lives on past the moment at
    /// which it was to be killed.
    pub(super) fn after(&self, op: &Op, life: Life<'_>) -> Option<Self> {
        self.after_all(std::slice::from_ref(op), life)
    }

    /// The same with several at once.
    pub(super) fn after_all(&self, ops: &[Op], life: Life<'_>) -> Option<Self> {
        let mut next = self.clone();
        let mut rig = Rig::of(&next);
        let work: Vec<Work> = ops.iter().map(|op| rig.ask(&mut next, op)).collect();
        if let Life::Killed(act, ..) = life {
            *rig.host.dies_in.lock().unwrap() = Some(act);
        }
        rig.work(work);
        if let Life::Killed(_, order, meanwhile) = life {
            if !rig.is_dead() {
                return None;
            }
            let _later = meanwhile.map(|op| rig.ask(&mut next, op));
            rig = rig.restarted(order);
            if meanwhile.is_some() {
                rig.take_back();
            }
        }
        rig.settle_into(&mut next);
        for op in ops {
            next.promise(op);
        }
        next.check(&format!("{ops:?} {life:?}"));
        next.write();
        Some(next)
    }

    /// What the client may count on from now on.
    fn promise(&mut self, op: &Op) {
        match op {
            Op::Make | Op::Clone(_) | Op::Restore(..) => {
                let name = format!("v{}", self.volumes_made);
                self.volumes_made += 1;
                if self.volumes.contains_key(&name) {
                    let written = match op {
                        Op::Clone(of) => self.written[of],
                        Op::Restore(of, member) => self.taken[&(of.clone(), member.clone())],
                        _ => 0,
                    };
                    self.written.insert(name, written);
                }
            }
            Op::Take(volumes) => {
                let name = format!("s{}", self.snapshots_made);
                self.snapshots_made += 1;
                for volume in volumes {
                    let written = self.written[volume];
                    self.taken.insert((name.clone(), volume.clone()), written);
                }
            }
            Op::DeleteVolume(_) | Op::DeleteSnapshot(_) => {}
        }
    }

    /// The users of every volume write something new.
    fn write(&mut self) {
        for name in self.volumes.keys() {
            self.clock += 1;
            self.written.insert(name.clone(), self.clock);
            let zvol = self
                .world
                .zvols
                .get_mut(&names::zvol("tank", name))
                .unwrap();
            (zvol.written, zvol.content) = (self.clock, Content::Data);
        }
    }

    /// Nothing that was promised is lost, and nothing is left of what was deleted.
    fn check(&self, when: &str) {
        let mut promised = Vec::new();
        for (name, volume) in &self.volumes {
            let path = names::zvol("tank", name);
            assert_eq!(
                volume.status.state,
                State::Ready,
                "{name} {when}: {volume:?}"
            );
            let zvol = self.world.zvols.get(&path);
            let zvol = zvol.unwrap_or_else(|| panic!("{path} is lost {when}"));
            assert_eq!(zvol.written, self.written[name], "{name} {when}");
            assert_eq!(zvol.properties[&property("uid")], volume.metadata.uid);
        }
        for (name, snapshot) in &self.snapshots {
            let status = &snapshot.status;
            assert_eq!(
                status.state,
                SnapshotState::Ready,
                "{name} {when}: {status:?}"
            );
            for taken in &status.members {
                let guid: u64 = taken.guid.parse().unwrap();
                let place = self.world.place_of(guid);
                let (dataset, at) =
                    place.unwrap_or_else(|| panic!("{name} of {} is lost {when}", taken.volume_id));
                let found = &self.world.zvols[dataset].snapshots[at];
                let key = (name.clone(), taken.volume_id.clone());
                assert_eq!(found.written, self.taken[&key], "{key:?} {when}");
                assert!(!found.is_deferred, "{key:?} {when}");
                assert_eq!(
                    self.world.path_of(guid).as_ref(),
                    Some(&taken.snapshot_path),
                    "{key:?} is told to be elsewhere {when}"
                );
                promised.push(guid);
            }
        }
        for (path, zvol) in &self.world.zvols {
            let name = path.rsplit('/').next().unwrap();
            let is_live = path.starts_with("tank/csi/block/") && self.volumes.contains_key(name);
            let is_kept = path.starts_with("tank/csi/deleted/")
                && zvol.snapshots.iter().any(|s| promised.contains(&s.guid));
            assert!(
                is_live || is_kept,
                "{path} is left {when}: {:?}",
                self.picture()
            );
            for snap in &zvol.snapshots {
                let is_used = snap.is_deferred && !self.world.clones_of(snap.guid).is_empty();
                let path = format!("{path}@{}", snap.component);
                assert!(
                    promised.contains(&snap.guid) || is_used,
                    "{path} is left {when}: {:?}",
                    self.picture()
                );
            }
        }
        assert_eq!(self.world.subsystems.len(), self.volumes.len(), "{when}");
    }

    /// All that matters for what can come next.
    pub(super) fn picture(&self) -> impl Ord + std::fmt::Debug + use<> {
        let zvols: Vec<_> = self
            .world
            .zvols
            .iter()
            .map(|(path, zvol)| {
                let origin = zvol.origin.and_then(|guid| self.world.path_of(guid));
                let snapshots = zvol.snapshots.iter();
                let snapshots: Vec<_> = snapshots
                    .map(|s| (s.component.clone(), s.is_deferred))
                    .collect();
                (path.clone(), origin, snapshots)
            })
            .collect();
        let volumes: Vec<_> = self.volumes.keys().cloned().collect();
        let snapshots: Vec<_> = self.snapshots.keys().cloned().collect();
        let made = (self.volumes_made, self.snapshots_made);
        (zvols, volumes, snapshots, made)
    }
}

impl Rig {
    fn of(scene: &Scene) -> Self {
        let host = Arc::new(SimHost::default());
        *host.world.lock().unwrap() = scene.world.clone();
        let store = Arc::new(MemoryStore::on(host.clone()));
        for volume in scene.volumes.values() {
            store.volumes.keep(volume.clone());
        }
        for snapshot in scene.snapshots.values() {
            store.snapshots.keep(snapshot.clone());
        }
        Self::with(host, store)
    }

    fn with(host: Arc<SimHost>, store: Arc<MemoryStore>) -> Self {
        let site = Site {
            node: "storage0".into(),
            portal: "192.0.2.1:4420".into(),
            loop_port: 99,
        };
        let agent = Reconciler::new(
            store.clone(),
            host.clone(),
            site,
            Journal::new(1),
            Places::new(1),
        );
        Self { host, store, agent }
    }

    fn is_dead(&self) -> bool {
        *self.host.dies_in.lock().unwrap() == Some(0)
    }

    /// Writes the client's intent, as the controller does.
    fn ask(&self, scene: &mut Scene, op: &Op) -> Work {
        let volume = format!("v{}", scene.volumes_made);
        match op {
            Op::Make => self.store.volumes.put(conformance::volume(&volume)),
            Op::Clone(of) => {
                let mut wanted = conformance::volume(&volume);
                wanted.spec.source_volume_id = Some(of.clone());
                self.store.volumes.put(wanted);
            }
            Op::Restore(of, member) => {
                let mut wanted = conformance::volume(&volume);
                wanted.spec.source_snapshot_id = Some(format!("{member}@{of}"));
                self.store.volumes.put(wanted);
            }
            Op::Take(of) => {
                let name = format!("s{}", scene.snapshots_made);
                let members: Vec<&Volume> = of.iter().map(|v| &scene.volumes[v]).collect();
                self.store.snapshots.put(snapshot(&name, &members));
                return Work::Snapshot(name);
            }
            Op::DeleteVolume(name) => {
                self.store.volumes.ask_to_delete(name);
                return Work::Volume(name.clone());
            }
            Op::DeleteSnapshot(name) => {
                self.store.snapshots.ask_to_delete(name);
                return Work::Snapshot(name.clone());
            }
        }
        Work::Volume(volume)
    }

    /// What the agent's queues do.
    fn work(&self, mut work: Vec<Work>) {
        let mut left = 200;
        while !work.is_empty() && !self.is_dead() {
            left -= 1;
            assert!(left > 0, "it does not settle: {work:?}");
            let next = work.remove(0);
            let (again, effects) = match next.clone() {
                Work::Volume(name) => self.reconcile::<Volume>(name),
                Work::Snapshot(name) => self.reconcile::<Snapshot>(name),
            };
            if again {
                work.push(next);
            }
            work.extend(self.moved(&effects.moved));
        }
    }

    fn reconcile<T: Reconciled>(&self, name: String) -> (bool, Effects) {
        let outcome = self.agent.reconcile::<T>(name, Begin::Read);
        (outcome.retry, outcome.effects)
    }

    fn moved(&self, datasets: &[String]) -> Vec<Work> {
        let all = self.store.snapshots.all();
        let concerned = all
            .into_iter()
            .filter(|s| crate::agent::was_in(s, datasets));
        concerned.map(|s| Work::Snapshot(s.metadata.name)).collect()
    }

    /// Another agent finds what the dead one left.
    fn restarted(self, order: Order) -> Self {
        *self.host.dies_in.lock().unwrap() = None;
        let next = Self::with(self.host, self.store);
        let mut volumes: Vec<String> = names_of(&next.store.volumes.all());
        if order == Order::Reversed {
            volumes.reverse();
        }
        next.work(volumes.into_iter().map(Work::Volume).collect());
        let snapshots = names_of(&next.store.snapshots.all());
        next.work(snapshots.into_iter().map(Work::Snapshot).collect());
        let moved = next.agent.collect_all(&["tank".to_owned()]);
        next.work(next.moved(&moved));
        next
    }

    /// As the controller does with what cannot be made any more.
    fn take_back(&self) {
        for volume in self.store.volumes.all() {
            if volume.status.state == State::Error {
                assert_eq!(volume.status.conditions[0].reason, reason::SOURCE_MISSING);
                self.store.volumes.ask_to_delete(&volume.metadata.name);
                self.work(vec![Work::Volume(volume.metadata.name)]);
            }
        }
        for snapshot in self.store.snapshots.all() {
            if snapshot.status.state == SnapshotState::Error {
                assert_eq!(snapshot.trouble().unwrap().0, reason::SOURCE_MISSING);
                self.store.snapshots.ask_to_delete(&snapshot.metadata.name);
                self.work(vec![Work::Snapshot(snapshot.metadata.name)]);
            }
        }
    }

    fn settle_into(self, scene: &mut Scene) {
        assert!(!self.agent.was_left_behind(), "something was left behind");
        scene.world = self.host.world.lock().unwrap().clone();
        scene.volumes = by_name(self.store.volumes.all());
        scene.snapshots = by_name(self.store.snapshots.all());
    }
}

fn names_of<T: Reconciled>(objects: &[T]) -> Vec<String> {
    objects.iter().map(|o| o.metadata().name.clone()).collect()
}

fn by_name<T: Reconciled>(objects: Vec<T>) -> BTreeMap<String, T> {
    let named = objects.into_iter();
    named.map(|o| (o.metadata().name.clone(), o)).collect()
}
