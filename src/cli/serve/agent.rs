//! The agent as a task of the process.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use super::signals::Signals;
use crate::agent::{self, Agent, AgentConfig};
use crate::ops::Journal;
use crate::store::Store;

/// The agent, and how to stop it.
pub(super) struct Running {
    task: JoinHandle<Result<(), agent::Error>>,
    stop: watch::Sender<bool>,
    ready: oneshot::Receiver<()>,
}

impl Running {
    pub(super) async fn start<S: Store>(
        config: AgentConfig,
        store: Arc<S>,
        journal: Journal,
    ) -> Result<Self> {
        let made = spawn_blocking(move || Agent::new(config, store, journal)).await?;
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = watch::channel(false);
        Ok(Self {
            task: tokio::spawn(made.context("the agent")?.run(ready, stopped)),
            stop,
            ready: is_ready,
        })
    }

    /// Waits until every export is restored; `false` when a signal came first.
    pub(super) async fn is_ready(&mut self, signals: &mut Signals) -> Result<bool> {
        tokio::select! {
            ready = &mut self.ready => match ready {
                Ok(()) => Ok(true),
                Err(_) => Err(self.end().await),
            },
            () = signals.next() => Ok(false),
        }
    }

    /// Waits until the agent has ended; never, where there is none.
    pub(super) async fn ended(running: &mut Option<Self>) -> anyhow::Error {
        match running {
            Some(running) => running.end().await,
            None => std::future::pending().await,
        }
    }

    async fn end(&mut self) -> anyhow::Error {
        match (&mut self.task).await {
            Ok(Ok(())) => anyhow!("the agent has stopped by itself"),
            Ok(Err(error)) => anyhow::Error::new(error).context("the agent"),
            Err(error) => anyhow::Error::new(error).context("the agent"),
        }
    }

    /// Asks it to stop, and waits until what runs has ended.
    pub(super) async fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await?.context("the agent")
    }
}
