//! Tier `vm`, from outside: the driver on several machines, called over its real sockets.
//!
//! Tests share one lab and run one at a time. Each begins with machines on which nothing is left of
//! an earlier one, and most end by asserting that nothing is left of themselves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod faults;
mod fleet;
mod input;
mod lifecycle;
mod model;
mod modes;
mod outages;
mod pooled;
mod rules;
mod scale;
mod snapshots;
mod storage;
mod syscalls;
