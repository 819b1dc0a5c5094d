//! The storage side: brings the Volumes of its node's pools to where they should be.
//!
//! Woken by the store's watch, it looks at ZFS and the NVMe target, plans (all rules are in [`plan`]),
//! runs the steps and writes the status. One reconcile a volume at a time, different volumes in
//! parallel. It keeps no state: after a crash it looks again.

mod format;
mod host;
mod loopback;
mod observe;
mod plan;
mod ports;
mod reconcile;
#[cfg(test)]
mod sim;
mod slot;
mod status;
mod steps;
#[cfg(test)]
mod tests;
mod zvols;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use crate::model::volume::Volume;
use crate::ops::Journal;
use crate::store::{self, Change, Objects, Store, Watch};
use host::KernelHost;
use observe::{Failure, Host, News};
use plan::Site;
use reconcile::{Begin, Outcome, Prepared, Reconciler};
use slot::{Next, Slot};

/// How long a stop waits for the reconciles that run.
const GRACE: Duration = Duration::from_secs(30);

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
        let reconciler = Arc::new(Reconciler {
            store: self.store.clone(),
            host: self.host,
            site: Site {
                node: self.config.node_name.clone(),
                portal: portals.first().map(ToString::to_string).unwrap_or_default(),
                loop_port: self.config.loop_port(),
            },
            journal: self.journal,
            runtime: tokio::runtime::Handle::current(),
        });
        let mut serving = Serving {
            watch: self.store.volumes().watch(None),
            reconciler,
            parallel: self.config.parallel.max(1),
            slots: HashMap::new(),
            made: 0,
            busy: HashMap::new(),
            waiting: VecDeque::new(),
            retries: BTreeSet::new(),
            tasks: JoinSet::new(),
            news,
        };
        tokio::select! {
            started = serving.start(&*self.store) => started?,
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
    reconciler: Arc<Reconciler<S, H>>,
    watch: Watch<Volume>,
    parallel: usize,
    slots: HashMap<String, Slot>,
    /// Counts slots.
    made: u64,
    /// Volumes with a reconcile that runs, and the slot that it runs for.
    busy: HashMap<String, u64>,
    /// Reconciles that wait for their turn.
    waiting: VecDeque<(String, u64, Begin)>,
    /// When to try which volume again.
    retries: BTreeSet<(Instant, String)>,
    tasks: JoinSet<Outcome>,
    /// What the host tells by itself.
    news: UnboundedReceiver<News>,
}

impl<S: Store, H: Host> Serving<S, H> {
    /// Ports, then every export, then one reconcile of every volume.
    async fn start(&mut self, store: &S) -> Result<(), Error> {
        let reconciler = self.reconciler.clone();
        tokio::task::spawn_blocking(move || reconciler.host.converge_ports()).await??;
        let node = &self.reconciler.site.node;
        let listed = store
            .volumes()
            .list()
            .await?
            .into_iter()
            .filter(|v| v.spec.owner_node == *node);
        let volumes = listed.map(Arc::new);
        let mut building = JoinSet::new();
        let mut prepared = Vec::new();
        for volume in volumes {
            if building.len() >= self.parallel
                && let Some(done) = building.join_next().await
            {
                prepared.push(done?);
            }
            let reconciler = self.reconciler.clone();
            building.spawn_blocking(move || reconciler.prepare(volume));
        }
        while let Some(done) = building.join_next().await {
            prepared.push(done?);
        }
        let built = prepared.iter_mut().filter_map(|p| p.built.take()).collect();
        let reconciler = self.reconciler.clone();
        tokio::task::spawn_blocking(move || reconciler.link(built)).await?;
        for Prepared {
            volume, versions, ..
        } in prepared
        {
            self.made += 1;
            let mut slot = Slot::listed(self.made, &volume, versions);
            let next = slot.again();
            let name = volume.metadata.name.clone();
            self.slots.insert(name.clone(), slot);
            self.follow(&name, next);
        }
        while let Some(done) = self.tasks.join_next().await {
            self.ended(done?);
        }
        Ok(())
    }

    /// Waits for one thing and deals with it.
    async fn serve(&mut self) -> Result<(), Error> {
        let happens = async {
            tokio::select! {
                change = self.watch.next() => Happened::Change(change),
                Some(done) = self.tasks.join_next() => Happened::Ended(done),
                Some(news) = self.news.recv() => Happened::News(news),
            }
        };
        let happened = match self.retries.first() {
            None => happens.await,
            Some((at, _)) => timeout_at(*at, happens).await.unwrap_or(Happened::Time),
        };
        match happened {
            Happened::Change(None) => return Err(Error::WatchEnded),
            Happened::Change(Some(Change::Gone(name))) => self.vanished(&name),
            Happened::Change(Some(Change::Put(volume))) => self.changed(volume),
            Happened::Ended(done) => self.ended(done?),
            Happened::News(News::Zvol(dataset)) => {
                let (_, name) = dataset.rsplit_once('/').unwrap_or_default();
                tracing::info!(dataset, "a pool that was away is back");
                self.poke(name);
            }
            Happened::News(News::Ports) => {
                tracing::info!("a portal's address has appeared: all exports are linked to it");
                let names: Vec<String> = self.slots.keys().cloned().collect();
                names.iter().for_each(|name| self.poke(name));
            }
            Happened::Time => {
                if let Some((_, name)) = self.retries.pop_first()
                    && let Some(slot) = self.slots.get_mut(&name)
                {
                    let next = slot.again();
                    self.follow(&name, next);
                }
            }
        }
        Ok(())
    }

    fn changed(&mut self, volume: Arc<Volume>) {
        let name = volume.metadata.name.clone();
        let next = match self.slots.get_mut(&name) {
            Some(slot) if slot.is_of(&volume) => slot.event(volume),
            _ if volume.spec.owner_node != self.reconciler.site.node => return,
            _ => {
                self.made += 1;
                let mut slot = Slot::seen(self.made, &volume);
                let next = slot.again();
                self.slots.insert(name.clone(), slot);
                next
            }
        };
        self.follow(&name, next);
    }

    fn vanished(&mut self, name: &str) {
        self.slots.remove(name);
        self.retries.retain(|(_, waiting)| waiting != name);
    }

    fn ended(&mut self, outcome: Outcome) {
        let name = outcome.name.clone();
        let id = self.busy.remove(&name);
        if let Some(slot) = self.slots.get_mut(&name).filter(|slot| Some(slot.id) == id) {
            let next = slot.ended(outcome);
            self.follow(&name, next);
        }
        self.spawn();
    }

    fn poke(&mut self, name: &str) {
        if let Some(slot) = self.slots.get_mut(name) {
            let next = slot.poke();
            self.follow(name, next);
        }
    }

    fn follow(&mut self, name: &str, next: Next) {
        match next {
            Next::Rest => {}
            Next::Retry(at) => {
                self.retries.insert((at, name.to_owned()));
            }
            Next::Reconcile(begin) => {
                self.retries.retain(|(_, waiting)| waiting != name);
                if let Some(slot) = self.slots.get(name) {
                    self.waiting.push_back((name.to_owned(), slot.id, begin));
                }
                self.spawn();
            }
        }
    }

    /// Starts what waits, as far as the bound goes; one volume is never worked on twice at a time.
    fn spawn(&mut self) {
        while self.tasks.len() < self.parallel
            && let Some(at) = self
                .waiting
                .iter()
                .position(|(name, ..)| !self.busy.contains_key(name))
            && let Some((name, id, begin)) = self.waiting.remove(at)
        {
            let Some(slot) = self.slots.get(&name).filter(|slot| slot.id == id) else {
                continue;
            };
            let begin = slot.begin(begin);
            self.busy.insert(name.clone(), id);
            let reconciler = self.reconciler.clone();
            self.tasks
                .spawn_blocking(move || reconciler.reconcile(name, begin));
        }
    }

    /// Lets what runs come to its end.
    async fn finish(mut self) -> Result<(), Error> {
        self.waiting.clear();
        let rest = async {
            while let Some(done) = self.tasks.join_next().await {
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

/// What ends a wait.
enum Happened {
    Change(Option<Change<Volume>>),
    Ended(Result<Outcome, JoinError>),
    News(News),
    Time,
}
