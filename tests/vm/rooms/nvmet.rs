//! Room `nvmet` against the real configfs tree.

use std::fs;
use std::path::Path;

use uuid::Uuid;
use zvolt_kernel::block;
use zvolt_kernel::error::Errno;
use zvolt_kernel::nvme;
use zvolt_kernel::nvmet::{
    Error, NamespaceSpec, ObservedNamespace, ObservedSubsystem, Outcome, PortSpec,
};

use super::fabric::{DEV, DISK_BYTES, Disk, Fabric, NSID, NVMET};

const IPV4: &str = "127.0.0.1";

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
    match result {
        Err(Error::Sys(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_call_converges_and_a_second_changes_nothing() {
    let fabric = Fabric::new(IPV4);
    let target = &fabric.target;
    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(target.converge_port(&fabric.port).unwrap(), expected);
        assert_eq!(
            target.converge_subsystem(&fabric.subsystem).unwrap(),
            expected
        );
        assert_eq!(
            target
                .converge_namespace(fabric.nqn(), &fabric.namespace)
                .unwrap(),
            expected
        );
        assert_eq!(
            target.allow_host(fabric.nqn(), &fabric.host.nqn).unwrap(),
            expected
        );
        assert_eq!(
            target.link_port(fabric.nqn(), fabric.port.id).unwrap(),
            expected
        );
    }
    let seen = target.observe(fabric.nqn()).unwrap().unwrap();
    assert_eq!(
        seen,
        ObservedSubsystem {
            nqn: fabric.nqn().into(),
            serial: fabric.subsystem.serial.clone(),
            allowed_hosts: vec![fabric.host.nqn.clone()],
            namespaces: vec![ObservedNamespace {
                nsid: NSID,
                device: fabric.disk.device.clone(),
                uuid: fabric.namespace.uuid,
                nguid: fabric.namespace.nguid,
                enabled: true,
            }],
            ports: vec![fabric.port.id],
        }
    );
    let any = fs::read_to_string(fabric.subsystem_dir().join("attr_allow_any_host")).unwrap();
    assert_eq!(any.trim(), "0");
    assert!(
        target
            .subsystems()
            .unwrap()
            .contains(&fabric.nqn().to_owned())
    );

    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(
            target.unlink_port(fabric.nqn(), fabric.port.id).unwrap(),
            expected
        );
        assert_eq!(
            target
                .disallow_host(fabric.nqn(), &fabric.host.nqn)
                .unwrap(),
            expected
        );
        assert_eq!(target.remove_host(&fabric.host.nqn).unwrap(), expected);
        assert_eq!(
            target.remove_namespace(fabric.nqn(), NSID).unwrap(),
            expected
        );
        assert_eq!(target.remove_subsystem(fabric.nqn()).unwrap(), expected);
        assert_eq!(target.remove_port(fabric.port.id).unwrap(), expected);
    }
    assert_eq!(target.observe(fabric.nqn()).unwrap(), None);
}

#[test]
fn a_new_namespace_has_no_device_and_is_not_enabled() {
    let fabric = Fabric::new(IPV4);
    fabric.target.converge_subsystem(&fabric.subsystem).unwrap();
    fs::create_dir(fabric.subsystem_dir().join("namespaces/3")).unwrap();
    let seen = fabric
        .target
        .observe(fabric.nqn())
        .unwrap()
        .unwrap()
        .namespaces
        .remove(0);
    assert_eq!((seen.nsid, seen.enabled), (3, false));
    assert_eq!(seen.device, Path::new(""));
}

#[test]
fn a_namespace_that_differs_is_rewritten() {
    let fabric = Fabric::exported(IPV4);
    let other = Disk::new();
    let wanted = NamespaceSpec {
        device: other.device.clone(),
        uuid: Uuid::from_u128(1),
        nguid: [2; 16],
        nsid: NSID,
    };
    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(
            fabric
                .target
                .converge_namespace(fabric.nqn(), &wanted)
                .unwrap(),
            expected
        );
    }
    let seen = fabric
        .target
        .observe(fabric.nqn())
        .unwrap()
        .unwrap()
        .namespaces
        .remove(0);
    assert_eq!(
        (seen.device, seen.uuid, seen.nguid),
        (wanted.device, wanted.uuid, wanted.nguid)
    );
    assert!(seen.enabled);
    fabric.target.remove_namespace(fabric.nqn(), NSID).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_the_kernels_error() {
    let fabric = Fabric::new(IPV4);
    fabric.target.converge_subsystem(&fabric.subsystem).unwrap();
    let mut wanted = fabric.namespace.clone();
    wanted.device = "/dev/nosuchdevice".into();
    let failed = fabric.target.converge_namespace(fabric.nqn(), &wanted);
    assert_eq!(errno(failed), Errno::ENOENT);
    let seen = fabric
        .target
        .observe(fabric.nqn())
        .unwrap()
        .unwrap()
        .namespaces
        .remove(0);
    assert!(!seen.enabled);
    // What the failure left is what the next call finishes.
    fabric
        .target
        .converge_namespace(fabric.nqn(), &fabric.namespace)
        .unwrap();
}

#[test]
fn a_port_in_use_keeps_its_address() {
    let fabric = Fabric::exported(IPV4);
    let other = PortSpec {
        address: Some("127.0.0.2:4420".parse().unwrap()),
        ..fabric.port
    };
    let refused = fabric.target.converge_port(&other);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert_eq!(
        errno(fabric.target.remove_port(fabric.port.id)),
        Errno::ENOTEMPTY
    );
    fabric
        .target
        .unlink_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    assert_eq!(
        fabric.target.converge_port(&other).unwrap(),
        Outcome::Changed
    );
}

#[test]
fn a_serial_that_a_host_has_read_is_not_changed() {
    let fabric = Fabric::exported(IPV4);
    fabric.attach();
    let mut wanted = fabric.subsystem.clone();
    wanted.serial = "another".into();
    let refused = fabric.target.converge_subsystem(&wanted);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert_eq!(
        fabric.target.converge_subsystem(&fabric.subsystem).unwrap(),
        Outcome::Unchanged
    );
}

#[test]
fn a_host_that_some_subsystem_admits_keeps_its_entry() {
    let fabric = Fabric::exported(IPV4);
    assert_eq!(
        fabric.target.remove_host(&fabric.host.nqn).unwrap(),
        Outcome::Unchanged
    );
    assert!(
        Path::new(NVMET)
            .join("hosts")
            .join(&fabric.host.nqn)
            .exists()
    );
}

#[test]
fn rule_08_teardown_takes_the_subsystem_and_nothing_else() {
    let fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    let mut neighbour = fabric.subsystem.clone();
    neighbour.nqn.push_str("-neighbour");
    fabric.target.converge_subsystem(&neighbour).unwrap();
    fabric
        .target
        .allow_host(&neighbour.nqn, &fabric.host.nqn)
        .unwrap();
    fabric
        .target
        .link_port(&neighbour.nqn, fabric.port.id)
        .unwrap();
    let mut options = fabric.options();
    options.subsystem_nqn.clone_from(&neighbour.nqn);
    let other = nvme::connect(Path::new(DEV), &options).unwrap();
    let other = format!("nvme{}", other.instance);

    assert_eq!(
        fabric.target.remove_subsystem(fabric.nqn()).unwrap(),
        Outcome::Changed
    );
    assert_eq!(fabric.target.observe(fabric.nqn()).unwrap(), None);
    // Refused on its first try to reconnect, the host gives up.
    fabric.await_removal(&controller);
    assert_eq!(
        nvme::namespace(super::fabric::sys(), &namespace.block).unwrap(),
        None
    );
    assert_eq!(fabric.controller(&other).unwrap().state, "live");
    let seen = fabric.target.observe(&neighbour.nqn).unwrap().unwrap();
    assert_eq!(
        (seen.ports, seen.allowed_hosts.len()),
        (vec![fabric.port.id], 1)
    );

    nvme::delete(super::fabric::sys(), &other).unwrap();
    fabric.target.remove_subsystem(&neighbour.nqn).unwrap();
}

#[test]
fn rule_08_teardown_finishes_what_a_crash_left() {
    let fabric = Fabric::exported(IPV4);
    let (target, nqn) = (&fabric.target, fabric.nqn());
    let enable = fabric
        .subsystem_dir()
        .join(format!("namespaces/{NSID}/enable"));
    let steps: [&dyn Fn() -> bool; 4] = [
        &|| target.unlink_port(nqn, fabric.port.id).is_ok(),
        &|| target.disallow_host(nqn, &fabric.host.nqn).is_ok(),
        &|| fs::write(&enable, "0").is_ok(),
        &|| target.remove_namespace(nqn, NSID).is_ok(),
    ];
    for crashed_after in 0..=steps.len() {
        fabric.export();
        assert!(steps[..crashed_after].iter().all(|step| step()));
        assert_eq!(
            fabric.target.remove_subsystem(fabric.nqn()).unwrap(),
            Outcome::Changed,
            "{crashed_after}"
        );
        assert_eq!(
            fabric.target.observe(fabric.nqn()).unwrap(),
            None,
            "{crashed_after}"
        );
        let left = Path::new(NVMET)
            .join("hosts")
            .join(&fabric.host.nqn)
            .exists();
        // An entry whose host was already taken out is nobody's to see.
        assert_eq!(left, crashed_after >= 2, "{crashed_after}");
    }
}

#[test]
fn rule_09_the_consumer_sees_the_new_size_after_revalidation() {
    let fabric = Fabric::exported(IPV4);
    let (_, namespace) = fabric.attach();
    let device = Path::new(DEV).join(&namespace.block);
    let size = || block::size_bytes(&fs::File::open(&device).unwrap(), &device).unwrap();
    assert_eq!(size(), DISK_BYTES);
    fabric.disk.grow(2 * DISK_BYTES);
    fabric.target.revalidate_size(fabric.nqn(), NSID).unwrap();
    fabric.await_event("the resize", |event| {
        event.devname == namespace.block && event.pairs.contains(&("RESIZE".into(), "1".into()))
    });
    assert_eq!(size(), 2 * DISK_BYTES);
}

#[test]
fn the_loop_port_serves_this_very_machine() {
    let mut fabric = Fabric::new(IPV4);
    fabric.port.address = None;
    for expected in [Outcome::Changed, Outcome::Unchanged] {
        assert_eq!(fabric.target.converge_port(&fabric.port).unwrap(), expected);
    }
    fabric.export();
    let (controller, namespace) = fabric.attach();
    let seen = fabric.controller(&controller).unwrap();
    assert_eq!(
        (
            seen.transport.as_str(),
            seen.address.as_str(),
            seen.state.as_str()
        ),
        (
            "loop",
            format!("traddr={}", fabric.port.id).as_str(),
            "live"
        )
    );
    assert_eq!(namespace.nguid, Some(fabric.namespace.nguid));
}
