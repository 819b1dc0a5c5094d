//! The zvols of this machine, for volumes whose pool it owns: from a dataset to its device.
//!
//! Links below `/dev/zvol` come late or point elsewhere (C-1…C-9) and `zdN` numbers change (C-6), so a
//! device is only ever given out after its own driver has said whose it is (`BLKZNAME`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use zvolt_kernel::SysError;
use zvolt_kernel::block::{self, DevId};
use zvolt_kernel::error::Errno;

use crate::model::names;

use super::waiters::{Waiter, Waiters};

/// Kernel names of zvols start so.
pub(super) const PREFIX: &str = "zd";

/// A zvol's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Zvol {
    /// Kernel name, `zd16`.
    pub(super) block: String,
    /// Its number.
    pub(super) id: DevId,
    /// The dataset that the device's driver names.
    pub(super) dataset: String,
}

/// The way from datasets to devices.
#[derive(Debug)]
pub(super) struct Zvols {
    sys: PathBuf,
    dev: PathBuf,
    fresh: Mutex<Fresh>,
    waiters: Waiters<String>,
}

/// Devices that came while somebody waited for one.
#[derive(Debug, Default)]
struct Fresh {
    /// Not asked for their names yet. Whoever waits asks: an open can take long, and must not hold up the
    /// thread that hears of all devices.
    unnamed: Vec<String>,
    /// By dataset, kept for those who wait for them.
    named: HashMap<String, String>,
}

impl Zvols {
    pub(super) fn new(sys: &Path, dev: &Path) -> Self {
        Self {
            sys: sys.to_owned(),
            dev: dev.to_owned(),
            fresh: Mutex::default(),
            waiters: Waiters::default(),
        }
    }

    /// Asks for news of the device of `dataset`.
    pub(super) fn watch(&self, dataset: &str) -> Waiter<String> {
        self.waiters.register(dataset.to_owned())
    }

    /// The device of `dataset`, by its link.
    pub(super) fn linked(&self, dataset: &str) -> Result<Option<Zvol>, SysError> {
        let link = self.dev.join("zvol").join(dataset);
        let Ok(target) = std::fs::read_link(link) else {
            return Ok(None); // udev has not made it, or this machine has no such zvol
        };
        match target.file_name().and_then(|name| name.to_str()) {
            Some(name) => Ok(self.named(name)?.filter(|zvol| zvol.dataset == dataset)),
            None => Ok(None),
        }
    }

    /// The device of `dataset`, if it is there now: by its link, else by asking each zvol.
    pub(super) fn find(&self, dataset: &str) -> Result<Option<Zvol>, SysError> {
        match self.linked(dataset)? {
            Some(zvol) => Ok(Some(zvol)),
            None => self.scan(dataset),
        }
    }

    /// The zvol of a volume by its handle alone, by the link in one pool or the other. Grows with the number
    /// of pools, and is nothing on a machine without zvols.
    pub(super) fn of_handle(&self, handle: &str) -> Result<Option<Zvol>, SysError> {
        let Ok(pools) = std::fs::read_dir(self.dev.join("zvol")) else {
            return Ok(None);
        };
        for pool in pools.flatten() {
            let Ok(pool) = pool.file_name().into_string() else {
                continue;
            };
            if let Some(zvol) = self.linked(&names::zvol(&pool, handle))? {
                return Ok(Some(zvol));
            }
        }
        Ok(None)
    }

    /// Waits for the device of `dataset`; `None` when the deadline came first.
    pub(super) fn appear(
        &self,
        dataset: &str,
        waiter: &Waiter<String>,
        deadline: Instant,
    ) -> Result<Option<Zvol>, SysError> {
        let mut scanned = false;
        loop {
            self.name_the_unnamed()?;
            let fresh = self.fresh().named.get(dataset).cloned();
            let found = match fresh {
                Some(name) => self.named(&name)?.filter(|zvol| zvol.dataset == dataset),
                None => self.linked(dataset)?,
            };
            if found.is_some() {
                self.fresh().named.remove(dataset);
                return Ok(found);
            }
            if !scanned {
                // It may be there without its link: that costs a look at each zvol, once.
                scanned = true;
                if let Some(zvol) = self.scan(dataset)? {
                    return Ok(Some(zvol));
                }
            }
            if !waiter.news(deadline) {
                return Ok(None);
            }
        }
    }

    /// The zvol with this number; `None` for any other device, and for one that is gone.
    pub(super) fn by_number(&self, id: DevId) -> Result<Option<Zvol>, SysError> {
        let name = match block::kernel_name(&self.sys, id) {
            Ok(name) if name.starts_with(PREFIX) => name,
            _ => return Ok(None),
        };
        let opened = block::node(&self.sys, &self.dev, id)
            .and_then(|node| Ok((node.open()?, node.path)))
            .and_then(|(file, path)| block::zvol_name(&file, &path));
        match opened {
            Ok(dataset) => Ok(Some(Zvol {
                block: name,
                id,
                dataset,
            })),
            Err(error) if is_no_zvol(error.errno) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A zvol's device has come or changed (`add`, `change`).
    pub(super) fn came(&self, name: &str) {
        if self.waiters.is_empty() {
            return;
        }
        self.fresh().unnamed.push(name.to_owned());
        // One of them asks for its name and tells the one whose it is.
        self.waiters.tell_all();
    }

    /// Events were lost: all who wait must look again.
    pub(super) fn look_again(&self) {
        if self.waiters.is_empty() {
            return;
        }
        match block::list(&self.sys, PREFIX) {
            Ok(names) => self.fresh().unnamed = names,
            Err(error) => tracing::warn!(%error, "the zvols cannot be listed"),
        }
        self.waiters.tell_all();
    }

    /// Each new device is asked once, by one of those who wait.
    fn name_the_unnamed(&self) -> Result<(), SysError> {
        loop {
            let Some(name) = self.fresh().unnamed.pop() else {
                return Ok(());
            };
            if let Some(zvol) = self.named(&name)?
                && self.waiters.has(&zvol.dataset)
            {
                self.fresh().named.insert(zvol.dataset.clone(), name);
                self.waiters.tell(&zvol.dataset);
            }
        }
    }

    fn scan(&self, dataset: &str) -> Result<Option<Zvol>, SysError> {
        for name in block::list(&self.sys, PREFIX)? {
            if let Some(zvol) = self.named(&name)?.filter(|zvol| zvol.dataset == dataset) {
                return Ok(Some(zvol));
            }
        }
        Ok(None)
    }

    fn named(&self, name: &str) -> Result<Option<Zvol>, SysError> {
        match block::dev_id(&self.dev.join(name)) {
            Ok(id) => self.by_number(id),
            Err(error) if is_no_zvol(error.errno) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fresh(&self) -> MutexGuard<'_, Fresh> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a device says that is no zvol, or that is gone, or is another one's by now.
fn is_no_zvol(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOENT
            | Errno::ENXIO
            | Errno::ENODEV
            | Errno::ENOTBLK
            | Errno::ENOTTY
            | Errno::ESTALE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_zvols_has_none() {
        let root = tempfile::tempdir().unwrap();
        let zvols = Zvols::new(root.path(), root.path());
        assert_eq!(zvols.linked("tank/csi/block/pvc-1").unwrap(), None);
        assert_eq!(zvols.of_handle("pvc-1").unwrap(), None);
        let id = DevId {
            major: 230,
            minor: 0,
        };
        assert_eq!(zvols.by_number(id).unwrap(), None);
    }

    #[test]
    fn bug_c_07_a_link_that_leads_elsewhere_leads_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let links = root.path().join("zvol/tank/csi/block");
        std::fs::create_dir_all(&links).unwrap();
        std::fs::write(root.path().join("zd0"), "no device").unwrap();
        for target in ["../../../../zd0", "../../../../none", "..", "/"] {
            let link = links.join("pvc-1");
            std::os::unix::fs::symlink(target, &link).unwrap();
            let zvols = Zvols::new(root.path(), root.path());
            assert_eq!(zvols.of_handle("pvc-1").unwrap(), None, "{target}");
            std::fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn new_devices_are_kept_only_while_somebody_waits() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("block")).unwrap();
        let zvols = Zvols::new(root.path(), root.path());
        zvols.came("zd0");
        assert!(zvols.fresh().unnamed.is_empty());
        let waiter = zvols.watch("tank/csi/block/pvc-1");
        zvols.came("zd0");
        assert_eq!(zvols.fresh().unnamed, ["zd0"]);
        let none = zvols.appear("tank/csi/block/pvc-1", &waiter, Instant::now());
        assert_eq!(none.unwrap(), None);
        assert!(zvols.fresh().unnamed.is_empty());
    }
}
