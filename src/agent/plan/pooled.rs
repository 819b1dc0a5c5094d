//! Hosts that find a volume in a subsystem that they have of this storage host, among others (`attach: pooled`).
//!
//! Such a host is admitted by a namespace of its own, and leaves by that namespace's end: disabling it cuts the host off
//! at once, waits for the requests that the target has taken, and touches nothing else in the subsystem. So there is
//! nothing between cut and admission that a crash could leave half done: the namespace is there or it is not.
//!
//! Hosts that may only read come by the volume's own subsystem, which such a volume has only then: Namespace
//! Write Protect is switched by a connection of the agent, which in a common subsystem would bring it every
//! volume of that node. The consumer on this very host uses the zvol itself, as ever.

use std::collections::BTreeSet;

use zvolt_kernel::nvmet::{ObservedNamespace, SubsystemSpec};

use super::super::observe::{Placed, Seen};
use super::super::steps::{Act, Backing, Step};
use super::Site;
use crate::model::names::{self, Identity, Pooled};
use crate::model::volume::{AttachMode, MappedInitiator, Placement, Volume};

/// Whether this host finds the volume among others.
pub(in super::super) fn is_pooled(
    volume: &Volume,
    initiator: &MappedInitiator,
    site: &Site,
) -> bool {
    let MappedInitiator {
        node_name,
        initiator_id,
        ..
    } = initiator;
    volume.spec.attach == AttachMode::Pooled
        && !initiator.read_only
        && *initiator_id != site.host()
        // The subsystem is called by the node.
        && names::is_node_id(node_name)
        && *initiator_id == names::host_nqn(node_name)
}

/// The hosts that are to find it so.
pub(in super::super) fn wanted<'a>(
    volume: &'a Volume,
    site: &'a Site,
) -> impl Iterator<Item = &'a MappedInitiator> {
    let mapped = volume.status.mapped_initiators.iter();
    mapped.filter(move |initiator| !volume.is_deleting() && is_pooled(volume, initiator, site))
}

/// The hosts that have it so, by the agent's word.
pub(super) fn recorded(volume: &Volume) -> impl Iterator<Item = &String> {
    volume.status.placements.iter().map(|p| &p.initiator_id)
}

/// A volume's places, and who is to have one.
pub(super) struct Places<'a> {
    volume: &'a Volume,
    placed: &'a [Placed],
    ports: &'a [u16],
    wanted: BTreeSet<&'a str>,
}

impl<'a> Places<'a> {
    pub(super) fn of(volume: &'a Volume, seen: &'a Seen, site: &'a Site) -> Self {
        let hosts = wanted(volume, site);
        Self {
            volume,
            placed: &seen.placed,
            ports: &seen.ports,
            wanted: hosts.map(|m| m.initiator_id.as_str()).collect(),
        }
    }

    /// The steps of a fence; `None` when nobody has to go.
    pub(super) fn fence(&self) -> Option<Vec<Step>> {
        let leaving: Vec<_> = self.placed.iter().filter(|p| !self.stays(p)).collect();
        if leaving.is_empty() {
            return None;
        }
        let mut steps: Vec<_> = leaving.iter().filter_map(|p| self.remove(p)).collect();
        let status = &self.volume.status;
        let left = |placement: &Placement| leaving.iter().any(|p| p.placement == *placement);
        let gone: BTreeSet<_> = status.placements.iter().filter(|p| left(p)).collect();
        if !gone.is_empty() {
            let mut status = status.clone();
            status.placements.retain(|p| !left(p));
            status
                .published_initiators
                .retain(|host| gone.iter().all(|p| p.initiator_id != *host));
            steps.push(Step::Status(Box::new(status)));
        }
        (!steps.is_empty()).then_some(steps)
    }

    fn stays(&self, placed: &Placed) -> bool {
        placed.is_free && self.wanted.contains(placed.placement.initiator_id.as_str())
    }

    /// Takes all of them away, told or not.
    pub(super) fn remove_all(&self) -> impl Iterator<Item = Step> {
        self.placed.iter().filter_map(|placed| self.remove(placed))
    }

    /// Nobody else's namespace is removed, whatever the status says of the place.
    fn remove(&self, placed: &Placed) -> Option<Step> {
        let namespace = placed.namespace()?;
        let tag = names::tag(&self.volume.metadata.name);
        let is_half_made = !namespace.enabled && placed.is_free;
        (is_half_made || names::tag_of(&namespace.nguid) == tag).then(|| {
            let Placement {
                target_nqn, nsid, ..
            } = &placed.placement;
            let (nqn, nsid) = (target_nqn.clone(), *nsid);
            Act::RemoveNamespace { nqn, nsid }.into()
        })
    }

    /// Whether all who are to have it are told, and find what the status tells.
    pub(super) fn are_as_status_says(&self) -> bool {
        let status = &self.volume.status;
        let is_right = |placed: &Placed| {
            let namespace = placed.namespace().filter(|n| {
                n.enabled
                    && Some(n.uuid) == status.device_uuid
                    && Some(hex(n)) == status.device_guid
            });
            status.placements.contains(&placed.placement)
                && namespace.is_some()
                && self.allow(placed).is_none()
                && self.links(placed).next().is_none()
        };
        let told: BTreeSet<_> = recorded(self.volume).map(String::as_str).collect();
        told == self.wanted && self.placed.iter().all(is_right)
    }

    /// The namespaces that are missing, with their subsystems and hosts.
    pub(super) fn build(&self, who: Who, identity: &Identity) -> Vec<Step> {
        let staying = self.placed.iter().filter(|placed| self.stays(placed));
        let who = staying.filter(|placed| self.is(placed, who));
        who.flat_map(|placed| {
            let mut acts = self.missing(placed, identity);
            acts.extend(self.allow(placed));
            acts
        })
        .map(Step::from)
        .collect()
    }

    /// The links that are missing, for the same: once all is built, and not before.
    pub(super) fn link(&self, who: Who) -> Vec<Act> {
        let staying = self.placed.iter().filter(|placed| self.stays(placed));
        let who = staying.filter(|placed| self.is(placed, who));
        who.flat_map(|placed| self.links(placed)).collect()
    }

    /// Tells the target of a size that the status does not tell yet, in every namespace that is not made anew.
    pub(super) fn revalidate(&self, bytes: u64, identity: &Identity) -> Vec<Step> {
        let status = &self.volume.status;
        if !status.was_ready || status.actual_capacity == Some(bytes) {
            return Vec::new();
        }
        let kept = self
            .placed
            .iter()
            .filter(|placed| self.stays(placed) && self.is_right(placed, identity));
        kept.map(|placed| {
            Step::Act(Act::Revalidate {
                nqn: placed.placement.target_nqn.clone(),
                nsid: placed.placement.nsid,
                dataset: self.dataset(),
                bytes,
            })
        })
        .collect()
    }

    /// All that are to be told.
    pub(super) fn placements(&self) -> Vec<Placement> {
        let staying = self.placed.iter().filter(|placed| self.stays(placed));
        let mut placements: Vec<_> = staying.map(|placed| placed.placement.clone()).collect();
        placements.sort();
        placements
    }

    fn is(&self, placed: &Placed, who: Who) -> bool {
        let is_told = self.volume.status.placements.contains(&placed.placement);
        is_told == (who == Who::Admitted)
    }

    fn missing(&self, placed: &Placed, identity: &Identity) -> Vec<Act> {
        let Placement {
            target_nqn: nqn,
            nsid,
            ..
        } = &placed.placement;
        let mut acts = Vec::new();
        let serial = Pooled::parse(nqn).map(|pooled| pooled.serial());
        if let Some(serial) = serial
            && placed.export.as_ref().is_none_or(|e| e.serial != serial)
        {
            acts.push(Act::Subsystem(SubsystemSpec {
                nqn: nqn.clone(),
                serial,
                model: "zvolt".into(),
            }));
        }
        if !self.is_right(placed, identity) {
            let dataset = self.dataset();
            acts.push(Act::Appear {
                dataset: dataset.clone(),
            });
            acts.push(Act::Namespace(Backing {
                nqn: nqn.clone(),
                nsid: *nsid,
                dataset,
                uuid: identity.namespace_uuid,
                nguid: identity.nguid,
            }));
        }
        acts
    }

    fn is_right(&self, placed: &Placed, identity: &Identity) -> bool {
        placed.namespace().is_some_and(|n| {
            n.enabled
                && n.uuid == identity.namespace_uuid
                && n.nguid == identity.nguid
                && placed.backing == Some(self.dataset())
        })
    }

    fn allow(&self, placed: &Placed) -> Option<Act> {
        let host = &placed.placement.initiator_id;
        let allowed = placed.export.iter().flat_map(|e| &e.allowed_hosts);
        (!allowed.into_iter().any(|allowed| allowed == host)).then(|| Act::AllowHost {
            nqn: placed.placement.target_nqn.clone(),
            host: host.clone(),
        })
    }

    fn links<'b>(&'b self, placed: &'b Placed) -> impl Iterator<Item = Act> + 'b {
        let linked = placed.export.as_ref().map_or(&[] as &[u16], |e| &e.ports);
        let missing = self.ports.iter().filter(|port| !linked.contains(port));
        missing.map(|port| Act::Link {
            nqn: placed.placement.target_nqn.clone(),
            port: *port,
        })
    }

    fn dataset(&self) -> String {
        names::zvol(&self.volume.spec.pool, &self.volume.metadata.name)
    }
}

/// Whom something is done for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Those who were told before.
    Admitted,
    /// Those who come now.
    Coming,
}

fn hex(namespace: &ObservedNamespace) -> String {
    uuid::Uuid::from_bytes(namespace.nguid).simple().to_string()
}
