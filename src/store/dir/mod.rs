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
use super::{Error, Store, Watch, time};
use crate::model::names;
use crate::model::volume::{Volume, VolumeStatus};

/// A store in a directory.
#[derive(Debug)]
pub struct DirStore {
    files: Arc<Files>,
    watching: Watching,
}

impl DirStore {
    /// Opens the store at `path`, making it when it is not there. Blocks.
    pub fn open(path: &Path) -> Result<Self, Error> {
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

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let files = self.files.clone();
        tokio::task::spawn_blocking(move || work(&files))
            .await
            .unwrap_or_else(|e| {
                Err(failed(
                    "spawn_blocking",
                    self.files.volumes(),
                    std::io::Error::other(e),
                ))
            })
    }
}

/// Syncs `first` and all that wait behind it, each once.
fn sync(files: &Files, first: String, waiting: &mpsc::Receiver<String>) {
    let mut names = BTreeSet::from([first]);
    names.extend(waiting.try_iter());
    for name in names {
        if let Err(error) = files.sync(&name) {
            tracing::error!(volume = name, %error, "could not be synced: a power cut may undo its last change");
        }
    }
}

impl Store for DirStore {
    async fn create(&self, mut volume: Volume) -> Result<Volume, Error> {
        check(&volume.metadata.name)?;
        let metadata = &mut volume.metadata;
        metadata.uid = Uuid::new_v4().to_string();
        metadata.resource_version = "1".into();
        metadata.generation = 1;
        metadata.creation_timestamp = time::now();
        metadata.deletion_timestamp = None;
        volume.status = VolumeStatus::default();
        self.blocking(move |files| {
            let name = &volume.metadata.name;
            let held = files.lock(name)?;
            if files.read(name)?.is_some() {
                return Err(Error::Exists(name.clone()));
            }
            files.write(&volume, Durable::Now, &held)?;
            Ok(volume)
        })
        .await
    }

    async fn get(&self, name: &str) -> Result<Option<Volume>, Error> {
        check(name)?;
        let name = name.to_owned();
        self.blocking(move |files| files.read(&name)).await
    }

    async fn list(&self) -> Result<Vec<Volume>, Error> {
        self.blocking(|files| {
            files
                .names()?
                .iter()
                .filter_map(|name| files.read(name).transpose())
                .collect()
        })
        .await
    }

    async fn update_spec(&self, volume: Volume) -> Result<Volume, Error> {
        check(&volume.metadata.name)?;
        self.blocking(move |files| {
            update(files, volume, |now, wanted| {
                if now.spec != wanted.spec {
                    now.metadata.generation += 1;
                }
                now.spec = wanted.spec;
                now.metadata.finalizers = wanted.metadata.finalizers;
            })
        })
        .await
    }

    async fn update_status(&self, volume: Volume) -> Result<Volume, Error> {
        check(&volume.metadata.name)?;
        self.blocking(move |files| update(files, volume, |now, wanted| now.status = wanted.status))
            .await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        check(name)?;
        let name = name.to_owned();
        self.blocking(move |files| {
            let held = files.lock(&name)?;
            let Some(now) = files.read(&name)? else {
                return Err(Error::NotFound(name));
            };
            let mut next = now.clone();
            next.metadata
                .deletion_timestamp
                .get_or_insert_with(time::now);
            store(files, &now, next, &held).map(drop)
        })
        .await
    }

    fn watch(&self, name: Option<&str>) -> Watch {
        self.watching.watch(name)
    }
}

fn check(name: &str) -> Result<(), Error> {
    names::is_handle(name)
        .then_some(())
        .ok_or_else(|| Error::BadName(name.to_owned()))
}

fn update(
    files: &Files,
    wanted: Volume,
    change: impl FnOnce(&mut Volume, Volume),
) -> Result<Volume, Error> {
    let held = files.lock(&wanted.metadata.name)?;
    let Some(now) = files.read(&wanted.metadata.name)? else {
        return Err(Error::NotFound(wanted.metadata.name));
    };
    if (&now.metadata.resource_version, &now.metadata.uid)
        != (&wanted.metadata.resource_version, &wanted.metadata.uid)
    {
        return Err(Error::Conflict(wanted.metadata.name));
    }
    let mut next = now.clone();
    change(&mut next, wanted);
    store(files, &now, next, &held)
}

/// Puts `next` in the place of `now`: nothing is written when they are the same, and an object whose
/// deletion was asked for goes with its last finalizer.
fn store(
    files: &Files,
    now: &Volume,
    mut next: Volume,
    held: &files::Guard,
) -> Result<Volume, Error> {
    if next.is_deleting() && next.metadata.finalizers.is_empty() {
        files.remove(&next.metadata.name, held)?;
    } else if next != *now {
        let version: u64 = now.metadata.resource_version.parse().unwrap_or_default();
        next.metadata.resource_version = (version + 1).to_string();
        files.write(&next, durability(now, &next), held)?;
    }
    Ok(next)
}

fn durability(now: &Volume, next: &Volume) -> Durable {
    let unmapped = now.status.mapped_initiators.iter().any(|old| {
        let kept =
            |new: &crate::model::volume::MappedInitiator| new.initiator_id == old.initiator_id;
        !next.status.mapped_initiators.iter().any(kept)
    });
    if unmapped || now.is_deleting() != next.is_deleting() {
        Durable::Now
    } else {
        Durable::Soon
    }
}

#[cfg(test)]
mod tests;
