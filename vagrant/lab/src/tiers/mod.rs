//! `cargo lab test`: the tiers of tests. Each names every test with its outcome as it goes, and ends
//! with one line of passed, failed, skipped and not run. A tier that cannot run has failed.

mod beside;
mod build;
mod container;
mod k8s;
mod libtest;
mod lint;
#[cfg(test)]
mod rules;
mod sanity;
mod vm;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use crate::bench::{self, Effort, Figure};
use crate::{demo, host, machines, progress};
pub(crate) use build::{cargo, release};
pub use k8s::DRIVER_HERE;
pub(crate) use vm::{DRIVER, install_everywhere, with_lab};

/// A tier of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// Format, lints, dependencies
    Lint,
    /// Logic, anywhere
    Unit,
    /// Kernel rooms as root on this machine: loop devices, mounts, namespaces
    Host,
    /// Kernel rooms and the driver on the lab's machines: ZFS, nvmet, reboots, cut cables
    Vm,
    /// csi-sanity against the driver in a machine: ext4, XFS, raw block, each twice
    Sanity,
    /// Store, chart, controllers and agents on a real API server: etcd and kube-apiserver on this machine, the lab's machines
    K8s,
    /// The container images: the same twice, and their programs start
    Image,
    /// The benchmark's short form: no figure is worse than it was
    Bench,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lint => "lint",
            Self::Unit => "unit",
            Self::Host => "host",
            Self::Vm => "vm",
            Self::Sanity => "sanity",
            Self::K8s => "k8s",
            Self::Image => "image",
            Self::Bench => "bench",
        })
    }
}

/// Run by name only: the API server takes a long build, so does the driver as it is released, and the benchmark takes that
/// and a quiet host.
const BY_NAME: [Tier; 3] = [Tier::K8s, Tier::Image, Tier::Bench];

/// How many tests went how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ran and held.
    pub passed: usize,
    /// Ran and did not hold, or could not run.
    pub failed: usize,
    /// Ignored, or their program ended before their turn.
    pub not_run: usize,
    /// Optional by their specification, and named with the reason.
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_run += other.not_run;
        self.skipped += other.skipped;
    }

    fn total(self) -> usize {
        self.passed + self.failed + self.not_run + self.skipped
    }

    fn is_worse_than(self, before: Self) -> bool {
        self.failed + self.not_run > before.failed + before.not_run
    }
}

/// Runs one tier or all, in order; gives whether everything ran and passed.
pub fn run(tier: Option<Tier>, filter: Option<&str>) -> Result<bool> {
    let mut all = Counts::default();
    for tier in chosen(tier) {
        all.add(run_tier(tier, filter));
    }
    if tier.is_none() {
        for tier in BY_NAME {
            progress::note(format!(
                "tier {tier} is not part of this run: `cargo lab test {tier}` runs it"
            ));
        }
    }
    // A build that links against the tests' target folder may have said something; this line is alone.
    println!(
        "{} passed, {} failed, {} skipped",
        all.passed,
        all.failed + all.not_run,
        all.skipped
    );
    Ok(all.failed + all.not_run == 0)
}

fn chosen(tier: Option<Tier>) -> Vec<Tier> {
    match tier {
        Some(tier) => vec![tier],
        None => {
            let mut all = Tier::value_variants().to_vec();
            all.retain(|tier| !BY_NAME.contains(tier));
            all
        }
    }
}

fn run_tier(tier: Tier, filter: Option<&str>) -> Counts {
    println!("--- {tier}");
    let begin = Instant::now();
    let mut counts = Counts::default();
    let outcome = match tier {
        Tier::Lint => lint::run(filter, &mut counts),
        Tier::Unit => unit(filter, &mut counts),
        Tier::Host => on_host(filter, &mut counts),
        Tier::Vm => vm::run(filter, &mut counts),
        Tier::Sanity => sanity::run(filter, &mut counts),
        Tier::K8s => k8s::run(filter, &mut counts),
        Tier::Image => container::run(filter, &mut counts),
        Tier::Bench => figures(filter, &mut counts),
    };
    crate::cleanup::yield_to_signal();
    if let Err(error) = outcome {
        println!("FAILED  tier {tier} could not run: {error:#}");
        counts.failed += 1;
    } else if counts.total() == 0 && filter.is_some() {
        println!(
            "FAILED  no test of tier {tier} has {:?} in its name",
            filter.unwrap_or_default()
        );
        counts.failed += 1;
    }
    progress::note(format!(
        "tier {tier} took {}",
        progress::seconds(begin.elapsed())
    ));
    println!(
        "{tier}: {} passed, {} failed, {} skipped, {} not run",
        counts.passed, counts.failed, counts.skipped, counts.not_run
    );
    counts
}

/// Builds the driver as a user would have it and plays the demo, on the lab that runs or on one of its
/// own.
pub fn demo() -> Result<demo::Report> {
    let driver = build::plain_driver()?;
    with_lab(&machines(1, 2), |lab| {
        progress::part("copying the driver to the machines", || {
            install_everywhere(lab, &driver, DRIVER)
        })?;
        progress::part("a volume's whole life", || demo::run(lab))
    })
}

/// The names of the tests of one tier or all.
pub fn list(tier: Option<Tier>) -> Result<BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::new();
    for tier in chosen(tier) {
        let names = match tier {
            Tier::Lint => lint::names(),
            Tier::Unit => {
                let mut command = unit_command();
                command.args(["--", "--list", "--format", "terse"]);
                libtest::list(command)?
            }
            Tier::Host => libtest::list(lister(&build::test("host")?))?,
            Tier::Vm => {
                let mut names = Vec::new();
                for name in vm::PROGRAMS {
                    names.extend(libtest::list(lister(&build::test(name)?))?);
                }
                names
            }
            Tier::Sanity => sanity::names()?,
            Tier::K8s => libtest::list(lister(&k8s::tests()?))?,
            Tier::Image => container::names(),
            Tier::Bench => bench::names().map(str::to_owned).collect(),
        };
        all.insert(tier.to_string(), names);
    }
    Ok(all)
}

fn lister(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["--list", "--format", "terse"]);
    command
}

fn unit_command() -> Command {
    let mut command = build::cargo();
    command.args([
        "test",
        "--workspace",
        "--locked",
        "--quiet",
        "--no-fail-fast",
    ]);
    command
}

fn unit(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let mut command = build::cargo();
    command.args([
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--color=never",
    ]);
    command.arg("--").args(filter);
    libtest::run(command, counts)
}

fn on_host(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let binary = build::test("host")?;
    host::require(host::HOST_TESTS)?;
    // What a test mounts and forgets goes with the namespace.
    let mut command = host::root_command("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .arg(binary);
    command
        .args(["--test-threads=1", "--color=never"])
        .args(filter);
    libtest::run_in_turn(command, counts)
}

/// Each figure of the benchmark's short form against its guard; one that is short of its bar says so.
fn figures(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let is_wanted = |name: &str| filter.is_none_or(|f| name.contains(f));
    if !bench::names().any(is_wanted) {
        return Ok(());
    }
    let report = bench::run(Effort::QUICK)?;
    for figure in report.figures.iter().filter(|f| is_wanted(&f.name)) {
        let Figure {
            name,
            value,
            bar,
            guard,
            unit,
        } = figure;
        let short = if figure.is_ok() { "" } else { ", short of it" };
        let line = format!("{name}: {value:.2} {unit} (at most {guard:.2}; bar {bar:.2}{short})");
        if figure.is_guarded() {
            println!("ok      {line}");
            counts.passed += 1;
        } else {
            println!("FAILED  {line}");
            counts.failed += 1;
        }
    }
    Ok(())
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
