//! What must hold after every act.

use super::*;

/// Who reaches the volume: by its own subsystem, or by its namespace in another.
fn connected(world: &World) -> BTreeSet<&String> {
    let reaches = |nqn: &String| {
        Pooled::parse(nqn).is_none()
            || world
                .subsystems
                .get(nqn)
                .is_some_and(|s| s.namespaces.iter().any(|n| n.nsid != NEIGHBOUR))
    };
    let controllers = world.controllers.iter();
    controllers
        .filter(|(nqn, _)| reaches(nqn))
        .map(|(_, host)| host)
        .collect()
}

impl Scene {
    pub(super) fn check(&self) {
        let world = self.host.world.lock().unwrap();
        self.check_neighbour(&world);
        let mut writers = connected(&world);
        if self.single_writer {
            // A request on its way writes as well as a controller does. (Who shares is not drained.)
            let mut in_flight = world.in_flight.iter();
            writers.extend(
                in_flight
                    .by_ref()
                    .filter_map(|(_, nsid, host)| (*nsid != NEIGHBOUR).then_some(host)),
            );
            assert!(writers.len() <= 1, "rule 4: two writers: {writers:?}");
        }
        let Some(volume) = &self.volume else {
            return assert!(writers.is_empty(), "rule 4: {writers:?} outlive the volume");
        };
        let status = &volume.status;
        for shown in world.shown.values() {
            let told = status.actual_capacity.unwrap_or(0);
            assert!(
                told <= *shown,
                "rule 9: {told} bytes are told, hosts see {shown}"
            );
        }
        self.check_read_only(&world, volume);
        for host in writers {
            let known = status
                .mapped_initiators
                .iter()
                .any(|m| m.initiator_id == *host)
                || status.published_initiators.contains(host)
                || world
                    .subsystems
                    .values()
                    .any(|s| s.allowed_hosts.contains(host));
            assert!(
                known,
                "rule 4: the agent's word is that {host} is gone, and it is not"
            );
        }
    }

    /// Once all is done nobody reaches it who is not to.
    pub(super) fn check_settled(&self) {
        let world = self.host.world.lock().unwrap();
        let Some(volume) = &self.volume else { return };
        let status = &volume.status;
        for host in connected(&world) {
            let mut mapped = status.mapped_initiators.iter();
            assert!(
                mapped.any(|m| m.initiator_id == *host),
                "rule 4: {host} stays"
            );
        }
        let own = &world.subsystems;
        let is_pooled = volume.spec.attach == AttachMode::Pooled;
        let has_readers = status.mapped_initiators.iter().any(|m| m.read_only);
        assert_eq!(
            own.contains_key(&names::subsystem_nqn("v")),
            !is_pooled || has_readers,
            "a subsystem of its own"
        );
    }

    /// Another volume of node0's is never touched.
    fn check_neighbour(&self, world: &World) {
        if !self.has_neighbour {
            return;
        }
        let (nqn, host) = (nqn_of("node0"), names::host_nqn("node0"));
        let mut namespaces = world.subsystems[&nqn].namespaces.iter();
        assert!(namespaces.any(|n| n.nsid == NEIGHBOUR && n.enabled));
        assert!(
            world.controllers.contains(&(nqn.clone(), host.clone())),
            "the neighbour's controller"
        );
        assert!(
            world.in_flight.contains(&(nqn, NEIGHBOUR, host)),
            "the neighbour's requests"
        );
    }

    /// Who may only read never finds a namespace that takes writes, and who may write always does.
    fn check_read_only(&self, world: &World, volume: &Volume) {
        let nqn = names::subsystem_nqn("v");
        // Without a namespace there is nothing to write to.
        if world
            .subsystems
            .get(&nqn)
            .is_none_or(|s| s.namespaces.is_empty())
        {
            return;
        }
        let is_protected = world.protected.contains(&nqn);
        for initiator in &volume.status.mapped_initiators {
            let host = &initiator.initiator_id;
            let is_here = *host == names::host_nqn(NODE);
            if world.controllers.contains(&(nqn.clone(), host.clone())) && !is_here {
                assert_eq!(initiator.read_only, is_protected, "rule 5: {host}");
            }
        }
    }
}
