//! The modes that serve: each checks the machine, starts what is needed, serves, and stops in order.

mod agent;
mod signals;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::setpriority_process;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use zvolt_kernel::preflight::{self, Finding, Roots};

use self::agent::Running;
use self::signals::Signals;
use super::Exit;
use super::notify::{READY, STOPPING, notify};
use super::options;
use crate::csi::server::{self, ControllerSide, NodeSide, Services};
use crate::csi::socket::{Endpoint, Listening};
use crate::node::Node;
use crate::ops::Journal;
use crate::store::Store;
use crate::store::dir::DirStore;
use crate::store::kube::KubeStore;

/// How many operations `zvolt trace` can show.
const JOURNAL: usize = 1024;
/// Blocking threads at most. Each call that waits for the kernel has one, and after a reboot all of a node's volumes come at
/// once (C-58): with tokio's 512 the calls behind them, and the agent's work that they wait for, would not begin.
const THREADS: usize = 4096;
/// Blocking threads stay: starting one on the publish path would cost more than it takes.
const KEEP_THREADS: Duration = Duration::from_secs(3600);

/// Serves all there is on one host until a signal comes.
pub(super) fn standalone(options: options::Standalone) -> Result<Exit> {
    let roots = Roots::default();
    let mut findings = preflight::node(&roots, &options.node.kubelet_dir);
    for finding in preflight::agent(&roots) {
        // Both sides need some of the same.
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    if is_unfit(&findings) {
        return Ok(Exit::Preflight);
    }
    go_first(&options.node.priority);
    until_stopped(async move |signals| {
        let (journal, node) = node_side(&options.node).await?;
        let node_id = options.node.node_id.clone();
        let store = options.store;
        let store = spawn_blocking(move || DirStore::open(&store).context("the store")).await??;
        let store = Arc::new(store);
        let config = options.storage.config(&node_id);
        let mut agent = Running::start(config, store.clone(), journal.clone()).await?;
        if !agent.is_ready(signals).await? {
            return agent.stop().await;
        }
        let controller = ControllerSide {
            store,
            owner: Some(node_id),
            consumers: options.consumers.consumers,
        };
        let services = services(
            Some(controller),
            Some(node),
            journal,
            &options.node.patience,
        );
        let server = Serving::start(services, &options.node.endpoint).await?;
        server.until(signals, Some(agent)).await
    })
}

/// Serves a consumer until a signal comes.
pub(super) fn node(options: options::Node) -> Result<Exit> {
    if is_unfit(&preflight::node(&Roots::default(), &options.kubelet_dir)) {
        return Ok(Exit::Preflight);
    }
    go_first(&options.priority);
    until_stopped(async move |signals| {
        let (journal, node) = node_side(&options).await?;
        let services = services(
            None::<ControllerSide<DirStore>>,
            Some(node),
            journal,
            &options.patience,
        );
        let server = Serving::start(services, &options.endpoint).await?;
        server.until(signals, None).await
    })
}

/// Serves the controller of a cluster until a signal comes.
pub(super) fn controller(options: options::Controller) -> Result<Exit> {
    until_stopped(async move |signals| {
        let controller = ControllerSide {
            store: open(&options.cluster).await?,
            owner: None,
            consumers: options.consumers.consumers,
        };
        let services = services(
            Some(controller),
            None,
            Journal::new(JOURNAL),
            &options.patience,
        );
        let server = Serving::start(services, &options.endpoint).await?;
        server.until(signals, None).await
    })
}

/// Serves a storage host of a cluster until a signal comes.
pub(super) fn agent(options: options::Agent) -> Result<Exit> {
    if is_unfit(&preflight::agent(&Roots::default())) {
        return Ok(Exit::Preflight);
    }
    go_first(&options.priority);
    until_stopped(async move |signals| {
        let journal = Journal::new(JOURNAL);
        let store = open(&options.cluster).await?;
        let services = services(
            None::<ControllerSide<KubeStore>>,
            None,
            journal.clone(),
            &options.patience,
        );
        // First: a second agent on this host ends here, before it touches anything.
        let server = Serving::start(services, &options.endpoint).await?;
        let config = options.storage.config(&options.node_id);
        let mut agent = Running::start(config, store, journal).await?;
        if !agent.is_ready(signals).await? {
            return agent.stop().await;
        }
        server.until(signals, Some(agent)).await
    })
}

async fn open(cluster: &options::Cluster) -> Result<Arc<KubeStore>> {
    let kubeconfig = cluster.kubeconfig.as_deref();
    let store = KubeStore::open(&cluster.namespace, kubeconfig).await;
    Ok(Arc::new(store.context("the store")?))
}

async fn node_side(options: &options::Node) -> Result<(Journal, NodeSide)> {
    let journal = Journal::new(JOURNAL);
    let (config, of_node) = (options.config(), journal.clone());
    let side = NodeSide {
        node: spawn_blocking(move || Node::start(config, of_node)).await??,
        node_id: options.node_id.clone(),
        kubelet_dir: options.kubelet_dir.clone(),
    };
    Ok((journal, side))
}

fn services<S>(
    controller: Option<ControllerSide<S>>,
    node: Option<NodeSide>,
    journal: Journal,
    patience: &options::Patience,
) -> Services<S> {
    Services {
        controller,
        node,
        journal,
        deadline: patience.deadline(),
        grace: patience.grace(),
    }
}

/// Whether the machine lacks something; every finding is told with what to do about it.
fn is_unfit(findings: &[Finding]) -> bool {
    if findings.is_empty() {
        return false;
    }
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
    true
}

/// Sets the priority of all threads: before the first of them, for each inherits it.
fn go_first(options::Priority { nice }: &options::Priority) {
    if let Err(errno) = setpriority_process(None, *nice) {
        tracing::warn!(%errno, nice, "setpriority: calls take longer on a busy machine (CAP_SYS_NICE)");
    }
}

/// Runs what serves. From its beginning on a signal stops in order.
fn until_stopped(serve: impl AsyncFnOnce(&mut Signals) -> Result<()>) -> Result<Exit> {
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_keep_alive(KEEP_THREADS)
        .build()
        .context("the runtime's threads could not be started")?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::new()?;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
        serve(&mut signals).await
    });
    // A thread that the kernel holds must not hold the exit.
    runtime.shutdown_background();
    outcome.map(|()| Exit::Fine)
}

/// The server, and how to stop it.
struct Serving {
    task: JoinHandle<Result<(), server::Error>>,
    stop: watch::Sender<bool>,
    endpoint: Endpoint,
}

impl Serving {
    async fn start<S: Store>(services: Services<S>, endpoint: &Endpoint) -> Result<Self> {
        let bound = endpoint.clone();
        let listening = spawn_blocking(move || Listening::bind(&bound)).await??;
        let (stop, stopped) = watch::channel(false);
        Ok(Self {
            task: tokio::spawn(server::serve(services, listening, stopped)),
            stop,
            endpoint: endpoint.clone(),
        })
    }

    /// All is up: serves until a signal comes or a part ends by itself, and stops in order.
    async fn until(mut self, signals: &mut Signals, mut agent: Option<Running>) -> Result<()> {
        tracing::info!(endpoint = %self.endpoint, "serving");
        notify(READY);
        let mut outcome = tokio::select! {
            () = signals.next() => Ok(()),
            error = Running::ended(&mut agent) => { agent = None; Err(error) },
            ended = &mut self.task => {
                ended??;
                bail!("the server has stopped by itself");
            }
        };
        notify(STOPPING);
        tracing::info!("stopping: the calls that run are finished first");
        self.stop.send_replace(true);
        // The agent goes last: the controller's calls wait for it.
        tokio::select! {
            ended = &mut self.task => ended??,
            () = signals.next() => tracing::warn!("a second signal: not waiting any longer"),
        }
        if let Some(agent) = agent
            && let Err(error) = agent.stop().await
            && outcome.is_ok()
        {
            outcome = Err(error);
        }
        outcome
    }
}
