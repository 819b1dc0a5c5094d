//! Who is admitted, and the fence (rule 4).
//!
//! Three sets: the hosts that are *mapped* (the controller's wish), *published* (the agent's word)
//! and *allowed* (configfs). A host leaves by: disallow, cut, and only then the agent's word. A host
//! that is allowed and in neither other set was admitted by an agent that died before it could say
//! so: it is first taken into the word, so that a crash after the disallow still knows whom to cut.
//!
//! The consumer on this very host uses the zvol itself: it is never allowed, and no cut reaches it. It leaves when
//! nobody here has the device any more, and after all others.

use std::collections::BTreeSet;

use zvolt_kernel::nvmet::ObservedSubsystem;

use super::super::steps::{Act, Backing, Step};
use super::export::NSID;
use super::export::Need;
use super::{Site, links_of, pooled, published};
use crate::model::names;
use crate::model::volume::{AttachMode, FsType, Volume, VolumeMode, WriteProtect};

/// The three sets, of the hosts that come by the volume's own subsystem or not over the network at all.
#[derive(Debug)]
pub(super) struct Access {
    nqn: String,
    /// The consumer on this host.
    own: String,
    mapped: BTreeSet<String>,
    published: BTreeSet<String>,
    allowed: BTreeSet<String>,
    /// Published too, but in a subsystem with others.
    pooled: BTreeSet<String>,
}

impl Access {
    pub(super) fn of(volume: &Volume, export: Option<&ObservedSubsystem>, site: &Site) -> Self {
        let status = &volume.status;
        let agent = site.agent();
        let pooled: BTreeSet<_> = pooled::recorded(volume).cloned().collect();
        Self {
            nqn: names::subsystem_nqn(&volume.metadata.name),
            own: site.host(),
            mapped: status
                .mapped_initiators
                .iter()
                .filter(|m| !pooled::is_pooled(volume, m, site))
                .map(|m| m.initiator_id.clone())
                .collect(),
            published: status
                .published_initiators
                .iter()
                .filter(|host| !pooled.contains(*host))
                .cloned()
                .collect(),
            // The agent lets itself in and out: it is nobody's consumer.
            allowed: export
                .into_iter()
                .flat_map(|e| e.allowed_hosts.iter().cloned())
                .filter(|host| *host != agent)
                .collect(),
            pooled,
        }
    }

    /// Whether there must be a subsystem for them.
    pub(super) fn need(&self, volume: &Volume) -> Need {
        let mut all = self
            .mapped
            .iter()
            .chain(&self.published)
            .chain(&self.allowed);
        match volume.spec.attach {
            AttachMode::Pooled if all.all(|host| *host == self.own) => Need::Nobody,
            AttachMode::PerVolume | AttachMode::Pooled => Need::Somebody,
        }
    }

    /// The word that these hosts are admitted, with those who are so elsewhere.
    fn word(&self, volume: &Volume, hosts: impl IntoIterator<Item = String>) -> Step {
        let mut all = self.pooled.clone();
        all.extend(hosts);
        published(volume, all.into_iter().collect())
    }

    /// The steps of a fence; `None` when nobody has to go.
    pub(super) fn fence(
        &self,
        volume: &Volume,
        export: Option<&ObservedSubsystem>,
        site: &Site,
    ) -> Option<Vec<Step>> {
        let mut word = self.published.clone();
        word.extend(self.allowed.difference(&self.mapped).cloned());
        if word != self.published {
            return Some(vec![self.word(volume, word)]);
        }
        let mut leaving: BTreeSet<_> = self.published.difference(&self.mapped).cloned().collect();
        if leaving.is_empty() {
            return None;
        }
        let mut steps = match leaving.contains(&self.own) {
            true if leaving.len() == 1 => self.release(volume, export, site),
            is_among_others => {
                if is_among_others {
                    leaving.remove(&self.own);
                }
                self.cut(&leaving, volume, export, site)
            }
        };
        let staying: Vec<String> = self.published.difference(&leaving).cloned().collect();
        let is_unused = staying.is_empty()
            && self.pooled.is_empty()
            && volume.status.mapped_initiators.is_empty();
        steps.push(self.word(volume, staying));
        if is_unused {
            steps.extend(mend(volume));
        }
        Some(steps)
    }

    /// The consumer on this host goes. Should it have come over the network, its way there is closed too: with no
    /// port linked meanwhile, so that a crash on the way leaves nothing to remember.
    fn release(
        &self,
        volume: &Volume,
        export: Option<&ObservedSubsystem>,
        site: &Site,
    ) -> Vec<Step> {
        let mut acts = vec![Act::Released {
            dataset: names::zvol(&volume.spec.pool, &volume.metadata.name),
            mode: volume.spec.volume_mode,
        }];
        if let Some(export) = export.filter(|_| self.allowed.contains(&self.own)) {
            let nqn = || self.nqn.clone();
            let ports: Vec<u16> = links_of(export, site).collect();
            acts.extend(ports.iter().map(|&port| Act::Unlink { nqn: nqn(), port }));
            if let Some(drain) = self.drain(volume, export) {
                acts.push(Act::Cut {
                    nqn: nqn(),
                    ports: Vec::new(),
                    drain: Some(drain),
                });
            }
            acts.push(Act::DisallowHost {
                nqn: nqn(),
                host: self.own.clone(),
            });
            acts.extend(ports.iter().map(|&port| Act::Link { nqn: nqn(), port }));
        }
        acts.into_iter().map(Step::from).collect()
    }

    fn cut(
        &self,
        leaving: &BTreeSet<String>,
        volume: &Volume,
        export: Option<&ObservedSubsystem>,
        site: &Site,
    ) -> Vec<Step> {
        let mut steps: Vec<Step> = leaving
            .iter()
            .map(|host| Act::DisallowHost {
                nqn: self.nqn.clone(),
                host: host.clone(),
            })
            .map(Step::from)
            .collect();
        let Some(export) = export else { return steps };
        let ports: Vec<u16> = links_of(export, site).collect();
        if !(ports.is_empty() && export.namespaces.is_empty()) {
            steps.push(
                Act::Cut {
                    nqn: self.nqn.clone(),
                    ports,
                    drain: self.drain(volume, export),
                }
                .into(),
            );
        }
        steps
    }

    /// The namespace to drain: only when nobody who stays has it, and when it takes writes at all: one that is
    /// protected has none to wait for, and would lose its protection.
    fn drain(&self, volume: &Volume, export: &ObservedSubsystem) -> Option<Backing> {
        let stays = |host: &&String| self.published.contains(*host) || self.allowed.contains(*host);
        if volume.status.write_protect == WriteProtect::On
            || self.mapped.iter().any(|host| stays(&host))
        {
            return None;
        }
        let namespace = export.namespaces.iter().find(|n| n.nsid == NSID)?;
        Some(Backing {
            nqn: self.nqn.clone(),
            nsid: NSID,
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

    /// The consumer on this host needs no way in: it uses the zvol itself.
    fn missing(&self) -> impl Iterator<Item = &String> {
        self.mapped
            .difference(&self.allowed)
            .filter(|host| **host != self.own)
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

    /// Whether nobody has it so.
    pub(super) fn is_empty(&self) -> bool {
        self.published.is_empty() && self.allowed.is_empty()
    }

    /// Whether the agent's word is what is mapped.
    pub(super) fn is_published(&self) -> bool {
        self.published == self.mapped
    }
}

/// After the word, so that nobody waits for it: what made a filesystem say that it has errors, a pool that ran
/// full, say, is over once its last user has gone, and the next one is to find it whole.
pub(super) fn mend(volume: &Volume) -> Option<Step> {
    let is_ext4 =
        volume.spec.volume_mode == VolumeMode::Filesystem && volume.spec.fs_type == FsType::Ext4;
    let uuid = volume.status.filesystem_uuid.filter(|_| is_ext4)?;
    let dataset = names::zvol(&volume.spec.pool, &volume.metadata.name);
    Some(Act::Mend { dataset, uuid }.into())
}
