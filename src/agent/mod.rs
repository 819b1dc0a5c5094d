//! The storage side: brings the Volumes of its node's pools to where they should be.
//!
//! Woken by the store's watch, it looks at ZFS and the NVMe target, plans (all rules are in [`plan`]),
//! runs the steps and writes the status. One reconcile a volume at a time, different volumes in
//! parallel. It keeps no state: after a crash it looks again.

mod collect;
mod format;
mod host;
mod local;
mod loopback;
mod moves;
mod observe;
mod places;
mod plan;
mod ports;
mod queue;
mod reconcile;
mod report;
mod running;
#[cfg(test)]
mod sim;
mod slot;
mod snapshots;
mod start;
mod status;
mod steps;
#[cfg(test)]
mod tests;
mod turn;
mod volumes;
mod zvols;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::model::names;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::{PoolStatus, StorageNode};
use crate::model::volume::{Volume, reason};
use crate::ops::Journal;
use crate::store::{self, Change, Objects, Store, Watch};
use host::KernelHost;
use observe::{Failure, Host, News};
use places::Places;
use plan::Site;
use queue::Queue;
use reconcile::{Effects, Reconciler, Stop};

/// How long a stop waits for the reconciles that run.
const GRACE: Duration = Duration::from_secs(30);
/// How long ports that have just come are kept from answering, while volumes are linked to them, at the most.
const HELD: Duration = Duration::from_secs(10);

/// Where the kernel's trees are.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// `/sys/kernel/config/nvmet`.
    pub nvmet: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
            nvmet: "/sys/kernel/config/nvmet".into(),
        }
    }
}

/// An agent's settings.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The node's name: Volumes with this `spec.ownerNode` are served.
    pub node_name: String,
    /// Where the target listens; consumers are told the first. At least one.
    pub portals: Vec<SocketAddr>,
    /// Number of the first portal's port in configfs; the others follow.
    pub port_id_base: u16,
    /// Where the kernel's trees are.
    pub roots: Roots,
    /// How many volumes are worked on at a time.
    pub parallel: usize,
    /// How long the ports are kept from answering at start, while a pool is missing that an attached volume is in.
    pub await_pools: Duration,
    /// How many pooled volumes a node has in one subsystem, 1 to 1,024: more of them have another.
    pub namespaces: u32,
}

impl AgentConfig {
    /// The port, by number, through which the agent connects to its own target: the one after the portals'.
    fn loop_port(&self) -> u16 {
        let portals = u16::try_from(self.portals.len()).unwrap_or(u16::MAX);
        self.port_id_base.saturating_add(portals)
    }
}

/// Why the agent does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting makes no sense.
    #[error("{0}")]
    Config(&'static str),
    /// ZFS, the target or the uevents are not usable.
    #[error(transparent)]
    Host(#[from] Failure),
    /// The store is not usable.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The store's watch has ended.
    #[error("the store's watch has ended: start the agent again")]
    WatchEnded,
    /// A thread of the agent has panicked.
    #[error("the agent failed: {0}")]
    Panic(#[from] JoinError),
}

/// The storage side of one node.
#[derive(Debug)]
pub struct Agent<S, H = KernelHost> {
    config: AgentConfig,
    store: Arc<S>,
    journal: Journal,
    host: H,
}

impl<S: Store> Agent<S> {
    /// Loads ZFS and listens for uevents. Blocks for some milliseconds.
    pub fn new(config: AgentConfig, store: Arc<S>, journal: Journal) -> Result<Self, Error> {
        let host = KernelHost::new(&config)?;
        Self::on(host, config, store, journal)
    }
}

impl<S: Store, H: Host> Agent<S, H> {
    fn on(host: H, config: AgentConfig, store: Arc<S>, journal: Journal) -> Result<Self, Error> {
        if config.portals.is_empty() {
            return Err(Error::Config(
                "the agent needs at least one portal (address:port) to listen on",
            ));
        }
        if u16::try_from(config.portals.len())
            .ok()
            .and_then(|n| config.port_id_base.checked_add(n))
            .is_none()
        {
            return Err(Error::Config(
                "the numbers of the target's ports end at 65535: choose a lower base",
            ));
        }
        Ok(Self {
            config,
            store,
            journal,
            host,
        })
    }

    /// Restores every export, sends `ready`, and serves until `stop` turns true (or its sender is gone).
    /// What runs then is finished first.
    pub async fn run(
        self,
        ready: oneshot::Sender<()>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let portals = &self.config.portals;
        let (listener, news) = mpsc::unbounded_channel();
        self.host.listen(listener);
        let site = Site {
            node: self.config.node_name.clone(),
            portal: portals.first().map(ToString::to_string).unwrap_or_default(),
            loop_port: self.config.loop_port(),
        };
        let places = Places::new(self.config.namespaces);
        let all = Reconciler::new(self.store.clone(), self.host, site, self.journal, places);
        let all = Arc::new(all);
        let parallel = self.config.parallel.max(1);
        let mut serving = Serving {
            volumes: Queue::new(&all, self.store.volumes().watch(None), parallel),
            snapshots: Queue::new(&all, self.store.snapshots().watch(None), parallel),
            report_watch: self.store.storage_nodes().watch(Some(&all.report_name())),
            aside: JoinSet::new(),
            report: Some(Instant::now() + report::PERIOD),
            pace: report::Pace::default(),
            stale: None,
            searched: Vec::new(),
            held: None,
            awaited: Vec::new(),
            await_pools: self.config.await_pools,
            parallel,
            news,
            all,
        };
        tokio::select! {
            started = serving.start() => started?,
            () = asked(&mut stop) => return serving.finish().await,
        }
        // Nobody has to wait for it.
        let _ = ready.send(());
        loop {
            tokio::select! {
                served = serving.serve() => served?,
                () = asked(&mut stop) => return serving.finish().await,
            }
        }
    }
}

/// Waits until the agent is asked to stop.
async fn asked(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone: nobody can ask any more.
    drop(stop.wait_for(|stop| *stop).await);
}

/// The agent at work.
struct Serving<S, H> {
    all: Arc<Reconciler<S, H>>,
    volumes: Queue<Volume, S, H>,
    snapshots: Queue<Snapshot, S, H>,
    /// This host's StorageNode.
    report_watch: Watch<StorageNode>,
    parallel: usize,
    /// What the host tells by itself.
    news: UnboundedReceiver<News>,
    /// What is done besides, off every path.
    aside: JoinSet<Aside>,
    /// When the next report is due; `None` while one is made.
    report: Option<Instant>,
    pace: report::Pace,
    /// How long after a report that is made another one is due, since something has changed meanwhile.
    stale: Option<Duration>,
    /// Pools that were looked through for what was left behind.
    searched: Vec<String>,
    /// When ports that were held for what is to be linked answer at the latest.
    held: Option<Instant>,
    /// The volumes that they wait for, besides what runs: their pools are missing.
    awaited: Vec<String>,
    await_pools: Duration,
}

/// What was done besides.
enum Aside {
    /// A report; the pools as they were found.
    Reported(Result<Vec<PoolStatus>, Stop>),
    /// What was left behind; the datasets whose snapshots have moved.
    Collected(Vec<String>),
}

impl<S: Store, H: Host> Serving<S, H> {
    /// Waits for one thing and deals with it.
    async fn serve(&mut self) -> Result<(), Error> {
        tokio::select! {
            happened = self.volumes.happens() => {
                let effects = self.volumes.deal(happened)?;
                self.spread(&effects);
                self.open_when_linked().await?;
            }
            happened = self.snapshots.happens() => {
                let effects = self.snapshots.deal(happened)?;
                self.spread(&effects);
            }
            Some(change) = self.report_watch.next() => {
                if let Change::Gone(name) = change {
                    tracing::warn!(name, "somebody has removed what this host has told of its pools: it is told again");
                    self.all.told.forget();
                    self.report_within(report::SOON);
                }
            }
            Some(done) = self.aside.join_next() => self.besides(done?),
            Some(news) = self.news.recv() => self.heard(&news).await?,
            () = until(self.held) => {
                if !self.awaited.is_empty() {
                    tracing::warn!(volumes = ?self.awaited, "the portals answer without these volumes: nodes that have them give up");
                }
                self.open_ports().await?;
            }
            () = until(self.report) => {
                (self.report, self.stale) = (None, None);
                let all = self.all.clone();
                self.aside.spawn(async move { Aside::Reported(all.report().await) });
            }
        }
        Ok(())
    }

    /// Whoever the host's news may be about looks again.
    async fn heard(&mut self, news: &News) -> Result<(), Error> {
        match news {
            News::Zvol(dataset) => {
                tracing::info!(dataset, "a pool that was away is back");
                let (_, name) = dataset.rsplit_once('/').unwrap_or_default();
                self.volumes.nudge(|volume| volume.metadata.name == name);
            }
            News::Ports => {
                tracing::info!("a portal's address has appeared: all exports are linked to it");
                // The port is held already; pools that are waited for may take longer.
                self.held = self.held.max(Some(Instant::now() + HELD));
                self.volumes.nudge(|_| true);
                self.open_when_linked().await?;
            }
            News::Pools => self.report_within(report::SOON),
            News::Datasets => self.report_within(report::PERIOD),
        }
        Ok(())
    }

    /// What was held may answer, when nothing is left to link.
    async fn open_when_linked(&mut self) -> Result<(), Error> {
        if self.held.is_none() || !self.volumes.is_idle() {
            return Ok(());
        }
        let volumes = &self.volumes;
        self.awaited
            .retain(|name| volumes.newest(name).is_some_and(lacks_pool));
        if self.awaited.is_empty() {
            self.open_ports().await?;
        }
        Ok(())
    }

    /// What was held may answer.
    async fn open_ports(&mut self) -> Result<(), Error> {
        (self.held, self.awaited) = (None, Vec::new());
        let all = self.all.clone();
        tokio::task::spawn_blocking(move || all.host.open_ports()).await??;
        Ok(())
    }

    /// What one object's reconcile did that concerns others.
    fn spread(&mut self, effects: &Effects) {
        if effects.space {
            self.report_within(report::SOON);
        }
        self.moved(&effects.moved);
    }

    /// Something has changed: what is being told now may not have it.
    fn report_within(&mut self, wait: Duration) {
        let at = Instant::now() + wait;
        self.report = self.report.map(|due| due.min(at));
        self.stale = Some(self.stale.map_or(wait, |stale| stale.min(wait)));
    }

    /// Snapshots that were in these datasets are followed.
    fn moved(&mut self, datasets: &[String]) {
        if datasets.is_empty() {
            return;
        }
        self.snapshots.nudge(|snapshot| was_in(snapshot, datasets));
    }

    fn besides(&mut self, done: Aside) {
        match done {
            Aside::Reported(outcome) => self.reported(outcome),
            Aside::Collected(moved) => self.moved(&moved),
        }
    }

    /// The next report is due in a while. What was left behind is looked for now that the pools are known.
    fn reported(&mut self, outcome: Result<Vec<PoolStatus>, Stop>) {
        let wait = self.pace.after(outcome.as_deref().ok());
        let wait = self.stale.map_or(wait, |stale| wait.min(stale));
        self.report = Some(Instant::now() + wait);
        let pools: Vec<String> = match outcome {
            Ok(pools) => {
                let usable = pools.into_iter().filter(PoolStatus::is_usable);
                usable.map(|pool| pool.name).collect()
            }
            Err(error) => {
                tracing::warn!(%error, "what this host can give could not be told");
                return;
            }
        };
        let mut unsearched = pools.clone();
        if !self.all.was_left_behind() {
            unsearched.retain(|pool| !self.searched.contains(pool));
        }
        self.searched = pools;
        if !unsearched.is_empty() {
            let all = self.all.clone();
            self.aside
                .spawn_blocking(move || Aside::Collected(all.collect_all(&unsearched)));
        }
    }

    /// Lets what runs come to its end.
    async fn finish(mut self) -> Result<(), Error> {
        self.volumes.close();
        self.snapshots.close();
        let rest = async {
            while self.volumes.next_ended().await?.is_some() {}
            while self.snapshots.next_ended().await?.is_some() {}
            if self.held.is_some() {
                self.open_ports().await?;
            }
            while let Some(done) = self.aside.join_next().await {
                done?;
            }
            Ok(())
        };
        timeout(GRACE, rest).await.unwrap_or_else(|_| {
            tracing::warn!(
                "the kernel holds some reconciles: the next start finds out how they ended"
            );
            Ok(())
        })
    }
}

/// Whether a volume's pool was not there when it was last looked at.
fn lacks_pool(volume: &Volume) -> bool {
    let ready = volume.condition("Ready");
    ready.is_some_and(|c| c.reason == reason::POOL_NOT_FOUND)
}

/// Whether the snapshot was last seen in one of these datasets.
fn was_in(snapshot: &Snapshot, datasets: &[String]) -> bool {
    snapshot.status.members.iter().any(|taken| {
        let (dataset, _) = names::snapshot_halves(&taken.snapshot_path);
        datasets.iter().any(|moved| moved == dataset)
    })
}

/// That moment; never without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
