//! Tier `host`: the kernel rooms on any Linux, as root: loop devices, mounts, namespaces.

mod format;
mod mounts;
