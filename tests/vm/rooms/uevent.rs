//! Room `uevent` against the kernel's own events.

use std::fs;
use std::time::Instant;

use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{getsockopt, setsockopt};
use zvolt_kernel::nvme;
use zvolt_kernel::uevent::{Received, UeventSocket};

use super::fabric::{Fabric, soon, sys};

#[test]
fn a_namespace_comes_and_goes_with_its_events() {
    let fabric = Fabric::exported("127.0.0.1");
    fabric.connect().unwrap();
    let added = fabric.await_event("the head", |e| {
        e.action == "add" && e.devtype == "disk" && e.devpath.contains("/nvme-subsystem/")
    });
    assert_eq!(
        (
            added.subsystem.as_str(),
            added.devpath.starts_with("/devices/")
        ),
        ("block", true)
    );
    assert!(sys().join(&added.devpath[1..]).join("uevent").exists());
    assert!(added.seqnum > 0);
    nvme::delete(sys(), &fabric.controllers()[0].name).unwrap();
    let removed = fabric.await_event("the removal", |e| {
        e.action == "remove" && e.devname == added.devname
    });
    assert_eq!(removed.devpath, added.devpath);
    assert!(removed.seqnum > added.seqnum);
}

#[test]
fn events_that_were_dropped_are_told_and_later_ones_come() {
    let fabric = Fabric::new("127.0.0.1");
    let socket = UeventSocket::open().unwrap();
    let room = getsockopt(&socket, RcvBuf).unwrap();
    assert!(room >= 16 << 20, "the buffer has only {room} bytes");
    setsockopt(&socket, RcvBuf, &(64 << 10)).unwrap();
    let name = fabric.disk.device.file_name().unwrap().to_str().unwrap();
    let poke = sys().join("block").join(name).join("uevent");
    for _ in 0..500 {
        fs::write(&poke, "change").unwrap();
    }
    assert_eq!(socket.recv(Some(soon())).unwrap(), Received::Overrun);
    let mut kept = 0;
    while let Received::Event(_) = socket.recv(Some(Instant::now())).unwrap() {
        kept += 1;
    }
    assert!(kept > 0 && kept < 500, "{kept} events of 500 were kept");
    fs::write(&poke, "change").unwrap();
    loop {
        match socket.recv(Some(soon())).unwrap() {
            Received::Event(event) if event.devname == name => break,
            Received::Event(_) => {}
            other => panic!("{other:?}"),
        }
    }
}
