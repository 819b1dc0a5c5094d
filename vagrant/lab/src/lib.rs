//! The lab behind `cargo lab`: real kernels in virtual machines, for tests, the demo and people.
//!
//! A *keeper* process owns each lab: its emulators, its private network, its connections ([`keeper`]).
//! Everything else asks it over a socket in the lab's run folder ([`control`]). [`Lab::attach`] finds
//! the lab that runs; [`Started`] is one that ends with the program that started it.

#![allow(
    clippy::disallowed_methods,
    reason = "the lab runs the host's tools and waits for machines; the driver's rules are not its own"
)]

pub mod bench;
mod cache;
pub mod chart;
pub mod cleanup;
pub mod container;
pub mod control;
pub mod control_plane;
pub mod demo;
pub mod fleet;
mod golang;
pub mod host;
pub mod hub;
pub mod image;
pub mod keeper;
pub mod machine;
pub mod orchestrator;
mod programs;
pub mod progress;
mod shell;
pub mod snapshots;
mod ssh;
pub mod tiers;
mod vm;

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::control::{Request, State};
use crate::image::Image;
use crate::keeper::Plan;
use crate::machine::{Accelerator, Spec};
pub use crate::vm::{Output, Running, Vm, quote};

/// Room for a socket's name behind the run folder's path: a Unix socket's path has 107 bytes, and
/// ssh makes one with 17 bytes more for a while.
const RUN_DIR_MAX: usize = 60;
/// How long a machine may take to boot, under software emulation on a busy host.
pub const BOOT: Duration = Duration::from_secs(600);

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    state: State,
    vms: Vec<Vm>,
}

impl Lab {
    /// The lab that runs: at `ZVOLT_LAB_RUN`, else at this user's usual place.
    pub fn attach() -> Result<Self> {
        Self::attach_to(&host::run_dir())
    }

    /// The lab that runs at a place.
    pub fn attach_to(run_dir: &Path) -> Result<Self> {
        let state =
            control::ask(run_dir, &Request::State).context("start a lab first: cargo lab up")?;
        let vms = state.machines.iter().map(|m| Vm::new(run_dir, m)).collect();
        Ok(Self { state, vms })
    }

    /// A machine by its name.
    ///
    /// # Panics
    ///
    /// When there is none of that name; [`Lab::find`] gives a `None` instead.
    pub fn vm(&self, name: &str) -> &Vm {
        self.find(name)
            .unwrap_or_else(|| panic!("there is no machine {name:?} in the lab"))
    }

    /// A machine by its name.
    pub fn find(&self, name: &str) -> Option<&Vm> {
        self.vms.iter().find(|vm| vm.name() == name)
    }

    /// All machines.
    pub fn vms(&self) -> &[Vm] {
        &self.vms
    }

    /// The lab's run folder: sockets and logs.
    pub fn run_dir(&self) -> &Path {
        &self.state.run_dir
    }

    /// How the lab was when this was made.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Ends the lab and removes every trace of it.
    pub fn down(self) -> Result<()> {
        control::ask(self.run_dir(), &Request::Down)?;
        wait_gone(self.run_dir());
        Ok(())
    }
}

/// A lab that ends, with every trace of it, when this is dropped or the program ends.
#[derive(Debug)]
pub struct Started {
    lab: Lab,
    guard: Option<cleanup::Guard>,
    /// As long as this program holds the keeper's standard input, the lab lives.
    leash: Leash,
}

type Leash = Arc<Mutex<Option<std::process::Child>>>;

fn hold(leash: &Leash) -> std::sync::MutexGuard<'_, Option<std::process::Child>> {
    leash.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Started {
    /// Builds what is missing, starts machines at `run_dir`, and waits until all can be used.
    pub fn new(run_dir: &Path, machines: &[Spec]) -> Result<Self> {
        ensure!(
            run_dir.is_absolute() && run_dir.as_os_str().len() <= RUN_DIR_MAX,
            "the run folder {} must be an absolute path of at most {RUN_DIR_MAX} bytes (Unix sockets are made in it); \
             set ZVOLT_LAB_RUN to another",
            run_dir.display()
        );
        ensure!(
            control::ask(run_dir, &Request::State).is_err(),
            "a lab runs at {} already; end it by `cargo lab down`, or set ZVOLT_LAB_RUN to another place",
            run_dir.display()
        );
        host::require(host::RUN)?;
        let image = image::ensure()?;
        let accelerator = progress::part("trying KVM", || {
            let accelerator = Accelerator::choose(&image)?;
            progress::note(format!("machines run on {accelerator}"));
            Ok(accelerator)
        })?;
        remove_stale(run_dir)?;
        let names: Vec<&str> = machines.iter().map(|m| m.name.as_str()).collect();
        progress::part(&format!("booting {}", names.join(", ")), || {
            let started = Self::boot(run_dir, image, accelerator, machines)?;
            let begin = Instant::now();
            for vm in started.lab.vms() {
                vm.wait_ready(BOOT)?;
                progress::note(format!(
                    "{} after {}",
                    vm.name(),
                    progress::seconds(begin.elapsed())
                ));
            }
            Ok(started)
        })
    }

    fn boot(
        run_dir: &Path,
        image: Image,
        accelerator: Accelerator,
        machines: &[Spec],
    ) -> Result<Self> {
        let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
        let disk_dir = host::cache_dir()?.join(format!("disks-{}-{name}", std::process::id()));
        let plan = Plan {
            run_dir: run_dir.to_owned(),
            disk_dir,
            image: image.dir().to_owned(),
            accelerator,
            machines: machines.to_vec(),
        };
        fs::DirBuilder::new()
            .mode(0o700)
            .create(run_dir)
            .with_context(|| format!("make {}", run_dir.display()))?;
        let leash: Leash = Arc::default();
        let guard = {
            let leash = Arc::clone(&leash);
            let dirs = [run_dir.to_owned(), plan.disk_dir.clone()];
            cleanup::on_end(move || {
                if let Some(mut child) = hold(&leash).take() {
                    drop(child.stdin.take());
                    let _ = child.wait();
                }
                // The keeper removes them, unless it never came so far or was killed.
                for dir in dirs {
                    let _ = fs::remove_dir_all(dir);
                }
            })
        };
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(run_dir.join("keeper.log"))?;
        // Not by its path: a build that the tests made may have replaced the file.
        let child = Command::new("/proc/self/exe")
            .arg0("zvolt-lab")
            .arg("keep")
            .arg(serde_json::to_string(&plan)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.try_clone()?)
            .spawn()
            .context("start the lab's keeper")?;
        *hold(&leash) = Some(child);
        let end = Instant::now() + Duration::from_secs(30);
        while !control::socket(run_dir).exists() {
            let ended = match hold(&leash).as_mut() {
                Some(child) => child.try_wait()?.is_some(),
                None => true,
            };
            if ended || Instant::now() > end {
                cleanup::yield_to_signal();
                let mut said = String::new();
                log.rewind()?;
                log.read_to_string(&mut said)?;
                bail!("the lab's keeper did not start: {}", said.trim());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            lab: Lab::attach_to(run_dir)?,
            guard: Some(guard),
            leash,
        })
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Lets the lab outlive this program.
    pub fn keep(mut self) -> Result<()> {
        control::ask(self.lab.run_dir(), &Request::Keep)?;
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        hold(&self.leash).take();
        Ok(())
    }
}

/// Removes what a lab left whose keeper was killed, if there is such. Refuses to touch anything else.
pub fn remove_stale(run_dir: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(run_dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {}", run_dir.display())),
    };
    ensure!(
        metadata.is_dir() && metadata.uid() == nix::unistd::geteuid().as_raw(),
        "{} is there and is not a folder of this user; remove it, or set ZVOLT_LAB_RUN to another place",
        run_dir.display()
    );
    let plan = fs::read(keeper::plan_file(run_dir)).ok();
    let plan: Option<Plan> = plan.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(plan) = plan {
        progress::note(format!(
            "removing what a killed lab left at {}",
            run_dir.display()
        ));
        let _ = fs::remove_dir_all(plan.disk_dir);
        fs::remove_dir_all(run_dir)?;
    } else {
        // An empty folder that somebody made for the lab is fine; anything else is not the lab's.
        fs::remove_dir(run_dir).with_context(|| {
            format!(
                "{} is there and is not a lab's; set ZVOLT_LAB_RUN to another place",
                run_dir.display()
            )
        })?;
    }
    Ok(())
}

fn wait_gone(run_dir: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    while run_dir.exists() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
}

/// A run folder for a lab that is not to be found by others.
pub fn own_run_dir() -> PathBuf {
    let usual = host::run_dir();
    usual.with_file_name(format!(
        "{}-{}",
        usual.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id()
    ))
}

/// The machines of a lab: `storage0`…, then `node0`….
pub fn machines(storage: u8, nodes: u8) -> Vec<Spec> {
    (0..storage)
        .map(Spec::storage)
        .chain((0..nodes).map(Spec::node))
        .collect()
}
