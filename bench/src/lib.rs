//! Publish latency, measured inside the machines of the lab: the same job is done in turn by the driver over its
//! socket, by straight-line system calls (*the floor*) and by child processes (*the baseline*).
//!
//! The program `zvolt-bench` takes a [`job::Job`] on standard input and prints a [`sample::Sample`] a line, both as
//! JSON. `cargo lab bench` makes the jobs and reports.

#![allow(
    clippy::disallowed_methods,
    reason = "the baseline starts processes: that is what it measures"
)]

pub mod baseline;
pub mod driver;
pub mod floor;
pub mod job;
pub mod sample;
pub mod turns;
