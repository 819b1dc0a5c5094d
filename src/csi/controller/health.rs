//! ControllerGetVolumeHealth and ControllerListVolumeHealth: what agents say of volumes and pools.
//!
//! | what | health |
//! | --- | --- |
//! | the dataset is missing, with the right pool imported | DATA_LOSS |
//! | the pool is missing, replaced, or suspended; any other final error | INACCESSIBLE |
//! | the pool is degraded, or full below a thin volume; the agent's last try failed; a change is not in ZFS | DEGRADED |

use std::collections::BTreeMap;
use std::time::Instant;

use zvolt_proto::csi;
use zvolt_proto::csi::VolumeHealthErrorType as Health;
use zvolt_proto::csi::volume_health::VolumeHealthEntry;

use super::Controller;
use super::follow::within;
use super::page::Page;
use super::place::pool_in;
use crate::csi::status::Refusal;
use crate::model::storage_node::StorageNode;
use crate::model::volume::{Condition, Provisioning, State, Volume, reason};
use crate::store::{Objects, Store};

impl<S: Store> Controller<S> {
    /// What is wrong with one volume.
    pub(super) async fn health(
        &self,
        handle: &str,
        deadline: Instant,
    ) -> Result<csi::ControllerGetVolumeHealthResponse, Refusal> {
        let volume = self.existing(handle, deadline).await?;
        let nodes = within(deadline, self.store.storage_nodes().list()).await?;
        Ok(csi::ControllerGetVolumeHealthResponse {
            volume_health: Some(of(&volume, &nodes)),
        })
    }

    /// What is wrong, with every volume with which something is.
    pub(super) async fn list_health(
        &self,
        page: Page,
        deadline: Instant,
    ) -> Result<csi::ControllerListVolumeHealthResponse, Refusal> {
        let nodes = within(deadline, self.store.storage_nodes().list()).await?;
        let volumes = within(deadline, self.store.volumes().list()).await?;
        let all: Vec<_> = volumes.iter().map(|volume| of(volume, &nodes)).collect();
        let adverse = all
            .into_iter()
            .filter(|health| !health.health_statuses.is_empty())
            .collect();
        let (entries, next_token) = page.of(adverse, |health| health.volume_id.clone());
        Ok(csi::ControllerListVolumeHealthResponse {
            entries,
            next_token,
        })
    }
}

/// Every entry once for a status and a reason.
type Entries = BTreeMap<(i32, String), String>;

fn of(volume: &Volume, nodes: &[StorageNode]) -> csi::VolumeHealth {
    let mut entries = Entries::new();
    // One that never was, or is on its way out, has no health.
    if volume.status.was_ready && !volume.is_deleting() {
        of_itself(volume, &mut entries);
        of_its_pool(volume, nodes, &mut entries);
    }
    let entry = |((status, reason), message)| VolumeHealthEntry {
        status,
        reason,
        message,
    };
    csi::VolumeHealth {
        volume_id: volume.metadata.name.clone(),
        health_statuses: entries.into_iter().map(entry).collect(),
    }
}

fn of_itself(volume: &Volume, entries: &mut Entries) {
    let failed = volume.condition("Ready").filter(|c| c.status != "True");
    match failed {
        Some(condition) => add(entries, grade(volume, condition), condition),
        None if volume.status.state == State::Error => {
            let message = "its agent does not say why".to_owned();
            entries.insert((Health::Inaccessible.into(), "Error".into()), message);
        }
        None => {}
    }
    if let Some(condition) = volume.refusal() {
        add(entries, Health::Degraded, condition);
    }
}

fn grade(volume: &Volume, condition: &Condition) -> Health {
    match condition.reason.as_str() {
        reason::DATASET_MISSING => Health::DataLoss,
        reason::POOL_NOT_FOUND | reason::POOL_REPLACED | reason::DATASET_FOREIGN => {
            Health::Inaccessible
        }
        _ if volume.status.state == State::Error => Health::Inaccessible,
        _ => Health::Degraded,
    }
}

fn add(entries: &mut Entries, status: Health, condition: &Condition) {
    let key = (status.into(), condition.reason.clone());
    entries.insert(key, condition.message.clone());
}

fn of_its_pool(volume: &Volume, nodes: &[StorageNode], entries: &mut Entries) {
    let owner = &volume.spec.owner_node;
    if !nodes.iter().any(|node| node.spec.node_name == *owner) {
        return;
    }
    let mut found = |status: Health, reason: String, message: String| {
        entries.insert((status.into(), reason), message);
    };
    let Some(pool) = pool_in(nodes, volume) else {
        let message = format!("pool {} is not imported on {owner}", volume.spec.pool);
        return found(
            Health::Inaccessible,
            reason::POOL_NOT_FOUND.to_owned(),
            message,
        );
    };
    if pool.health != "ONLINE" {
        let status = match pool.is_usable() {
            true => Health::Degraded,
            false => Health::Inaccessible,
        };
        let message = format!(
            "pool {} on {owner} is {}: see `zpool status`",
            pool.name, pool.health
        );
        found(status, format!("Pool{}", camel_case(&pool.health)), message);
    }
    if pool.available == 0 && volume.spec.tuning.provisioning == Provisioning::Thin {
        let message = format!(
            "pool {} on {owner} is full: writes to new blocks fail until some space is freed",
            pool.name
        );
        found(Health::Degraded, "PoolFull".to_owned(), message);
    }
}

/// `DEGRADED` as `Degraded`.
fn camel_case(word: &str) -> String {
    let mut chars = word.chars().filter(char::is_ascii_alphanumeric);
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    let rest = chars.map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(rest).collect()
}
