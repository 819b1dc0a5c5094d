//! Tier `vm`: the tests that need the lab's machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Counts, build, libtest, workspace};
use crate::{Lab, Started, Vm, machines, own_run_dir, progress};

const ROOMS: &str = "/usr/local/bin/zvolt-rooms";
/// Where the machines have the driver.
pub(super) const DRIVER: &str = "/usr/local/bin/zvolt";

/// Runs the tests inside storage0, then those that drive all machines from here.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    // First all that can fail without a machine.
    let rooms = build::test("zvolt-kernel", "rooms")?;
    let driver = build::driver()?;
    let tests = build::test("zvolt", "vm")?;
    with_lab(|lab| {
        let before = *counts;
        let outcome = in_lab(lab, filter, counts, &rooms, &driver, &tests);
        if outcome.is_err() || counts.failed + counts.not_run > before.failed + before.not_run {
            collect(lab);
        }
        outcome
    })
}

/// Does something with the lab that runs, or with one that is started for it and ends with it.
pub(super) fn with_lab<T>(work: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
    if let Ok(lab) = Lab::attach() {
        progress::note(format!(
            "using the lab that runs at {}",
            lab.run_dir().display()
        ));
        return work(&lab);
    }
    let started = Started::new(&own_run_dir(), &machines(1, 2))?;
    work(started.lab())
}

fn in_lab(
    lab: &Lab,
    filter: Option<&str>,
    counts: &mut Counts,
    rooms: &Path,
    driver: &Path,
    tests: &Path,
) -> Result<()> {
    progress::part("copying the programs to the machines", || {
        install(&lab.vms().iter().collect::<Vec<_>>(), driver, DRIVER)?;
        install(&[lab.vm("storage0")], rooms, ROOMS)
    })?;
    let mut words = vec![
        ROOMS.to_owned(),
        "--test-threads=1".to_owned(),
        "--color=never".to_owned(),
    ];
    words.extend(filter.map(crate::quote));
    // A part that cannot run must not hide the other's outcome.
    let inside = libtest::run(lab.vm("storage0").interactive(&words), counts)
        .context("the tests in storage0");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(tests);
    command
        .args(["--test-threads=1", "--color=never"])
        .args(filter);
    command
        .env("ZVOLT_LAB_RUN", lab.run_dir())
        .current_dir(workspace());
    let outside = libtest::run(command, counts).context("the tests of the driver");
    inside.and(outside)
}

/// Copies a program, without what only a debugger needs, to machines, all at once, and sees that it
/// starts there.
pub(super) fn install(vms: &[&Vm], program: &Path, remote: &str) -> Result<()> {
    let slim = program.with_extension("slim");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&slim)
        .arg(program)
        .status();
    let file = if stripped.is_ok_and(|status| status.success()) {
        slim.as_path()
    } else {
        program
    };
    let outcome = thread::scope(|scope| {
        let copies: Vec<_> = vms
            .iter()
            .map(|&vm| {
                scope.spawn(move || {
                    vm.put(file, remote)?;
                    starts(vm, remote)
                })
            })
            .collect();
        copies.into_iter().try_for_each(|copy| match copy.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("copying {} failed", program.display()),
        })
    });
    let _ = fs::remove_file(&slim);
    outcome
}

fn starts(vm: &Vm, program: &str) -> Result<()> {
    let output = vm.run(&format!("{program} --help"))?;
    if output.stderr.contains("GLIBC_") {
        bail!(
            "{program} was built against a newer C library than Debian 13 has, so it does not start on {}: {}\n\
             build on a host with glibc 2.41 or older (Debian 12 or 13, Ubuntu 22.04 to 25.04)",
            vm.name(),
            output.stderr.trim()
        );
    }
    if output.status != 0 {
        bail!(
            "{program} does not start on {}: {}",
            vm.name(),
            output.stderr.trim()
        );
    }
    Ok(())
}

/// Keeps the logs of every machine where the build's output is, and shows the end of the kernels'.
fn collect(lab: &Lab) {
    let dir = logs_dir();
    if let Err(error) = fs::create_dir_all(&dir) {
        progress::note(format!("no place for logs at {}: {error}", dir.display()));
        return;
    }
    for vm in lab.vms() {
        let name = vm.name();
        let kernel = vm.kernel_log().unwrap_or_else(|error| format!("{error:#}"));
        let journal = vm
            .ok("journalctl --no-pager -o short-precise")
            .unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = kernel.lines().collect();
        eprintln!("--- end of the kernel log of {name}");
        for line in &lines[lines.len().saturating_sub(12)..] {
            eprintln!("    {line}");
        }
        let _ = fs::write(dir.join(format!("{name}.kernel.log")), &kernel);
        let _ = fs::write(dir.join(format!("{name}.journal.log")), journal);
        let _ = fs::copy(
            vm.console_log_path(),
            dir.join(format!("{name}.console.log")),
        );
    }
    progress::note(format!("logs of the machines: {}", dir.display()));
}

fn logs_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    target.join("lab-logs")
}
