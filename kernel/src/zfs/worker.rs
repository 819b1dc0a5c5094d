//! The one thread that owns a libzfs handle, and the channel to it.

use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::errno::Errno;

use super::Error;
use super::ffi::handle::Handle;
use super::ffi::{DEVICE, Libraries};
use crate::error::SysError;

type Job = Box<dyn FnOnce(&Handle) + Send>;

/// Jobs run one after the other; the thread ends with the value.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread and makes the handle on it.
    pub(super) fn start(libraries: &'static Libraries) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::sync_channel(1);
        let body = move || match Handle::init(libraries) {
            Ok(handle) => {
                if ready.send(Ok(())).is_ok() {
                    for job in queue {
                        job(&handle);
                    }
                }
            }
            // Nobody listens only when the starter is gone.
            Err(errno) => drop(ready.send(Err(errno))),
        };
        let thread = std::thread::Builder::new()
            .name("libzfs".to_owned())
            .spawn(body)
            .map_err(|e| SysError::io("clone", "libzfs thread".as_ref(), &e))?;
        let worker = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        match started.recv() {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(errno)) => Err(SysError::new("libzfs_init", DEVICE, errno).into()),
            Err(mpsc::RecvError) => Err(gone()),
        }
    }

    /// Runs `job` on the thread and waits for its answer.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Handle) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job = Box::new(move |handle: &Handle| drop(answer.send(job(handle))));
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic on it was told to whoever asked.
            drop(thread.join());
        }
    }
}

fn gone() -> Error {
    SysError::new("libzfs", "its thread", Errno::EOWNERDEAD)
        .with_detail("the thread ended: restart the process")
        .into()
}
