//! Tier `sanity`: the checks of csi-test against the driver in storage0, over its socket. Each variant
//! gets a driver of its own and runs twice in the same directories, so that what the first run leaves
//! shows in the second.

mod optional;
mod reader;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Counts, beside, build, libtest, vm};
use crate::fleet::{self, Member, STORAGE};
use crate::programs::{Programs, Vetted};
use crate::{Lab, Vm, machines, progress, quote};
use reader::Reader;

const PROGRAM: &str = "/usr/local/bin/zvolt-sanity";
const NAME: &str = "zvolt-sanity";
const PROGRAMS: Programs = Programs {
    module: "tests/sanity",
    prefix: "sanity-",
    said: "building csi-sanity (once; 1 to 3 minutes)",
    programs: &[(NAME, ".")],
    stamp: None,
    folders: &[],
    vetted: Vetted::Yes,
};
const VARIANTS: [&str; 3] = ["ext4", "xfs", "block"];
const RUNS: usize = 2;

/// The names of the checks: the variant and csi-test's own text.
pub(super) fn names() -> Result<Vec<String>> {
    checks(&program()?)
}

fn program() -> Result<PathBuf> {
    Ok(PROGRAMS.ensure()?.join(NAME))
}

fn checks(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program)
        .arg("-list")
        .output()
        .context("run csi-sanity")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort();
    ensure!(
        output.status.success() && !names.is_empty(),
        "csi-sanity names no checks: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(names)
}

/// Runs the checks whose names have `filter` in them.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let program = program()?;
    let mut names = checks(&program)?;
    names.retain(|name| filter.is_none_or(|f| name.contains(f)));
    if names.is_empty() {
        return Ok(());
    }
    let driver = build::plain_driver()?;
    let jobs = VARIANTS.into_iter().filter_map(|variant| {
        let prefix = format!("{variant} ");
        let awaited = names.iter().filter(|n| n.starts_with(&prefix)).count();
        (awaited > 0).then_some((variant, awaited))
    });
    let plan = beside::Plan {
        machines: &machines(1, 0),
        prepare: &|lab| {
            progress::part("copying the driver and csi-sanity to storage0", || {
                let storage = lab.vm(STORAGE);
                vm::install(&[storage], &driver, vm::DRIVER)?;
                vm::install(&[storage], &program, PROGRAM)
            })
        },
        work: &|lab, (variant, awaited): &(&str, usize), counts| {
            run_variant(lab, variant, filter, *awaited, counts)
                .with_context(|| format!("variant {variant}"))
        },
    };
    beside::run(&plan, jobs.collect(), counts)
}

fn run_variant(
    lab: &Lab,
    variant: &str,
    filter: Option<&str>,
    awaited: usize,
    counts: &mut Counts,
) -> Result<()> {
    // With a list of nodes, one that is not on it does not exist, which is among the checks.
    let member = Member::storage(lab).admitting("node0");
    fleet::scrub(member.vm())?;
    member.start()?;
    let staging = fleet::staging_path(&format!("sanity-{variant}"));
    let target = fleet::target_path("sanity", variant);
    member.vm().ok(&format!(
        "mkdir -p $(dirname {staging}) $(dirname {target})"
    ))?;
    for run in 1..=RUNS {
        let mut reader = Reader::new(variant, run);
        let mut words = vec![PROGRAM.to_owned(), format!("-seed={run}")];
        words.push(format!("-endpoint=unix://{}", fleet::SOCKET));
        words.push(format!("-staging={staging}"));
        words.push(format!("-target={target}"));
        words.extend(filter.map(|f| quote(&format!("-filter={f}"))));
        words.push(variant.to_owned());
        let status = libtest::follow(member.vm().interactive(&words), |line| {
            if let Some(said) = reader.line(line) {
                println!("{said}");
            }
        })?;
        let (of_run, said) = reader.finish(awaited);
        counts.add(of_run);
        if let Some(said) = said {
            println!("{said} ({status})");
        }
    }
    member.stop()?;
    let name = format!("{variant} leaves nothing behind");
    match nothing_left(lab, member.vm(), &[&staging, &target]) {
        Ok(()) => {
            println!("ok      {name}");
            counts.passed += 1;
        }
        Err(error) => {
            println!(
                "FAILED  {name}\n    {}",
                format!("{error:#}").replace('\n', "\n    ")
            );
            counts.failed += 1;
        }
    }
    Ok(())
}

fn nothing_left(lab: &Lab, vm: &Vm, paths: &[&str]) -> Result<()> {
    fleet::assert_clean(lab, &[vm.name()])?;
    for path in paths {
        let left = vm.ok(&format!("find {path} 2>/dev/null || true"))?;
        ensure!(left.is_empty(), "left behind:\n{}", left.trim_end());
    }
    Ok(())
}
