//! zvolt, as a library for its own program and tests: the rooms behind the command line.

#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "a program exports nothing: `pub` says what a room shows the others"
)]

mod agent;
mod cli;
mod csi;
#[doc(hidden)]
pub mod model;
mod node;
mod ops;
#[doc(hidden)]
pub mod store;
mod telemetry;

pub use cli::{command, run};
