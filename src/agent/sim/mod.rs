//! A simulated storage host. It checks after every act what must never be broken.

pub(super) mod store;
pub(super) mod zfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use uuid::Uuid;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::{Pool, Properties};

use self::zfs::Snap;
use super::observe::{Failure, Host, Storage, property};
use super::plan::NSID;
use super::steps::{Act, Backing};
use crate::model::volume::reason;

/// What a zvol holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    /// A filesystem with this UUID; nobody has written to it yet.
    Fresh(Uuid),
    /// What somebody needs.
    Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Zvol {
    pub(super) properties: Properties,
    pub(super) content: Content,
    /// What its users have written: another number after every write.
    pub(super) written: u64,
    pub(super) busy: bool,
    /// Oldest first.
    pub(super) snapshots: Vec<Snap>,
    /// The snapshot that it is a clone of, by GUID.
    pub(super) origin: Option<u64>,
}

/// The world as a test compares it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) pools: BTreeMap<String, (u64, String)>,
    pub(super) zvols: BTreeMap<String, Zvol>,
    pub(super) subsystems: BTreeMap<String, ObservedSubsystem>,
    /// Live controllers: subsystem and host. A host that can connect does.
    pub(super) controllers: BTreeSet<(String, String)>,
    /// Requests that the target has taken from these hosts and not finished.
    pub(super) in_flight: BTreeSet<(String, String)>,
    pub(super) guids: u64,
    pub(super) ports_made: bool,
}

/// The host: a world, and the faults to make.
#[derive(Debug, Default)]
pub(super) struct SimHost {
    pub(super) world: Mutex<World>,
    /// Dies after so many more elementary acts.
    pub(super) dies_in: Mutex<Option<usize>>,
    /// Elementary acts done.
    pub(super) done: Mutex<Vec<String>>,
    /// Looks at the storage.
    pub(super) looks: Mutex<usize>,
    /// Searches for a snapshot everywhere.
    pub(super) searches: Mutex<usize>,
    /// Fails this step so many times.
    pub(super) fails: Mutex<Option<(&'static str, usize, Failure)>>,
}

/// The simulated agent died.
pub(super) const DEAD: &str = "the agent was killed";

impl SimHost {
    pub(super) fn with_pool() -> Self {
        let host = Self::default();
        host.world
            .lock()
            .unwrap()
            .pools
            .insert("tank".into(), (77, "ONLINE".into()));
        host
    }

    pub(super) fn reboot(&self) {
        let mut world = self.world.lock().unwrap();
        world.subsystems.clear();
        world.controllers.clear();
        world.in_flight.clear();
    }

    /// One elementary act: the agent may die before it.
    pub(super) fn tick(&self, what: String) -> Result<(), Failure> {
        if let Some(left) = self.dies_in.lock().unwrap().as_mut() {
            if *left == 0 {
                return Err(Failure::kernel(DEAD));
            }
            *left -= 1;
        }
        self.done.lock().unwrap().push(what);
        Ok(())
    }

    fn link(&self, nqn: &str, port: u16) -> Result<(), Failure> {
        self.tick(format!("link {port}"))?;
        let mut world = self.world.lock().unwrap();
        let subsystem = world.subsystems.get_mut(nqn).expect("a subsystem to link");
        if !subsystem.ports.contains(&port) {
            subsystem.ports.push(port);
            subsystem.ports.sort_unstable();
        }
        world.connect(nqn);
        Ok(())
    }

    fn namespace(&self, backing: &Backing) -> Result<(), Failure> {
        self.tick("namespace".into())?;
        let mut world = self.world.lock().unwrap();
        let zvol = world.zvols.get(&backing.dataset).expect("a zvol to export");
        let record = zvol.properties.get(&property("format")).map(String::as_str);
        assert!(
            record.is_some_and(|r| r != "pending"),
            "rule 1: exported before its format is recorded"
        );
        let subsystem = world.subsystems.get_mut(&backing.nqn).expect("a subsystem");
        subsystem.namespaces = vec![ObservedNamespace {
            nsid: NSID,
            device: PathBuf::from("/dev").join(backing.dataset.replace('/', "_")),
            uuid: backing.uuid,
            nguid: backing.nguid,
            enabled: true,
        }];
        Ok(())
    }

    fn unlink(&self, nqn: &str, port: u16) -> Result<(), Failure> {
        self.tick(format!("unlink {port}"))?;
        let mut world = self.world.lock().unwrap();
        if let Some(subsystem) = world.subsystems.get_mut(nqn) {
            subsystem.ports.retain(|p| *p != port);
            if subsystem.ports.is_empty() {
                world.controllers.retain(|(n, _)| n != nqn);
            }
        }
        Ok(())
    }

    fn drop_namespace(&self, nqn: &str) -> Result<(), Failure> {
        self.tick("remove namespace".into())?;
        let mut world = self.world.lock().unwrap();
        if let Some(subsystem) = world.subsystems.get_mut(nqn) {
            subsystem.namespaces.clear();
        }
        world.in_flight.retain(|(n, _)| n != nqn);
        Ok(())
    }
}

impl World {
    /// Whoever is allowed connects at once and has a request on its way.
    fn connect(&mut self, nqn: &str) {
        let Some(subsystem) = self.subsystems.get(nqn) else {
            return;
        };
        if subsystem.ports.is_empty() {
            return;
        }
        for host in subsystem.allowed_hosts.clone() {
            self.controllers.insert((nqn.into(), host.clone()));
            self.in_flight.insert((nqn.into(), host));
        }
    }

    pub(super) fn zvol(&mut self, name: &str, pairs: &[(&str, String)], content: Content) {
        self.guids += 1;
        let mut properties: Properties = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect();
        properties
            .entry("guid".into())
            .or_insert(self.guids.to_string());
        properties
            .entry("volsize".into())
            .or_insert("1073741824".into());
        self.zvols.insert(
            name.into(),
            Zvol {
                properties,
                content,
                written: 0,
                busy: false,
                snapshots: Vec::new(),
                origin: None,
            },
        );
    }
}

impl Host for SimHost {
    fn converge_ports(&self) -> Result<(), Failure> {
        self.world.lock().unwrap().ports_made = true;
        Ok(())
    }

    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure> {
        Ok(self.world.lock().unwrap().subsystems.get(nqn).cloned())
    }

    fn storage(
        &self,
        pool: &str,
        dataset: &str,
        export: Option<&ObservedSubsystem>,
    ) -> Result<Storage, Failure> {
        *self.looks.lock().unwrap() += 1;
        let world = self.world.lock().unwrap();
        let Some((guid, health)) = world.pools.get(pool) else {
            return Ok(Storage::default());
        };
        let found = world.zvols.get(dataset);
        Ok(Storage {
            pool: Some(Pool {
                name: pool.into(),
                guid: *guid,
                health: health.clone(),
                ..Pool::default()
            }),
            dataset: found.map(|z| world.look_at(dataset, z)).transpose()?,
            backing: export
                .filter(|e| !e.namespaces.is_empty())
                .map(|_| dataset.to_owned()),
        })
    }

    fn act(&self, act: &Act, _deadline: Instant) -> Result<(), Failure> {
        if let Some((step, times, failure)) = self.fails.lock().unwrap().as_mut()
            && *step == act.name()
            && *times > 0
        {
            *times -= 1;
            return Err(failure.clone());
        }
        let tick = || self.tick(act.name().into());
        match act {
            Act::Create(spec) => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                assert!(!world.zvols.contains_key(&spec.dataset));
                let mut pairs: Vec<_> = spec
                    .user_properties
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.clone()))
                    .collect();
                pairs.push(("volsize", spec.volsize.to_string()));
                world.zvol(&spec.dataset, &pairs, Content::Blank);
            }
            Act::Appear { dataset } => {
                tick()?;
                assert!(self.world.lock().unwrap().zvols.contains_key(dataset));
            }
            Act::Format { dataset, uuid, .. } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                match zvol.content {
                    Content::Blank => zvol.content = Content::Fresh(*uuid),
                    Content::Fresh(found) if found == *uuid => {}
                    _ => {
                        return Err(Failure::lasting(
                            reason::DATASET_FOREIGN,
                            "it holds something",
                        ));
                    }
                }
            }
            Act::RecordFormat { dataset, record } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                assert!(
                    matches!(zvol.content, Content::Fresh(_)),
                    "recorded before it was made"
                );
                zvol.properties.insert(property("format"), record.clone());
            }
            Act::Subsystem(spec) => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let fresh = ObservedSubsystem {
                    nqn: spec.nqn.clone(),
                    serial: String::new(),
                    allowed_hosts: Vec::new(),
                    namespaces: Vec::new(),
                    ports: Vec::new(),
                };
                let subsystem = world.subsystems.entry(spec.nqn.clone()).or_insert(fresh);
                subsystem.serial.clone_from(&spec.serial);
            }
            Act::Namespace(backing) => self.namespace(backing)?,
            Act::Link { nqn, port } => self.link(nqn, *port)?,
            Act::AllowHost { nqn, host } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let subsystem = world.subsystems.get_mut(nqn).expect("a subsystem");
                subsystem.allowed_hosts.push(host.clone());
                subsystem.allowed_hosts.sort();
                subsystem.allowed_hosts.dedup();
                world.connect(nqn);
            }
            Act::DisallowHost { nqn, host } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world
                    .subsystems
                    .get_mut(nqn)
                    .unwrap()
                    .allowed_hosts
                    .retain(|h| h != host);
            }
            Act::Cut { nqn, ports, drain } => {
                for port in ports {
                    self.unlink(nqn, *port)?;
                }
                if let Some(backing) = drain {
                    self.drop_namespace(nqn)?;
                    self.namespace(backing)?;
                }
                for port in ports {
                    self.link(nqn, *port)?;
                }
            }
            Act::Teardown { nqn, .. } => {
                let ports = self
                    .world
                    .lock()
                    .unwrap()
                    .subsystems
                    .get(nqn)
                    .map(|s| s.ports.clone());
                for port in ports.unwrap_or_default() {
                    self.unlink(nqn, port)?;
                }
                self.tick("remove hosts".into())?;
                if let Some(subsystem) = self.world.lock().unwrap().subsystems.get_mut(nqn) {
                    subsystem.allowed_hosts.clear();
                }
                self.drop_namespace(nqn)?;
                self.tick("remove subsystem".into())?;
                self.world.lock().unwrap().subsystems.remove(nqn);
            }
            Act::Destroy { dataset } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.is_not_exported(dataset);
                world.destroy(dataset)?;
            }
            Act::Snapshot { names, properties } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.take_snapshots(names, properties)?;
            }
            Act::Clone { spec, .. } => {
                tick()?;
                self.world.lock().unwrap().make_clone(spec)?;
            }
            Act::Promote { clone, .. } => {
                tick()?;
                self.world.lock().unwrap().promote(clone)?;
            }
            Act::DestroySnapshot { snapshot, when } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.destroy_snapshot(snapshot, *when)?;
            }
            Act::Unreserve { dataset } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                zvol.properties.remove("refreservation");
            }
            Act::Rollback { snapshot } => {
                tick()?;
                self.world.lock().unwrap().rollback(snapshot)?;
            }
            Act::Bury { from, to } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.is_not_exported(from);
                world.rename(from, to)?;
            }
        }
        Ok(())
    }
}

impl World {
    fn is_not_exported(&self, dataset: &str) {
        let device = PathBuf::from("/dev").join(dataset.replace('/', "_"));
        let mut exported = self.subsystems.values().flat_map(|s| &s.namespaces);
        assert!(
            exported.all(|n| n.device != device),
            "{dataset} is still exported"
        );
    }
}
