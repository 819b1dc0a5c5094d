//! What the kernel tells of pools by itself: what zed and `zpool events` read.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::mpsc;

use nix::sys::signal::SigSet;

use super::ffi::handle::{Failure, Handle};
use super::ffi::nvlist::Value;
use super::ffi::{DEVICE, Libraries};
use super::{Error, Zfs, error};
use crate::error::SysError;

/// Waits in a row that may end without an event: whatever stops and continues a process ends one.
const TRIES: usize = 8;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEvent {
    /// A pool came or went, or it or a device of it is in another state or of another size.
    State,
    /// Somebody has made, changed or destroyed a dataset or a snapshot.
    History,
}

impl PoolEvent {
    /// By the class of an event (zpool-events(8), `sys/sysevent/eventdefs.h`, `sys/fm/fs/zfs.h`). `None` for those that
    /// change nothing of the above: every single error of a disk has one.
    fn of(class: &str) -> Option<Self> {
        if let Some(what) = class.strip_prefix("sysevent.fs.zfs.") {
            return match what {
                "history_event" => Some(Self::History),
                // Written with each of the others.
                "config_sync" => None,
                _ => Some(Self::State),
            };
        }
        // The latter is what a pool says that suspends itself.
        let is_state =
            class.starts_with("resource.fs.zfs.") || class == "ereport.fs.zfs.io_failure";
        is_state.then_some(Self::State)
    }
}

impl Zfs {
    /// Has `hear` told of every event from now on, on a thread of its own, as long as it says `true`. The kernel holds the
    /// thread until the next event, and when the process ends. An error is the last that `hear` is told.
    pub fn on_pool_event(
        &self,
        hear: impl FnMut(Result<PoolEvent, Error>) -> bool + Send + 'static,
    ) -> Result<(), Error> {
        let libraries = self.libraries;
        let (ready, started) = mpsc::sync_channel(1);
        let body = move || match Listener::start(libraries) {
            Ok(listener) => {
                drop(ready.send(Ok(())));
                listener.listen(hear);
            }
            Err(error) => drop(ready.send(Err(error))),
        };
        std::thread::Builder::new()
            .name("zpool-events".to_owned())
            .spawn(body)
            .map_err(|e| SysError::io("clone", "zpool-events thread".as_ref(), &e))?;
        started.recv().unwrap_or_else(|_| {
            Err(SysError::new("zpool_events_seek", DEVICE, nix::errno::Errno::EOWNERDEAD).into())
        })
    }
}

/// One who listens: a handle and an open device, in which the kernel keeps the place.
struct Listener {
    handle: Handle,
    device: File,
}

impl Listener {
    fn start(libraries: &'static Libraries) -> Result<Self, Error> {
        let handle =
            Handle::init(libraries).map_err(|errno| SysError::new("libzfs_init", DEVICE, errno))?;
        let device = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .map_err(|e| SysError::io("open", DEVICE.as_ref(), &e))?;
        // A signal that this thread takes would end a wait.
        SigSet::all()
            .thread_block()
            .map_err(|errno| SysError::new("pthread_sigmask", "zpool-events", errno))?;
        handle
            .skip_events(device.as_fd())
            .map_err(|failure| failed("zpool_events_seek", failure))?;
        Ok(Self { handle, device })
    }

    fn listen(self, mut hear: impl FnMut(Result<PoolEvent, Error>) -> bool) {
        let mut failures = 0;
        loop {
            match self.next() {
                Ok(event) => {
                    failures = 0;
                    if event.is_some_and(|event| !hear(Ok(event))) {
                        return;
                    }
                }
                Err(_) if failures < TRIES => failures += 1,
                Err(failure) => {
                    hear(Err(failed("zpool_events_next", failure)));
                    return;
                }
            }
        }
    }

    fn next(&self) -> Result<Option<PoolEvent>, Failure> {
        let event = self.handle.next_event(self.device.as_fd())?;
        let class = event.as_ref().and_then(|e| match e.as_ref().get("class") {
            Some(Value::Text(class)) => Some(class),
            _ => None,
        });
        Ok(class.and_then(|class| PoolEvent::of(&class)))
    }
}

fn failed(call: &'static str, failure: Failure) -> Error {
    error::failed(call, DEVICE, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_a_pool_is_an_event() {
        for (class, event) in [
            ("sysevent.fs.zfs.pool_create", Some(PoolEvent::State)),
            ("sysevent.fs.zfs.pool_import", Some(PoolEvent::State)),
            ("sysevent.fs.zfs.pool_export", Some(PoolEvent::State)),
            ("sysevent.fs.zfs.vdev_add", Some(PoolEvent::State)),
            ("sysevent.fs.zfs.resilver_finish", Some(PoolEvent::State)),
            ("resource.fs.zfs.statechange", Some(PoolEvent::State)),
            ("ereport.fs.zfs.io_failure", Some(PoolEvent::State)),
            ("sysevent.fs.zfs.history_event", Some(PoolEvent::History)),
            ("sysevent.fs.zfs.config_sync", None),
            ("ereport.fs.zfs.checksum", None),
            ("", None),
        ] {
            assert_eq!(PoolEvent::of(class), event, "{class}");
        }
    }
}
