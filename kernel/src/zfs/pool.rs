//! Pools: identity, health, space.

use nix::errno::Errno;

use super::dataset::check_size;
use super::ffi::Libraries;
use super::ffi::nvlist::{NvList, NvRef, Value};
use super::ffi::pool::PoolHandle;
use super::{Error, Zfs, error, name};
use crate::error::SysError;

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `SUSPENDED`, `FAULTED`, …
    pub health: String,
    /// Bytes of all top-level vdevs, parity included; 0 when the pool cannot tell. What a dataset can
    /// have is its `available`, not this.
    pub size: u64,
    /// Bytes of `size` that are in use.
    pub allocated: u64,
    /// Bytes of `size` that are not.
    pub free: u64,
    /// Whether data is known to be lost (`zpool status -v` lists it).
    pub has_errors: bool,
    /// Whether it was imported read-only.
    pub is_read_only: bool,
    /// The top-level vdevs.
    pub vdevs: Vec<Vdev>,
}

/// A device of a pool, or a group of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vdev {
    /// A device's path; a group as in `zpool status`: `mirror-0`, `raidz1-0`.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `OFFLINE`, `FAULTED`, `UNAVAIL`, `REMOVED`; empty when the pool cannot tell.
    pub state: String,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Reads that came back wrong.
    pub checksum_errors: u64,
    /// The members of a group.
    pub children: Vec<Vdev>,
}

impl Zfs {
    /// An imported pool; [`Error::NotFound`] when none of this name is imported.
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        let pool = name::dataset(name)?;
        let name = name.to_owned();
        self.worker.ask(move |handle| {
            let mut open = handle
                .open_pool(&pool)
                .map_err(|failure| error::failed("zpool_open_canfail", &name, failure))?;
            read(&mut open, handle.libraries())
        })?
    }

    /// All imported pools, by name.
    pub fn pools(&self) -> Result<Vec<Pool>, Error> {
        self.worker.ask(|handle| {
            let mut pools = handle
                .pools()
                .map_err(|failure| error::failed("zpool_iter", "", failure))?;
            let mut pools = pools
                .iter_mut()
                .map(|open| read(open, handle.libraries()))
                .collect::<Result<Vec<_>, _>>()?;
            pools.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(pools)
        })?
    }

    /// Bytes of `available` that a full zvol of this size takes, metadata and the parity and padding of raidz
    /// included (`zvol_volsize_to_reservation`; C-81): what `refreservation` is for a thick one. For one copy
    /// of the data.
    pub fn reservation_for(
        &self,
        pool: &str,
        volsize: u64,
        volblocksize: u64,
    ) -> Result<u64, Error> {
        check_size(pool, volsize, volblocksize)?;
        if volsize > VOLSIZE_MAX {
            return Err(Error::BadProperty {
                name: pool.to_owned(),
                property: "volsize".to_owned(),
                value: volsize.to_string(),
                detail: "is more than 1 EiB".to_owned(),
            });
        }
        let pool_c = name::dataset(pool)?;
        let pool = pool.to_owned();
        self.worker.ask(move |handle| {
            let mut open = handle
                .open_pool(&pool_c)
                .map_err(|failure| error::failed("zpool_open_canfail", &pool, failure))?;
            let mut list = NvList::new(handle.libraries())
                .map_err(|errno| SysError::new("nvlist_alloc", &pool, errno))?;
            list.add_u64(c"volblocksize", volblocksize)
                .map_err(|errno| SysError::new("nvlist_add_uint64", &pool, errno))?;
            Ok(open.reservation(volsize, &mut list))
        })?
    }
}

/// libzfs multiplies without looking for an overflow.
const VOLSIZE_MAX: u64 = 1 << 60;

fn read(open: &mut PoolHandle<'_>, libraries: &Libraries) -> Result<Pool, Error> {
    let name = open.name();
    let (size, allocated, free, read_only) = (
        open.number(c"size"),
        open.number(c"allocated"),
        open.number(c"free"),
        open.number(c"readonly"),
    );
    let bad =
        |what: &str| SysError::new("zpool_get_config", &name, Errno::EBADMSG).with_detail(what);
    let config = open.config().ok_or_else(|| bad("there is none"))?;
    let guid = number(config, "pool_guid").ok_or_else(|| bad("the pool tells no GUID"))?;
    Ok(Pool {
        guid,
        health: open.health().unwrap_or_default(),
        size: size.unwrap_or_default(),
        allocated: allocated.unwrap_or_default(),
        free: free.unwrap_or_default(),
        has_errors: number(config, "error_count").is_some_and(|count| count > 0),
        is_read_only: read_only.is_some_and(|value| value != 0),
        vdevs: match config.get("vdev_tree") {
            Some(Value::List(root)) => children(root, libraries),
            _ => Vec::new(),
        },
        name,
    })
}

fn children(vdev: NvRef<'_>, libraries: &Libraries) -> Vec<Vdev> {
    let Some(Value::Lists(children)) = vdev.get("children") else {
        return Vec::new();
    };
    children
        .into_iter()
        .filter(|&child| !GONE.contains(&text(child, "type").as_str()))
        .map(|child| describe(child, libraries))
        .collect()
}

/// What stays of a top-level vdev that was removed.
const GONE: [&str; 3] = ["hole", "indirect", "missing"];

fn describe(vdev: NvRef<'_>, libraries: &Libraries) -> Vdev {
    let stats = match vdev.get("vdev_stats") {
        Some(Value::Numbers(stats)) => stats,
        _ => Vec::new(),
    };
    let stat = |at: usize| stats.get(at).copied();
    Vdev {
        name: vdev_name(vdev),
        guid: number(vdev, "guid").unwrap_or_default(),
        state: stat(stats::STATE).map_or_else(String::new, |state| {
            libraries.vdev_state(state, stat(stats::AUX).unwrap_or_default())
        }),
        read_errors: stat(stats::READ_ERRORS).unwrap_or_default(),
        write_errors: stat(stats::WRITE_ERRORS).unwrap_or_default(),
        checksum_errors: stat(stats::CHECKSUM_ERRORS).unwrap_or_default(),
        children: children(vdev, libraries),
    }
}

/// Where a number stands in `vdev_stat_t` (`sys/fs/zfs.h`), which only grows at its end.
mod stats {
    /// After a time stamp.
    pub(super) const STATE: usize = 1;
    pub(super) const AUX: usize = 2;
    /// After five numbers of space, and operations and bytes of six types each.
    pub(super) const READ_ERRORS: usize = 3 + 5 + 2 * 6;
    pub(super) const WRITE_ERRORS: usize = READ_ERRORS + 1;
    pub(super) const CHECKSUM_ERRORS: usize = WRITE_ERRORS + 1;
}

fn vdev_name(vdev: NvRef<'_>) -> String {
    if let Some(Value::Text(path)) = vdev.get("path") {
        return path;
    }
    let kind = text(vdev, "type");
    let parity = number(vdev, "nparity").map_or_else(String::new, |parity| parity.to_string());
    match number(vdev, "id") {
        Some(id) => format!("{kind}{parity}-{id}"),
        None => kind,
    }
}

fn number(list: NvRef<'_>, name: &str) -> Option<u64> {
    match list.get(name) {
        Some(Value::U64(number)) => Some(number),
        _ => None,
    }
}

fn text(list: NvRef<'_>, name: &str) -> String {
    match list.get(name) {
        Some(Value::Text(text)) => text,
        _ => String::new(),
    }
}
