//! `standalone` and `node`: checks the machine, starts what is needed, serves, and stops in order.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::setpriority_process;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use zvolt_kernel::preflight::{self, Finding, Roots};

use super::Exit;
use super::notify::{READY, STOPPING, notify};
use super::options;
use crate::agent::{self, Agent, AgentConfig};
use crate::csi::server::{self, Services};
use crate::csi::socket::Listening;
use crate::node::Node;
use crate::ops::Journal;
use crate::store::dir::DirStore;

/// How many operations `zvolt trace` can show.
const JOURNAL: usize = 1024;
/// Blocking threads at most. Each call that waits for the kernel has one, and after a reboot all of a node's volumes come at
/// once (C-58): with tokio's 512 the calls behind them, and the agent's work that they wait for, would not begin.
const THREADS: usize = 4096;
/// Blocking threads stay: starting one on the publish path would cost more than it takes.
const KEEP_THREADS: Duration = Duration::from_secs(3600);

/// Serves until a signal comes.
pub(super) fn run(options: options::Node, storage: Option<options::Storage>) -> Result<Exit> {
    let roots = Roots::default();
    let mut findings = preflight::node(&roots, &options.kubelet_dir);
    if storage.is_some() {
        for finding in preflight::agent(&roots) {
            // Both sides need some of the same.
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    if !findings.is_empty() {
        report(&findings);
        return Ok(Exit::Preflight);
    }
    // Before the first thread: each inherits it.
    if let Err(errno) = setpriority_process(None, options.nice) {
        tracing::warn!(%errno, nice = options.nice, "setpriority: calls take longer on a busy machine (CAP_SYS_NICE)");
    }
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_keep_alive(KEEP_THREADS)
        .build()
        .context("the runtime's threads could not be started")?;
    let outcome = runtime.block_on(serve(options, storage));
    // A thread that the kernel holds must not hold the exit.
    runtime.shutdown_background();
    outcome.map(|()| Exit::Fine)
}

/// Every finding with what to do about it.
fn report(findings: &[Finding]) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "zvolt: this machine cannot serve:");
    for Finding {
        check,
        problem,
        remedy,
    } in findings
    {
        let _ = writeln!(out, "  {check}: {problem}\n    {remedy}");
    }
}

/// The agent, and how to stop it.
struct Running {
    task: JoinHandle<Result<(), agent::Error>>,
    stop: watch::Sender<bool>,
}

impl Running {
    /// Waits until the agent has ended.
    async fn ended(running: &mut Option<Self>) -> anyhow::Error {
        let Some(running) = running else {
            return std::future::pending().await;
        };
        match (&mut running.task).await {
            Ok(Ok(())) => anyhow!("the agent has stopped by itself"),
            Ok(Err(error)) => anyhow::Error::new(error).context("the agent"),
            Err(error) => anyhow::Error::new(error).context("the agent"),
        }
    }
}

async fn serve(options: options::Node, storage: Option<options::Storage>) -> Result<()> {
    // From here on a signal stops in order.
    let mut signals = Signals::new()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = options.node_id,
        "starting"
    );
    let journal = Journal::new(JOURNAL);
    let node = {
        let (config, journal) = (options.config(), journal.clone());
        spawn_blocking(move || Node::start(config, journal)).await??
    };
    let mut agent = None;
    let mut store = None;
    let mut consumers = Vec::new();
    if let Some(mut storage) = storage {
        consumers = std::mem::take(&mut storage.consumers);
        let (opened, running, ready) =
            start_agent(storage, &options.node_id, journal.clone()).await?;
        store = Some(opened);
        agent = Some(running);
        tokio::select! {
            ready = ready => if ready.is_err() { return Err(Running::ended(&mut agent).await) },
            () = signals.next() => return stop_agent(agent).await,
        }
    }
    let endpoint = options.endpoint.clone();
    let listening = spawn_blocking(move || Listening::bind(&endpoint)).await??;
    let (stop, stopped) = watch::channel(false);
    let services = Services {
        node,
        node_id: options.node_id.clone(),
        kubelet_dir: options.kubelet_dir.clone(),
        store,
        consumers,
        journal,
        deadline: options.deadline(),
        grace: options.grace(),
    };
    let mut server = tokio::spawn(server::serve(services, listening, stopped));
    tracing::info!(endpoint = %options.endpoint, "serving");
    notify(READY);
    let mut outcome = tokio::select! {
        () = signals.next() => Ok(()),
        error = Running::ended(&mut agent) => { agent = None; Err(error) },
        ended = &mut server => {
            ended??;
            bail!("the server has stopped by itself");
        }
    };
    notify(STOPPING);
    tracing::info!("stopping: the calls that run are finished first");
    stop.send_replace(true);
    // The agent goes last: the controller's calls wait for it.
    tokio::select! {
        ended = &mut server => ended??,
        () = signals.next() => tracing::warn!("a second signal: not waiting any longer"),
    }
    if let Err(error) = stop_agent(agent).await
        && outcome.is_ok()
    {
        outcome = Err(error);
    }
    outcome
}

async fn start_agent(
    storage: options::Storage,
    node_id: &str,
    journal: Journal,
) -> Result<(Arc<DirStore>, Running, oneshot::Receiver<()>)> {
    let config = AgentConfig {
        node_name: node_id.to_owned(),
        portals: storage.portals,
        port_id_base: storage.port_id_base,
        roots: agent::Roots::default(),
        parallel: storage.parallel.into(),
        await_pools: Duration::from_secs(storage.await_pools.into()),
        namespaces: storage.namespaces,
    };
    let (store, agent) = spawn_blocking(move || -> Result<_> {
        let store = Arc::new(DirStore::open(&storage.store).context("the store")?);
        let agent = Agent::new(config, store.clone(), journal).context("the agent")?;
        Ok((store, agent))
    })
    .await??;
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(agent.run(ready, stopped));
    Ok((store, Running { task, stop }, is_ready))
}

async fn stop_agent(agent: Option<Running>) -> Result<()> {
    let Some(running) = agent else { return Ok(()) };
    running.stop.send_replace(true);
    running.task.await?.context("the agent")
}

/// SIGTERM and SIGINT.
struct Signals(Signal, Signal);

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be received");
        Ok(Self(
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
        ))
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
