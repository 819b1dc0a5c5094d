//! The same for pooled volumes, beside a neighbour in the subsystem of node0.

use zvolt_kernel::nvmet::ObservedNamespace;

use super::*;
use crate::model::names::Identity;

/// A volume that is ready, whose nodes find it among others.
fn pooled(mapped: &[&str]) -> Scene {
    let mut scene = scene();
    scene.volume.as_mut().unwrap().spec.attach = AttachMode::Pooled;
    {
        let mut world = scene.host.world.lock().unwrap();
        world.zvol("tank/store", &[], Content::Data);
    }
    neighbour(&mut scene);
    scene.drive().unwrap();
    scene.single_writer = mapped.len() <= 1;
    map(&mut scene, mapped);
    scene.drive().unwrap();
    scene
}

/// Another volume's namespace, with node0 connected and writing.
fn neighbour(scene: &mut Scene) {
    let (nqn, host) = (nqn_of("node0"), names::host_nqn("node0"));
    let identity = Identity::new(7, 7).tagged("neighbour");
    let mut world = scene.host.world.lock().unwrap();
    world.subsystems.insert(
        nqn.clone(),
        ObservedSubsystem {
            nqn: nqn.clone(),
            serial: Pooled::parse(&nqn).unwrap().serial(),
            allowed_hosts: vec![host.clone()],
            namespaces: vec![ObservedNamespace {
                nsid: NEIGHBOUR,
                device: "/dev/neighbour".into(),
                uuid: identity.namespace_uuid,
                nguid: identity.nguid,
                enabled: true,
            }],
            ports: vec![1, 2],
        },
    );
    world.controllers.insert((nqn.clone(), host.clone()));
    world.in_flight.insert((nqn, NEIGHBOUR, host));
    scene.has_neighbour = true;
}

fn status(scene: &Scene) -> &VolumeStatus {
    &scene.volume.as_ref().unwrap().status
}

/// What was done since the list was cleared, without the looks of the store.
fn done(scene: &Scene) -> Vec<String> {
    let mut done = scene.host.done.lock().unwrap();
    std::mem::take(&mut *done)
}

#[test]
fn a_warm_publish_is_one_namespace_and_a_cold_one_makes_its_subsystem() {
    let mut scene = pooled(&[]);
    scene.host.done.lock().unwrap().clear();
    map(&mut scene, &["node0"]);
    scene.drive().unwrap();
    assert_eq!(done(&scene), ["zvol.appear", "namespace", "zvol.appear"]);
    let placement = status(&scene).placements[0].clone();
    assert_eq!(placement.target_nqn, nqn_of("node0"));
    assert_eq!(
        scene
            .volume
            .as_ref()
            .unwrap()
            .target_nqn(&names::host_nqn("node0")),
        Some(placement.target_nqn.as_str())
    );
    map(&mut scene, &[]);
    scene.drive().unwrap();
    assert_eq!(done(&scene), ["remove namespace", "zvol.appear"]);
    map(&mut scene, &["node1"]);
    scene.drive().unwrap();
    assert_eq!(
        done(&scene),
        [
            "nvmet.subsystem",
            "zvol.appear",
            "namespace",
            "nvmet.allow-host",
            "link 1",
            "link 2",
            "zvol.appear"
        ]
    );
    assert_eq!(status(&scene).placements[0].nsid, placement.nsid);
}

#[test]
fn crash_sweep_of_a_pooled_volumes_life() {
    sweep(|| {
        let mut scene = scene();
        scene.volume.as_mut().unwrap().spec.attach = AttachMode::Pooled;
        let mut world = scene.host.world.lock().unwrap();
        world.zvol("tank/store", &[], Content::Data);
        drop(world);
        scene
    });
    for node in ["node0", "node1"] {
        sweep(|| {
            let mut scene = pooled(&[]);
            map(&mut scene, &[node]);
            scene
        });
        sweep(|| {
            let mut scene = pooled(&[node]);
            map(&mut scene, &[]);
            scene
        });
        sweep(|| {
            let mut scene = pooled(&[node]);
            scene.volume.as_mut().unwrap().metadata.deletion_timestamp =
                Some("2026-11-01T12:00:00Z".into());
            scene
        });
    }
}

#[test]
fn crash_sweep_rule_04_a_pooled_volume_moves_and_is_shared() {
    for (from, to) in [
        ("node0", "node1"),
        ("node1", "node0"),
        ("node0", NODE),
        (NODE, "node0"),
    ] {
        sweep(|| {
            let mut scene = pooled(&[from]);
            map(&mut scene, &[to]);
            scene
        });
    }
    sweep(|| {
        let mut scene = pooled(&["node0", "node1", "node2"]);
        map(&mut scene, &["node1", "node3"]);
        scene
    });
}

/// The agent dies between the namespace and the word, and the node is taken out before it is back.
#[test]
fn crash_sweep_rule_04_a_namespace_without_a_word_is_found_and_ended() {
    for (acts, node) in [(2, "node0"), (4, "node1"), (6, "node1")] {
        sweep(|| {
            let mut scene = pooled(&[]);
            map(&mut scene, &[node]);
            *scene.host.dies_in.lock().unwrap() = Some(acts);
            scene.drive().expect_err("killed before the word");
            *scene.host.dies_in.lock().unwrap() = None;
            assert!(status(&scene).placements.is_empty());
            map(&mut scene, &["node3"]);
            scene
        });
    }
}

#[test]
fn crash_sweep_rule_05_readers_of_a_pooled_volume_come_by_its_own_subsystem() {
    sweep(|| {
        let mut scene = pooled(&[]);
        scene.single_writer = false;
        map_readers(&mut scene, &["node0", "node1"]);
        scene
    });
    let readers = || {
        let mut scene = pooled(&[]);
        scene.single_writer = false;
        map_readers(&mut scene, &["node0", "node1"]);
        scene.drive().unwrap();
        assert!(status(&scene).placements.is_empty());
        scene
    };
    sweep(|| {
        let mut scene = readers();
        map(&mut scene, &["node2"]);
        scene
    });
    sweep(|| {
        let mut scene = readers();
        map(&mut scene, &[]);
        scene.drive().unwrap();
        map(&mut scene, &["node0"]);
        scene.drive().unwrap();
        map_readers(&mut scene, &["node0"]);
        scene
    });
    sweep(|| {
        let scene = readers();
        scene.host.lose_namespaces();
        let mut scene = scene;
        scene.has_neighbour = false;
        scene
    });
}

#[test]
fn crash_sweep_rule_09_a_pooled_volume_grows_under_its_nodes() {
    sweep(|| {
        let mut scene = pooled(&["node0", "node1"]);
        let volume = scene.volume.as_mut().unwrap();
        volume.metadata.generation += 1;
        volume.spec.capacity *= 2;
        scene
    });
}

#[test]
fn crash_sweep_a_pooled_volume_comes_back_where_it_was_after_a_reboot() {
    let told = status(&pooled(&["node0", "node1"])).placements.clone();
    sweep(|| {
        let mut scene = pooled(&["node0", "node1"]);
        scene.host.reboot();
        scene.has_neighbour = false;
        scene
    });
    let mut scene = pooled(&["node0", "node1"]);
    scene.host.reboot();
    scene.has_neighbour = false;
    scene.drive().unwrap();
    assert_eq!(status(&scene).placements, told);
    let world = scene.host.world.lock().unwrap();
    for placement in told {
        let subsystem = &world.subsystems[&placement.target_nqn];
        let nsids: Vec<_> = subsystem.namespaces.iter().map(|n| n.nsid).collect();
        assert_eq!(nsids, [placement.nsid]);
        assert_eq!(subsystem.allowed_hosts, [placement.initiator_id]);
    }
}

#[test]
fn rule_04_nobody_elses_namespace_is_removed_whatever_the_status_says() {
    let mut scene = pooled(&["node0"]);
    let volume = scene.volume.as_mut().unwrap();
    volume.status.placements[0].nsid = NEIGHBOUR;
    map(&mut scene, &[]);
    scene.drive().unwrap();
    assert_eq!(status(&scene).placements, []);
    let world = scene.host.world.lock().unwrap();
    let namespaces = &world.subsystems[&nqn_of("node0")].namespaces;
    assert_eq!(namespaces.len(), 1);
    assert_eq!(namespaces[0].nsid, NEIGHBOUR);
}
