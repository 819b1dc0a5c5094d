//! Tier `vm`: the tests that need the lab's machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Counts, build, libtest, workspace};
use crate::machine::Spec;
use crate::{Lab, Started, Vm, machines, own_run_dir, progress};

const ROOMS: &str = "/usr/local/bin/zvolt-rooms";
/// Where the machines have the driver.
pub(super) const DRIVER: &str = "/usr/local/bin/zvolt";

/// What has been built for the tier. A part that did not build has failed, and hides no other.
#[derive(Default)]
struct Programs {
    lab: Option<PathBuf>,
    rooms: Option<PathBuf>,
    driver: Option<(PathBuf, PathBuf)>,
}

/// The tier's test programs.
pub(super) const PROGRAMS: [&str; 3] = ["lab", "rooms", "vm"];

/// Runs the tests of the lab itself, those inside storage0, then those that drive all machines from
/// here.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    // First all that can fail without a machine.
    let mut built = |program: Result<PathBuf>| match program {
        Ok(program) => Some(program),
        Err(error) => {
            println!("FAILED  {error:#}");
            counts.failed += 1;
            None
        }
    };
    let [lab, rooms, tests] = PROGRAMS.map(|name| built(build::test(name)));
    let driver = tests.and_then(|tests| Some((built(build::driver())?, tests)));
    let programs = Programs { lab, rooms, driver };
    with_lab(&machines(1, 2), |lab| {
        let before = *counts;
        let outcome = in_lab(lab, filter, counts, &programs);
        if outcome.is_err() || counts.is_worse_than(before) {
            collect(lab);
        }
        outcome
    })
}

/// Does something with the lab that runs, or with one that is started for it and ends with it.
pub(super) fn with_lab<T>(machines: &[Spec], work: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
    if let Ok(lab) = Lab::attach() {
        progress::note(format!(
            "using the lab that runs at {}",
            lab.run_dir().display()
        ));
        return work(&lab);
    }
    let started = Started::new(&own_run_dir(), machines)?;
    work(started.lab())
}

fn in_lab(lab: &Lab, filter: Option<&str>, counts: &mut Counts, programs: &Programs) -> Result<()> {
    // A part that cannot run must not hide another's outcome either.
    let mut outcome = Ok(());
    if let Some(tests) = &programs.lab {
        outcome = outcome.and(libtest::run_in_turn(from_here(lab, tests, filter), counts));
    }
    if let Some(rooms) = &programs.rooms {
        outcome = outcome
            .and(inside_storage0(lab, rooms, filter, counts).context("the tests in storage0"));
    }
    if let Some((driver, tests)) = &programs.driver {
        let installed = progress::part("copying the driver to the machines", || {
            install(&lab.vms().iter().collect::<Vec<_>>(), driver, DRIVER)
        });
        let ran =
            installed.and_then(|()| libtest::run_in_turn(from_here(lab, tests, filter), counts));
        outcome = outcome.and(ran.context("the tests of the driver"));
    }
    outcome
}

fn from_here(lab: &Lab, tests: &Path, filter: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(tests);
    command
        .args(["--test-threads=1", "--color=never"])
        .args(filter);
    command
        .env("ZVOLT_LAB_RUN", lab.run_dir())
        .current_dir(workspace());
    command
}

fn inside_storage0(
    lab: &Lab,
    rooms: &Path,
    filter: Option<&str>,
    counts: &mut Counts,
) -> Result<()> {
    let vm = lab.vm("storage0");
    progress::part("copying the tests of the kernel rooms to storage0", || {
        install(&[vm], rooms, ROOMS)
    })?;
    let mut words = vec![
        ROOMS.to_owned(),
        "--test-threads=1".to_owned(),
        "--color=never".to_owned(),
    ];
    words.extend(filter.map(crate::quote));
    libtest::run_in_turn(vm.interactive(&words), counts)
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
pub(super) fn collect(lab: &Lab) {
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
