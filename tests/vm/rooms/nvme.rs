//! Room `nvme` against the real host driver, over loopback to the target of the same machine.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use uuid::Uuid;
use zvolt_kernel::error::Errno;
use zvolt_kernel::nvme::{self, ConnectOptions, Error, Transport, WriteProtect};
use zvolt_kernel::nvmet::{NamespaceSpec, Outcome, PortSpec};

use super::fabric::{DEV, Disk, Fabric, NSID, sys};

const IPV4: &str = "127.0.0.1";

fn refused(options: &ConnectOptions) -> Errno {
    match nvme::connect(Path::new(DEV), options) {
        Err(Error::Sys(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

fn device(block: &str) -> PathBuf {
    Path::new(DEV).join(block)
}

/// Past the page cache: what the device says now.
fn direct(block: &str) -> File {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap())
        .open(device(block))
        .unwrap()
}

/// Memory that `O_DIRECT` takes.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn write_page(file: &mut File, byte: u8) -> std::io::Result<()> {
    file.rewind()?;
    file.write_all(&Page([byte; 4096]).0)
}

fn read_page(file: &mut File) -> std::io::Result<u8> {
    let mut page = Page([0; 4096]);
    file.rewind()?;
    file.read_exact(&mut page.0)?;
    Ok(page.0[4095])
}

#[test]
fn a_connect_names_the_controller_and_an_event_the_namespace() {
    let fabric = Fabric::exported(IPV4);
    let connected = fabric.connect().unwrap();
    let name = format!("nvme{}", connected.instance);
    let namespace = fabric.await_namespace(fabric.namespace.uuid);

    let controller = fabric.controller(&name).unwrap();
    assert_eq!(
        (controller.state.as_str(), controller.transport.as_str()),
        ("live", "tcp")
    );
    assert_eq!(
        (controller.subsystem_nqn.as_str(), &controller.host_nqn),
        (fabric.nqn(), &fabric.host.nqn)
    );
    let portal = format!(
        "traddr=127.0.0.1,trsvcid={}",
        fabric.port.address.unwrap().port()
    );
    assert!(controller.address.starts_with(&portal), "{controller:?}");
    assert_eq!(fabric.controllers(), [controller]);
    let cntlid = fs::read_to_string(sys().join("class/nvme").join(&name).join("cntlid")).unwrap();
    assert_eq!(cntlid.trim(), connected.cntlid.to_string());

    assert_eq!(namespace.nguid, Some(fabric.namespace.nguid));
    let subsystem = nvme::subsystem_of(sys(), &namespace.block)
        .unwrap()
        .unwrap();
    assert_eq!(
        (subsystem.nqn.as_str(), subsystem.controllers),
        (fabric.nqn(), vec![name.clone()])
    );
    let listed: Vec<_> = nvme::namespaces(sys()).unwrap();
    assert_eq!(
        listed.iter().filter(|n| n.uuid == namespace.uuid).count(),
        1,
        "{listed:?}"
    );

    nvme::delete(sys(), &name).unwrap();
    assert_eq!(fabric.controller(&name), None);
    assert_eq!(nvme::namespace(sys(), &namespace.block).unwrap(), None);
    assert_eq!(nvme::subsystem_of(sys(), &namespace.block).unwrap(), None);
    nvme::delete(sys(), &name).unwrap();
}

#[test]
fn bug_c_34_a_name_says_nothing_of_the_namespace_id() {
    let fabric = Fabric::exported(IPV4);
    let (_, namespace) = fabric.attach();
    assert_eq!(namespace.nsid, NSID);
    assert!(
        !namespace.block.ends_with(&format!("n{NSID}")),
        "this test needs a name that misleads"
    );
}

#[test]
fn hidden_paths_are_nobodys_device() {
    let fabric = Fabric::exported(IPV4);
    let (_, namespace) = fabric.attach();
    let mut hidden = 0;
    for entry in fs::read_dir(sys().join("block")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let read = |attribute: &str| {
            let text = fs::read_to_string(entry.path().join(attribute));
            text.unwrap_or_default().trim().to_owned()
        };
        if read("hidden") == "1" && read("uuid") == fabric.namespace.uuid.to_string() {
            hidden += 1;
            assert!(!device(&name).exists(), "{name}");
            assert_eq!(nvme::namespace(sys(), &name).unwrap(), None, "{name}");
            assert_ne!(name, namespace.block);
        }
    }
    assert_eq!(hidden, 1, "is native multipath off?");
}

#[test]
fn a_controller_that_is_being_made_belongs_to_no_subsystem_yet() {
    let fabric = Fabric::exported(IPV4);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| fabric.connect().unwrap());
        let added = fabric.await_event("the controller", |e| {
            e.action == "add" && e.subsystem == "nvme"
        });
        let seen = fabric.controller(&added.devname).unwrap();
        assert!(
            seen.subsystem_nqn.is_empty() || seen.subsystem_nqn == fabric.nqn(),
            "the kernel's words for nothing were taken for an NQN: {seen:?}"
        );
        let name = format!("nvme{}", connecting.join().unwrap().instance);
        assert_eq!(
            fabric.controller(&name).unwrap().subsystem_nqn,
            fabric.nqn()
        );
    });
}

#[test]
fn a_second_connect_says_that_there_is_one() {
    let fabric = Fabric::exported(IPV4);
    fabric.attach();
    let again = fabric.connect();
    assert!(
        matches!(&again, Err(Error::Already { nqn }) if nqn == fabric.nqn()),
        "{again:?}"
    );
    assert_eq!(fabric.controllers().len(), 1);
}

#[test]
fn every_option_reaches_the_controller() {
    let fabric = Fabric::exported(IPV4);
    let options = ConnectOptions {
        nr_io_queues: Some(1),
        queue_size: Some(32),
        ctrl_loss_tmo: Some(120),
        reconnect_delay: Some(3),
        fast_io_fail_tmo: Some(17),
        keep_alive_tmo: Some(9),
        ..fabric.options()
    };
    let connected = nvme::connect(Path::new(DEV), &options).unwrap();
    let dir = sys().join(format!("class/nvme/nvme{}", connected.instance));
    let read = |name: &str| {
        fs::read_to_string(dir.join(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    for (attribute, expected) in [
        ("queue_count", "2"), // the admin queue is one of them
        ("sqsize", "31"),     // counted from zero
        ("ctrl_loss_tmo", "120"),
        ("reconnect_delay", "3"),
        ("fast_io_fail_tmo", "17"),
        ("kato", "9"),
        ("hostid", &fabric.host.id.to_string()),
    ] {
        assert_eq!(read(attribute), expected, "{attribute}");
    }
}

#[test]
fn bug_c_60_an_ipv6_portal_works() {
    let fabric = Fabric::exported("::1");
    let (name, _) = fabric.attach();
    let controller = fabric.controller(&name).unwrap();
    assert!(
        controller.address.starts_with("traddr=::1,"),
        "{controller:?}"
    );
}

#[test]
fn each_refusal_has_its_errno() {
    let fabric = Fabric::exported(IPV4);
    let stranger = ConnectOptions {
        host: fabric.stranger(),
        ..fabric.options()
    };
    assert_eq!(refused(&stranger), Errno::EIO, "a host that is not allowed");
    let unknown = ConnectOptions {
        subsystem_nqn: format!("{}-none", fabric.nqn()),
        ..fabric.options()
    };
    assert_eq!(
        refused(&unknown),
        Errno::EIO,
        "a subsystem that is not there"
    );
    fabric.attach();
    let mut borrowed = stranger;
    borrowed.host.id = fabric.host.id;
    assert_eq!(
        refused(&borrowed),
        Errno::EINVAL,
        "C-40: a host ID in use with another host NQN"
    );
    nvme::delete(sys(), &fabric.controllers()[0].name).unwrap();
    fabric
        .target
        .unlink_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    assert_eq!(
        refused(&fabric.options()),
        Errno::ECONNREFUSED,
        "nothing listens"
    );
    assert!(fabric.controllers().is_empty());
}

#[test]
fn rule_04_dropping_a_host_leaves_it_writing_and_the_link_cuts_it() {
    let fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    let mut file = direct(&namespace.block);
    write_page(&mut file, 1).unwrap();

    fabric
        .target
        .disallow_host(fabric.nqn(), &fabric.host.nqn)
        .unwrap();
    write_page(&mut file, 2).unwrap();
    assert_eq!(fabric.controller(&controller).unwrap().state, "live");

    assert_eq!(
        fabric
            .target
            .unlink_port(fabric.nqn(), fabric.port.id)
            .unwrap(),
        Outcome::Changed
    );
    assert_eq!(
        fabric
            .target
            .link_port(fabric.nqn(), fabric.port.id)
            .unwrap(),
        Outcome::Changed
    );
    // Refused on its first try to reconnect, the host gives up and takes the device with it.
    fabric.await_removal(&controller);
    assert!(write_page(&mut file, 3).is_err());
    let mut backing = File::open(&fabric.disk.device).unwrap();
    let mut page = [0; 4096];
    backing.read_exact(&mut page).unwrap();
    assert_eq!(page[0], 2, "a write after the fence reached the device");
    assert_eq!(refused(&fabric.options()), Errno::EIO);
}

#[test]
fn rule_04_a_host_that_is_still_allowed_comes_back_after_the_link_is_made_again() {
    let fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    let mut file = direct(&namespace.block);
    fabric
        .target
        .unlink_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    fabric
        .target
        .link_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    fabric.await_reconnect(&controller);
    write_page(&mut file, 4).unwrap();
    assert_eq!(read_page(&mut file).unwrap(), 4);
}

#[test]
fn a_target_rebuilt_with_the_same_identifiers_is_used_on() {
    let fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    let mut file = direct(&namespace.block);
    write_page(&mut file, 5).unwrap();
    // Unlinked first and linked last: the host must not find the subsystem missing (that is final).
    fabric
        .target
        .unlink_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    fabric.target.remove_subsystem(fabric.nqn()).unwrap();
    fabric.export();
    fabric.await_reconnect(&controller);
    assert_eq!(read_page(&mut file).unwrap(), 5);
    write_page(&mut file, 6).unwrap();
}

#[test]
fn a_target_rebuilt_with_other_identifiers_is_dropped() {
    let mut fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    let mut file = direct(&namespace.block);
    fabric
        .target
        .unlink_port(fabric.nqn(), fabric.port.id)
        .unwrap();
    fabric.target.remove_subsystem(fabric.nqn()).unwrap();
    fabric.namespace.uuid = Uuid::from_u128(0xcccc);
    fabric.export();
    fabric.await_removal(&namespace.block);
    assert!(
        write_page(&mut file, 7).is_err(),
        "the old device took a write for another volume"
    );
    assert!(read_page(&mut file).is_err());
    // Bug C-37: the scan that drops the old one does not take in the new one; the next one does.
    nvme::rescan(sys(), &controller).unwrap();
    fabric.await_namespace(fabric.namespace.uuid);
}

#[test]
fn rule_04_a_namespace_that_is_disabled_is_cut_and_its_neighbour_is_not() {
    let fabric = Fabric::exported(IPV4);
    let (controller, first) = fabric.attach();
    let disk = Disk::new();
    let second = NamespaceSpec {
        nsid: NSID + 1,
        device: disk.device.clone(),
        uuid: Uuid::from_u128(0xdddd),
        nguid: [0xdd; 16],
    };
    fabric
        .target
        .converge_namespace(fabric.nqn(), &second)
        .unwrap();
    // The live controller finds it by itself (an asynchronous event), without a rescan.
    let appeared = fabric.await_namespace(second.uuid);
    assert_eq!(appeared.nsid, NSID + 1);
    let (mut kept, mut cut) = (direct(&first.block), direct(&appeared.block));
    write_page(&mut cut, 8).unwrap();
    fabric
        .target
        .remove_namespace(fabric.nqn(), second.nsid)
        .unwrap();
    assert!(write_page(&mut cut, 9).is_err());
    write_page(&mut kept, 9).unwrap();
    assert_eq!(fabric.controller(&controller).unwrap().state, "live");
}

#[test]
fn bug_c_37_a_rescan_harms_nothing() {
    let fabric = Fabric::exported(IPV4);
    let (controller, namespace) = fabric.attach();
    nvme::rescan(sys(), &controller).unwrap();
    assert_eq!(
        nvme::namespace(sys(), &namespace.block).unwrap(),
        Some(namespace)
    );
    nvme::delete(sys(), &controller).unwrap();
    nvme::rescan(sys(), &controller).unwrap();
}

/// What the plan of a read-only publish rests on: the switch holds for every host, lives in the target's namespace,
/// survives a disable and ends with the namespace; a loop port that is unlinked takes its controller along.
#[test]
fn rule_05_write_protect_holds_for_all_hosts_and_ends_with_the_namespace() {
    let fabric = Fabric::exported(IPV4);
    let (_, namespace) = fabric.attach();
    let device = Path::new(DEV).join(&namespace.block);
    let write = || {
        let file = fs::OpenOptions::new().write(true).open(&device)?;
        file.write_all_at(&[7; 4096], 0)?;
        file.sync_data()
    };
    write().expect("it takes writes");
    let port = PortSpec {
        id: fabric.port.id + 500,
        address: None,
    };
    let me = fabric.stranger();
    fabric.target.converge_port(&port).unwrap();
    let through_loop = |act: &dyn Fn(&str)| {
        fabric.target.allow_host(fabric.nqn(), &me.nqn).unwrap();
        fabric.target.link_port(fabric.nqn(), port.id).unwrap();
        let options = ConnectOptions {
            transport: Transport::Loop { port: port.id },
            host: me.clone(),
            ctrl_loss_tmo: None,
            reconnect_delay: None,
            ..fabric.options()
        };
        let connected = nvme::connect(Path::new(DEV), &options).unwrap();
        let controller = format!("nvme{}", connected.instance);
        act(&controller);
        // Left as a crash leaves it: the link goes, and the controller with it.
        fabric.target.unlink_port(fabric.nqn(), port.id).unwrap();
        fabric.target.disallow_host(fabric.nqn(), &me.nqn).unwrap();
        fabric.await_removal(&controller);
    };
    let soon = Duration::from_secs(30);
    let dev = Path::new(DEV);
    let read = |controller: &str| nvme::write_protect(dev, controller, NSID, soon).unwrap();
    let set = |controller: &str, state| {
        nvme::set_write_protect(dev, controller, NSID, state, soon).unwrap();
        assert_eq!(read(controller), state);
    };
    through_loop(&|controller| {
        assert_eq!(read(controller), WriteProtect::Off);
        set(controller, WriteProtect::On);
    });
    write().expect_err("protected");
    let enable = fabric
        .subsystem_dir()
        .join(format!("namespaces/{NSID}/enable"));
    fs::write(&enable, "0").unwrap();
    fs::write(&enable, "1").unwrap();
    through_loop(&|controller| assert_eq!(read(controller), WriteProtect::On));
    fabric.target.remove_namespace(fabric.nqn(), NSID).unwrap();
    fabric
        .target
        .converge_namespace(fabric.nqn(), &fabric.namespace)
        .unwrap();
    through_loop(&|controller| {
        assert_eq!(read(controller), WriteProtect::Off);
        set(controller, WriteProtect::On);
        set(controller, WriteProtect::Off);
    });
    fabric.target.remove_port(port.id).unwrap();
}
