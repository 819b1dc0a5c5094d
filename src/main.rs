//! zvolt: a CSI driver for bare metal. The first argument is the mode.

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
