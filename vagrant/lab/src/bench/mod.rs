//! `cargo lab bench`: publish latency of the driver against the floor and against child processes, in the same
//! machines and in turn. What counts are ratios within one run: under emulation instructions cost many times what
//! they cost on hardware, and forks more than that.

mod figures;
mod measure;
mod plot;
mod report;
mod scale;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::machine::Spec;
use crate::tiers::release;
use crate::{Lab, machines, progress};

pub use figures::Figure;
pub use report::Report;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds of stage and publish.
    pub rounds: u32,
    /// Rounds of all else.
    pub others: u32,
    /// XFS and raw block too.
    pub whole: bool,
    /// How many volumes are staged and exported at once; 0 for none.
    pub many: usize,
}

impl Effort {
    /// A few minutes.
    pub const QUICK: Self = Self {
        rounds: 15,
        others: 10,
        whole: false,
        many: 0,
    };
    /// As long as tails need.
    pub const FULL: Self = Self {
        rounds: 100,
        others: 40,
        whole: true,
        many: 1000,
    };
}

/// Measures, and gives what is to be said.
pub fn run(effort: Effort) -> Result<Report> {
    let driver = release("zvolt")?;
    let program = release("zvolt-bench")?;
    let timeline = overhead(&driver)?;
    crate::tiers::with_lab(&two(), |lab| {
        progress::part(
            "copying the driver and the benchmark to the machines",
            || {
                crate::tiers::install_everywhere(lab, &driver, crate::tiers::DRIVER)?;
                crate::tiers::install_everywhere(lab, &program, measure::PROGRAM)
            },
        )?;
        let mut taken = measure::all(lab, effort)?;
        taken.timeline = timeline;
        Report::new(lab, effort, &taken)
    })
}

/// A storage host and a consumer. Nodes have more CPUs than one: with one, the driver, udevd and the kernel's own threads
/// wait for each other.
fn two() -> Vec<Spec> {
    let mut machines = machines(1, 1);
    for machine in &mut machines {
        machine.cpus = 2;
        machine.memory = 2048;
    }
    machines
}

/// What the driver says that its timeline costs, here and not in an emulated machine.
fn overhead(driver: &Path) -> Result<u64> {
    let output = Command::new(driver).args(["trace", "--overhead"]).output();
    let output = output.with_context(|| format!("start {}", driver.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let nanos = text.trim().parse();
    nanos.with_context(|| format!("zvolt trace --overhead said {text:?}"))
}

/// What the figures of the short form are called.
pub fn names() -> impl Iterator<Item = &'static str> {
    figures::names()
}

/// Writes the report's files into a folder: `report.json`, `report.md` and the plots.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    put("report.json", &serde_json::to_string_pretty(report)?)?;
    put("report.md", &report.markdown())?;
    for (name, svg) in plot::all(report)? {
        put(&name, &svg)?;
    }
    Ok(())
}

/// The machine's kernel, in one line.
fn kernel_of(lab: &Lab) -> Result<String> {
    let out = lab
        .vm(crate::fleet::STORAGE)
        .ok("echo \"Linux $(uname -r), OpenZFS $(cat /sys/module/zfs/version)\"")?;
    Ok(out.trim().to_owned())
}
