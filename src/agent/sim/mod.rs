//! A simulated storage host. It checks after every act what must never be broken.

pub(super) mod store;
pub(super) mod zfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::{Pool, Properties};

use self::zfs::Snap;
use super::observe::{Failure, Host, News, Storage, property};
use super::steps::{Act, Backing};
use crate::model::names::{self, Pooled};
use crate::model::volume::{Provisioning, WriteProtect, reason};

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

/// What a full zvol of this size takes.
fn full(volsize: u64) -> u64 {
    volsize + volsize / 10
}

impl Zvol {
    fn volsize(&self) -> u64 {
        self.properties["volsize"].parse().unwrap()
    }

    /// As ZFS does: a full reservation follows the size, and a size never shrinks.
    fn set(&mut self, property: &str, value: &str) {
        let size = self.volsize();
        let reserved = self.properties.get("refreservation").cloned();
        let mut put = |property: &str, value: String| {
            self.properties.insert(property.to_owned(), value);
        };
        match (property, value) {
            ("refreservation", "auto") => put(property, full(size).to_string()),
            ("refreservation", "none") => put(property, "0".into()),
            ("volsize", _) => {
                let larger: u64 = value.parse().unwrap();
                assert!(larger > size, "rule 9: it shrinks");
                if reserved.is_some_and(|bytes| bytes == full(size).to_string()) {
                    put("refreservation", full(larger).to_string());
                }
                put(property, value.to_owned());
            }
            (_, "") => drop(self.properties.remove(property)),
            _ => put(property, value.to_owned()),
        }
    }
}

/// The world as a test compares it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) pools: BTreeMap<String, (u64, String)>,
    pub(super) zvols: BTreeMap<String, Zvol>,
    pub(super) subsystems: BTreeMap<String, ObservedSubsystem>,
    /// Live controllers: subsystem and host. A host that can connect does.
    pub(super) controllers: BTreeSet<(String, String)>,
    /// Requests that the target has taken and not finished: subsystem, namespace, host.
    pub(super) in_flight: BTreeSet<(String, u32, String)>,
    /// The sizes that hosts see, by subsystem and namespace.
    pub(super) shown: BTreeMap<(String, u32), u64>,
    /// Subsystems whose namespace refuses writes.
    pub(super) protected: BTreeSet<String>,
    /// Zvols that somebody on this host uses.
    pub(super) held_here: BTreeSet<String>,
    pub(super) guids: u64,
    pub(super) ports_made: bool,
    /// Ports answer nobody.
    pub(super) ports_held: bool,
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
    /// Ports whose address is not there.
    pub(super) away: Mutex<BTreeSet<u16>>,
    /// Who hears the host's news.
    pub(super) listener: Mutex<Option<UnboundedSender<News>>>,
    /// Searches for a snapshot everywhere.
    pub(super) searches: Mutex<usize>,
    /// Fails this step so many times.
    pub(super) fails: Mutex<Option<(&'static str, usize, Failure)>>,
}

fn device(dataset: &str) -> PathBuf {
    PathBuf::from("/dev").join(dataset.replace('/', "_"))
}

/// The storage host.
pub(super) const NODE: &str = "storage0";
/// Its loop port.
pub(super) const LOOP_PORT: u16 = 3;

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
        world.shown.clear();
        world.protected.clear();
        world.controllers.clear();
        world.in_flight.clear();
    }

    /// Addresses that were away appear: their ports are held before they are told of.
    pub(super) fn come(&self) {
        self.hold_ports().unwrap();
        self.away.lock().unwrap().clear();
        let listener = self.listener.lock().unwrap();
        listener.as_ref().unwrap().send(News::Ports).unwrap();
    }

    /// Somebody takes the namespaces away.
    pub(super) fn lose_namespaces(&self) {
        let mut world = self.world.lock().unwrap();
        for subsystem in world.subsystems.values_mut() {
            subsystem.namespaces.clear();
        }
        world.shown.clear();
        world.protected.clear();
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

    fn allow(&self, nqn: &str, host: &str) {
        let mut world = self.world.lock().unwrap();
        let subsystem = world.subsystems.get_mut(nqn).expect("a subsystem");
        subsystem.allowed_hosts.push(host.to_owned());
        subsystem.allowed_hosts.sort();
        subsystem.allowed_hosts.dedup();
        world.connect(nqn);
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
        let size = zvol.volsize();
        let (nqn, nsid) = (&backing.nqn, backing.nsid);
        world.shown.insert((nqn.clone(), nsid), size);
        let subsystem = world.subsystems.get_mut(nqn).expect("a subsystem");
        subsystem.namespaces.retain(|n| n.nsid != nsid);
        subsystem.namespaces.push(ObservedNamespace {
            nsid,
            device: device(&backing.dataset),
            uuid: backing.uuid,
            nguid: backing.nguid,
            enabled: true,
        });
        subsystem.namespaces.sort_by_key(|n| n.nsid);
        world.connect(nqn);
        Ok(())
    }

    fn unlink(&self, nqn: &str, port: u16) -> Result<(), Failure> {
        self.tick(format!("unlink {port}"))?;
        let mut world = self.world.lock().unwrap();
        if let Some(subsystem) = world.subsystems.get_mut(nqn) {
            subsystem.ports.retain(|p| *p != port);
            if subsystem.ports.iter().all(|p| *p == LOOP_PORT) {
                world.controllers.retain(|(n, _)| n != nqn);
            }
        }
        Ok(())
    }

    fn drop_namespace(&self, nqn: &str, nsid: u32) -> Result<(), Failure> {
        self.tick("remove namespace".into())?;
        let mut world = self.world.lock().unwrap();
        if let Some(subsystem) = world.subsystems.get_mut(nqn) {
            subsystem.namespaces.retain(|n| n.nsid != nsid);
        }
        world.shown.remove(&(nqn.to_owned(), nsid));
        world.protected.remove(nqn);
        world
            .in_flight
            .retain(|(n, id, _)| (n.as_str(), *id) != (nqn, nsid));
        Ok(())
    }
}

impl World {
    /// Whoever is allowed connects at once and has a request on its way.
    fn connect(&mut self, nqn: &str) {
        let Some(subsystem) = self.subsystems.get(nqn) else {
            return;
        };
        if subsystem.ports.iter().all(|p| *p == LOOP_PORT) {
            return;
        }
        let mut hosts = subsystem.allowed_hosts.clone();
        hosts.retain(|host| *host != names::agent_nqn(NODE));
        let nsids: Vec<u32> = subsystem.namespaces.iter().map(|n| n.nsid).collect();
        for host in hosts {
            self.controllers.insert((nqn.into(), host.clone()));
            for nsid in &nsids {
                self.in_flight.insert((nqn.into(), *nsid, host.clone()));
            }
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
        properties
            .entry("volblocksize".into())
            .or_insert("16384".into());
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
    fn listen(&self, listener: UnboundedSender<News>) {
        *self.listener.lock().unwrap() = Some(listener);
    }

    fn ports(&self) -> Vec<u16> {
        let away = self.away.lock().unwrap();
        [1, 2]
            .into_iter()
            .filter(|port| !away.contains(port))
            .collect()
    }

    fn converge_ports(&self) -> Result<(), Failure> {
        self.world.lock().unwrap().ports_made = true;
        Ok(())
    }

    fn hold_ports(&self) -> Result<bool, Failure> {
        self.tick("ports.hold".into())?;
        self.world.lock().unwrap().ports_held = true;
        Ok(true)
    }

    fn open_ports(&self) -> Result<(), Failure> {
        if self.world.lock().unwrap().ports_held {
            self.tick("ports.open".into())?;
            self.world.lock().unwrap().ports_held = false;
        }
        Ok(())
    }

    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure> {
        Ok(self.world.lock().unwrap().subsystems.get(nqn).cloned())
    }

    fn export_one(&self, nqn: &str, nsid: u32) -> Result<Option<ObservedSubsystem>, Failure> {
        let found = self.export(nqn)?;
        Ok(found.map(|mut subsystem| {
            subsystem.namespaces.retain(|n| n.nsid == nsid);
            subsystem
        }))
    }

    fn pooled(&self) -> Result<Vec<ObservedSubsystem>, Failure> {
        let world = self.world.lock().unwrap();
        let is_ours = |nqn: &str| Pooled::parse(nqn).is_some_and(|p| p.owner == NODE);
        let all = world.subsystems.values();
        Ok(all.filter(|s| is_ours(&s.nqn)).cloned().collect())
    }

    fn backing(&self, namespace: &ObservedNamespace) -> Result<Option<String>, Failure> {
        let world = self.world.lock().unwrap();
        let mut zvols = world.zvols.keys();
        Ok(zvols.find(|name| device(name) == namespace.device).cloned())
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
            Act::Create { spec, provisioning } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                assert!(!world.zvols.contains_key(&spec.dataset));
                let mut pairs: Vec<_> = spec
                    .user_properties
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.clone()))
                    .collect();
                pairs.extend(spec.properties.iter().map(|(k, v)| (k.as_str(), v.clone())));
                pairs.push(("volsize", spec.volsize.to_string()));
                pairs.push(("volblocksize", spec.volblocksize.to_string()));
                if *provisioning == Provisioning::Thick {
                    pairs.push(("refreservation", full(spec.volsize).to_string()));
                }
                world.zvol(&spec.dataset, &pairs, Content::Blank);
            }
            Act::Set {
                dataset,
                property,
                value,
                ..
            } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.zvols.get_mut(dataset).unwrap().set(property, value);
            }
            Act::Revalidate {
                nqn,
                nsid,
                dataset,
                bytes,
            } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                assert_eq!(world.zvols[dataset].volsize(), *bytes);
                world.shown.insert((nqn.clone(), *nsid), *bytes);
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
            Act::RemoveNamespace { nqn, nsid } => self.drop_namespace(nqn, *nsid)?,
            Act::Link { nqn, port } => self.link(nqn, *port)?,
            Act::AllowHost { nqn, host } => {
                tick()?;
                self.allow(nqn, host);
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
                    self.drop_namespace(nqn, backing.nsid)?;
                    self.namespace(backing)?;
                }
                for port in ports {
                    self.link(nqn, *port)?;
                }
            }
            Act::Unlink { nqn, port } => self.unlink(nqn, *port)?,
            Act::LoopOpen { nqn } => {
                self.tick("allow the agent".into())?;
                self.allow(nqn, &names::agent_nqn(NODE));
                self.link(nqn, LOOP_PORT)?;
            }
            Act::WriteProtect { nqn, state } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let subsystem = &world.subsystems[nqn];
                assert!(subsystem.ports.contains(&LOOP_PORT));
                assert!(subsystem.allowed_hosts.contains(&names::agent_nqn(NODE)));
                assert!(!subsystem.namespaces.is_empty(), "a namespace to protect");
                match state {
                    WriteProtect::On => drop(world.protected.insert(nqn.clone())),
                    WriteProtect::Off => drop(world.protected.remove(nqn)),
                    WriteProtect::Changing => panic!("that is no state of the target"),
                }
            }
            Act::LoopClose { nqn } => {
                self.unlink(nqn, LOOP_PORT)?;
                self.tick("disallow the agent".into())?;
                let mut world = self.world.lock().unwrap();
                if let Some(subsystem) = world.subsystems.get_mut(nqn) {
                    subsystem
                        .allowed_hosts
                        .retain(|host| *host != names::agent_nqn(NODE));
                }
            }
            Act::Mend { .. } => {}
            Act::Released { dataset, .. } => {
                tick()?;
                let world = self.world.lock().unwrap();
                if world.held_here.contains(dataset) {
                    let message = format!("{dataset} is mounted on this host: unmount it");
                    return Err(Failure::passing(reason::BUSY, message));
                }
            }
            Act::Teardown { nqn, .. } => {
                let found = self.world.lock().unwrap().subsystems.get(nqn).cloned();
                let Some(found) = found else { return Ok(()) };
                for port in found.ports {
                    self.unlink(nqn, port)?;
                }
                self.tick("remove hosts".into())?;
                if let Some(subsystem) = self.world.lock().unwrap().subsystems.get_mut(nqn) {
                    subsystem.allowed_hosts.clear();
                }
                for namespace in found.namespaces {
                    self.drop_namespace(nqn, namespace.nsid)?;
                }
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
        let device = device(dataset);
        let mut exported = self.subsystems.values().flat_map(|s| &s.namespaces);
        assert!(
            exported.all(|n| n.device != device),
            "{dataset} is still exported"
        );
    }
}
