//! The crash sweep: for every story, the agent is killed before every elementary act and every write,
//! starts again, and must reach the same end; the simulated host checks the rules on the way.

mod checks;
mod pooled;

use std::collections::BTreeSet;
use std::time::Instant;

use super::super::observe::{Class, Host, Seen};
use super::super::places::{self, Places};
use super::super::sim::{Content, DEAD, LOOP_PORT, NODE, SimHost, World};
use super::super::snapshots::observe::Family;
use super::super::volumes::look_behind;
use super::*;
use crate::model::names::Pooled;
use crate::model::volume::{AttachMode, Provisioning, VolumeMode};
use crate::store::conformance::{initiator, volume};

/// A host with the store beside it.
struct Scene {
    host: SimHost,
    /// `None` when it has vanished.
    volume: Option<Volume>,
    /// Who must not be connected when somebody new is let in.
    single_writer: bool,
    /// Another volume is in the subsystem that node0 has of this host.
    has_neighbour: bool,
}

/// The neighbour's namespace.
const NEIGHBOUR: u32 = 1000;

fn nqn_of(node: &str) -> String {
    Pooled {
        owner: NODE,
        node,
        number: 0,
    }
    .nqn()
}

fn site() -> Site {
    Site {
        node: NODE.into(),
        portal: "192.0.2.1:4420".into(),
        loop_port: LOOP_PORT,
    }
}

fn scene() -> Scene {
    let mut volume = volume("v");
    volume.metadata.uid = "uid-1".into();
    volume.metadata.generation = 1;
    Scene {
        host: SimHost::with_pool(),
        volume: Some(volume),
        single_writer: true,
        has_neighbour: false,
    }
}

impl Scene {
    /// Plans and runs until nothing is left, or the agent dies.
    fn drive(&mut self) -> Result<(), Failure> {
        let places = self.start()?;
        for _ in 0..50 {
            let Some(volume) = self.volume.clone() else {
                return Ok(());
            };
            let nqn = names::subsystem_nqn("v");
            let mut seen = Seen {
                placed: places.look(&self.host, &volume, &site())?,
                ports: self.host.ports(),
                export: self.host.export(&nqn)?,
                storage: None,
                source: None,
                family: None,
                now: "2026-11-01T12:00:00Z".into(),
            };
            let mut plan = plan(&volume, &seen, &site())?;
            if plan == Plan::LookAtStorage {
                look_behind(&self.host, &mut seen.placed)?;
                seen.storage = Some(self.host.storage(
                    "tank",
                    "tank/csi/block/v",
                    seen.export.as_ref(),
                )?);
                plan = super::plan(&volume, &seen, &site())?;
            }
            if plan == Plan::LookAtSnapshots {
                seen.family = Some(Family::look(&self.host, "tank/csi/block/v")?);
                plan = super::plan(&volume, &seen, &site())?;
            }
            match plan {
                Plan::Nothing => {
                    self.check_settled();
                    return Ok(());
                }
                Plan::LookAtStorage | Plan::LookAtSource | Plan::LookAtSnapshots => {
                    panic!("it has looked")
                }
                Plan::Refuse(failure) => return Err(failure),
                Plan::Run(_, steps) => steps.iter().try_for_each(|step| self.step(step))?,
            }
        }
        panic!("it does not settle")
    }

    /// The agent starts: it knows what the status and the target say.
    fn start(&self) -> Result<Places, Failure> {
        let found = self.host.pooled()?;
        let places = Places::new(4);
        places.begin(&self.volume, &found);
        for act in places::left_over(&self.volume, &found) {
            self.host.act(&act, Instant::now())?;
            self.check();
        }
        Ok(places)
    }

    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::Act(act) => self.host.act(act, Instant::now())?,
            Step::Status(status) => {
                // The write is an elementary act like any other.
                self.tick()?;
                self.volume.as_mut().unwrap().status = (**status).clone();
            }
            Step::Finalize => {
                self.tick()?;
                self.volume = None;
            }
        }
        self.check();
        Ok(())
    }

    fn tick(&self) -> Result<(), Failure> {
        self.host.act(
            &Act::Appear {
                dataset: "tank/store".into(),
            },
            Instant::now(),
        )
    }

    fn end(&self) -> (World, Option<Volume>) {
        let mut world = self.host.world.lock().unwrap().clone();
        world.guids = 0;
        // An empty one stays until the next start, and may be gone when there was one on the way.
        let is_empty =
            |s: &ObservedSubsystem| s.namespaces.is_empty() && Pooled::parse(&s.nqn).is_some();
        world.subsystems.retain(|_, s| !is_empty(s));
        let left = world.subsystems.clone();
        world
            .controllers
            .retain(|(nqn, _)| left.contains_key(nqn) || Pooled::parse(nqn).is_none());
        (world, self.volume.clone())
    }
}

/// Kills the agent before each act of the story's last part, and compares the ends.
fn sweep(story: impl Fn() -> Scene) {
    let mut whole = story();
    whole.host.done.lock().unwrap().clear();
    whole.drive().unwrap();
    let acts = whole.host.done.lock().unwrap().len();
    let end = whole.end();
    assert!(acts > 1, "a story to tell");
    for subsystem in end.0.subsystems.values() {
        let is_agent = |host: &String| *host == names::agent_nqn(NODE);
        assert!(
            !subsystem.ports.contains(&LOOP_PORT),
            "the loop port is closed"
        );
        assert!(
            !subsystem.allowed_hosts.iter().any(is_agent),
            "the agent is out"
        );
    }
    for stop in 0..acts {
        let mut scene = story();
        *scene.host.dies_in.lock().unwrap() = Some(stop);
        let died = scene.drive().expect_err("killed on the way");
        assert_eq!(died.message, DEAD, "before act {stop}");
        scene.check();
        *scene.host.dies_in.lock().unwrap() = None;
        scene
            .drive()
            .unwrap_or_else(|e| panic!("killed before act {stop}, then: {e}"));
        assert_eq!(scene.end(), end, "killed before act {stop}");
    }
}

fn ready(mapped: &[&str]) -> Scene {
    let mut scene = scene();
    scene
        .host
        .world
        .lock()
        .unwrap()
        .zvol("tank/store", &[], Content::Data);
    scene.drive().unwrap();
    map(&mut scene, mapped);
    scene.single_writer = mapped.len() <= 1;
    scene.drive().unwrap();
    scene
}

/// Maps nodes that may only read.
fn map_readers(scene: &mut Scene, nodes: &[&str]) {
    map(scene, nodes);
    for initiator in &mut scene.volume.as_mut().unwrap().status.mapped_initiators {
        initiator.read_only = true;
    }
}

/// A volume that these nodes read.
fn read_by(nodes: &[&str]) -> Scene {
    let mut scene = ready(&[]);
    scene.single_writer = false;
    map_readers(&mut scene, nodes);
    scene.drive().unwrap();
    scene
}

fn map(scene: &mut Scene, nodes: &[&str]) {
    let status = &mut scene.volume.as_mut().unwrap().status;
    status.mapped_initiators = nodes
        .iter()
        .map(|n| {
            let mut mapped = initiator(n);
            mapped.attached_at = "2026-11-01T12:00:00Z".into();
            mapped
        })
        .collect();
}

#[test]
fn crash_sweep_create() {
    sweep(|| {
        let scene = scene();
        scene
            .host
            .world
            .lock()
            .unwrap()
            .zvol("tank/store", &[], Content::Data);
        scene
    });
}

#[test]
fn crash_sweep_publish() {
    sweep(|| {
        let mut scene = ready(&[]);
        map(&mut scene, &["node0"]);
        scene
    });
}

#[test]
fn crash_sweep_fence() {
    sweep(|| {
        let mut scene = ready(&["node0"]);
        map(&mut scene, &[]);
        scene
    });
}

#[test]
fn crash_sweep_rule_04_move_to_another_node() {
    sweep(|| {
        let mut scene = ready(&["node0"]);
        map(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_04_one_of_two_leaves() {
    sweep(|| {
        let mut scene = ready(&["node0", "node1"]);
        map(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_04_admitted_without_a_word_and_unmapped() {
    sweep(|| {
        let mut scene = ready(&[]);
        map(&mut scene, &["node0"]);
        *scene.host.dies_in.lock().unwrap() = Some(1);
        scene.drive().expect_err("killed after the admission");
        *scene.host.dies_in.lock().unwrap() = None;
        assert_eq!(scene.host.world.lock().unwrap().controllers.len(), 1);
        map(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_delete_while_published() {
    sweep(|| {
        let mut scene = ready(&["node0"]);
        scene.volume.as_mut().unwrap().metadata.deletion_timestamp =
            Some("2026-11-01T12:00:00Z".into());
        scene
    });
}

#[test]
fn crash_sweep_delete_of_one_that_was_never_ready() {
    sweep(|| {
        let mut scene = scene();
        scene
            .host
            .world
            .lock()
            .unwrap()
            .zvol("tank/store", &[], Content::Data);
        *scene.host.dies_in.lock().unwrap() = Some(6);
        scene.drive().expect_err("killed half made");
        *scene.host.dies_in.lock().unwrap() = None;
        scene.volume.as_mut().unwrap().metadata.deletion_timestamp =
            Some("2026-11-01T12:00:00Z".into());
        scene
    });
}

#[test]
fn crash_sweep_rule_01_create_of_a_raw_volume() {
    sweep(|| {
        let mut scene = scene();
        let spec = &mut scene.volume.as_mut().unwrap().spec;
        spec.volume_mode = VolumeMode::Block;
        spec.tuning.provisioning = Provisioning::Thick;
        scene
            .host
            .world
            .lock()
            .unwrap()
            .zvol("tank/store", &[], Content::Data);
        scene
    });
}

#[test]
fn crash_sweep_rule_09_expand_and_tune_while_published() {
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        sweep(|| {
            let mut scene = ready(&["node0"]);
            let volume = scene.volume.as_mut().unwrap();
            volume.metadata.generation += 1;
            volume.spec.capacity *= 2;
            volume.spec.tuning.provisioning = provisioning;
            volume.spec.tuning.sync = "always".into();
            scene
        });
    }
}

#[test]
fn crash_sweep_rule_09_a_thick_volume_grows_with_its_reservation() {
    sweep(|| {
        let mut scene = scene();
        scene
            .host
            .world
            .lock()
            .unwrap()
            .zvol("tank/store", &[], Content::Data);
        let volume = scene.volume.as_mut().unwrap();
        volume.spec.tuning.provisioning = Provisioning::Thick;
        volume.spec.tuning.compression = "zstd-3-fast".into();
        scene.drive().unwrap();
        let volume = scene.volume.as_mut().unwrap();
        volume.metadata.generation += 1;
        volume.spec.capacity *= 2;
        volume.spec.tuning.compression.clear();
        scene
    });
}

#[test]
fn crash_sweep_rule_05_readers_come_after_the_switch() {
    sweep(|| {
        let mut scene = ready(&[]);
        scene.single_writer = false;
        map_readers(&mut scene, &["node0", "node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_05_a_writer_comes_after_readers_and_goes_again() {
    sweep(|| {
        let mut scene = read_by(&["node0", "node1"]);
        map(&mut scene, &["node2"]);
        scene
    });
    sweep(|| {
        let mut scene = read_by(&["node0"]);
        map(&mut scene, &["node1"]);
        scene.drive().unwrap();
        map_readers(&mut scene, &["node0"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_05_one_of_two_readers_leaves() {
    sweep(|| {
        let mut scene = read_by(&["node0", "node1"]);
        map_readers(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_05_readers_leave_and_others_come() {
    sweep(|| {
        let mut scene = read_by(&["node0"]);
        map_readers(&mut scene, &[]);
        scene.drive().unwrap();
        map_readers(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_05_protection_is_made_anew_after_a_reboot() {
    sweep(|| {
        let scene = read_by(&["node0", "node1"]);
        scene.host.reboot();
        scene
    });
}

#[test]
fn crash_sweep_rule_05_a_namespace_that_vanished_comes_back_protected() {
    sweep(|| {
        let scene = read_by(&["node0", "node1"]);
        scene.host.lose_namespaces();
        scene
    });
    sweep(|| {
        let mut scene = read_by(&["node0"]);
        map_readers(&mut scene, &[]);
        scene.drive().unwrap();
        scene.host.lose_namespaces();
        scene.drive().unwrap();
        map(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn crash_sweep_rule_04_the_owners_own_consumer_moves_away() {
    sweep(|| {
        let mut scene = ready(&[NODE]);
        map(&mut scene, &["node1"]);
        scene
    });
}

#[test]
fn rule_04_the_owners_own_consumer_stays_while_it_uses_the_zvol() {
    let mut scene = ready(&[NODE]);
    let hold = |scene: &Scene| {
        let mut world = scene.host.world.lock().unwrap();
        world.held_here.insert("tank/csi/block/v".into());
    };
    hold(&scene);
    map(&mut scene, &["node1"]);
    let busy = scene.drive().unwrap_err();
    assert_eq!((busy.reason, busy.class), (reason::BUSY, Class::Retry));
    let published = |scene: &Scene| {
        scene
            .volume
            .as_ref()
            .unwrap()
            .status
            .published_initiators
            .clone()
    };
    assert_eq!(
        published(&scene),
        [names::host_nqn(NODE)],
        "nobody else is let in"
    );
    scene.host.world.lock().unwrap().held_here.clear();
    scene.drive().unwrap();
    assert_eq!(published(&scene), [names::host_nqn("node1")]);
}

#[test]
fn rule_04_a_consumer_here_does_not_hold_up_the_fence_of_another() {
    let mut scene = ready(&[NODE, "node0"]);
    scene
        .host
        .world
        .lock()
        .unwrap()
        .held_here
        .insert("tank/csi/block/v".into());
    map(&mut scene, &[]);
    scene.drive().unwrap_err();
    let status = &scene.volume.as_ref().unwrap().status;
    assert_eq!(status.published_initiators, [names::host_nqn(NODE)]);
}

#[test]
fn crash_sweep_reboot_of_the_host() {
    sweep(|| {
        let scene = ready(&["node0"]);
        scene.host.reboot();
        scene
    });
}

#[test]
fn rule_01_data_on_a_zvol_that_says_pending_survives() {
    let mut scene = scene();
    let property = super::super::observe::property;
    let pairs = [("handle", "v"), ("uid", "uid-1"), ("format", "pending")]
        .map(|(k, v)| (property(k), v.to_owned()));
    let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    scene
        .host
        .world
        .lock()
        .unwrap()
        .zvol("tank/csi/block/v", &pairs, Content::Data);
    let refused = scene.drive().unwrap_err();
    assert_eq!(refused.reason, reason::DATASET_FOREIGN);
    let world = scene.host.world.lock().unwrap();
    assert_eq!(world.zvols["tank/csi/block/v"].content, Content::Data);
    assert!(world.subsystems.is_empty());
}
