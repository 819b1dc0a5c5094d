//! The StorageNode API: what a storage host can give, as its agent last saw it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::object::{Metadata, Object};

/// One storage host. Its object's name is the handle of its node ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNode {
    /// Name, versions.
    pub metadata: Metadata,
    /// Who it is.
    pub spec: StorageNodeSpec,
    /// What it has.
    #[serde(default)]
    pub status: StorageNodeStatus,
}

/// Who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeSpec {
    /// CSI node ID, as in a Volume's `ownerNode`.
    pub node_name: String,
}

/// What it has. Written by its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageNodeStatus {
    /// Every imported pool, by name.
    pub pools: Vec<PoolStatus>,
    /// When the agent last looked, RFC 3339, UTC.
    pub observed_at: String,
}

/// One imported pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its GUID, decimal.
    pub guid: String,
    /// `ONLINE`, `DEGRADED`, `SUSPENDED`, …
    pub health: String,
    /// Bytes that the parent dataset of block volumes can still give: quotas and reservations counted.
    pub available: u64,
    /// Bytes in use below that parent.
    pub used: u64,
    /// What 1 GiB of a fully written zvol costs, in bytes, by `volblocksize` in bytes: raidz pads (C-81).
    pub cost_of_gib: BTreeMap<u64, u64>,
}

impl PoolStatus {
    /// All of it, in bytes: what is in use and what is left.
    pub fn whole(&self) -> u64 {
        self.available.saturating_add(self.used)
    }

    /// The largest zvol of this block size that `space` bytes of the pool can hold, in bytes, a multiple of
    /// `block`.
    pub fn filled_by(&self, space: u64, block: u64) -> u64 {
        const GIB: u128 = 1 << 30;
        let cost = self.cost_of_gib.get(&block).copied().unwrap_or(1 << 30);
        let bytes = u128::from(space) * GIB / u128::from(cost.max(1));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        bytes - bytes % block.max(1)
    }

    /// What a fully written zvol of `bytes` costs, in bytes.
    pub fn cost(&self, bytes: u64, block: u64) -> u64 {
        let cost = self.cost_of_gib.get(&block).copied().unwrap_or(1 << 30);
        let bytes = u128::from(bytes) * u128::from(cost) / (1 << 30);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Whether volumes can be made in it: `ONLINE` or `DEGRADED`.
    pub fn is_usable(&self) -> bool {
        matches!(self.health.as_str(), "ONLINE" | "DEGRADED")
    }
}

impl Object for StorageNode {
    const KIND: &'static str = "storage node";
    const PLURAL: &'static str = "storagenodes";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    fn take_spec(&mut self, other: &Self) -> bool {
        let differs = self.spec != other.spec;
        self.spec = other.spec.clone();
        differs
    }

    fn take_status(&mut self, other: &Self) {
        self.status = other.status.clone();
    }

    fn reset_status(&mut self) {
        self.status = StorageNodeStatus::default();
    }

    fn must_be_durable(&self, _next: &Self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_81_room_counts_what_raidz_adds() {
        let pool = PoolStatus {
            available: 3 << 30,
            cost_of_gib: BTreeMap::from([(16 << 10, 3 << 29)]),
            ..PoolStatus::default()
        };
        assert_eq!(pool.filled_by(3 << 30, 16 << 10), 2 << 30);
        assert_eq!(pool.cost(2 << 30, 16 << 10), 3 << 30);
        assert_eq!(
            pool.filled_by(3 << 30, 4 << 10),
            3 << 30,
            "unknown costs are taken as none"
        );
    }
}
