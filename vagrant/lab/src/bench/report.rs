//! What is said of a run.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use zvolt_bench::sample::Side;

use super::figures::{self, Distribution, Figure};
use super::measure::Taken;
use super::{Effort, kernel_of};
use crate::Lab;

/// A run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// UTC date and time.
    pub date: String,
    /// The host's CPU, and how many.
    pub machine: String,
    /// Whether the machines ran on KVM or were emulated.
    pub accelerator: String,
    /// Kernel and OpenZFS of the machines.
    pub kernel: String,
    /// Rounds of stage and publish.
    pub rounds: u32,
    /// The figures.
    pub figures: Vec<Figure>,
    /// All that they were made of.
    pub distributions: Vec<Distribution>,
}

impl Report {
    pub(super) fn new(lab: &Lab, effort: Effort, taken: &Taken) -> Result<Self> {
        let distributions = figures::distributions(taken)?;
        Ok(Self {
            date: date()?,
            machine: machine()?,
            accelerator: lab.state().accelerator.to_string(),
            kernel: kernel_of(lab)?,
            rounds: effort.rounds,
            figures: figures::figures(&distributions, taken)?,
            distributions,
        })
    }

    /// Whether all bars are met.
    pub fn is_ok(&self) -> bool {
        self.figures.iter().all(Figure::is_ok)
    }

    /// One line a figure: name, value, bar, `ok` or `short`.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for figure in &self.figures {
            let word = if figure.is_ok() { "ok" } else { "short" };
            let (name, value, bar, unit) = (&figure.name, figure.value, figure.bar, figure.unit);
            let _ = writeln!(
                text,
                "{word:<6} {name:<58} {value:>7.2} {unit:<4} (bar {bar:.2})"
            );
        }
        text
    }

    /// Tables for people.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{}; {}; {}; {}; {} rounds in turn. Ratios of medians within this run.\n\n\
             | figure | value | bar | |\n| --- | ---: | ---: | --- |\n",
            self.date, self.kernel, self.machine, self.accelerator, self.rounds
        );
        for f in &self.figures {
            let word = if f.is_ok() { "ok" } else { "short" };
            let _ = writeln!(
                text,
                "| {} | {:.2} {} | {:.2} | {word} |",
                f.name, f.value, f.unit, f.bar
            );
        }
        text.push_str(
            "\nMilliseconds:\n\n| case | work | side | p50 | p90 | p99 | max | samples |\n\
             | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for d in &self.distributions {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {} |",
                d.case,
                d.what,
                name_of(d.side),
                d.p50,
                d.p90,
                d.p99,
                d.max,
                d.count
            );
        }
        text.push_str("\nMedians of the steps, milliseconds:\n\n| case | work | side | steps |\n| --- | --- | --- | --- |\n");
        for d in self.distributions.iter().filter(|d| !d.steps.is_empty()) {
            let steps: Vec<String> = d
                .steps
                .iter()
                .map(|(name, ms)| format!("{name} {ms:.2}"))
                .collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                d.case,
                d.what,
                name_of(d.side),
                steps.join(", ")
            );
        }
        text
    }
}

pub(super) fn name_of(side: Side) -> &'static str {
    match side {
        Side::Driver => "driver",
        Side::Floor => "floor",
        Side::Baseline => "child processes",
    }
}

fn date() -> Result<String> {
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M UTC"])
        .output();
    let output = output.context("run date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// proc_cpuinfo(5).
fn machine() -> Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, model)| model.trim())
        .collect();
    let model = models.first().copied().unwrap_or("unknown CPU");
    Ok(format!("{} × {model}", models.len().max(1)))
}
