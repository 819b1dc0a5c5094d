//! From a zvol's name to its device, woken by uevents.
//!
//! Links below `/dev/zvol` come late or point elsewhere (C-1…C-9), and `zdN` numbers change (C-6):
//! so a device is only ever given out after its own driver has said whose it is (`BLKZNAME`). New
//! devices are asked for their name only while somebody waits for one, or misses one whose pool is away; all others
//! are left alone. A pool that is imported late shows itself by its zvols.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use zvolt_kernel::SysError;
use zvolt_kernel::block;
use zvolt_kernel::uevent::{Received, Uevent, UeventSocket};

use super::observe::{Failure, News, Teller};

/// Kernel names of zvols start so.
const PREFIX: &str = "zd";

/// What the uevents have told.
#[derive(Debug, Default)]
struct State {
    /// Dataset to kernel name (`zd16`). Asked again before use.
    devices: HashMap<String, String>,
    /// Datasets that somebody waits for.
    awaited: HashSet<String>,
    /// Datasets that a look has not found because their pool is away: who comes is told.
    missed: HashSet<String>,
    /// Counts what may end a wait.
    news: u64,
}

/// The zvols' devices.
#[derive(Debug)]
pub struct Zvols {
    sys: PathBuf,
    dev: PathBuf,
    state: Mutex<State>,
    told: Condvar,
    teller: Arc<Teller>,
}

impl Zvols {
    /// Listens from now on. `sys` and `dev` are `/sys` and `/dev`.
    pub fn start(sys: &Path, dev: &Path, teller: Arc<Teller>) -> Result<Arc<Self>, SysError> {
        let socket = UeventSocket::open()?;
        let zvols = Arc::new(Self {
            sys: sys.to_owned(),
            dev: dev.to_owned(),
            state: Mutex::default(),
            told: Condvar::new(),
            teller,
        });
        let listener = Arc::downgrade(&zvols);
        std::thread::Builder::new()
            .name("zvol-uevents".into())
            .spawn(move || listen(&socket, &listener))
            .map_err(|e| SysError::io("clone", Path::new("zvol-uevents"), &e))?;
        Ok(zvols)
    }

    /// Says that the device of `dataset` will be waited for. Before the zvol is created.
    pub fn expect(&self, dataset: &str) {
        self.state().awaited.insert(dataset.to_owned());
    }

    /// Says that `dataset` will be looked for, in a pool that may be away. Before the look.
    pub fn miss(&self, dataset: &str) {
        self.state().missed.insert(dataset.to_owned());
    }

    /// Takes [`Self::miss`] back: its pool is there.
    pub fn seen(&self, dataset: &str) {
        self.state().missed.remove(dataset);
    }

    /// Takes [`Self::expect`] back.
    pub fn forget(&self, dataset: &str) {
        self.state().awaited.remove(dataset);
    }

    /// The device of `dataset`, waiting for it until `deadline`.
    pub fn appear(&self, dataset: &str, deadline: Instant) -> Result<PathBuf, Failure> {
        let expected = !self.state().awaited.insert(dataset.to_owned());
        let found = self.wait(dataset, deadline, expected);
        self.forget(dataset);
        found
    }

    fn wait(&self, dataset: &str, deadline: Instant, expected: bool) -> Result<PathBuf, Failure> {
        // Of a zvol that was just created a uevent comes; of an old one only a scan tells.
        let mut scan = !expected;
        loop {
            let seen = self.state().news;
            if let Some(device) = self.known(dataset).or_else(|| self.linked(dataset)) {
                return Ok(device);
            }
            if scan {
                scan = false;
                if let Some(device) = self.scan(dataset) {
                    return Ok(device);
                }
            }
            let mut state = self.state();
            while state.news == seen {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    drop(state);
                    return self.scan(dataset).ok_or_else(|| {
                        Failure::kernel(format!(
                            "no device of zvol {dataset} has appeared: see its properties volmode (dev is needed) and \
                             snapdev, and the kernel log"
                        ))
                    });
                }
                state = self
                    .told
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }

    /// The device of `dataset`, if it is there now.
    pub fn device(&self, dataset: &str) -> Option<PathBuf> {
        self.known(dataset)
            .or_else(|| self.linked(dataset))
            .or_else(|| self.scan(dataset))
    }

    fn known(&self, dataset: &str) -> Option<PathBuf> {
        let name = self.state().devices.get(dataset).cloned()?;
        let device = self.is_of(&name, dataset);
        if device.is_none() {
            self.state().devices.remove(dataset);
        }
        device
    }

    fn linked(&self, dataset: &str) -> Option<PathBuf> {
        let target = std::fs::read_link(self.dev.join("zvol").join(dataset)).ok()?;
        self.is_of(target.file_name()?.to_str()?, dataset)
    }

    /// Asks every zvol: start-up and repair only.
    fn scan(&self, dataset: &str) -> Option<PathBuf> {
        let names = block::list(&self.sys, PREFIX).unwrap_or_else(|error| {
            tracing::warn!(%error, "the zvols cannot be listed");
            Vec::new()
        });
        names.iter().find_map(|name| self.is_of(name, dataset))
    }

    fn is_of(&self, name: &str, dataset: &str) -> Option<PathBuf> {
        let device = self.dev.join(name);
        let owner = name_of(&device).ok().filter(|owner| owner == dataset)?;
        self.state().devices.insert(owner, name.to_owned());
        Some(device)
    }

    fn hear(&self, event: &Uevent) {
        let is_zvol = event.subsystem == "block"
            && event.devtype == "disk"
            && event.devname.starts_with(PREFIX);
        if !is_zvol {
            return;
        }
        match event.action.as_str() {
            "remove" => self
                .state()
                .devices
                .retain(|_, name| *name != event.devname),
            "add" | "change" if self.is_curious() => {
                match name_of(&self.dev.join(&event.devname)) {
                    Ok(dataset) => {
                        let mut state = self.state();
                        state.devices.insert(dataset.clone(), event.devname.clone());
                        if state.missed.remove(&dataset) {
                            self.teller.tell(News::Zvol(dataset));
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a zvol would not say its name");
                        self.all_may_have_come();
                    }
                }
                self.tell();
            }
            _ => {}
        }
    }

    /// Whether somebody wants to know about a device that comes. All others are left alone.
    fn is_curious(&self) -> bool {
        let state = self.state();
        !(state.awaited.is_empty() && state.missed.is_empty())
    }

    /// Whoever is missed may have come unheard.
    fn all_may_have_come(&self) {
        for dataset in std::mem::take(&mut self.state().missed) {
            self.teller.tell(News::Zvol(dataset));
        }
    }

    fn tell(&self) {
        self.state().news += 1;
        self.told.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The dataset behind a device node.
pub fn name_of(device: &Path) -> Result<String, SysError> {
    let file = File::open(device).map_err(|e| SysError::io("open", device, &e))?;
    block::zvol_name(&file, device)
}

fn listen(socket: &UeventSocket, zvols: &Weak<Zvols>) {
    loop {
        let received = socket.recv(None);
        let Some(zvols) = zvols.upgrade() else { return };
        match received {
            Ok(Received::Event(event)) => zvols.hear(&event),
            Ok(Received::TimedOut) => {}
            // What was lost may be what somebody waits for: the devices themselves must tell.
            Ok(Received::Overrun) => zvols.look_again(),
            Err(error) => {
                tracing::error!(%error, "uevents cannot be received any more: new zvols are found only by scans");
                return;
            }
        }
    }
}

impl Zvols {
    fn look_again(&self) {
        let awaited: Vec<String> = self.state().awaited.iter().cloned().collect();
        for dataset in awaited {
            self.scan(&dataset);
        }
        self.all_may_have_come();
        self.tell();
    }
}
