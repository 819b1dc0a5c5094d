//! A simulated storage host. It checks after every act what must never be broken.

mod host;
pub(super) mod store;
pub(super) mod zfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;

use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::Properties;

use self::zfs::Snap;
use super::observe::{Failure, Host, News, property};
use super::steps::Backing;
use crate::model::names;

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
