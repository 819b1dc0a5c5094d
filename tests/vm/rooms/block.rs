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
    // The loop driver holds the image, and this process itself does not count.
    let _own = File::open(&device.device).unwrap();
    assert_eq!(openers(), [0_u32; 0]);
    let mut reader = Command::new("cat")
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(File::open(&device.device).unwrap())
        .spawn()
        .unwrap();
    assert_eq!(openers(), [reader.id()]);
    drop(reader.stdin.take());
    reader.wait().unwrap();
    assert_eq!(openers(), [0_u32; 0]);
}
