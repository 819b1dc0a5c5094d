//! zvolt: a CSI driver for bare metal. The first argument is the mode.

#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "a program exports nothing: `pub` says what a room shows the others"
)]

mod agent;
mod cli;
mod csi;
mod model;
mod node;
mod ops;
mod store;
mod telemetry;

fn main() -> std::process::ExitCode {
    cli::run()
}
