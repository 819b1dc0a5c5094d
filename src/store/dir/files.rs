//! The files of the store: locked, written atomically, made durable.
//!
//! `<kind>/<name>.json` is the object (`volumes/pvc-1.json`). A write goes to `<kind>/.<name>.tmp`, which is then renamed.
//! A write that need not be durable at once leaves the last durable version linked as
//! `<kind>/.<name>.prev` until a thread has synced the new one: a file system may keep a rename and
//! lose the data behind it in a power cut, and an object must not get lost. `locks/<two hex digits>`
//! is locked (`flock(2)`) around read, compare and write, also against other processes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::super::Error;
use crate::model::names;
use crate::model::object::Object;

/// Lock files: few enough to keep, many enough that one object's fsync seldom delays another.
const LOCKS: u8 = 64;
/// An object larger than this is none of ours.
const MAX_BYTES: u64 = 4 << 20;

/// When a write has to be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    /// Before the call returns.
    Now,
    /// Soon after, by the syncing thread.
    Soon,
}

/// The directories of one kind of object.
#[derive(Debug)]
pub(super) struct Files<T> {
    objects: PathBuf,
    locks: PathBuf,
    to_sync: mpsc::Sender<String>,
    kind: PhantomData<fn() -> T>,
}

/// Holds the lock of some objects until dropped.
#[derive(Debug)]
pub(super) struct Guard(#[expect(dead_code, reason = "closing it is what unlocks")] File);

impl<T: Object> Files<T> {
    /// Makes the directories when needed. The names to sync in the background come out of the receiver.
    pub(super) fn open(root: &Path) -> Result<(Self, mpsc::Receiver<String>), Error> {
        let (objects, locks) = (root.join(T::PLURAL), root.join("locks"));
        for dir in [&objects, &locks] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(|e| failed("mkdir", dir, e))?;
        }
        let (to_sync, receiver) = mpsc::channel();
        let files = Self {
            objects,
            locks,
            to_sync,
            kind: PhantomData,
        };
        files.recover()?;
        Ok((files, receiver))
    }

    /// Where the objects are.
    pub(super) fn directory(&self) -> &Path {
        &self.objects
    }

    /// Waits for the lock of an object.
    pub(super) fn lock(&self, name: &str) -> Result<Guard, Error> {
        let stripe = Sha256::digest(name.as_bytes())[0] % LOCKS;
        let path = self.locks.join(format!("{stripe:02x}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| failed("open", &path, e))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(|e| failed("flock", &path, e.into()))?;
        Ok(Guard(file))
    }

    /// An object as it is on the disk.
    pub(super) fn read(&self, name: &str) -> Result<Option<T>, Error> {
        read_object(&self.path(name))
    }

    /// The names of all objects, sorted.
    pub(super) fn names(&self) -> Result<BTreeSet<String>, Error> {
        Ok(self
            .entries()?
            .iter()
            .filter_map(|e| object_of(e))
            .map(str::to_owned)
            .collect())
    }

    /// Replaces an object. The caller holds its lock.
    pub(super) fn write(&self, object: &T, durable: Durable, _held: &Guard) -> Result<(), Error> {
        let name = &object.metadata().name;
        let (path, temporary, previous) =
            (self.path(name), self.temporary(name), self.previous(name));
        let mut text =
            serde_json::to_vec_pretty(object).map_err(|e| failed("serialize", &path, e.into()))?;
        text.push(b'\n');
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(|e| failed("open", &temporary, e))?;
        file.write_all(&text)
            .map_err(|e| failed("write", &temporary, e))?;
        match durable {
            Durable::Now => file
                .sync_all()
                .map_err(|e| failed("fsync", &temporary, e))?,
            Durable::Soon => match fs::hard_link(&path, &previous) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("link", &previous, e));
                }
                _ => {}
            },
        }
        fs::rename(&temporary, &path).map_err(|e| failed("rename", &path, e))?;
        match durable {
            Durable::Now => {
                self.sync_directory()?;
                remove_if_present(&previous)
            }
            Durable::Soon => {
                // A store that is closing has no thread any more: the kernel writes back by itself.
                let _ = self.to_sync.send(name.clone());
                Ok(())
            }
        }
    }

    /// Removes an object. The caller holds its lock.
    pub(super) fn remove(&self, name: &str, _held: &Guard) -> Result<(), Error> {
        remove_if_present(&self.path(name))?;
        remove_if_present(&self.previous(name))
    }

    /// Syncs an object that was written with [`Durable::Soon`], and drops its previous version.
    pub(super) fn sync(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(failed("open", &path, e)),
        };
        file.sync_all().map_err(|e| failed("fsync", &path, e))?;
        self.sync_directory()?;
        let synced = file
            .metadata()
            .map_err(|e| failed("fstat", &path, e))?
            .ino();
        let _held = self.lock(name)?;
        match fs::metadata(&path) {
            // Written again meanwhile: that writer has asked for a sync of its own.
            Ok(now) if now.ino() != synced => Ok(()),
            _ => remove_if_present(&self.previous(name)),
        }
    }

    /// Undoes what a crash has left: temporary files, and objects whose data a power cut has eaten.
    fn recover(&self) -> Result<(), Error> {
        for entry in self.entries()? {
            let Some(rest) = entry.strip_prefix('.') else {
                continue;
            };
            if let Some(name) = rest.strip_suffix(".tmp").filter(|n| names::is_handle(n)) {
                let _held = self.lock(name)?;
                remove_if_present(&self.temporary(name))?;
            } else if let Some(name) = rest.strip_suffix(".prev").filter(|n| names::is_handle(n)) {
                let held = self.lock(name)?;
                let (path, previous) = (self.path(name), self.previous(name));
                match read_object::<T>(&path) {
                    Ok(Some(_)) => {
                        let _ = self.to_sync.send(name.to_owned());
                    }
                    Ok(None) => self.remove(name, &held)?,
                    Err(error) => {
                        tracing::warn!(kind = T::KIND, name, %error, "the newest version is damaged, the one before it is back");
                        fs::rename(&previous, &path).map_err(|e| failed("rename", &path, e))?;
                        self.sync_directory()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<String>, Error> {
        let scan = |e| failed("readdir", &self.objects, e);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.objects).map_err(scan)? {
            if let Ok(name) = entry.map_err(scan)?.file_name().into_string() {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// Opens the directory each time: a descriptor kept open would hide its removal from inotify.
    fn sync_directory(&self) -> Result<(), Error> {
        File::open(&self.objects)
            .and_then(|dir| dir.sync_all())
            .map_err(|e| failed("fsync", &self.objects, e))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.objects.join(format!("{name}.json"))
    }

    fn temporary(&self, name: &str) -> PathBuf {
        self.objects.join(format!(".{name}.tmp"))
    }

    fn previous(&self, name: &str) -> PathBuf {
        self.objects.join(format!(".{name}.prev"))
    }
}

/// The object whose file is called `entry`; `None` for every other file.
pub(super) fn object_of(entry: &str) -> Option<&str> {
    entry
        .strip_suffix(".json")
        .filter(|name| names::is_handle(name))
}

fn read_object<T: Object>(path: &Path) -> Result<Option<T>, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("open", path, e)),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES)
        .read_to_end(&mut text)
        .map_err(|e| failed("read", path, e))?;
    let object: T = serde_json::from_slice(&text).map_err(|e| failed("parse", path, e.into()))?;
    let name = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    if object.metadata().name != name {
        let found = format!(
            "metadata.name is {:?}: a file is called as its object",
            object.metadata().name
        );
        return Err(failed(
            "parse",
            path,
            io::Error::new(io::ErrorKind::InvalidData, found),
        ));
    }
    Ok(Some(object))
}

fn remove_if_present(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("unlink", path, e)),
        _ => Ok(()),
    }
}

/// The store's error of `call` on `path`.
pub(super) fn failed(call: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        call,
        path: path.display().to_string(),
        source,
    }
}
