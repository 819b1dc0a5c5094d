//! What is asked of ZFS about snapshots, and whose they are.

use std::collections::BTreeSet;

use zvolt_kernel::zfs::{self, Pool};

use super::super::observe::{Dataset, Failure, property};
use crate::model::names;
use crate::model::storage_node::PoolStatus;

/// What of the storage host's kernel only snapshots, clones and the report need. All calls block. What is not
/// there is believed only with its pool imported.
pub trait Snapshots: Send + Sync + 'static {
    /// The pool; `None` when none of that name is imported.
    fn pool(&self, name: &str) -> Result<Option<Pool>, Failure>;
    /// A dataset; `None` when it is not there.
    fn dataset(&self, dataset: &str) -> Result<Option<Dataset>, Failure>;
    /// A dataset's snapshots, oldest first; none of a dataset that is not there.
    fn snapshots(&self, dataset: &str) -> Result<Vec<zfs::Snapshot>, Failure>;
    /// One snapshot; `None` when it is not there.
    fn snapshot(&self, path: &str) -> Result<Option<zfs::Snapshot>, Failure>;
    /// The snapshots called `…@component` of all zvols of ours.
    fn called(&self, pool: &str, component: &str) -> Result<Vec<zfs::Snapshot>, Failure>;
    /// The zvols of deleted volumes, by full name.
    fn buried(&self, pool: &str) -> Result<Vec<String>, Failure>;
    /// All imported pools, and what they can give.
    fn pools(&self) -> Result<Vec<PoolStatus>, Failure>;
}

/// The snapshots of a zvol, and what hangs on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    /// Oldest first.
    pub snapshots: Vec<zfs::Snapshot>,
    /// Clones of the newest that has any, if they are not ours.
    pub strangers: BTreeSet<String>,
}

/// Whose a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A Snapshot object stands for it.
    Object,
    /// A volume was cloned from it, or is to be.
    Clone,
    /// Somebody else's.
    Stranger,
}

impl Family {
    /// Looks at the snapshots of `dataset`.
    pub fn look(host: &impl Snapshots, dataset: &str) -> Result<Self, Failure> {
        let snapshots = host.snapshots(dataset)?;
        let mut strangers = BTreeSet::new();
        let newest = snapshots.iter().rfind(|s| !s.clones.is_empty());
        for clone in newest.iter().flat_map(|s| &s.clones) {
            if !is_ours(clone, host.dataset(clone)?.as_ref()) {
                strangers.insert(clone.clone());
            }
        }
        Ok(Self {
            snapshots,
            strangers,
        })
    }
}

/// Whether a dataset is a zvol that this driver has made, live or deleted.
pub fn is_ours(name: &str, dataset: Option<&Dataset>) -> bool {
    let pool = name.split('/').next().unwrap_or_default();
    let is_placed = names::is_below(name, &names::block_parent(pool))
        || names::is_below(name, &names::deleted_parent(pool));
    // One that has vanished meanwhile is no reason to wait.
    is_placed && dataset.is_none_or(|d| d.volsize.is_some() && d.handle.is_some())
}

/// Whose `snapshot` is, by the properties that it was made with.
pub fn owner(snapshot: &zfs::Snapshot) -> Owner {
    let has = |key: &str| snapshot.user_properties.contains_key(&property(key));
    if has("clone") {
        Owner::Clone
    } else if has("uid") {
        Owner::Object
    } else {
        Owner::Stranger
    }
}

/// Whether `snapshot` was taken for the object with this uid.
pub fn is_of(snapshot: &zfs::Snapshot, uid: &str) -> bool {
    snapshot
        .user_properties
        .get(&property("uid"))
        .is_some_and(|found| found == uid)
}

/// Whether `snapshot` was taken to make the volume with this uid.
pub fn is_for(snapshot: &zfs::Snapshot, uid: &str) -> bool {
    snapshot
        .user_properties
        .get(&property("clone"))
        .is_some_and(|found| found == uid)
}
