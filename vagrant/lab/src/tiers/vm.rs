//! Tier `vm`: the tests that need the lab's machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Counts, beside, build, libtest, workspace};
use crate::machine::Spec;
use crate::{Lab, Started, Vm, machines, own_run_dir, progress};

const ROOMS: &str = "/usr/local/bin/zvolt-rooms";
/// Where the machines have the driver.
pub(crate) const DRIVER: &str = "/usr/local/bin/zvolt";

/// The tier's test programs.
pub(super) const PROGRAMS: [&str; 3] = ["lab", "rooms", "vm"];

/// Tests that take minutes, longest first: with one of them left to the end, a lab would have nothing to do.
const LONG: [&str; 5] = [
    "model_two_thousand_random_calls",
    "outage_network_cut",
    "bug_c_58",
    "crash_at_every_step_of_snapshots",
    "rule_06_each_order",
];

/// What runs on one lab at a time.
enum Job {
    /// The tests of the lab itself.
    Lab(PathBuf),
    /// The tests of the kernel rooms, inside storage0.
    Rooms,
    /// One test of the driver, from outside.
    Driver(PathBuf, String),
}

/// Runs the tests of the lab itself, those inside storage0, and those that drive all machines from here.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    // First all that can fail without a machine. A part that did not build has failed, and hides no other.
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
    let mut jobs = Vec::new();
    if let Some((_, tests)) = &driver {
        let named = matching(tests, filter)?;
        jobs.extend(
            named
                .into_iter()
                .map(|name| Job::Driver(tests.clone(), name)),
        );
        jobs.sort_by_key(|job| job.rank());
    }
    // The rooms' tests take minutes together, and so come after the longest and before the many short ones.
    let rest = jobs.iter().position(|job| job.rank() == LONG.len());
    let at = rest.unwrap_or(jobs.len());
    if rooms.as_ref().is_some_and(|p| is_wanted(p, filter)) {
        jobs.insert(at, Job::Rooms);
    }
    if let Some(lab) = lab.filter(|p| is_wanted(p, filter)) {
        jobs.insert(at, Job::Lab(lab));
    }
    let plan = beside::Plan {
        machines: &machines(1, 2),
        prepare: &|lab| {
            progress::part("copying the tests and the driver to the machines", || {
                if let Some(rooms) = &rooms {
                    install(&[lab.vm("storage0")], rooms, ROOMS)?;
                }
                match &driver {
                    Some((driver, _)) => install_everywhere(lab, driver, DRIVER),
                    None => Ok(()),
                }
            })
        },
        work: &|lab, job, counts| match job {
            Job::Lab(tests) => libtest::run_in_turn(from_here(lab, tests, filter), counts),
            Job::Rooms => libtest::run_in_turn(inside_storage0(lab, filter), counts)
                .context("the tests in storage0"),
            Job::Driver(tests, name) => {
                let mut command = from_here(lab, tests, Some(name));
                command.arg("--exact");
                libtest::run_in_turn(command, counts).with_context(|| name.clone())
            }
        },
    };
    beside::run(&plan, jobs, counts)
}

impl Job {
    /// Where it stands among the long ones.
    fn rank(&self) -> usize {
        let Self::Driver(_, name) = self else {
            return LONG.len();
        };
        let long = LONG.iter().position(|long| name.contains(long));
        long.unwrap_or(LONG.len())
    }
}

/// The tests of a program that have `filter` in their names.
pub(super) fn matching(program: &Path, filter: Option<&str>) -> Result<Vec<String>> {
    let mut names = libtest::list(super::lister(program))?;
    names.retain(|name| filter.is_none_or(|f| name.contains(f)));
    Ok(names)
}

/// Whether a program has such tests. One that cannot be asked is run, and tells.
fn is_wanted(program: &Path, filter: Option<&str>) -> bool {
    matching(program, filter).map_or(true, |names| !names.is_empty())
}

/// Does something with the lab that runs, or with one that is started for it and ends with it.
pub(crate) fn with_lab<T>(machines: &[Spec], work: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
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

fn inside_storage0(lab: &Lab, filter: Option<&str>) -> Command {
    let mut words = vec![
        ROOMS.to_owned(),
        "--test-threads=1".to_owned(),
        "--color=never".to_owned(),
    ];
    words.extend(filter.map(crate::quote));
    lab.vm("storage0").interactive(&words)
}

/// Copies a program to all machines.
pub(crate) fn install_everywhere(lab: &Lab, program: &Path, remote: &str) -> Result<()> {
    install(&lab.vms().iter().collect::<Vec<_>>(), program, remote)
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
    // Two labs may be side by side.
    let dir = logs_dir().join(lab.run_dir().file_name().unwrap_or_default());
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
