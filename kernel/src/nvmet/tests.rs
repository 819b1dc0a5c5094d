//! The logic on a plain directory. What configfs itself does is tested in the lab.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use super::*;

const NQN: &str = "nqn.2026-11.test:a";
const HOST: &str = "nqn.2026-11.test:host";

/// A tree in which the attribute files that configfs makes by itself are there already.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().expect("a directory"));
        for dir in ["ports", "hosts", "subsystems"] {
            fs::create_dir(tree.path().join(dir)).expect("mkdir");
        }
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn target(&self) -> Target {
        Target::at(self.path())
    }

    fn fill(&self, dir: &str, attributes: &[(&str, &str)], groups: &[&str]) {
        let dir = self.path().join(dir);
        fs::create_dir_all(&dir).expect("mkdir");
        for (name, value) in attributes {
            fs::write(dir.join(name), format!("{value}\n")).expect("write");
        }
        for group in groups {
            fs::create_dir(dir.join(group)).expect("mkdir");
        }
    }

    fn with_subsystem(self) -> Self {
        self.fill(
            &format!("subsystems/{NQN}"),
            &[
                ("attr_allow_any_host", "1"),
                ("attr_serial", "x"),
                ("attr_model", "Linux"),
            ],
            &["namespaces", "allowed_hosts"],
        );
        self
    }

    fn with_namespace(self) -> Self {
        self.fill(
            &format!("subsystems/{NQN}/namespaces/1"),
            &[
                ("device_path", "(null)"),
                ("device_uuid", "00000000-0000-0000-0000-000000000000"),
                ("device_nguid", "00000000-0000-0000-0000-000000000000"),
                ("enable", "0"),
            ],
            &[],
        );
        self
    }

    fn with_port(self, id: u16) -> Self {
        self.fill(
            &format!("ports/{id}"),
            &[
                ("addr_trtype", ""),
                ("addr_adrfam", ""),
                ("addr_traddr", ""),
                ("addr_trsvcid", ""),
            ],
            &["subsystems"],
        );
        self
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path))
            .expect("read")
            .trim()
            .to_owned()
    }
}

fn namespace() -> NamespaceSpec {
    NamespaceSpec {
        nsid: 1,
        device: "/dev/zd0".into(),
        uuid: Uuid::from_u128(1),
        nguid: [2; 16],
    }
}

#[test]
fn a_subsystem_is_closed_to_unknown_hosts_and_a_second_pass_changes_nothing() {
    let tree = Tree::new().with_subsystem();
    let wanted = SubsystemSpec {
        nqn: NQN.into(),
        serial: "0123456789abcdef0123".into(),
        model: "zvolt".into(),
    };
    assert_eq!(
        tree.target()
            .converge_subsystem(&wanted)
            .expect("converged"),
        Outcome::Changed
    );
    assert_eq!(
        tree.read(&format!("subsystems/{NQN}/attr_allow_any_host")),
        "0"
    );
    assert_eq!(
        tree.target()
            .converge_subsystem(&wanted)
            .expect("converged"),
        Outcome::Unchanged
    );
}

#[test]
fn a_namespace_is_enabled_last_and_left_alone_once_it_is_right() {
    let tree = Tree::new().with_subsystem().with_namespace();
    let target = tree.target();
    assert_eq!(
        target
            .converge_namespace(NQN, &namespace())
            .expect("converged"),
        Outcome::Changed
    );
    let seen = target
        .observe(NQN)
        .expect("read")
        .expect("there")
        .namespaces
        .remove(0);
    assert!(seen.enabled);
    assert_eq!(
        (seen.device, seen.uuid, seen.nguid),
        (namespace().device, namespace().uuid, namespace().nguid)
    );
    assert_eq!(
        target
            .converge_namespace(NQN, &namespace())
            .expect("converged"),
        Outcome::Unchanged
    );
}

#[test]
fn bug_c_60_a_portal_says_its_address_family() {
    let tree = Tree::new().with_port(1);
    let port = PortSpec {
        id: 1,
        address: Some("[fd00::1]:4420".parse().expect("an address")),
    };
    assert_eq!(
        tree.target().converge_port(&port).expect("converged"),
        Outcome::Changed
    );
    assert_eq!(tree.read("ports/1/addr_adrfam"), "ipv6");
    assert_eq!(tree.read("ports/1/addr_traddr"), "fd00::1");
    assert_eq!(
        tree.target().converge_port(&port).expect("converged"),
        Outcome::Unchanged
    );
}

#[test]
fn bug_c_60_a_link_local_portal_needs_its_interface() {
    let port = |address: &str| PortSpec {
        id: 1,
        address: Some(address.parse().expect("an address")),
    };
    let tree = Tree::new().with_port(1);
    let refused = tree.target().converge_port(&port("[fe80::1]:4420"));
    assert!(matches!(refused, Err(Error::BadName { .. })), "{refused:?}");
    tree.target()
        .converge_port(&port("[fe80::1%3]:4420"))
        .expect("converged");
    assert_eq!(tree.read("ports/1/addr_traddr"), "fe80::1%3");
}

#[test]
fn a_serial_that_can_no_longer_be_changed_says_what_to_do() {
    let tree = Tree::new().with_subsystem();
    // This file, too, answers EINVAL to what it does not take.
    let serial = tree.path().join(format!("subsystems/{NQN}/attr_serial"));
    fs::remove_file(&serial).expect("unlink");
    std::os::unix::fs::symlink("/proc/self/oom_score_adj", &serial).expect("symlink");
    let wanted = SubsystemSpec {
        nqn: NQN.into(),
        serial: "another".into(),
        model: "zvolt".into(),
    };
    let refused = tree.target().converge_subsystem(&wanted);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

#[test]
fn rule_08_a_subsystem_goes_with_hosts_that_others_have_linked() {
    let tree = Tree::new().with_subsystem().with_port(1);
    let target = tree.target();
    target.link_port(NQN, 1).expect("linked");
    target.allow_host(NQN, HOST).expect("allowed");
    let foreign = tree.path().join("hosts/by hand");
    fs::create_dir(&foreign).expect("mkdir");
    let allowed = tree.path().join(format!("subsystems/{NQN}/allowed_hosts"));
    std::os::unix::fs::symlink(&foreign, allowed.join("by hand")).expect("symlink");

    // A plain directory keeps the files and groups that configfs takes away with the subsystem.
    assert!(target.remove_subsystem(NQN).is_err());
    let left = target.observe(NQN).expect("read").expect("there");
    assert_eq!((left.allowed_hosts, left.ports), (vec![], vec![]));
    assert!(foreign.exists());
}

#[test]
fn a_port_in_use_with_another_address_is_refused() {
    let tree = Tree::new().with_subsystem().with_port(1);
    let port = |address: &str| PortSpec {
        id: 1,
        address: Some(address.parse().expect("an address")),
    };
    tree.target()
        .converge_port(&port("10.0.0.1:4420"))
        .expect("converged");
    tree.target().link_port(NQN, 1).expect("linked");
    let refused = tree.target().converge_port(&port("10.0.0.2:4420"));
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

#[test]
fn links_converge_and_go() {
    let tree = Tree::new().with_subsystem().with_port(1);
    let target = tree.target();
    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(target.link_port(NQN, 1).expect("linked"), expected);
        assert_eq!(target.allow_host(NQN, HOST).expect("allowed"), expected);
    }
    let seen = target.observe(NQN).expect("read").expect("there");
    assert_eq!(
        (seen.ports, seen.allowed_hosts),
        (vec![1], vec![HOST.to_owned()])
    );
    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(target.unlink_port(NQN, 1).expect("unlinked"), expected);
        assert_eq!(target.disallow_host(NQN, HOST).expect("gone"), expected);
    }
}

#[test]
fn one_namespace_is_observed_without_the_others() {
    let tree = Tree::new().with_subsystem().with_namespace();
    let target = tree.target();
    let one = target.observe_one(NQN, 1).expect("read").expect("there");
    assert_eq!(one, target.observe(NQN).expect("read").expect("there"));
    let none = target.observe_one(NQN, 2).expect("read").expect("there");
    assert_eq!((none.namespaces, none.serial), (vec![], one.serial));
    assert_eq!(target.observe_one("nqn.none", 1).expect("read"), None);
    assert!(matches!(
        target.observe_one(NQN, 1025),
        Err(Error::BadName { .. })
    ));
}

#[test]
fn rule_12_hostile_names_never_become_paths() {
    let target = Tree::new().target();
    for bad in ["", "..", "nqn.a/../b", "nqn.a\0", "nqn.a\n", "a", "nqn.a b"] {
        assert!(
            matches!(target.observe(bad), Err(Error::BadName { .. })),
            "{bad:?}"
        );
        assert!(
            matches!(target.allow_host(NQN, bad), Err(Error::BadName { .. })),
            "{bad:?}"
        );
    }
    let long = format!("nqn.{}", "a".repeat(220));
    assert!(matches!(target.observe(&long), Err(Error::BadName { .. })));
}

#[test]
fn a_write_that_does_not_stick_is_an_error() {
    let tree = Tree::new().with_subsystem();
    // /dev/null takes every write and reads empty.
    let serial = tree.path().join(format!("subsystems/{NQN}/attr_serial"));
    fs::remove_file(&serial).expect("unlink");
    std::os::unix::fs::symlink("/dev/null", &serial).expect("symlink");
    let wanted = SubsystemSpec {
        nqn: NQN.into(),
        serial: "1".into(),
        model: "zvolt".into(),
    };
    let refused = tree.target().converge_subsystem(&wanted);
    assert!(
        matches!(refused, Err(Error::ReadBack { .. })),
        "{refused:?}"
    );
}
