//! Tier `vm`, inside one machine with ZFS and nvmet: each kernel room against the real kernel.

#![allow(clippy::unwrap_used, reason = "a fixture that fails ends the test")]

mod block;
mod fabric;
mod format;
mod net;
mod nvme;
mod nvmet;
mod uevent;
mod zfs;
