//! The NVMe devices of this machine, followed by uevents: which block device is the namespace of a
//! UUID, which controllers are there for a subsystem.
//!
//! One scan at start (and after an overrun of the socket); from then on each event costs the reading of the one device
//! that it names, so that no look-up grows with the number of volumes.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use uuid::Uuid;
use zvolt_kernel::uevent::{Received, Uevent, UeventSocket};
use zvolt_kernel::{SysError, nvme};

/// What the index knows.
#[derive(Debug, Default)]
struct Index {
    block_of: HashMap<Uuid, String>,
    known: HashMap<String, Known>,
    blocks_of: HashMap<String, BTreeSet<String>>,
    controllers_of: HashMap<String, BTreeSet<String>>,
    nqn_of: HashMap<String, String>,
    namespace_waiters: Waiters<Uuid>,
    controller_waiters: Waiters<String>,
}

/// What is remembered of a block device, to be able to forget it.
#[derive(Debug, Clone)]
struct Known {
    uuid: Option<Uuid>,
    nqn: String,
}

/// Who wants news of what.
type Waiters<K> = HashMap<K, Vec<Listener>>;

/// The index's end of a [`Waiter`]; `alive` tells whether the other end is still held.
#[derive(Debug)]
struct Listener {
    news: Sender<()>,
    alive: Weak<()>,
}

/// The index and the thread that keeps it.
#[derive(Debug)]
pub(super) struct Devices {
    sys: PathBuf,
    index: Mutex<Index>,
}

/// Told whenever something happens to what it waits for. Made *before* the act that causes it.
#[derive(Debug)]
pub(super) struct Waiter {
    news: Receiver<()>,
    _alive: Arc<()>,
}

impl Waiter {
    /// Waits for news; false when the deadline came first.
    pub(super) fn news(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.news.recv_timeout(left).is_ok()
    }
}

/// Registers a waiter for `key`, and forgets those that nobody holds any more.
fn register<K: Eq + Hash>(waiters: &mut Waiters<K>, key: K) -> Waiter {
    waiters.retain(|_, listeners| {
        listeners.retain(|l| l.alive.strong_count() > 0);
        !listeners.is_empty()
    });
    let (sender, receiver) = channel();
    let alive = Arc::new(());
    waiters.entry(key).or_default().push(Listener {
        news: sender,
        alive: Arc::downgrade(&alive),
    });
    Waiter {
        news: receiver,
        _alive: alive,
    }
}

/// Gives the news to all who wait for `key`.
fn tell<K: Eq + Hash>(waiters: &Waiters<K>, key: &K) {
    for listener in waiters.get(key).into_iter().flatten() {
        // One that nobody holds any more is forgotten by the next registration.
        let _ = listener.news.send(());
    }
}

impl Devices {
    /// Opens the socket, scans once, and starts the thread.
    pub(super) fn follow(sys: &Path) -> Result<Arc<Self>, SysError> {
        let socket = UeventSocket::open()?;
        let devices = Arc::new(Self {
            sys: sys.to_owned(),
            index: Mutex::default(),
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

    /// The block devices of a subsystem's namespaces.
    pub(super) fn blocks(&self, nqn: &str) -> BTreeSet<String> {
        self.lock().blocks_of.get(nqn).cloned().unwrap_or_default()
    }

    /// The controllers of a subsystem, as sysfs has them now.
    pub(super) fn controllers(&self, nqn: &str) -> Result<Vec<nvme::Controller>, SysError> {
        let names = self
            .lock()
            .controllers_of
            .get(nqn)
            .cloned()
            .unwrap_or_default();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            found.extend(nvme::controller(&self.sys, &name)?.filter(|c| c.subsystem_nqn == nqn));
        }
        Ok(found)
    }

    /// Asks for news of the namespace of this UUID.
    pub(super) fn watch_namespace(&self, uuid: Uuid) -> Waiter {
        register(&mut self.lock().namespace_waiters, uuid)
    }

    /// Asks for news of the controllers of a subsystem.
    pub(super) fn watch_controllers(&self, nqn: &str) -> Waiter {
        register(&mut self.lock().controller_waiters, nqn.to_owned())
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
            let nqn = self.nqn_of_block(&namespace.block)?;
            namespaces.push((namespace, nqn));
        }
        let mut index = self.lock();
        index.block_of.clear();
        index.known.clear();
        index.blocks_of.clear();
        index.controllers_of.clear();
        index.nqn_of.clear();
        for controller in controllers {
            index.put_controller(&controller);
        }
        for (namespace, nqn) in namespaces {
            index.put_namespace(&namespace, nqn);
        }
        index.wake_all();
        Ok(())
    }

    fn apply(&self, event: &Uevent) -> Result<(), SysError> {
        let gone = event.action == "remove";
        match (event.subsystem.as_str(), event.devtype.as_str()) {
            ("block", "disk") if event.devname.starts_with("nvme") => {
                if gone {
                    self.lock().drop_block(&event.devname);
                } else if let Some(namespace) = nvme::namespace(&self.sys, &event.devname)? {
                    let nqn = self.nqn_of_block(&event.devname)?;
                    self.lock().put_namespace(&namespace, nqn);
                }
            }
            ("nvme", _) if !event.devname.is_empty() => {
                if gone {
                    self.lock().drop_controller(&event.devname);
                } else if let Some(controller) = nvme::controller(&self.sys, &event.devname)? {
                    self.lock().put_controller(&controller);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn nqn_of_block(&self, block: &str) -> Result<String, SysError> {
        Ok(nvme::subsystem_of(&self.sys, block)?
            .map(|s| s.nqn)
            .unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn put_namespace(&mut self, namespace: &nvme::Namespace, nqn: String) {
        self.forget(&namespace.block);
        self.blocks_of
            .entry(nqn.clone())
            .or_default()
            .insert(namespace.block.clone());
        let uuid = namespace.uuid;
        self.known
            .insert(namespace.block.clone(), Known { uuid, nqn });
        if let Some(uuid) = uuid {
            self.block_of.insert(uuid, namespace.block.clone());
            tell(&self.namespace_waiters, &uuid);
        }
    }

    fn drop_block(&mut self, block: &str) {
        if let Some(uuid) = self.forget(block) {
            tell(&self.namespace_waiters, &uuid);
        }
    }

    /// Forgets a block device; gives the UUID that it had.
    fn forget(&mut self, block: &str) -> Option<Uuid> {
        let Known { uuid, nqn } = self.known.remove(block)?;
        if let Some(blocks) = self.blocks_of.get_mut(&nqn) {
            blocks.remove(block);
            if blocks.is_empty() {
                self.blocks_of.remove(&nqn);
            }
        }
        let uuid = uuid?;
        // The UUID may have moved on to another device already.
        if self.block_of.get(&uuid).is_some_and(|b| b == block) {
            self.block_of.remove(&uuid);
        }
        Some(uuid)
    }

    /// A controller whose first connect still runs has no NQN yet: it is put again when it has connected.
    fn put_controller(&mut self, controller: &nvme::Controller) {
        let nqn = controller.subsystem_nqn.clone();
        if self.nqn_of.get(&controller.name) != Some(&nqn) {
            self.drop_controller(&controller.name);
            self.controllers_of
                .entry(nqn.clone())
                .or_default()
                .insert(controller.name.clone());
            self.nqn_of.insert(controller.name.clone(), nqn.clone());
        }
        tell(&self.controller_waiters, &nqn);
    }

    fn drop_controller(&mut self, name: &str) {
        let Some(nqn) = self.nqn_of.remove(name) else {
            return;
        };
        if let Some(names) = self.controllers_of.get_mut(&nqn) {
            names.remove(name);
            if names.is_empty() {
                self.controllers_of.remove(&nqn);
            }
        }
        tell(&self.controller_waiters, &nqn);
    }

    fn wake_all(&self) {
        for uuid in self.namespace_waiters.keys() {
            tell(&self.namespace_waiters, uuid);
        }
        for nqn in self.controller_waiters.keys() {
            tell(&self.controller_waiters, nqn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn namespace(block: &str, uuid: u128) -> nvme::Namespace {
        nvme::Namespace {
            block: block.into(),
            uuid: Some(Uuid::from_u128(uuid)),
            nguid: None,
            nsid: 1,
        }
    }

    #[test]
    fn a_waiter_hears_of_its_namespace_and_of_no_other() {
        let mut index = Index::default();
        let mine = register(&mut index.namespace_waiters, Uuid::from_u128(1));
        index.put_namespace(&namespace("nvme0n1", 2), "nqn.x".into());
        assert!(!mine.news(Instant::now()));
        index.put_namespace(&namespace("nvme1n1", 1), "nqn.x".into());
        assert!(mine.news(Instant::now() + Duration::from_secs(1)));
    }

    #[test]
    fn a_waiter_that_is_dropped_is_forgotten() {
        let mut index = Index::default();
        drop(register(&mut index.namespace_waiters, Uuid::from_u128(1)));
        let _kept = register(&mut index.namespace_waiters, Uuid::from_u128(2));
        assert_eq!(index.namespace_waiters.len(), 1);
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
        index.put_controller(&controller);
        controller.subsystem_nqn = "nqn.x".into();
        index.put_controller(&controller);
        assert_eq!(index.controllers_of.keys().collect::<Vec<_>>(), ["nqn.x"]);
        index.drop_controller("nvme0");
        assert!(index.controllers_of.is_empty() && index.nqn_of.is_empty());
    }

    #[test]
    fn a_uuid_that_moved_to_another_device_survives_the_removal_of_the_old_one() {
        let mut index = Index::default();
        index.put_namespace(&namespace("nvme0n1", 1), "nqn.x".into());
        index.put_namespace(&namespace("nvme1n1", 1), "nqn.x".into());
        index.drop_block("nvme0n1");
        assert_eq!(index.block_of[&Uuid::from_u128(1)], "nvme1n1");
        assert_eq!(index.blocks_of["nqn.x"].len(), 1);
    }
}
