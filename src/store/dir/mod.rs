//! The embedded store: one file an object, written atomically, watched by inotify.
//!
//! Several processes may share it. `create`, `delete` and a status that drops a mapped initiator are
//! on the disk when the call returns: a power cut must neither lose a volume nor readmit a node that
//! was fenced. Other writes are synced by a thread right after, off the publish path.

mod files;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, mpsc};

use uuid::Uuid;

use self::files::{Durable, Files, failed};
use self::watch::Watching;
use super::{Error, Objects, Store, Watch, check, time};
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::StorageNode;
use crate::model::volume::Volume;

/// A store in a directory.
#[derive(Debug)]
pub struct DirStore {
    volumes: DirObjects<Volume>,
    snapshots: DirObjects<Snapshot>,
    storage_nodes: DirObjects<StorageNode>,
}

impl DirStore {
    /// Opens the store at `path`, making it when it is not there. Blocks.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            volumes: DirObjects::open(path)?,
            snapshots: DirObjects::open(path)?,
            storage_nodes: DirObjects::open(path)?,
        })
    }
}

impl Store for DirStore {
    fn volumes(&self) -> &impl Objects<Volume> {
        &self.volumes
    }

    fn snapshots(&self) -> &impl Objects<Snapshot> {
        &self.snapshots
    }

    fn storage_nodes(&self) -> &impl Objects<StorageNode> {
        &self.storage_nodes
    }
}

/// The objects of one kind, in a directory of their own.
#[derive(Debug)]
struct DirObjects<T> {
    files: Arc<Files<T>>,
    watching: Watching<T>,
}

impl<T: Object> DirObjects<T> {
    fn open(path: &Path) -> Result<Self, Error> {
        let (files, to_sync) = Files::open(path)?;
        let files = Arc::new(files);
        let watching = Watching::start(files.clone())?;
        let syncing = Arc::downgrade(&files);
        std::thread::Builder::new()
            .name("store-sync".into())
            .spawn(move || {
                while let Ok(first) = to_sync.recv() {
                    let Some(files) = syncing.upgrade() else {
                        return;
                    };
                    sync(&files, first, &to_sync);
                }
            })
            .map_err(|e| failed("clone", path, e))?;
        Ok(Self { files, watching })
    }

    async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Files<T>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let files = self.files.clone();
        tokio::task::spawn_blocking(move || work(&files))
            .await
            .unwrap_or_else(|e| {
                Err(failed(
                    "spawn_blocking",
                    self.files.directory(),
                    std::io::Error::other(e),
                ))
            })
    }
}

/// Syncs `first` and all that wait behind it, each once.
fn sync<T: Object>(files: &Files<T>, first: String, waiting: &mpsc::Receiver<String>) {
    let mut names = BTreeSet::from([first]);
    names.extend(waiting.try_iter());
    for name in names {
        if let Err(error) = files.sync(&name) {
            tracing::error!(kind = T::KIND, name, %error, "could not be synced: a power cut may undo its last change");
        }
    }
}

impl<T: Object> Objects<T> for DirObjects<T> {
    async fn create(&self, mut object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        object.reset_status();
        let metadata = object.metadata_mut();
        metadata.uid = Uuid::new_v4().to_string();
        metadata.resource_version = "1".into();
        metadata.generation = 1;
        metadata.creation_timestamp = time::now();
        metadata.deletion_timestamp = None;
        self.blocking(move |files| {
            let name = &object.metadata().name;
            let held = files.lock(name)?;
            if files.read(name)?.is_some() {
                return Err(Error::Exists(T::KIND, name.clone()));
            }
            files.write(&object, Durable::Now, &held)?;
            Ok(object)
        })
        .await
    }

    async fn get(&self, name: &str) -> Result<Option<T>, Error> {
        check(name)?;
        let name = name.to_owned();
        self.blocking(move |files| files.read(&name)).await
    }

    async fn list(&self) -> Result<Vec<T>, Error> {
        self.blocking(|files| {
            files
                .names()?
                .iter()
                .filter_map(|name| files.read(name).transpose())
                .collect()
        })
        .await
    }

    async fn update_spec(&self, object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        self.blocking(move |files| {
            update(files, &object, |now, wanted| {
                if now.take_spec(wanted) {
                    now.metadata_mut().generation += 1;
                }
                now.metadata_mut().finalizers = wanted.metadata().finalizers.clone();
            })
        })
        .await
    }

    async fn update_status(&self, object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        self.blocking(move |files| update(files, &object, T::take_status))
            .await
    }

    async fn delete(&self, object: &T) -> Result<(), Error> {
        check(&object.metadata().name)?;
        let object = object.clone();
        self.blocking(move |files| {
            update(files, &object, |now, _| {
                let metadata = now.metadata_mut();
                metadata.deletion_timestamp.get_or_insert_with(time::now);
            })
            .map(drop)
        })
        .await
    }

    fn watch(&self, name: Option<&str>) -> Watch<T> {
        self.watching.watch(name)
    }
}

fn update<T: Object>(
    files: &Files<T>,
    wanted: &T,
    change: impl FnOnce(&mut T, &T),
) -> Result<T, Error> {
    let name = &wanted.metadata().name;
    let held = files.lock(name)?;
    let Some(now) = files.read(name)? else {
        return Err(Error::NotFound(T::KIND, name.clone()));
    };
    let version = |object: &T| {
        let metadata = object.metadata();
        (metadata.resource_version.clone(), metadata.uid.clone())
    };
    if version(&now) != version(wanted) {
        return Err(Error::Conflict(T::KIND, name.clone()));
    }
    let mut next = now.clone();
    change(&mut next, wanted);
    store(files, &now, next, &held)
}

/// Puts `next` in the place of `now`: nothing is written when they are the same, and an object whose
/// deletion was asked for goes with its last finalizer.
fn store<T: Object>(
    files: &Files<T>,
    now: &T,
    mut next: T,
    held: &files::Guard,
) -> Result<T, Error> {
    if next.is_deleting() && next.metadata().finalizers.is_empty() {
        files.remove(&next.metadata().name, held)?;
    } else if next != *now {
        let version: u64 = now.metadata().resource_version.parse().unwrap_or_default();
        next.metadata_mut().resource_version = (version + 1).to_string();
        files.write(&next, durability(now, &next), held)?;
    }
    Ok(next)
}

fn durability<T: Object>(now: &T, next: &T) -> Durable {
    if now.must_be_durable(next) || now.is_deleting() != next.is_deleting() {
        Durable::Now
    } else {
        Durable::Soon
    }
}

#[cfg(test)]
mod tests;
