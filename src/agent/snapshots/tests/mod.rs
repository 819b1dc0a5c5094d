//! Snapshots, clones and deletions against a simulated ZFS: every order of a few objects.

mod orders;
mod plans;
mod scene;
