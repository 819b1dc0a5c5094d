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

use anyhow::{Context, Result};

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
    crate::tiers::with_lab(&machines(1, 1), |lab| {
        progress::part(
            "copying the driver and the benchmark to the machines",
            || {
                crate::tiers::install_everywhere(lab, &driver, crate::tiers::DRIVER)?;
                crate::tiers::install_everywhere(lab, &program, measure::PROGRAM)
            },
        )?;
        let taken = measure::all(lab, effort)?;
        Report::new(lab, effort, &taken)
    })
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
