//! The real kernel behind [`Host`].

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;
use zvolt_kernel::nvmet::{NamespaceSpec, ObservedNamespace, ObservedSubsystem, Target};
use zvolt_kernel::zfs::{self, PoolEvent, Properties, Zfs, ZvolSpec};
use zvolt_kernel::{SysError, block};

use super::loopback::Loopback;
use super::observe::{Dataset, Failure, Host, News, Reserved, Storage, Teller};
use super::plan::NSID;
use super::ports::Ports;
use super::snapshots::observe::Snapshots;
use super::steps::{Act, Backing};
use super::zvols::{self, Zvols};
use super::{AgentConfig, Roots, format, local};
use crate::model::names::{self, Pooled};
use crate::model::volume::{Provisioning, reason};

/// How long a new zvol's device may take (C-5: a busy pool takes its time, and the next try waits again).
const APPEAR: Duration = Duration::from_secs(20);

/// ZFS, nvmet and the block devices of this host.
#[derive(Debug)]
pub struct KernelHost {
    pub(super) zfs: Zfs,
    target: Target,
    pub(super) zvols: Arc<Zvols>,
    ports: Arc<Ports>,
    teller: Arc<Teller>,
    loopback: Loopback,
    node: String,
    /// Held while subsystems are made, which several volumes may share, and while entries below `hosts/` come and
    /// go: one volume's last host may be another's new one.
    hosts: Mutex<()>,
    /// Pools by name whose containers exist, with the GUID that the pool had.
    containers: Mutex<HashMap<String, u64>>,
    /// What a full GiB costs, by block size, of pools by GUID and size.
    costs: Mutex<HashMap<(u64, u64), BTreeMap<u64, u64>>>,
}

/// Has the agent told of what happens to the pools.
fn hear_of_pools(zfs: &Zfs, teller: Arc<Teller>) -> Result<(), zfs::Error> {
    zfs.on_pool_event(move |event| {
        match event {
            Ok(PoolEvent::State) => teller.tell(News::Pools),
            Ok(PoolEvent::History) => teller.tell(News::Datasets),
            Err(error) => tracing::warn!(
                %error,
                "no more events of the pools: what changes in them is seen some minutes later"
            ),
        }
        true
    })
}

impl KernelHost {
    /// Loads ZFS and listens for uevents.
    pub fn new(config: &AgentConfig) -> Result<Self, Failure> {
        let Roots { sys, dev, nvmet } = &config.roots;
        let teller = Arc::new(Teller::default());
        let target = Target::at(nvmet);
        let (portals, base) = (&config.portals, config.port_id_base);
        let ports = Ports::start(target.clone(), portals, base, teller.clone());
        let zfs = Zfs::load().map_err(Failure::kernel)?;
        hear_of_pools(&zfs, teller.clone()).map_err(Failure::kernel)?;
        Ok(Self {
            zvols: Zvols::start(sys, dev, teller.clone()).map_err(Failure::kernel)?,
            zfs,
            target,
            ports: ports.map_err(Failure::kernel)?,
            teller,
            loopback: Loopback::new(sys, dev, &config.node_name, config.loop_port()),
            node: config.node_name.clone(),
            hosts: Mutex::new(()),
            containers: Mutex::default(),
            costs: Mutex::default(),
        })
    }

    fn create(&self, spec: &ZvolSpec, provisioning: Provisioning) -> Result<(), Failure> {
        let pool = spec.dataset.split('/').next().unwrap_or_default();
        self.ensure_containers(pool)?;
        let mut spec = spec.clone();
        if provisioning == Provisioning::Thick {
            let bytes = self.full(pool, spec.volsize, spec.volblocksize)?;
            let reservation = ("refreservation".to_owned(), bytes.to_string());
            spec.properties.push(reservation);
        }
        self.zvols.expect(&spec.dataset);
        match self.zfs.create_zvol(&spec) {
            // Whose it is, the next look tells.
            Ok(()) | Err(zfs::Error::Exists { .. }) => Ok(()),
            Err(error) => {
                self.zvols.forget(&spec.dataset);
                self.forget_containers(pool);
                Err(of_zfs(error))
            }
        }
    }

    /// They may be gone.
    pub(super) fn forget_containers(&self, pool: &str) {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(pool);
    }

    pub(super) fn known_costs(&self, key: (u64, u64)) -> Option<BTreeMap<u64, u64>> {
        let costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        costs.get(&key).cloned()
    }

    pub(super) fn remember_costs(&self, key: (u64, u64), of_gib: BTreeMap<u64, u64>) {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        costs.retain(|(guid, _), _| *guid != key.0);
        costs.insert(key, of_gib);
    }

    /// Makes `<pool>/csi` and `<pool>/csi/block` once. The latter carries what all zvols below it inherit: a device for
    /// each, and none for its snapshots.
    pub(super) fn ensure_containers(&self, pool: &str) -> Result<(), Failure> {
        let guid = self.zfs.pool(pool).map_err(of_zfs)?.guid;
        if self
            .containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(pool)
            == Some(&guid)
        {
            return Ok(());
        }
        let parent = names::block_parent(pool);
        self.zfs.ensure_container(&parent).map_err(of_zfs)?;
        let properties = self.zfs.properties(&parent).map_err(of_zfs)?;
        for (property, value) in [("volmode", "dev"), ("snapdev", "hidden")] {
            if properties.get(property).is_none_or(|found| found != value) {
                self.zfs
                    .set_property(&parent, property, value)
                    .map_err(of_zfs)?;
            }
        }
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pool.to_owned(), guid);
        Ok(())
    }

    /// `refreservation` of a thick zvol: what a full one takes in this pool (C-81).
    fn full(&self, pool: &str, volsize: u64, block: u64) -> Result<u64, Failure> {
        self.zfs
            .reservation_for(pool, volsize, block)
            .map_err(of_zfs)
    }

    /// A dataset, from its properties.
    pub(super) fn dataset_of(
        &self,
        pool: &str,
        name: &str,
        properties: &Properties,
    ) -> Result<Dataset, Failure> {
        let own = self.zfs.own_properties(name).map_err(of_zfs)?;
        Dataset::from_properties(name, properties, own, |size, block| {
            self.full(pool, size, block)
        })
    }

    /// Sets a property of the dataset with this GUID, and reads it back (rule 9).
    fn set(&self, name: &str, guid: u64, property: &str, value: &str) -> Result<(), Failure> {
        let pool = name.split('/').next().unwrap_or_default();
        let look = || {
            let properties = self.zfs.properties(name).map_err(of_zfs)?;
            let dataset = self.dataset_of(pool, name, &properties)?;
            match dataset.guid == guid {
                true => Ok(dataset),
                false => Err(Failure::passing(
                    reason::DATASET_FOREIGN,
                    format!("{name} was replaced by another dataset: {property} is not set on it"),
                )),
            }
        };
        look()?;
        match value {
            "" => self.zfs.inherit_property(name, property),
            _ => self.zfs.set_property(name, property, value),
        }
        .map_err(of_zfs)?;
        let found = look()?;
        match is_set(&found, property, value) {
            true => Ok(()),
            false => Err(Failure::passing(
                reason::BAD_PROPERTY,
                format!(
                    "{name}: {property}={value:?} was set, but ZFS does not say so: see zfs get {property} {name}"
                ),
            )),
        }
    }

    /// Tells the target of a new size, once the device has it.
    fn revalidate(&self, nqn: &str, nsid: u32, dataset: &str, bytes: u64) -> Result<(), Failure> {
        let device = self.device(dataset)?;
        let file =
            File::open(&device).map_err(|e| Failure::kernel(SysError::io("open", &device, &e)))?;
        let size = block::size_bytes(&file, &device).map_err(Failure::kernel)?;
        if size != bytes {
            return Err(Failure::kernel(format!(
                "{} has {size} bytes, and volsize of {dataset} is {bytes}: the kernel log may say why",
                device.display()
            )));
        }
        self.target
            .revalidate_size(nqn, nsid)
            .map_err(Failure::kernel)
    }

    fn device(&self, dataset: &str) -> Result<PathBuf, Failure> {
        self.zvols.device(dataset).ok_or_else(|| {
            Failure::kernel(format!(
                "zvol {dataset} has no device: see its property volmode"
            ))
        })
    }

    fn namespace(&self, backing: &Backing) -> Result<(), Failure> {
        let namespace = NamespaceSpec {
            nsid: backing.nsid,
            device: self.device(&backing.dataset)?,
            uuid: backing.uuid,
            nguid: backing.nguid,
        };
        self.target
            .converge_namespace(&backing.nqn, &namespace)
            .map(drop)
            .map_err(Failure::kernel)
    }

    fn cut(&self, nqn: &str, ports: &[u16], drain: Option<&Backing>) -> Result<(), Failure> {
        for port in ports {
            self.target
                .unlink_port(nqn, *port)
                .map_err(Failure::kernel)?;
        }
        if let Some(backing) = drain {
            self.target
                .remove_namespace(nqn, backing.nsid)
                .map_err(Failure::kernel)?;
            self.namespace(backing)?;
        }
        for port in ports {
            self.ports.link(nqn, *port)?;
        }
        Ok(())
    }

    fn close_loop(&self, nqn: &str) -> Result<(), Failure> {
        let _held = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        self.loopback.close(&self.target, nqn)
    }

    /// A switch that failed leaves nothing open.
    fn or_close(&self, nqn: &str, outcome: Result<(), Failure>) -> Result<(), Failure> {
        if outcome.is_err()
            && let Err(error) = self.close_loop(nqn)
        {
            tracing::warn!(nqn, %error, "the loop port stays open: the next try closes it");
        }
        outcome
    }

    /// A zvol says EIO for a full pool and for a quota that is reached: ZFS is asked which it is.
    fn room_for(&self, dataset: &str) -> Result<(), Failure> {
        let properties = self.zfs.properties(dataset).map_err(of_zfs)?;
        let available = properties
            .get("available")
            .and_then(|text| text.parse::<u64>().ok());
        match available {
            Some(available) if available < ROOM_TO_FORMAT => Err(Failure::lasting(
                reason::NO_SPACE,
                format!(
                    "{dataset} has {available} bytes left for its filesystem: free space in the pool, or raise the \
                     quota above it (zfs get -r quota,available)"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// What cannot be mended is told in the log, and by the node that is to mount it: nothing else depends on it.
    fn mend(&self, dataset: &str, uuid: Uuid) {
        let mended = self
            .device(dataset)
            .and_then(|device| format::mend(&device, dataset, uuid));
        match mended {
            Ok(None) => {}
            Ok(Some(said)) => tracing::info!(dataset, said, "its filesystem had errors: mended"),
            Err(error) => tracing::warn!(dataset, %error, "its filesystem is not mended"),
        }
    }

    fn disallow(&self, nqn: &str, host: &str) -> Result<(), Failure> {
        let _held = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        self.target
            .disallow_host(nqn, host)
            .map_err(Failure::kernel)?;
        self.target
            .remove_host(host)
            .map(drop)
            .map_err(Failure::kernel)
    }

    /// In the order of rule 8. The hosts go here, under the lock, so that the room finds none left.
    fn teardown(&self, nqn: &str, hosts: &[String]) -> Result<(), Failure> {
        let Some(found) = self.target.observe(nqn).map_err(Failure::kernel)? else {
            return Ok(());
        };
        for port in found.ports {
            self.target
                .unlink_port(nqn, port)
                .map_err(Failure::kernel)?;
        }
        for host in hosts {
            self.disallow(nqn, host)?;
        }
        self.target
            .remove_subsystem(nqn)
            .map(drop)
            .map_err(Failure::kernel)
    }
}

impl Host for KernelHost {
    fn listen(&self, listener: UnboundedSender<News>) {
        self.teller.listen(listener);
    }

    fn ports(&self) -> Vec<u16> {
        self.ports.usable()
    }

    fn converge_ports(&self) -> Result<(), Failure> {
        self.ports.converge()
    }

    fn hold_ports(&self) -> Result<bool, Failure> {
        self.ports.hold()
    }

    fn open_ports(&self) -> Result<(), Failure> {
        self.ports.open()
    }

    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure> {
        self.target.observe(nqn).map_err(Failure::kernel)
    }

    fn export_one(&self, nqn: &str, nsid: u32) -> Result<Option<ObservedSubsystem>, Failure> {
        self.target.observe_one(nqn, nsid).map_err(Failure::kernel)
    }

    fn pooled(&self) -> Result<Vec<ObservedSubsystem>, Failure> {
        let mut found = Vec::new();
        for nqn in self.target.subsystems().map_err(Failure::kernel)? {
            if Pooled::parse(&nqn).is_some_and(|pooled| pooled.owner == self.node) {
                found.extend(self.export(&nqn)?);
            }
        }
        Ok(found)
    }

    fn backing(&self, namespace: &ObservedNamespace) -> Result<Option<String>, Failure> {
        match zvols::name_of(&namespace.device) {
            Ok(name) => Ok(Some(name)),
            Err(error) if !namespace.device.exists() => {
                tracing::warn!(%error, "the device behind an export is gone");
                Ok(None)
            }
            // Not knowing is no reason to re-make a namespace under its consumers.
            Err(error) => Err(Failure::kernel(error)),
        }
    }

    fn storage(
        &self,
        pool: &str,
        dataset: &str,
        export: Option<&ObservedSubsystem>,
    ) -> Result<Storage, Failure> {
        self.zvols.miss(dataset);
        let Some(pool) = self.pool(pool)? else {
            return Ok(Storage::default());
        };
        self.zvols.seen(dataset);
        // Every other question to a suspended pool would hang.
        if pool.health == "SUSPENDED" {
            return Ok(Storage {
                pool: Some(pool),
                ..Storage::default()
            });
        }
        let found = match self.zfs.properties(dataset) {
            Ok(properties) => Some(self.dataset_of(&pool.name, dataset, &properties)?),
            Err(zfs::Error::NotFound { .. }) => {
                // Rule 2: a pool that has just gone makes all its datasets missing.
                if self.pool(&pool.name)?.as_ref().map(|p| p.guid) != Some(pool.guid) {
                    return Err(Failure::passing(
                        reason::POOL_NOT_FOUND,
                        format!(
                            "pool {} went away while {dataset} was looked for",
                            pool.name
                        ),
                    ));
                }
                None
            }
            Err(error) => return Err(Failure::kernel(error)),
        };
        let namespace =
            export.and_then(|e| e.namespaces.iter().find(|n| n.nsid == NSID && n.enabled));
        Ok(Storage {
            pool: Some(pool),
            dataset: found,
            backing: namespace.map_or(Ok(None), |n| self.backing(n))?,
        })
    }

    fn act(&self, act: &Act, deadline: Instant) -> Result<(), Failure> {
        match act {
            Act::Create { spec, provisioning } => self.create(spec, *provisioning),
            Act::Set {
                dataset,
                guid,
                property,
                value,
            } => self.set(dataset, *guid, property, value),
            Act::Revalidate {
                nqn,
                nsid,
                dataset,
                bytes,
            } => self.revalidate(nqn, *nsid, dataset, *bytes),
            Act::Appear { dataset } => self
                .zvols
                .appear(dataset, deadline.min(Instant::now() + APPEAR))
                .map(drop),
            Act::Format {
                dataset,
                options,
                uuid,
            } => format::make(&self.device(dataset)?, dataset, options, *uuid)
                .map_err(|failure| self.room_for(dataset).err().unwrap_or(failure)),
            Act::RecordFormat { dataset, record } => self
                .zfs
                .set_property(dataset, &super::observe::property("format"), record)
                .map_err(of_zfs),
            Act::Subsystem(spec) => {
                let _held = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
                let made = self.target.converge_subsystem(spec);
                made.map(drop).map_err(Failure::kernel)
            }
            Act::Namespace(backing) => self.namespace(backing),
            Act::RemoveNamespace { nqn, nsid } => {
                let removed = self.target.remove_namespace(nqn, *nsid);
                removed.map(drop).map_err(Failure::kernel)
            }
            Act::Link { nqn, port } => self.ports.link(nqn, *port),
            Act::AllowHost { nqn, host } => {
                let _held = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
                self.target
                    .allow_host(nqn, host)
                    .map(drop)
                    .map_err(Failure::kernel)
            }
            Act::DisallowHost { nqn, host } => self.disallow(nqn, host),
            Act::Unlink { nqn, port } => self
                .target
                .unlink_port(nqn, *port)
                .map(drop)
                .map_err(Failure::kernel),
            Act::LoopOpen { nqn } => {
                let opened = {
                    let _held = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
                    self.loopback.open(&self.target, nqn)
                };
                self.or_close(nqn, opened)
            }
            Act::WriteProtect { nqn, state } => {
                let switched = self.loopback.protect(nqn, *state, deadline);
                self.or_close(nqn, switched)
            }
            Act::LoopClose { nqn } => self.close_loop(nqn),
            Act::Mend { dataset, uuid } => {
                self.mend(dataset, *uuid);
                Ok(())
            }
            Act::Released { dataset, mode } => local::released(&self.zvols, dataset, *mode),
            Act::Cut { nqn, ports, drain } => self.cut(nqn, ports, drain.as_ref()),
            Act::Teardown { nqn, hosts } => self.teardown(nqn, hosts),
            Act::Destroy { dataset } => match self.zfs.destroy(dataset) {
                Ok(()) | Err(zfs::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(of_zfs(error)),
            },
            Act::Snapshot { names, properties } => {
                self.zfs.snapshot(names, properties).map_err(of_zfs)
            }
            Act::Clone { spec, thick } => self.clone_zvol(spec, *thick),
            Act::Promote { from, clone } => self.promote(from, clone),
            Act::DestroySnapshot { snapshot, when } => self.destroy_snapshot(snapshot, *when),
            Act::Unreserve { dataset } => self
                .zfs
                .set_property(dataset, "refreservation", "none")
                .map_err(of_zfs),
            Act::Rollback { snapshot } => self.zfs.rollback_to(snapshot).map_err(of_zfs),
            Act::Bury { from, to } => self.bury(from, to),
        }
    }
}

/// Whether the dataset has what was set.
fn is_set(dataset: &Dataset, property: &str, value: &str) -> bool {
    match (property, value) {
        ("volsize", _) => dataset.volsize.map(|size| size.to_string()).as_deref() == Some(value),
        ("refreservation", "none") => dataset.reserved == Reserved::Nothing,
        ("refreservation", _) => dataset.reserved == Reserved::All,
        _ => dataset.own.get(property).map_or("", String::as_str) == value,
    }
}

/// The least room that a filesystem's first writes need, in bytes.
const ROOM_TO_FORMAT: u64 = 1 << 20;

/// ZFS's refusal in the words of the API.
pub(super) fn of_zfs(error: zfs::Error) -> Failure {
    match &error {
        zfs::Error::NoSpace { .. } => Failure::lasting(
            reason::NO_SPACE,
            format!("{error}: free some space, or ask for less"),
        ),
        zfs::Error::BadProperty { .. } => Failure::lasting(reason::BAD_PROPERTY, error.to_string()),
        zfs::Error::Busy { .. } => Failure::passing(
            reason::BUSY,
            format!("{error}; what hangs on it is never destroyed with it, and it is tried again"),
        ),
        zfs::Error::NotFound { name } if !name.contains('/') => {
            Failure::lasting(reason::POOL_NOT_FOUND, format!("pool {error}: import it"))
        }
        _ => Failure::kernel(error),
    }
}
