//! One thread and one inotify descriptor for all watchers of a store.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::super::{Change, Error, Watch};
use super::files::{Files, failed, object_of};
use crate::model::object::Object;

/// Room for some 60 events in one read.
const BUFFER: usize = 16 << 10;

/// Feeds every watcher until dropped.
#[derive(Debug)]
pub(super) struct Watching<T> {
    fd: Arc<OwnedFd>,
    descriptor: i32,
    watchers: Arc<Watchers<T>>,
}

#[derive(Debug)]
struct Watcher<T> {
    name: Option<String>,
    to: mpsc::UnboundedSender<Change<T>>,
}

/// Who watches; `None` once the directory is gone or the thread has ended.
#[derive(Debug)]
struct Watchers<T>(Mutex<Option<Vec<Watcher<T>>>>);

/// What watchers have been told, by name.
type Told<T> = HashMap<String, Arc<T>>;

impl<T: Object> Watching<T> {
    /// Starts. The kernel's watch is there before the objects are read, so nothing falls between.
    pub(super) fn start(files: Arc<Files<T>>) -> Result<Self, Error> {
        let dir = files.directory().to_owned();
        let fd = inotify::init(CreateFlags::CLOEXEC)
            .map_err(|e| failed("inotify_init1", &dir, e.into()))?;
        let flags =
            WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let descriptor = inotify::add_watch(&fd, &dir, flags)
            .map_err(|e| failed("inotify_add_watch", &dir, e.into()))?;
        let fd = Arc::new(fd);
        let watchers = Arc::new(Watchers(Mutex::new(Some(Vec::new()))));
        let mut told = Told::new();
        for name in files.names()? {
            match files.read(&name) {
                Ok(Some(object)) => {
                    told.insert(name, Arc::new(object));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(kind = T::KIND, name, %error, "cannot be read; mend or remove the file")
                }
            }
        }
        let watching = Self {
            fd: fd.clone(),
            descriptor,
            watchers: watchers.clone(),
        };
        std::thread::Builder::new()
            .name("store-watch".into())
            .spawn(move || {
                follow(&fd, &files, &watchers, &mut told);
                watchers.close();
            })
            .map_err(|e| failed("clone", &dir, e))?;
        Ok(watching)
    }

    /// A watch of all objects or of one, from now on.
    pub(super) fn watch(&self, name: Option<&str>) -> Watch<T> {
        let (to, from) = mpsc::unbounded_channel();
        self.watchers.add(Watcher {
            name: name.map(str::to_owned),
            to,
        });
        Watch(from)
    }
}

impl<T> Drop for Watching<T> {
    fn drop(&mut self) {
        // The kernel answers with IN_IGNORED, which ends the thread.
        let _ = inotify::remove_watch(&*self.fd, self.descriptor);
    }
}

fn follow<T: Object>(fd: &OwnedFd, files: &Files<T>, watchers: &Watchers<T>, told: &mut Told<T>) {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "read of the store's inotify descriptor failed; the watch ends");
                return;
            }
        };
        if event
            .events()
            .intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF)
        {
            return;
        }
        if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            if let Err(error) = settle_all(files, watchers, told) {
                tracing::error!(%error, "events were lost and the store cannot be read; the watch ends");
                return;
            }
        } else if let Some(name) = event
            .file_name()
            .and_then(|n| n.to_str().ok())
            .and_then(object_of)
        {
            settle(name, files, watchers, told);
        }
    }
}

/// Makes up for events that were lost.
fn settle_all<T: Object>(
    files: &Files<T>,
    watchers: &Watchers<T>,
    told: &mut Told<T>,
) -> Result<(), Error> {
    let mut names = files.names()?;
    names.extend(told.keys().cloned());
    names
        .iter()
        .for_each(|name| settle(name, files, watchers, told));
    Ok(())
}

/// Tells the watchers how an object differs from what they have been told. Reading what is there now,
/// whatever the event was, makes late and doubled events harmless.
fn settle<T: Object>(name: &str, files: &Files<T>, watchers: &Watchers<T>, told: &mut Told<T>) {
    let now = match files.read(name) {
        Ok(now) => now,
        Err(error) => {
            tracing::error!(kind = T::KIND, name, %error, "cannot be read; mend or remove the file");
            return;
        }
    };
    let version = |object: &T| {
        let metadata = object.metadata();
        (metadata.uid.clone(), metadata.resource_version.clone())
    };
    let before = told.get(name).map(|object| version(object));
    let after = now.as_ref().map(version);
    if before == after {
        return;
    }
    if before.is_some_and(|(uid, _)| after.is_none_or(|(now, _)| now != uid)) {
        told.remove(name);
        watchers.tell(name, &Change::Gone(name.to_owned()));
    }
    if let Some(object) = now {
        let object = Arc::new(object);
        told.insert(name.to_owned(), object.clone());
        watchers.tell(name, &Change::Put(object));
    }
}

impl<T> Watchers<T> {
    fn add(&self, watcher: Watcher<T>) {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchers) = watchers.as_mut() {
            watchers.retain(|w| !w.to.is_closed());
            watchers.push(watcher);
        }
    }

    fn tell(&self, name: &str, change: &Change<T>)
    where
        Change<T>: Clone,
    {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchers) = watchers.as_mut() {
            watchers.retain(|w| {
                w.name.as_deref().is_some_and(|wanted| wanted != name)
                    || w.to.send(change.clone()).is_ok()
            });
        }
    }

    fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::Durable;
    use super::*;
    use crate::model::volume::Volume;
    use crate::store::conformance::volume;

    #[test]
    fn after_an_overflow_watchers_learn_what_differs_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _to_sync) = Files::open(dir.path()).unwrap();
        let write = |name: &str, uid: &str, version: &str| {
            let mut volume = volume(name);
            volume.metadata.uid = uid.into();
            volume.metadata.resource_version = version.into();
            files
                .write(&volume, Durable::Now, &files.lock(name).unwrap())
                .unwrap();
        };
        let watchers = Watchers(Mutex::new(Some(Vec::new())));
        let (to, mut from) = mpsc::unbounded_channel();
        watchers.add(Watcher { name: None, to });
        let mut told = Told::new();
        let mut learnt = |told: &mut Told<Volume>| {
            settle_all(&files, &watchers, told).unwrap();
            std::iter::from_fn(|| from.try_recv().ok())
                .map(|change| match change {
                    Change::Put(v) => {
                        format!("{} {}", v.metadata.name, v.metadata.resource_version)
                    }
                    Change::Gone(name) => format!("{name} gone"),
                })
                .collect::<Vec<_>>()
        };
        for name in ["changed", "removed", "replaced", "same"] {
            write(name, "1", "1");
        }
        assert_eq!(learnt(&mut told).len(), 4);
        write("added", "1", "1");
        write("changed", "1", "3");
        write("replaced", "2", "1");
        files
            .remove("removed", &files.lock("removed").unwrap())
            .unwrap();
        assert_eq!(
            learnt(&mut told),
            [
                "added 1",
                "changed 3",
                "removed gone",
                "replaced gone",
                "replaced 1"
            ]
        );
        assert!(learnt(&mut told).is_empty());
    }
}
