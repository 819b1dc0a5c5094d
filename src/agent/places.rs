//! Where pooled volumes are in the subsystems that nodes have of this host.
//!
//! A place is a namespace ID in one subsystem of a pair of this host and a node. It is told in the Volume's status by the
//! same write that tells of the admission, and stays for as long as that: made anew elsewhere, the node would lose the
//! namespace. Here is what the statuses say, what the target still has that no status tells (an agent died in between), and
//! what is about to be written: so that no place is given twice. It is built anew at every start.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zvolt_kernel::nvmet::ObservedSubsystem;

use super::observe::{Failure, Host, Placed};
use super::plan::{Site, pooled};
use super::steps::Act;
use crate::model::names::{self, Pooled, Tag};
use crate::model::volume::{AttachMode, MappedInitiator, Placement, Volume};

/// Namespaces that one subsystem can have (`NVMET_MAX_NAMESPACES`).
pub const MOST: u32 = 1024;

/// All places that are taken.
#[derive(Debug)]
pub(super) struct Places {
    /// Namespaces of one subsystem, 1 to [`MOST`].
    limit: u32,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// By subsystem and namespace ID.
    by_place: HashMap<String, BTreeMap<u32, Tag>>,
    by_volume: HashMap<Tag, BTreeSet<Placement>>,
}

impl Places {
    /// With so many namespaces in each subsystem.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit: limit.clamp(1, MOST),
            taken: Mutex::default(),
        }
    }

    /// Start-up: takes what the target has, then what the statuses say besides.
    pub(super) fn begin<'a>(
        &self,
        volumes: impl IntoIterator<Item = &'a Volume>,
        found: &[ObservedSubsystem],
    ) {
        let mut taken = self.lock();
        for subsystem in found {
            let Some(Pooled { node, .. }) = Pooled::parse(&subsystem.nqn) else {
                continue;
            };
            for namespace in subsystem.namespaces.iter().filter(|n| n.enabled) {
                let placement = Placement {
                    initiator_id: names::host_nqn(node),
                    target_nqn: subsystem.nqn.clone(),
                    nsid: namespace.nsid,
                };
                taken.take(names::tag_of(&namespace.nguid), &placement);
            }
        }
        for volume in volumes {
            let tag = names::tag(&volume.metadata.name);
            for placement in &volume.status.placements {
                taken.take(tag, placement);
            }
        }
    }

    /// All places of a volume, as they are: those that it has, and one for each host that is to have one.
    pub(super) fn look(
        &self,
        host: &impl Host,
        volume: &Volume,
        site: &Site,
    ) -> Result<Vec<Placed>, Failure> {
        if volume.spec.attach == AttachMode::PerVolume {
            return Ok(Vec::new());
        }
        let wanted: Vec<_> = pooled::wanted(volume, site).collect();
        let tag = names::tag(&volume.metadata.name);
        let mut placed = Vec::new();
        for (placement, is_free) in self.of(volume, &wanted, &site.node) {
            let export = host.export_one(&placement.target_nqn, placement.nsid)?;
            let is_known = volume.status.placements.contains(&placement)
                || wanted
                    .iter()
                    .any(|w| w.initiator_id == placement.initiator_id);
            if !is_known && export.as_ref().is_none_or(|e| e.namespaces.is_empty()) {
                self.lock().give_back(tag, &placement);
                continue;
            }
            placed.push(Placed {
                placement,
                export,
                backing: None,
                is_free,
            });
        }
        Ok(placed)
    }

    /// The places, and whether nobody else has them.
    fn of(
        &self,
        volume: &Volume,
        wanted: &[&MappedInitiator],
        owner: &str,
    ) -> Vec<(Placement, bool)> {
        let tag = names::tag(&volume.metadata.name);
        let mut taken = self.lock();
        let mut lost = Vec::new();
        for placement in &volume.status.placements {
            if !taken.take(tag, placement) {
                lost.push((placement.clone(), false));
            }
        }
        for initiator in wanted {
            let host = &initiator.initiator_id;
            let has_one = taken.of(tag).any(|p| p.initiator_id == *host);
            if !has_one && lost.iter().all(|(p, _)| p.initiator_id != *host) {
                let placement = taken.find(tag, initiator, owner, self.limit);
                taken.take(tag, &placement);
            }
        }
        let own = taken.of(tag).cloned().map(|placement| (placement, true));
        lost.into_iter().chain(own).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn of(&self, tag: Tag) -> impl Iterator<Item = &Placement> {
        self.by_volume.get(&tag).into_iter().flatten()
    }

    /// Whether the volume has the place now.
    fn take(&mut self, tag: Tag, placement: &Placement) -> bool {
        let subsystem = self.by_place.entry(placement.target_nqn.clone());
        let holder = subsystem.or_default().entry(placement.nsid).or_insert(tag);
        let is_own = *holder == tag;
        if is_own {
            self.by_volume
                .entry(tag)
                .or_default()
                .insert(placement.clone());
        }
        is_own
    }

    fn give_back(&mut self, tag: Tag, placement: &Placement) {
        if let Some(places) = self.by_volume.get_mut(&tag) {
            places.remove(placement);
            if places.is_empty() {
                self.by_volume.remove(&tag);
            }
        }
        if let Some(subsystem) = self.by_place.get_mut(&placement.target_nqn) {
            subsystem.remove(&placement.nsid);
            if subsystem.is_empty() {
                self.by_place.remove(&placement.target_nqn);
            }
        }
    }

    /// A place for a host: in the first subsystem that has room, at the volume's own number or the next that is free.
    /// Its own, so that a record that a power cut took is most likely written again as it was.
    fn find(&self, tag: Tag, initiator: &MappedInitiator, owner: &str, limit: u32) -> Placement {
        let limit = limit.into();
        let first = u64::from_be_bytes(tag) % limit;
        let in_subsystem = |number: u32| {
            let nqn = Pooled {
                owner,
                node: &initiator.node_name,
                number,
            }
            .nqn();
            let used = self.by_place.get(&nqn);
            let mut nsids = (0..limit).map(|n| (first + n) % limit + 1);
            nsids
                .find_map(|nsid| {
                    let nsid = u32::try_from(nsid).ok()?;
                    let is_free = used.is_none_or(|used| !used.contains_key(&nsid));
                    is_free.then_some(nsid)
                })
                .map(|nsid| (nqn, nsid))
        };
        let found = (0..=u32::MAX).find_map(in_subsystem);
        let (target_nqn, nsid) = found.unwrap_or_default(); // 2^32 subsystems are never full
        Placement {
            initiator_id: initiator.initiator_id.clone(),
            target_nqn,
            nsid,
        }
    }
}

/// What start-up takes away of the subsystems that nodes have of this host: namespaces that no status tells of and
/// that nobody reaches, since an agent died before it enabled them or after it disabled them; and subsystems that are
/// empty then. Until then they stay, with the controllers of their nodes, for the next volume.
pub(super) fn left_over<'a>(
    volumes: impl IntoIterator<Item = &'a Volume>,
    found: &[ObservedSubsystem],
) -> Vec<Act> {
    let told: BTreeSet<(&str, u32)> = volumes
        .into_iter()
        .flat_map(|volume| &volume.status.placements)
        .map(|placement| (placement.target_nqn.as_str(), placement.nsid))
        .collect();
    let mut acts = Vec::new();
    for subsystem in found {
        let nqn = &subsystem.nqn;
        let dead = |nsid: u32, enabled: bool| !enabled && !told.contains(&(nqn.as_str(), nsid));
        let mut namespaces = subsystem.namespaces.iter();
        let is_told = told.iter().any(|(told, _)| told == nqn);
        if !is_told && namespaces.clone().all(|n| dead(n.nsid, n.enabled)) {
            acts.push(Act::Teardown {
                nqn: nqn.clone(),
                hosts: subsystem.allowed_hosts.clone(),
            });
            continue;
        }
        acts.extend(
            namespaces
                .by_ref()
                .filter(|n| dead(n.nsid, n.enabled))
                .map(|n| Act::RemoveNamespace {
                    nqn: nqn.clone(),
                    nsid: n.nsid,
                }),
        );
    }
    acts
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use zvolt_kernel::nvmet::ObservedNamespace;

    use super::*;
    use crate::store::conformance::{initiator, volume};

    fn pooled_volume(name: &str) -> Volume {
        let mut volume = volume(name);
        volume.spec.attach = AttachMode::Pooled;
        volume
    }

    fn nqn(number: u32) -> String {
        Pooled {
            owner: "storage0",
            node: "node0",
            number,
        }
        .nqn()
    }

    fn place(places: &Places, volume: &Volume) -> Placement {
        let found = places.of(volume, &[&initiator("node0")], "storage0");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].1);
        found[0].0.clone()
    }

    fn found(number: u32, namespaces: &[(u32, &str, bool)]) -> ObservedSubsystem {
        let namespaces = namespaces.iter().map(|(nsid, handle, enabled)| {
            let identity = names::Identity::new(1, 2).tagged(handle);
            ObservedNamespace {
                nsid: *nsid,
                device: "/dev/zd0".into(),
                uuid: identity.namespace_uuid,
                nguid: identity.nguid,
                enabled: *enabled,
            }
        });
        ObservedSubsystem {
            nqn: nqn(number),
            serial: Uuid::nil().to_string(),
            allowed_hosts: vec![names::host_nqn("node0")],
            namespaces: namespaces.collect(),
            ports: vec![1],
        }
    }

    #[test]
    fn a_full_subsystem_is_followed_by_another_and_places_are_used_again() {
        let places = Places::new(2);
        let volumes: Vec<_> = (0..5).map(|n| pooled_volume(&format!("v{n}"))).collect();
        let all: Vec<_> = volumes.iter().map(|v| place(&places, v)).collect();
        let numbers: Vec<_> = all.iter().map(|p| p.target_nqn.clone()).collect();
        assert_eq!(numbers, [nqn(0), nqn(0), nqn(1), nqn(1), nqn(2)]);
        let unique: BTreeSet<_> = all.iter().collect();
        assert_eq!(unique.len(), 5, "{all:?}");
        assert!(all.iter().all(|p| (1..=2).contains(&p.nsid)));
        assert_eq!(place(&places, &volumes[3]), all[3], "asked again");
        places.lock().give_back(names::tag("v1"), &all[1]);
        let next = place(&places, &pooled_volume("v9"));
        let was = (&all[1].target_nqn, all[1].nsid);
        assert_eq!((&next.target_nqn, next.nsid), was);
    }

    #[test]
    fn a_thousand_and_twenty_four_fit() {
        let places = Places::new(MOST);
        for n in 0..=MOST {
            let placement = place(&places, &pooled_volume(&format!("v{n}")));
            assert_eq!(placement.target_nqn, nqn(u32::from(n == MOST)));
        }
    }

    #[test]
    fn a_restart_gives_every_volume_its_place_again() {
        let places = Places::new(4);
        let mut volumes: Vec<_> = (0..4).map(|n| pooled_volume(&format!("v{n}"))).collect();
        for volume in &mut volumes {
            volume.status.placements = vec![place(&places, volume)];
        }
        let restarted = Places::new(4);
        restarted.begin(&volumes, &[]);
        let late = place(&restarted, &pooled_volume("late"));
        assert_eq!(late.target_nqn, nqn(1), "the first is full");
        for volume in &volumes {
            assert_eq!(place(&restarted, volume), volume.status.placements[0]);
        }
    }

    #[test]
    fn a_record_that_a_power_cut_took_is_written_again_as_it_was() {
        for n in 0..100 {
            let volume = pooled_volume(&format!("v{n}"));
            let [before, after] = [(); 2].map(|()| place(&Places::new(MOST), &volume));
            assert_eq!(before, after);
        }
    }

    #[test]
    fn rule_04_what_the_target_has_and_no_status_tells_is_still_the_volumes() {
        let places = Places::new(4);
        places.begin(&[], &[found(0, &[(3, "v", true), (4, "gone", false)])]);
        let volume = pooled_volume("v");
        let known = places.of(&volume, &[], "storage0");
        assert_eq!(known.len(), 1);
        assert_eq!((known[0].0.nsid, known[0].1), (3, true));
        let other = place(&places, &pooled_volume("w"));
        assert_ne!((other.target_nqn, other.nsid), (nqn(0), 3));
    }

    #[test]
    fn a_place_that_two_statuses_tell_is_one_volumes() {
        let places = Places::new(4);
        let (mut one, mut two) = (pooled_volume("v0"), pooled_volume("v1"));
        let placement = place(&places, &one);
        one.status.placements = vec![placement.clone()];
        two.status.placements = vec![placement.clone()];
        let mapped = initiator("node0");
        assert_eq!(
            places.of(&two, &[&mapped], "storage0"),
            [(placement, false)]
        );
        two.status.placements.clear();
        assert_ne!(place(&places, &two), place(&places, &one));
    }

    #[test]
    fn start_up_takes_away_what_is_dead_and_what_is_empty() {
        let mut told = pooled_volume("told");
        told.status.placements = vec![Placement {
            initiator_id: names::host_nqn("node0"),
            target_nqn: nqn(1),
            nsid: 7,
        }];
        let remove = |number, nsid| Act::RemoveNamespace {
            nqn: nqn(number),
            nsid,
        };
        let teardown = |number| Act::Teardown {
            nqn: nqn(number),
            hosts: vec![names::host_nqn("node0")],
        };
        let subsystems = [
            found(0, &[]),
            found(1, &[(7, "told", false), (8, "dead", false)]),
            found(2, &[(1, "dead", false)]),
            found(3, &[(1, "untold", true), (2, "dead", false)]),
        ];
        assert_eq!(
            left_over([&told], &subsystems),
            [teardown(0), remove(1, 8), teardown(2), remove(3, 2)]
        );
        assert_eq!(
            left_over([&told], &[found(1, &[])]),
            [],
            "it is about to be built"
        );
    }
}
