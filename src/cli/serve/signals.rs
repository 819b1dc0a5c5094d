//! What stops a process.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(super) struct Signals(Signal, Signal);

impl Signals {
    pub(super) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be received");
        Ok(Self(
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
        ))
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
