//! Tier `lint`: format, lints, and what the dependencies are allowed to be.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Counts, build};
use crate::{host, progress};

type Check = fn() -> Result<Command>;

const CHECKS: [(&str, Check); 4] = [
    ("cargo fmt --check", || {
        let mut command = build::cargo();
        command.args(["fmt", "--all", "--check"]);
        Ok(command)
    }),
    ("cargo clippy -D warnings", || Ok(clippy(&["--workspace"]))),
    (
        "cargo clippy -D warnings (fault-points, conformance)",
        || {
            Ok(clippy(&[
                "--workspace",
                "--features",
                "zvolt/fault-points,zvolt/conformance",
                "--test",
                "k8s",
            ]))
        },
    ),
    ("cargo deny check bans licenses sources", || {
        let deny = cargo_deny()?;
        let mut command = Command::new(deny);
        command.current_dir(super::workspace());
        command.args([
            "--all-features",
            "--locked",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ]);
        Ok(command)
    }),
];

fn clippy(which: &[&str]) -> Command {
    let mut command = build::cargo();
    command.arg("clippy").args(which);
    // Test programs that only the lab runs (`test = false`) are not among "all targets".
    command.args([
        "--all-targets",
        "--test",
        "host",
        "--test",
        "rooms",
        "--test",
        "vm",
    ]);
    command.args(["--locked", "--quiet", "--", "-D", "warnings"]);
    command
}

/// The names of the checks.
pub(super) fn names() -> Vec<String> {
    CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Runs the checks whose names have `filter` in them.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    for (name, check) in CHECKS {
        if filter.is_some_and(|f| !name.contains(f)) {
            continue;
        }
        let outcome = check().and_then(|mut command| command.status().context("start it"));
        match outcome {
            Ok(status) if status.success() => {
                println!("ok      {name}");
                counts.passed += 1;
            }
            Ok(status) => {
                println!("FAILED  {name} ({status})");
                counts.failed += 1;
            }
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                counts.failed += 1;
            }
        }
    }
    Ok(())
}

/// cargo-deny: the user's own, else one built once into the lab's cache.
fn cargo_deny() -> Result<PathBuf> {
    if let Some(own) = host::find("cargo-deny") {
        return Ok(own);
    }
    let tools = host::cache_dir()?.join("tools");
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        progress::part("building cargo-deny (once; 2 to 5 minutes)", || {
            let status = build::cargo()
                .args(["install", "--locked", "--quiet", "cargo-deny", "--root"])
                .arg(&tools)
                .status()?;
            ensure!(
                status.success(),
                "cargo install cargo-deny failed ({status})"
            );
            Ok(())
        })?;
    }
    Ok(program)
}
