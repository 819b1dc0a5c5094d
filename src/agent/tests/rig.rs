//! A store, a simulated host, and an agent that can be stopped and started again.

use zvolt_kernel::zfs;

use super::*;
use crate::agent::snapshots::observe::Snapshots;
use crate::model::object::Object;
use crate::model::storage_node::PoolStatus;
use crate::model::volume::MappedInitiator;

/// A shared host, so that an agent can die and another one find what it left.
impl Host for Arc<SimHost> {
    fn listen(&self, listener: mpsc::UnboundedSender<News>) {
        (**self).listen(listener);
    }

    fn ports(&self) -> Vec<u16> {
        (**self).ports()
    }

    fn converge_ports(&self) -> Result<(), Failure> {
        (**self).converge_ports()
    }

    fn hold_ports(&self) -> Result<bool, Failure> {
        (**self).hold_ports()
    }

    fn open_ports(&self) -> Result<(), Failure> {
        (**self).open_ports()
    }

    fn export(&self, nqn: &str) -> Result<Option<zvolt_kernel::nvmet::ObservedSubsystem>, Failure> {
        (**self).export(nqn)
    }

    fn export_one(
        &self,
        nqn: &str,
        nsid: u32,
    ) -> Result<Option<zvolt_kernel::nvmet::ObservedSubsystem>, Failure> {
        (**self).export_one(nqn, nsid)
    }

    fn pooled(&self) -> Result<Vec<zvolt_kernel::nvmet::ObservedSubsystem>, Failure> {
        (**self).pooled()
    }

    fn backing(
        &self,
        namespace: &zvolt_kernel::nvmet::ObservedNamespace,
    ) -> Result<Option<String>, Failure> {
        (**self).backing(namespace)
    }

    fn storage(
        &self,
        pool: &str,
        dataset: &str,
        export: Option<&zvolt_kernel::nvmet::ObservedSubsystem>,
    ) -> Result<observe::Storage, Failure> {
        (**self).storage(pool, dataset, export)
    }

    fn act(&self, act: &steps::Act, deadline: std::time::Instant) -> Result<(), Failure> {
        (**self).act(act, deadline)
    }
}

impl Snapshots for Arc<SimHost> {
    fn pool(&self, name: &str) -> Result<Option<zfs::Pool>, Failure> {
        (**self).pool(name)
    }

    fn dataset(&self, dataset: &str) -> Result<Option<observe::Dataset>, Failure> {
        (**self).dataset(dataset)
    }

    fn snapshots(&self, dataset: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        (**self).snapshots(dataset)
    }

    fn snapshot(&self, path: &str) -> Result<Option<zfs::Snapshot>, Failure> {
        (**self).snapshot(path)
    }

    fn called(&self, pool: &str, component: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        (**self).called(pool, component)
    }

    fn buried(&self, pool: &str) -> Result<Vec<String>, Failure> {
        (**self).buried(pool)
    }

    fn pools(&self) -> Result<Vec<PoolStatus>, Failure> {
        (**self).pools()
    }
}

pub(super) struct Rig {
    pub(super) dir: tempfile::TempDir,
    pub(super) store: Arc<DirStore>,
    pub(super) host: Arc<SimHost>,
    pub(super) journal: Journal,
    pub(super) stop: watch::Sender<bool>,
    pub(super) agent: Option<JoinHandle<Result<(), Error>>>,
}

impl Rig {
    pub(super) fn idle() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(DirStore::open(dir.path()).unwrap());
        Self {
            dir,
            store,
            host: Arc::new(SimHost::with_pool()),
            journal: Journal::new(1000),
            stop: watch::channel(false).0,
            agent: None,
        }
    }

    pub(super) async fn new() -> Self {
        let mut rig = Self::idle();
        rig.start().await;
        rig
    }

    /// Starts an agent and waits until it is ready.
    pub(super) async fn start(&mut self) {
        let config = AgentConfig {
            node_name: "storage0".into(),
            portals: vec![
                "192.0.2.1:4420".parse().unwrap(),
                "[2001:db8::1]:4420".parse().unwrap(),
            ],
            port_id_base: 1,
            roots: Roots::default(),
            parallel: 4,
            await_pools: std::time::Duration::from_secs(15),
            namespaces: 2,
        };
        let agent = Agent::on(
            self.host.clone(),
            config,
            self.store.clone(),
            self.journal.clone(),
        )
        .unwrap();
        let (ready, is_ready) = oneshot::channel();
        self.stop.send_replace(false);
        self.agent = Some(tokio::spawn(agent.run(ready, self.stop.subscribe())));
        soon(is_ready).await.unwrap();
    }

    pub(super) async fn stop(&mut self) {
        self.stop.send_replace(true);
        soon(self.agent.take().unwrap()).await.unwrap().unwrap();
    }

    /// As the controller does: changes the mapped initiators.
    pub(super) async fn map(&self, name: &str, nodes: &[&str]) {
        let mapped = nodes.iter().map(|n| initiator(n)).collect();
        self.write_mapped(name, mapped).await;
    }

    /// The same for nodes that may only read.
    pub(super) async fn map_readers(&self, name: &str, nodes: &[&str]) {
        let mapped = nodes.iter().map(|n| MappedInitiator {
            read_only: true,
            ..initiator(n)
        });
        self.write_mapped(name, mapped.collect()).await;
    }

    async fn write_mapped(&self, name: &str, mapped: Vec<MappedInitiator>) {
        loop {
            let mut volume = self.get(name).await;
            volume.status.mapped_initiators = mapped.clone();
            match self.store.volumes().update_status(volume).await {
                Err(store::Error::Conflict(..)) => {}
                written => break written.map(drop).unwrap(),
            }
        }
    }

    pub(super) async fn get(&self, name: &str) -> Volume {
        self.store.volumes().get(name).await.unwrap().unwrap()
    }

    /// Waits until the Volume is so; `None` is one that has vanished.
    pub(super) async fn until(
        &self,
        name: &str,
        so: impl Fn(Option<&Volume>) -> bool,
    ) -> Option<Volume> {
        let mut watch = self.store.volumes().watch(Some(name));
        soon(async {
            loop {
                let now = self.store.volumes().get(name).await.unwrap();
                if so(now.as_ref()) {
                    return now;
                }
                watch.next().await.expect("the store is there");
            }
        })
        .await
    }

    pub(super) async fn until_ready(&self, name: &str) -> Volume {
        self.until(name, |v| v.is_some_and(|v| v.status.state == State::Ready))
            .await
            .unwrap()
    }

    pub(super) async fn until_published(&self, name: &str, nodes: &[&str]) -> Volume {
        let hosts: Vec<_> = nodes.iter().map(|n| names::host_nqn(n)).collect();
        self.until(name, |v| {
            v.is_some_and(|v| v.status.published_initiators == hosts)
        })
        .await
        .unwrap()
    }

    /// The journal's entries of a volume, once there are so many: they come after the last write.
    pub(super) async fn operations(&self, name: &str, count: usize) -> Vec<Operation> {
        soon(async {
            loop {
                let operations = self.journal.operations(Some(name));
                if operations.len() >= count {
                    return operations;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    pub(super) async fn names(&self, name: &str, count: usize) -> Vec<String> {
        self.operations(name, count)
            .await
            .into_iter()
            .map(|o| o.name.into_owned())
            .collect()
    }

    /// The host tells by itself.
    pub(super) fn news(&self, news: News) {
        let listener = self.host.listener.lock().unwrap();
        listener.as_ref().unwrap().send(news).unwrap();
    }

    pub(super) fn looks(&self) -> usize {
        *self.host.looks.lock().unwrap()
    }

    /// All that the agent does about one volume is in order: after this, what came before is done.
    pub(super) async fn settled(&self) {
        self.store.volumes().create(volume("last")).await.unwrap();
        self.until_ready("last").await;
        ask_to_delete(self.store.volumes(), "last").await;
        self.until("last", |v| v.is_none()).await;
    }
}

/// Asks for an object's deletion, whatever the agent writes meanwhile.
pub(super) async fn ask_to_delete<T: Object>(objects: &impl Objects<T>, name: &str) {
    loop {
        let object = objects.get(name).await.unwrap().expect("it is there");
        match objects.delete(&object).await {
            Err(store::Error::Conflict(..)) => {}
            asked => return asked.unwrap(),
        }
    }
}

pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future)
        .await
        .expect("within 20 s")
}

pub(super) fn version(volume: &Volume) -> u64 {
    volume.metadata.resource_version.parse().unwrap()
}
