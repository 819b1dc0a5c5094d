//! Snapshots, clones and promotion as ZFS has them.

use zvolt_kernel::zfs::{self, CloneSpec, Destroy, Pool, Properties};

use super::{Content, SimHost, World, Zvol, full};
use crate::agent::observe::{Dataset, Failure};
use crate::agent::snapshots::observe::Snapshots;
use crate::model::names;
use crate::model::storage_node::PoolStatus;
use crate::model::volume::reason;

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Snap {
    pub(in crate::agent) component: String,
    pub(in crate::agent) guid: u64,
    pub(in crate::agent) properties: Properties,
    pub(in crate::agent) content: Content,
    pub(in crate::agent) written: u64,
    pub(in crate::agent) volsize: String,
    pub(in crate::agent) is_deferred: bool,
    pub(in crate::agent) holds: u64,
}

fn busy(message: String) -> Failure {
    Failure::passing(reason::BUSY, message)
}

fn gone(name: &str) -> Failure {
    Failure::kernel(format!("{name} does not exist"))
}

impl World {
    pub(super) fn take_snapshots(
        &mut self,
        paths: &[String],
        properties: &[(String, String)],
    ) -> Result<(), Failure> {
        for path in paths {
            let (dataset, component) = names::snapshot_halves(path);
            let zvol = self.zvols.get(dataset).ok_or_else(|| gone(dataset))?;
            if zvol.snapshots.iter().any(|s| s.component == component) {
                return Err(Failure::kernel(format!("{path} exists already")));
            }
        }
        for path in paths {
            self.guids += 1;
            let guid = self.guids;
            let (dataset, component) = names::snapshot_halves(path);
            let zvol = self.zvols.get_mut(dataset).unwrap();
            zvol.snapshots.push(Snap {
                component: component.into(),
                guid,
                properties: properties.iter().cloned().collect(),
                content: zvol.content,
                written: zvol.written,
                volsize: zvol.properties["volsize"].clone(),
                is_deferred: false,
                holds: 0,
            });
        }
        Ok(())
    }

    /// Where the snapshot with this GUID is: its dataset, and its place among that one's.
    pub(in crate::agent) fn place_of(&self, guid: u64) -> Option<(&String, usize)> {
        self.zvols.iter().find_map(|(name, zvol)| {
            let at = zvol.snapshots.iter().position(|s| s.guid == guid)?;
            Some((name, at))
        })
    }

    pub(in crate::agent) fn path_of(&self, guid: u64) -> Option<String> {
        let (dataset, at) = self.place_of(guid)?;
        let component = &self.zvols[dataset].snapshots[at].component;
        Some(format!("{dataset}@{component}"))
    }

    fn at(&self, path: &str) -> Option<&Snap> {
        let (dataset, component) = names::snapshot_halves(path);
        let mut snapshots = self.zvols.get(dataset)?.snapshots.iter();
        snapshots.find(|s| s.component == component)
    }

    pub(in crate::agent) fn clones_of(&self, guid: u64) -> Vec<String> {
        let clones = self.zvols.iter().filter(|(_, z)| z.origin == Some(guid));
        clones.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn make_clone(&mut self, spec: &CloneSpec) -> Result<(), Failure> {
        let origin = self.at(&spec.origin).ok_or_else(|| gone(&spec.origin))?;
        let (guid, content, written) = (origin.guid, origin.content, origin.written);
        let least: u64 = origin.volsize.parse().unwrap();
        assert!(!self.zvols.contains_key(&spec.dataset), "made twice");
        let pairs: Vec<_> = [&spec.properties, &spec.user_properties]
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.clone()))
            .collect();
        self.zvol(&spec.dataset, &pairs, content);
        let zvol = self.zvols.get_mut(&spec.dataset).unwrap();
        let volsize: u64 = zvol.properties["volsize"].parse().unwrap();
        assert!(volsize >= least, "rule 9: a clone never shrinks");
        (zvol.origin, zvol.written) = (Some(guid), written);
        Ok(())
    }

    /// The origin and all that is older go to the clone; their dataset becomes its clone.
    pub(super) fn promote(&mut self, clone: &str) -> Result<(), Failure> {
        let promoted = self.zvols.get(clone).ok_or_else(|| gone(clone))?;
        let guid = promoted
            .origin
            .ok_or_else(|| Failure::kernel(format!("{clone} is no clone")))?;
        let (from, at) = self.place_of(guid).expect("an origin is there");
        let from = from.clone();
        let moving = &self.zvols[&from].snapshots[..=at];
        let own = |s: &Snap| {
            let mut all = self.zvols[clone].snapshots.iter();
            all.any(|o| o.component == s.component)
        };
        if let Some(conflict) = moving.iter().find(|s| own(s)) {
            return Err(busy(format!("{clone}@{} exists", conflict.component)));
        }
        let source = self.zvols.get_mut(&from).unwrap();
        let rest = source.snapshots.split_off(at + 1);
        let mut moved = std::mem::replace(&mut source.snapshots, rest);
        let above = source.origin.replace(guid);
        let promoted = self.zvols.get_mut(clone).unwrap();
        promoted.origin = above;
        moved.append(&mut promoted.snapshots);
        promoted.snapshots = moved;
        Ok(())
    }

    pub(super) fn destroy_snapshot(&mut self, path: &str, when: Destroy) -> Result<(), Failure> {
        let Some(snap) = self.at(path) else {
            return Ok(());
        };
        let (guid, is_held) = (snap.guid, snap.holds > 0);
        let (dataset, component) = names::snapshot_halves(path);
        let is_used = is_held || !self.clones_of(guid).is_empty();
        let snapshots = &mut self.zvols.get_mut(dataset).unwrap().snapshots;
        match (is_used, when) {
            (false, _) => snapshots.retain(|s| s.component != component),
            (true, Destroy::Now) => return Err(busy(format!("{path} is used"))),
            (true, Destroy::Deferred) => {
                let it = snapshots.iter_mut().find(|s| s.component == component);
                it.unwrap().is_deferred = true;
            }
        }
        Ok(())
    }

    /// Never recursive. With the last clone goes an origin that was told to.
    pub(super) fn destroy(&mut self, dataset: &str) -> Result<(), Failure> {
        let Some(zvol) = self.zvols.get(dataset) else {
            return Ok(());
        };
        if zvol.busy || !zvol.snapshots.is_empty() {
            return Err(busy(format!("{dataset} is busy: it has snapshots")));
        }
        let origin = self.zvols.remove(dataset).unwrap().origin;
        if let Some(guid) = origin
            && self.clones_of(guid).is_empty()
            && let Some((dataset, at)) = self.place_of(guid)
        {
            let dataset = dataset.clone();
            let snapshots = &mut self.zvols.get_mut(&dataset).unwrap().snapshots;
            if snapshots[at].is_deferred && snapshots[at].holds == 0 {
                snapshots.remove(at);
            }
        }
        Ok(())
    }

    pub(super) fn rollback(&mut self, path: &str) -> Result<(), Failure> {
        let (dataset, component) = names::snapshot_halves(path);
        let zvol = self.zvols.get_mut(dataset).ok_or_else(|| gone(dataset))?;
        if zvol.busy {
            return Err(busy(format!("{dataset} is open")));
        }
        match zvol.snapshots.last() {
            Some(newest) if newest.component == component => {
                (zvol.content, zvol.written) = (newest.content, newest.written);
                let volsize = newest.volsize.clone();
                zvol.properties.insert("volsize".into(), volsize);
                Ok(())
            }
            _ => Err(Failure::kernel(format!("{path} is not the newest"))),
        }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        if self.zvols.contains_key(to) {
            return Err(Failure::kernel(format!("{to} exists already")));
        }
        let zvol = self.zvols.remove(from).ok_or_else(|| gone(from))?;
        self.zvols.insert(to.to_owned(), zvol);
        Ok(())
    }

    pub(super) fn look_at(&self, name: &str, zvol: &Zvol) -> Result<Dataset, Failure> {
        let mut properties = zvol.properties.clone();
        if let Some(guid) = zvol.origin {
            let origin = self.path_of(guid).expect("an origin is there");
            properties.insert("origin".into(), origin);
        }
        Dataset::from_properties(name, &properties, zvol.properties.clone(), |size, _| {
            Ok(full(size))
        })
    }

    fn told(&self, dataset: &str, snap: &Snap) -> zfs::Snapshot {
        zfs::Snapshot {
            name: format!("{dataset}@{}", snap.component),
            guid: snap.guid,
            createtxg: snap.guid,
            creation: 1_700_000_000,
            volsize: snap.volsize.parse().ok(),
            clones: self.clones_of(snap.guid),
            holds: snap.holds,
            is_deferred: snap.is_deferred,
            user_properties: snap.properties.clone(),
            ..zfs::Snapshot::default()
        }
    }
}

impl Snapshots for SimHost {
    fn pool(&self, name: &str) -> Result<Option<Pool>, Failure> {
        let world = self.world.lock().unwrap();
        Ok(world.pools.get(name).map(|(guid, health)| Pool {
            name: name.into(),
            guid: *guid,
            health: health.clone(),
            ..Pool::default()
        }))
    }

    fn dataset(&self, dataset: &str) -> Result<Option<Dataset>, Failure> {
        let world = self.world.lock().unwrap();
        let found = world.zvols.get(dataset);
        found.map(|z| world.look_at(dataset, z)).transpose()
    }

    fn snapshots(&self, dataset: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        let world = self.world.lock().unwrap();
        let zvol = world.zvols.get(dataset);
        let snapshots = zvol.iter().flat_map(|z| &z.snapshots);
        Ok(snapshots.map(|s| world.told(dataset, s)).collect())
    }

    fn snapshot(&self, path: &str) -> Result<Option<zfs::Snapshot>, Failure> {
        let world = self.world.lock().unwrap();
        let (dataset, _) = names::snapshot_halves(path);
        Ok(world.at(path).map(|s| world.told(dataset, s)))
    }

    fn called(&self, _pool: &str, component: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        *self.searches.lock().unwrap() += 1;
        let world = self.world.lock().unwrap();
        let mut found = Vec::new();
        for (name, zvol) in &world.zvols {
            let called = zvol.snapshots.iter().filter(|s| s.component == component);
            found.extend(called.map(|s| world.told(name, s)));
        }
        Ok(found)
    }

    fn buried(&self, pool: &str) -> Result<Vec<String>, Failure> {
        let world = self.world.lock().unwrap();
        let parent = names::deleted_parent(pool);
        let below = world.zvols.keys().filter(|z| names::is_below(z, &parent));
        Ok(below.cloned().collect())
    }

    fn pools(&self) -> Result<Vec<PoolStatus>, Failure> {
        let world = self.world.lock().unwrap();
        let told = world.pools.iter().map(|(name, (guid, health))| PoolStatus {
            name: name.clone(),
            guid: guid.to_string(),
            health: health.clone(),
            available: (100 - world.zvols.len() as u64) << 30,
            ..PoolStatus::default()
        });
        Ok(told.collect())
    }
}
