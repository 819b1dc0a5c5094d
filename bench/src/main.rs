//! `zvolt-bench`: a job on standard input, a sample a line on standard output.

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

#[derive(Parser)]
#[command(
    version,
    about = "Does a publish job in turn by the driver, by bare system calls and by child processes",
    after_help = "Reads a job (JSON) on standard input and prints a sample a line; `cargo lab bench` makes the job.\n\n\
                  Example:\n  zvolt-bench < job.json\n\nExit status: 0 done, 1 failed, 2 wrong usage."
)]
struct Cli {}

fn main() -> ExitCode {
    Cli::parse();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let job = serde_json::from_reader(io::stdin().lock()).context("read the job")?;
    zvolt_bench::turns::run(&job)
}
