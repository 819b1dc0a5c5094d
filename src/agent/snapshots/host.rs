//! The real ZFS behind snapshots and clones.

use std::collections::BTreeMap;

use zvolt_kernel::zfs::{self, CloneSpec, Pool};

use super::super::host::{KernelHost, of_zfs};
use super::super::observe::{Dataset, Failure};
use super::observe::Snapshots;
use crate::model::names;
use crate::model::storage_node::PoolStatus;
use crate::model::volume::reason;

impl Snapshots for KernelHost {
    fn pool(&self, name: &str) -> Result<Option<Pool>, Failure> {
        match self.zfs.pool(name) {
            Ok(pool) => Ok(Some(pool)),
            Err(zfs::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Failure::kernel(error)),
        }
    }

    fn dataset(&self, dataset: &str) -> Result<Option<Dataset>, Failure> {
        let found = self.there(dataset, self.zfs.properties(dataset))?;
        found
            .map(|properties| {
                let pool = dataset.split('/').next().unwrap_or_default();
                self.dataset_of(pool, dataset, &properties)
            })
            .transpose()
    }

    fn snapshots(&self, dataset: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        let found = self.there(dataset, self.zfs.snapshots(dataset))?;
        Ok(found.unwrap_or_default())
    }

    fn snapshot(&self, path: &str) -> Result<Option<zfs::Snapshot>, Failure> {
        self.there(path, self.zfs.snapshot_info(path))
    }

    fn called(&self, pool: &str, component: &str) -> Result<Vec<zfs::Snapshot>, Failure> {
        let mut found = Vec::new();
        for parent in [names::block_parent(pool), names::deleted_parent(pool)] {
            let here = self.zfs.snapshots_called(&parent, component);
            found.append(&mut here.map_err(of_zfs)?);
        }
        Ok(found)
    }

    fn buried(&self, pool: &str) -> Result<Vec<String>, Failure> {
        self.zfs
            .children(&names::deleted_parent(pool))
            .map_err(of_zfs)
    }

    fn pools(&self) -> Result<Vec<PoolStatus>, Failure> {
        let pools = self.zfs.pools().map_err(Failure::kernel)?;
        let told = pools.iter().map(|pool| {
            // One pool in trouble does not hide the others; nothing is promised of it.
            self.pool_status(pool).unwrap_or_else(|error| {
                tracing::warn!(%error, pool = pool.name, "what the pool can give is not known");
                health_of(pool)
            })
        });
        Ok(told.collect())
    }
}

impl KernelHost {
    /// What was found, or `None` when its pool is imported and it is not there.
    fn there<T>(&self, name: &str, found: Result<T, zfs::Error>) -> Result<Option<T>, Failure> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(zfs::Error::NotFound { .. }) => {
                let pool = name.split(['/', '@']).next().unwrap_or_default();
                match self.pool(pool)? {
                    Some(_) => Ok(None),
                    None => Err(Failure::passing(
                        reason::POOL_NOT_FOUND,
                        format!(
                            "pool {pool} is not imported: nobody can say whether {name} is there"
                        ),
                    )),
                }
            }
            Err(error) => Err(Failure::kernel(error)),
        }
    }

    /// Makes a clone. Whose it is when there is one already, the next look tells.
    pub(in super::super) fn clone_zvol(
        &self,
        spec: &CloneSpec,
        thick: Option<u64>,
    ) -> Result<(), Failure> {
        let pool = spec.dataset.split('/').next().unwrap_or_default();
        self.ensure_containers(pool)?;
        let mut spec = spec.clone();
        if let Some(block) = thick {
            let volsize = spec.properties.iter().find(|(key, _)| key == "volsize");
            let volsize = volsize.and_then(|(_, bytes)| bytes.parse().ok());
            let bytes = self
                .zfs
                .reservation_for(pool, volsize.unwrap_or_default(), block)
                .map_err(of_zfs)?;
            spec.properties
                .push(("refreservation".into(), bytes.to_string()));
        }
        self.zvols.expect(&spec.dataset);
        match self.zfs.clone_zvol(&spec) {
            Ok(()) | Err(zfs::Error::Exists { .. }) => Ok(()),
            Err(error) => {
                self.zvols.forget(&spec.dataset);
                self.forget_containers(pool);
                Err(of_zfs(error))
            }
        }
    }

    pub(in super::super) fn promote(&self, from: &str, clone: &str) -> Result<(), Failure> {
        self.zfs.promote(clone).map_err(|error| match &error {
            zfs::Error::Exists { name } => Failure::passing(
                reason::BUSY,
                format!(
                    "{clone} is to take over the snapshots of {from}, and one of them has the name of its own {name}: \
                     zfs rename or zfs destroy that"
                ),
            ),
            _ => of_zfs(error),
        })
    }

    /// Destroys a snapshot; fine when it is gone.
    pub(in super::super) fn destroy_snapshot(
        &self,
        snapshot: &str,
        when: zfs::Destroy,
    ) -> Result<(), Failure> {
        match self.zfs.destroy_snapshot(snapshot, when) {
            Ok(()) | Err(zfs::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(of_zfs(error)),
        }
    }

    /// Renames a zvol into the place for deleted volumes, and takes its device away: nobody is to see it.
    pub(in super::super) fn bury(&self, from: &str, to: &str) -> Result<(), Failure> {
        let pool = from.split('/').next().unwrap_or_default();
        self.zfs
            .ensure_container(&names::deleted_parent(pool))
            .map_err(of_zfs)?;
        self.zfs.rename(from, to).map_err(of_zfs)?;
        self.zfs.set_property(to, "volmode", "none").map_err(of_zfs)
    }

    /// What a pool can give. Of one that is suspended only its health is asked: all else would hang.
    fn pool_status(&self, pool: &Pool) -> Result<PoolStatus, Failure> {
        let mut status = health_of(pool);
        if !status.is_usable() {
            return Ok(status);
        }
        let parent = names::block_parent(&pool.name);
        let above = parent.rsplit_once('/').map_or("", |(above, _)| above);
        for dataset in [&parent, above, &pool.name] {
            let properties = match self.zfs.properties(dataset) {
                Ok(properties) => properties,
                Err(zfs::Error::NotFound { .. }) => continue,
                Err(error) => return Err(Failure::kernel(error)),
            };
            let number = |key: &str| properties.get(key).and_then(|text| text.parse().ok());
            status.available = number("available").unwrap_or_default();
            if *dataset == parent {
                status.used = number("used").unwrap_or_default();
            }
            break;
        }
        status.cost_of_gib = self.costs(pool)?;
        Ok(status)
    }

    /// What a full GiB costs by block size. It changes only with the vdevs: it is asked once for each size of the
    /// pool.
    fn costs(&self, pool: &Pool) -> Result<BTreeMap<u64, u64>, Failure> {
        let key = (pool.guid, pool.size);
        if let Some(known) = self.known_costs(key) {
            return Ok(known);
        }
        let costs = (9..=17)
            .map(|shift| 1 << shift)
            .map(|block| {
                let cost = self.zfs.reservation_for(&pool.name, 1 << 30, block);
                Ok((block, cost.map_err(of_zfs)?))
            })
            .collect::<Result<BTreeMap<_, _>, Failure>>()?;
        self.remember_costs(key, costs.clone());
        Ok(costs)
    }
}

fn health_of(pool: &Pool) -> PoolStatus {
    PoolStatus {
        name: pool.name.clone(),
        guid: pool.guid.to_string(),
        health: pool.health.clone(),
        ..PoolStatus::default()
    }
}
