//! The devices of this machine, followed by uevents: which block device is the namespace of a UUID, which
//! controllers are there for a subsystem, and who wants news of them.
//!
//! One scan at start (and after an overrun of the socket); from then on each event costs the reading of the one device
//! that it names, so that no look-up grows with the number of volumes.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;
use zvolt_kernel::uevent::{Received, Uevent, UeventSocket};
use zvolt_kernel::{SysError, nvme};

use crate::model::names::{self, Pooled};

use super::owner::Owner;
use super::waiters::{Waiter, Waiters};
use super::zvols::{self, Zvols};

/// What the index knows.
#[derive(Debug, Default)]
struct Index {
    block_of: HashMap<Uuid, String>,
    known: HashMap<String, Known>,
    blocks_of: HashMap<Owner, BTreeSet<String>>,
    controllers_of: HashMap<String, BTreeSet<String>>,
    nqn_of: HashMap<String, String>,
}

/// What is remembered of a block device, to be able to forget it.
#[derive(Debug, Clone)]
struct Known {
    uuid: Option<Uuid>,
    owner: Option<Owner>,
}

/// The index and the thread that keeps it.
#[derive(Debug)]
pub(super) struct Devices {
    sys: PathBuf,
    host_nqn: String,
    index: Mutex<Index>,
    namespaces: Waiters<Uuid>,
    controllers: Waiters<String>,
    disks: Waiters<String>,
    zvols: Zvols,
}

impl Devices {
    /// Opens the socket, scans once, and starts the thread. Controllers are those of the host `host_nqn`: others
    /// of this machine, as the agent's own, are left alone.
    pub(super) fn follow(sys: &Path, dev: &Path, host_nqn: &str) -> Result<Arc<Self>, SysError> {
        let socket = UeventSocket::open()?;
        let devices = Arc::new(Self {
            sys: sys.to_owned(),
            host_nqn: host_nqn.to_owned(),
            index: Mutex::default(),
            namespaces: Waiters::default(),
            controllers: Waiters::default(),
            disks: Waiters::default(),
            zvols: Zvols::new(sys, dev),
        });
        devices.scan()?;
        let follower = Arc::clone(&devices);
        std::thread::Builder::new()
            .name("uevents".into())
            .spawn(move || follower.run(&socket))
            .map_err(|e| SysError::io("clone", Path::new("uevents"), &e))?;
        Ok(devices)
    }

    /// The namespace of this UUID, as sysfs has it now.
    pub(super) fn namespace(&self, uuid: Uuid) -> Result<Option<nvme::Namespace>, SysError> {
        let Some(block) = self.lock().block_of.get(&uuid).cloned() else {
            return Ok(None);
        };
        Ok(nvme::namespace(&self.sys, &block)?.filter(|n| n.uuid == Some(uuid)))
    }

    /// The block devices of a volume's namespaces.
    pub(super) fn blocks(&self, volume: &str) -> BTreeSet<String> {
        let index = self.lock();
        let owners = Owner::all(volume);
        let blocks = owners.iter().filter_map(|owner| index.blocks_of.get(owner));
        blocks.flatten().cloned().collect()
    }

    /// Those of them that are in a subsystem with others.
    pub(super) fn pooled_blocks(&self, volume: &str) -> BTreeSet<String> {
        let owner = Owner::Tag(names::tag(volume));
        let index = self.lock();
        index.blocks_of.get(&owner).cloned().unwrap_or_default()
    }

    /// Our controllers of a subsystem, as sysfs has them now.
    pub(super) fn controllers(&self, nqn: &str) -> Result<Vec<nvme::Controller>, SysError> {
        let names = self
            .lock()
            .controllers_of
            .get(nqn)
            .cloned()
            .unwrap_or_default();
        self.read_controllers(names, nqn)
    }

    /// Files a controller that this process has just connected, ahead of its uevents.
    pub(super) fn connected(&self, name: &str) -> Result<(), SysError> {
        self.read_controller(name).map(drop)
    }

    /// Those of these controllers that are ours and of this subsystem.
    pub(super) fn read_controllers(
        &self,
        names: impl IntoIterator<Item = String>,
        nqn: &str,
    ) -> Result<Vec<nvme::Controller>, SysError> {
        let mut found = Vec::new();
        for name in names {
            let controller = nvme::controller(&self.sys, &name)?;
            found.extend(
                controller.filter(|c| c.subsystem_nqn == nqn && c.host_nqn == self.host_nqn),
            );
        }
        Ok(found)
    }

    /// The subsystems of ours that have a controller.
    pub(super) fn subsystems(&self) -> Vec<String> {
        let index = self.lock();
        let nqns = index.controllers_of.keys();
        nqns.filter(|nqn| names::handle_of_nqn(nqn).is_some() || Pooled::parse(nqn).is_some())
            .cloned()
            .collect()
    }

    /// The zvols.
    pub(super) fn zvols(&self) -> &Zvols {
        &self.zvols
    }

    /// Asks for news of the namespace of this UUID.
    pub(super) fn watch_namespace(&self, uuid: Uuid) -> Waiter<Uuid> {
        self.namespaces.register(uuid)
    }

    /// Asks for news of the controllers of a subsystem.
    pub(super) fn watch_controllers(&self, nqn: &str) -> Waiter<String> {
        self.controllers.register(nqn.to_owned())
    }

    /// Asks for news of the block device of this name.
    pub(super) fn watch_disk(&self, block: &str) -> Waiter<String> {
        self.disks.register(block.to_owned())
    }

    fn run(&self, socket: &UeventSocket) {
        loop {
            let outcome = match socket.recv(None) {
                Ok(Received::Event(event)) => self.apply(&event),
                Ok(Received::Overrun) => self.scan(),
                Ok(Received::TimedOut) => Ok(()),
                Err(error) => {
                    tracing::error!(%error, "uevents can no longer be read: restart this process");
                    return;
                }
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "a device could not be read after its uevent");
            }
        }
    }

    fn scan(&self) -> Result<(), SysError> {
        let controllers = nvme::controllers(&self.sys)?;
        let mut namespaces = Vec::new();
        for namespace in nvme::namespaces(&self.sys)? {
            let owner = self.owner_of(&namespace)?;
            namespaces.push((namespace, owner));
        }
        let mut index = Index::default();
        for controller in controllers {
            index.put_controller(&controller);
        }
        for (namespace, owner) in namespaces {
            index.put_namespace(&namespace, owner);
        }
        *self.lock() = index;
        self.namespaces.tell_all();
        self.controllers.tell_all();
        self.disks.tell_all();
        self.zvols.look_again();
        Ok(())
    }

    fn apply(&self, event: &Uevent) -> Result<(), SysError> {
        let name = event.devname.as_str();
        let gone = event.action == "remove";
        match (event.subsystem.as_str(), event.devtype.as_str()) {
            ("block", "disk") if name.starts_with("nvme") => {
                let uuids = if gone {
                    self.lock().forget(name).into_iter().collect()
                } else {
                    self.read_namespace(name)?
                };
                uuids.iter().for_each(|uuid| self.namespaces.tell(uuid));
                self.disks.tell(&event.devname);
            }
            ("block", "disk") if name.starts_with(zvols::PREFIX) => {
                if !gone {
                    self.zvols.came(name);
                }
                self.disks.tell(&event.devname);
            }
            ("nvme", _) if !name.is_empty() => {
                let nqns = if gone {
                    self.lock().drop_controller(name).into_iter().collect()
                } else {
                    self.read_controller(name)?
                };
                nqns.iter().for_each(|nqn| self.controllers.tell(nqn));
            }
            _ => {}
        }
        Ok(())
    }

    /// Files a namespace as sysfs has it now; gives the UUIDs that this is news of.
    fn read_namespace(&self, block: &str) -> Result<Vec<Uuid>, SysError> {
        let Some(namespace) = nvme::namespace(&self.sys, block)? else {
            return Ok(Vec::new());
        };
        let owner = self.owner_of(&namespace)?;
        let before = self.lock().put_namespace(&namespace, owner);
        Ok(before.into_iter().chain(namespace.uuid).collect())
    }

    /// Files a controller as sysfs has it now; gives the subsystems that this is news of.
    fn read_controller(&self, name: &str) -> Result<Vec<String>, SysError> {
        let Some(controller) = nvme::controller(&self.sys, name)? else {
            return Ok(Vec::new());
        };
        if controller.subsystem_nqn.is_empty() {
            return Ok(Vec::new()); // not identified yet: another event comes when it is
        }
        let before = self.lock().put_controller(&controller);
        Ok(before
            .into_iter()
            .chain([controller.subsystem_nqn])
            .collect())
    }

    fn owner_of(&self, namespace: &nvme::Namespace) -> Result<Option<Owner>, SysError> {
        let subsystem = nvme::subsystem_of(&self.sys, &namespace.block)?;
        Ok(subsystem.and_then(|subsystem| Owner::of(namespace, &subsystem.nqn)))
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    /// Files a namespace; gives the UUID that the device had until now.
    fn put_namespace(&mut self, namespace: &nvme::Namespace, owner: Option<Owner>) -> Option<Uuid> {
        let before = self.forget(&namespace.block);
        if let Some(owner) = &owner {
            let blocks = self.blocks_of.entry(owner.clone()).or_default();
            blocks.insert(namespace.block.clone());
        }
        let uuid = namespace.uuid;
        self.known
            .insert(namespace.block.clone(), Known { uuid, owner });
        if let Some(uuid) = uuid {
            self.block_of.insert(uuid, namespace.block.clone());
        }
        before.filter(|before| Some(*before) != uuid)
    }

    /// Forgets a block device; gives the UUID that it had.
    fn forget(&mut self, block: &str) -> Option<Uuid> {
        let Known { uuid, owner } = self.known.remove(block)?;
        if let Some(owner) = owner
            && let Some(blocks) = self.blocks_of.get_mut(&owner)
        {
            blocks.remove(block);
            if blocks.is_empty() {
                self.blocks_of.remove(&owner);
            }
        }
        let uuid = uuid?;
        // The UUID may have moved on to another device already.
        if self.block_of.get(&uuid).is_some_and(|b| b == block) {
            self.block_of.remove(&uuid);
        }
        Some(uuid)
    }

    /// Files a controller; gives the subsystem that it was filed under until now, if that was another. One whose
    /// first connect still runs has no NQN yet: it is put again when it has connected.
    fn put_controller(&mut self, controller: &nvme::Controller) -> Option<String> {
        let nqn = &controller.subsystem_nqn;
        if self.nqn_of.get(&controller.name) == Some(nqn) {
            return None;
        }
        let before = self.drop_controller(&controller.name);
        self.controllers_of
            .entry(nqn.clone())
            .or_default()
            .insert(controller.name.clone());
        self.nqn_of.insert(controller.name.clone(), nqn.clone());
        before
    }

    /// Forgets a controller; gives its subsystem.
    fn drop_controller(&mut self, name: &str) -> Option<String> {
        let nqn = self.nqn_of.remove(name)?;
        if let Some(names) = self.controllers_of.get_mut(&nqn) {
            names.remove(name);
            if names.is_empty() {
                self.controllers_of.remove(&nqn);
            }
        }
        Some(nqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Option<Owner> {
        Some(Owner::Handle("pvc-1".into()))
    }

    fn namespace(block: &str, uuid: u128) -> nvme::Namespace {
        nvme::Namespace {
            block: block.into(),
            uuid: Some(Uuid::from_u128(uuid)),
            nguid: None,
            nsid: 1,
        }
    }

    #[test]
    fn a_device_that_changes_its_uuid_is_news_for_both() {
        let mut index = Index::default();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let put =
            |index: &mut Index, uuid| index.put_namespace(&namespace("nvme0n1", uuid), owner());
        assert_eq!(put(&mut index, 1), None);
        assert_eq!(put(&mut index, 1), None, "nothing has changed");
        assert_eq!(put(&mut index, 2), Some(one));
        assert_eq!(index.block_of.keys().collect::<Vec<_>>(), [&two]);
    }

    #[test]
    fn a_controller_is_filed_anew_once_it_has_its_nqn() {
        let mut index = Index::default();
        let mut controller = nvme::Controller {
            name: "nvme0".into(),
            state: "connecting".into(),
            transport: "tcp".into(),
            address: String::new(),
            subsystem_nqn: String::new(),
            host_nqn: String::new(),
        };
        assert_eq!(index.put_controller(&controller), None);
        controller.subsystem_nqn = "nqn.x".into();
        assert_eq!(index.put_controller(&controller), Some(String::new()));
        assert_eq!(index.controllers_of.keys().collect::<Vec<_>>(), ["nqn.x"]);
        assert_eq!(index.drop_controller("nvme0"), Some("nqn.x".into()));
        assert!(index.controllers_of.is_empty() && index.nqn_of.is_empty());
    }

    #[test]
    fn a_uuid_that_moved_to_another_device_survives_the_removal_of_the_old_one() {
        let mut index = Index::default();
        index.put_namespace(&namespace("nvme0n1", 1), owner());
        index.put_namespace(&namespace("nvme1n1", 1), owner());
        index.forget("nvme0n1");
        assert_eq!(index.block_of[&Uuid::from_u128(1)], "nvme1n1");
        assert_eq!(index.blocks_of[&owner().unwrap()].len(), 1);
    }
}
