//! The Controller service: writes intent into the store and waits for the agent. Touches no kernel.
//!
//! Any number of controllers may serve one store, and none leads: each judges the newest state of an object, and its write
//! or delete is refused when somebody else has written since. Room that two promise at once is the agent's to refuse.

mod change;
mod create;
mod delete;
mod follow;
mod health;
mod holders;
mod list;
mod page;
mod place;
mod publish;
mod service;
mod snapshot;
mod source;
mod supply;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

pub(super) use self::service::ControllerService;
pub(super) use self::snapshot::SnapshotWanted;
use super::status::Refusal;
use crate::model::volume::Volume;
use crate::ops::Journal;
use crate::store::{Objects, Store};

/// The controller over one store.
#[derive(Debug)]
pub(super) struct Controller<S> {
    store: Arc<S>,
    site: Site,
    places: place::Places,
    journal: Journal,
}

/// Where the controller works, and for whom.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// Where new volumes live, until the first agent has said what it has; with none, they wait for that.
    pub(super) owner: Option<String>,
    /// CSI node IDs that may have volumes; none is any.
    pub(super) consumers: BTreeSet<String>,
}

impl Site {
    fn has_consumer(&self, node: &str) -> bool {
        self.consumers.is_empty()
            || self.consumers.contains(node)
            || self.owner.as_deref() == Some(node)
    }
}

impl<S: Store> Controller<S> {
    pub(super) fn new(store: Arc<S>, site: Site, journal: Journal) -> Self {
        Self {
            store,
            site,
            places: place::Places::default(),
            journal,
        }
    }

    /// The volume, or that there is none.
    async fn existing(&self, handle: &str, deadline: Instant) -> Result<Volume, Refusal> {
        follow::within(deadline, self.store.volumes().get(handle))
            .await?
            .ok_or_else(|| holders::unknown(handle))
    }
}
