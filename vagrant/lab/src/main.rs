//! `cargo lab`: the lab's command line.

#![allow(
    clippy::disallowed_methods,
    reason = "the lab runs the host's tools and waits for machines; the driver's rules are not its own"
)]

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use zvolt_lab::bench::Effort;
use zvolt_lab::tiers::{self, Tier};
use zvolt_lab::{
    Lab, Started, bench, chart, cleanup, container, control, host, image, keeper, machines,
    progress, remove_stale,
};

#[derive(Parser)]
#[command(
    name = "cargo lab",
    bin_name = "cargo lab",
    version,
    about = "Real kernels, real ZFS, in virtual machines",
    long_about = "Builds a Debian 13 machine image with ZFS (once, cached by what goes in), boots machines from it \
                  under QEMU, and runs the demo and the tests on them. Installs what it needs by apt, as root or by \
                  sudo -n. Leaves nothing behind but the cached image.",
    after_help = "Environment:\n  \
                  ZVOLT_LAB_RUN     run folder of the lab (default: one for each user); several labs can run at once\n  \
                  ZVOLT_LAB_ACCEL   kvm, tcg or icount (a clock that counts instructions), instead of trying\n  \
                  ZVOLT_LAB_MIRROR  Debian mirror to build the image from\n  \
                  ZVOLT_LAB_ATTACH  pooled: tests of the driver make such volumes where they do not say which\n\n\
                  Exit status: 0 done; 1 failed, or a test failed or did not run; 2 wrong usage;\n\
                  128+N ended by signal N after cleaning up. `ssh` ends with its command's own status."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a lab and leave it running
    #[command(
        after_help = "Examples:\n  cargo lab up\n  cargo lab up --nodes 3\n  ZVOLT_LAB_RUN=/tmp/lab2 cargo lab up"
    )]
    Up {
        #[command(flatten)]
        size: Size,
        #[command(flatten)]
        output: Output,
    },
    /// Show the lab that runs
    #[command(after_help = "Example:\n  cargo lab status --output json")]
    Status {
        #[command(flatten)]
        output: Output,
    },
    /// A shell, or one command, on a machine of the running lab
    #[command(
        after_help = "Examples:\n  cargo lab ssh node0\n  cargo lab ssh storage0 zpool status"
    )]
    Ssh {
        /// Name of the machine
        host: String,
        /// Command and its arguments; none gives a shell
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// End the running lab and remove every trace of it
    #[command(after_help = "Example:\n  cargo lab down")]
    Down,
    /// A volume's whole life on three machines, with its timeline; starts a lab of its own when none runs
    #[command(after_help = "Examples:\n  cargo lab demo\n  cargo lab demo --output json")]
    Demo {
        #[command(flatten)]
        output: Output,
    },
    /// Run tests; starts a lab of its own when the tier needs one and none runs
    #[command(
        after_help = "Examples:\n  cargo lab test\n  cargo lab test vm rule_04\n  cargo lab test --list --output json"
    )]
    Test {
        /// Only this tier
        tier: Option<Tier>,
        /// Only tests that have this in their name
        name_filter: Option<String>,
        /// Name the tests by tier; run none
        #[arg(long)]
        list: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Measure publish latency: the driver, bare system calls and child processes, in turn
    #[command(
        after_help = "Prints one line a figure: ok or short, name, value, bar. Writes report.json, report.md and plots.\n\n\
                      Examples:\n  cargo lab bench --quick\n  cargo lab bench --folder bench/results\n\n\
                      Exit status: 0 all bars are met, 1 one is short or could not be measured."
    )]
    Bench {
        /// End in a few minutes
        #[arg(long)]
        quick: bool,
        /// How many volumes are staged and exported at once, 0 for none; 1,000 unless --quick
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
        many: Option<u16>,
        /// How many rounds of stage and publish, and at most so many of all else; 100 unless --quick
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: Option<u32>,
        /// Where the report goes
        #[arg(long, value_name = "DIR", default_value = "target/bench")]
        folder: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Build the container images of the driver, as it is released: OCI layouts, and what is in them
    #[command(
        after_help = "The same program and packages give the same digests. `cargo lab clean` forgets the packages, so that \
                      the next build takes the newest.\n\n\
                      Examples:\n  cargo lab image\n  ctr --namespace k8s.io images import target/image/zvolt-0.1.0.oci.tar"
    )]
    Image {
        /// Where they go
        #[arg(long, value_name = "DIR", default_value = "target/image")]
        folder: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Write deploy/manifests of deploy/chart; builds Helm once
    #[command(after_help = "Example:\n  cargo lab manifests")]
    Manifests,
    /// Remove the cached images
    #[command(after_help = "Example:\n  cargo lab clean")]
    Clean,
    #[command(hide = true)]
    Keep { plan: String },
}

#[derive(Args)]
struct Size {
    /// Storage hosts with a pool `tank` each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=9))]
    storage: u8,
    /// Consumers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=9))]
    nodes: u8,
}

#[derive(Args)]
struct Output {
    /// How to print data on standard output
    #[arg(short, long, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = run(cli.verb);
    cleanup::yield_to_signal();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    if let Verb::Keep { plan } = &verb {
        let plan = serde_json::from_str(plan).context("read the plan of the lab")?;
        keeper::run(plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !matches!(verb, Verb::Ssh { .. }) {
        cleanup::watch_signals()?;
    }
    match verb {
        Verb::Up { size, output } => up(&size, output.output)?,
        Verb::Status { output } => show(
            &control::ask(&host::run_dir(), &control::Request::State)?,
            output.output,
        )?,
        Verb::Ssh { host, command } => ssh(&host, &command)?,
        Verb::Down => {
            match Lab::attach() {
                Ok(lab) => lab.down()?,
                Err(_) if !host::run_dir().exists() => {
                    bail!("no lab runs at {}", host::run_dir().display())
                }
                Err(_) => remove_stale(&host::run_dir())?,
            }
            progress::note("the lab is gone");
        }
        Verb::Demo { output } => demo(output.output)?,
        Verb::Test {
            tier,
            name_filter,
            list,
            output,
        } => {
            if list {
                return list_tests(tier, output.output);
            }
            return Ok(if tiers::run(tier, name_filter.as_deref())? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Verb::Bench {
            quick,
            many,
            rounds,
            folder,
            output,
        } => {
            let mut effort = if quick { Effort::QUICK } else { Effort::FULL };
            effort.many = many.map_or(effort.many, usize::from);
            if let Some(rounds) = rounds {
                (effort.rounds, effort.others) = (rounds, effort.others.min(rounds));
            }
            let report = bench::run(effort)?;
            bench::write(&report, &folder)?;
            match output.output {
                Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
                Format::Text => print!("{}", report.lines()),
            }
            progress::note(format!("the whole report: {}", folder.display()));
            return Ok(ExitCode::from(u8::from(!report.is_ok())));
        }
        Verb::Image { folder, output } => show_images(&container::build(&folder)?, output.output)?,
        Verb::Manifests => {
            let file = chart::write_manifests()?;
            progress::note(format!("wrote {file}"));
        }
        Verb::Clean => {
            if Lab::attach().is_ok() {
                bail!("a lab runs; end it first by `cargo lab down`");
            }
            progress::note(format!("removed {}", image::clean()?.display()));
        }
        Verb::Keep { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn up(size: &Size, format: Format) -> Result<()> {
    let started = Started::new(&host::run_dir(), &machines(size.storage, size.nodes))?;
    let state = started.lab().state().clone();
    started.keep()?;
    show(&state, format)?;
    if std::io::stderr().is_terminal() {
        progress::note("cargo lab ssh HOST gives a shell; cargo lab down ends it");
    }
    Ok(())
}

fn show(state: &control::State, format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(state)?);
        return Ok(());
    }
    let mut text = format!(
        "{:<10} {:<5} {:<14} {:<12} {:<6}\n",
        "HOST", "STATE", "IPV4", "IPV6", "POOL"
    );
    for machine in &state.machines {
        let _ = writeln!(
            text,
            "{:<10} {:<5} {:<14} {:<12} {:<6}",
            machine.spec.name,
            if machine.pid.is_some() { "on" } else { "off" },
            machine.ipv4,
            machine.ipv6,
            if machine.spec.pool { "tank" } else { "-" }
        );
    }
    print!("{text}");
    println!(
        "\nrun folder {}, on {}",
        state.run_dir.display(),
        state.accelerator
    );
    Ok(())
}

fn ssh(host: &str, command: &[String]) -> Result<()> {
    let lab = Lab::attach()?;
    let vm = lab.find(host).with_context(|| {
        let names: Vec<&str> = lab.vms().iter().map(zvolt_lab::Vm::name).collect();
        format!(
            "there is no machine {host:?} in this lab; it has {}",
            names.join(", ")
        )
    })?;
    // Replaces this process; comes back only on failure.
    Err(vm.interactive(command).exec()).context("start ssh")
}

fn demo(format: Format) -> Result<()> {
    let report = tiers::demo()?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(())
}

fn show_images(images: &[container::Built], format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(images)?);
        return Ok(());
    }
    for image in images {
        println!("{}", image.reference);
        println!("  {}", image.digest);
        println!("  {}: {} bytes", image.file.display(), image.bytes);
        println!(
            "  {}: {} packages, {} crates",
            image.sbom.display(),
            image.packages,
            image.crates
        );
    }
    Ok(())
}

fn list_tests(tier: Option<Tier>, format: Format) -> Result<ExitCode> {
    let all = tiers::list(tier)?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        for (tier, names) in &all {
            for name in names {
                println!("{tier:<6} {name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
