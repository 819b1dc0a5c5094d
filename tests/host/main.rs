//! Tier `host`: the kernel rooms on any Linux, as root: loop devices, mounts, namespaces.

#![allow(clippy::unwrap_used, reason = "a fixture that fails ends the test")]

mod format;
mod mkfs;
mod mounts;
mod preflight;
