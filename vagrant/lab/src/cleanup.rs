//! What must be undone when the program ends, also by a signal.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

type Undo = Box<dyn FnOnce() + Send>;

static UNDO: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
/// Held while an undo runs, so that a signal does not cut it short.
static RUNNING: Mutex<()> = Mutex::new(());
static NEXT: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs its undo when it is dropped, or when a signal ends the program.
#[derive(Debug)]
#[must_use]
pub struct Guard(u64);

/// Registers an undo. On a signal they run in the opposite order of registration.
pub fn on_end(undo: impl FnOnce() + Send + 'static) -> Guard {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    hold(&UNDO).push((id, Box::new(undo)));
    Guard(id)
}

impl Guard {
    /// Forgets the undo: there is nothing to undo any more.
    pub fn disarm(self) {
        hold(&UNDO).retain(|(id, _)| *id != self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _running = hold(&RUNNING);
        let mut all = hold(&UNDO);
        let Some(place) = all.iter().position(|(id, _)| *id == self.0) else {
            return;
        };
        let (_, undo) = all.remove(place);
        drop(all);
        undo();
    }
}

fn hold<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT, SIGTERM and SIGHUP undo what is registered, then end the program with 128 plus
/// the signal's number. To be called before any other thread is started.
pub fn watch_signals() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("block signals")?;
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        eprintln!("\n{signal}: cleaning up");
        let _running = hold(&RUNNING);
        loop {
            let last = hold(&UNDO).pop();
            let Some((_, undo)) = last else { break };
            undo();
        }
        process::exit(128 + signal as i32);
    });
    Ok(())
}

/// Once a signal has come the clean-up has the last word: the caller waits here for the end.
pub fn yield_to_signal() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        thread::park();
    }
}
