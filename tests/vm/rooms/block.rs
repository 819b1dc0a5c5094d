//! Room `block` on a machine where all processes can be seen.

#![allow(
    clippy::disallowed_methods,
    reason = "another process has to have the device open"
)]

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use zvolt_kernel::block;

use super::fabric::Disk;

#[test]
fn rule_04_a_process_that_has_the_device_open_is_seen() {
    let device = Disk::new();
    let id = block::dev_id(&device.device).unwrap();
    let openers = || block::openers(Path::new("/proc"), id).unwrap();
    // This process itself does not count. (udevd may look at a new device too.)
    let _own = File::open(&device.device).unwrap();
    assert!(!openers().contains(&std::process::id()));
    let mut reader = Command::new("cat")
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(File::open(&device.device).unwrap())
        .spawn()
        .unwrap();
    assert!(openers().contains(&reader.id()));
    drop(reader.stdin.take());
    reader.wait().unwrap();
    assert!(!openers().contains(&reader.id()));
}
