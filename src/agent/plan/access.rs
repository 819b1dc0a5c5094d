//! Who is admitted, and the fence (rule 4).
//!
//! Three sets: the hosts that are *mapped* (the controller's wish), *published* (the agent's word)
//! and *allowed* (configfs). A host leaves by: disallow, cut, and only then the agent's word. A host
//! that is allowed and in neither other set was admitted by an agent that died before it could say
//! so: it is first taken into the word, so that a crash after the disallow still knows whom to cut.

use std::collections::BTreeSet;

use zvolt_kernel::nvmet::ObservedSubsystem;

use super::super::steps::{Act, Backing, Step};
use super::export::NSID;
use super::published;
use crate::model::names;
use crate::model::volume::Volume;

/// The three sets.
#[derive(Debug)]
pub(super) struct Access {
    nqn: String,
    mapped: BTreeSet<String>,
    published: BTreeSet<String>,
    allowed: BTreeSet<String>,
}

impl Access {
    pub(super) fn of(volume: &Volume, export: Option<&ObservedSubsystem>) -> Self {
        let status = &volume.status;
        Self {
            nqn: names::subsystem_nqn(&volume.metadata.name),
            mapped: status
                .mapped_initiators
                .iter()
                .map(|m| m.initiator_id.clone())
                .collect(),
            published: status.published_initiators.iter().cloned().collect(),
            allowed: export
                .into_iter()
                .flat_map(|e| e.allowed_hosts.iter().cloned())
                .collect(),
        }
    }

    /// The steps of a fence; `None` when nobody has to go.
    pub(super) fn fence(
        &self,
        volume: &Volume,
        export: Option<&ObservedSubsystem>,
    ) -> Option<Vec<Step>> {
        let mut word = self.published.clone();
        word.extend(self.allowed.difference(&self.mapped).cloned());
        if word != self.published {
            return Some(vec![published(volume, word.into_iter().collect())]);
        }
        let leaving: BTreeSet<_> = self.published.difference(&self.mapped).cloned().collect();
        if leaving.is_empty() {
            return None;
        }
        let mut steps: Vec<Step> = leaving
            .into_iter()
            .map(|host| Act::DisallowHost {
                nqn: self.nqn.clone(),
                host,
            })
            .map(Step::from)
            .collect();
        if let Some(export) = export.filter(|e| !(e.ports.is_empty() && e.namespaces.is_empty())) {
            steps.push(
                Act::Cut {
                    nqn: self.nqn.clone(),
                    ports: export.ports.clone(),
                    drain: self.drain(volume, export),
                }
                .into(),
            );
        }
        let staying = self.published.intersection(&self.mapped).cloned().collect();
        steps.push(published(volume, staying));
        Some(steps)
    }

    /// The namespace to drain: only when nobody who stays has it.
    fn drain(&self, volume: &Volume, export: &ObservedSubsystem) -> Option<Backing> {
        let stays = |host: &&String| self.published.contains(*host) || self.allowed.contains(*host);
        if self.mapped.iter().any(|host| stays(&host)) {
            return None;
        }
        let namespace = export.namespaces.iter().find(|n| n.nsid == NSID)?;
        Some(Backing {
            nqn: self.nqn.clone(),
            dataset: names::zvol(&volume.spec.pool, &volume.metadata.name),
            uuid: namespace.uuid,
            nguid: namespace.nguid,
        })
    }

    /// Hosts that were admitted and are not allowed any more, as after a reboot.
    pub(super) fn readmit(&self) -> impl Iterator<Item = Act> {
        self.missing()
            .filter(|host| self.published.contains(*host))
            .map(|host| self.allow(host))
    }

    /// Hosts that are to be admitted for the first time.
    pub(super) fn admit(&self) -> impl Iterator<Item = Act> {
        self.missing()
            .filter(|host| !self.published.contains(*host))
            .map(|host| self.allow(host))
    }

    fn missing(&self) -> impl Iterator<Item = &String> {
        self.mapped.difference(&self.allowed)
    }

    fn allow(&self, host: &str) -> Act {
        Act::AllowHost {
            nqn: self.nqn.clone(),
            host: host.to_owned(),
        }
    }

    /// The hosts that are admitted, or may be.
    pub(super) fn admitted(&self) -> Vec<String> {
        self.published.union(&self.allowed).cloned().collect()
    }

    /// Whether the agent's word is what is mapped.
    pub(super) fn is_published(&self) -> bool {
        self.published == self.mapped
    }

    /// The hosts that are mapped, sorted.
    pub(super) fn mapped(&self) -> Vec<String> {
        self.mapped.iter().cloned().collect()
    }
}
