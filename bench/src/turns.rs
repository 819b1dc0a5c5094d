//! The sides, in turn: noise that comes and goes meets all of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use zvolt_kernel::nvme::{self, HostIdentity};
use zvolt_kernel::nvmet::Target;
use zvolt_kernel::probe::FsKind;
use zvolt_kernel::zfs::Zfs;

use crate::baseline;
use crate::driver::Driver;
use crate::floor::{attach, create, target};
use crate::job::{Job, Volume, Work};
use crate::sample::Sample;

const NVMET: &str = "/sys/kernel/config/nvmet";
/// The driver's default.
const QUEUES: u32 = 4;

/// Does the job, and prints a sample a line.
pub fn run(job: &Job) -> Result<()> {
    let driver = match &job.work {
        Work::Export { zvols } => {
            let nvmet = Target::at(NVMET);
            return rounds(job.rounds, &mut [&mut || target::export(&nvmet, zvols)]);
        }
        _ => Driver::connect(&job.socket)?,
    };
    match &job.work {
        Work::Export { .. } => Ok(()), // done, without a driver
        Work::Remote { volume, warm } => {
            // Who the driver is to the target shows while it has the volume.
            attach(volume, || driver.attach(volume))?;
            let host = host_of(volume)?;
            detach(|| driver.detach(volume))?;
            let quiet = Quiet::take();
            let mut sides: [Play<'_>; 4] = [
                &mut || {
                    quiet.set(true)?;
                    let [attached, detached] = by_driver(&driver, volume)?;
                    Ok(vec![attached, detached, driver.probe()?])
                },
                &mut || {
                    quiet.set(true)?;
                    match warm {
                        Some(volume) => Ok(by_driver(&driver, volume)?.map(Sample::warm).into()),
                        None => Ok(Vec::new()),
                    }
                },
                &mut || {
                    quiet.set(false)?;
                    let (sample, controller) =
                        attach(volume, || attach::remote(volume, &host, QUEUES))?;
                    Ok(vec![
                        sample,
                        detach(|| attach::detach(volume, Some(&controller)))?,
                    ])
                },
                &mut || {
                    quiet.set(false)?;
                    let sample = attach(volume, || baseline::attach(volume, &host))?;
                    Ok(vec![sample, detach(|| baseline::detach(volume))?])
                },
            ];
            rounds(job.rounds, &mut sides)?;
            quiet.set(true)
        }
        Work::Driver(volume) => rounds(
            job.rounds,
            &mut [&mut || Ok(by_driver(&driver, volume)?.into())],
        ),
        Work::Local(volume) => rounds(
            job.rounds,
            &mut [&mut || Ok(by_driver(&driver, volume)?.into()), &mut || {
                let sample = attach(volume, || attach::local(volume))?;
                Ok(vec![sample, detach(|| attach::detach(volume, None))?])
            }],
        ),
        Work::Admit {
            volume,
            node,
            host_nqn,
        } => {
            let nvmet = Target::at(NVMET);
            rounds(
                job.rounds,
                &mut [
                    &mut || {
                        Ok(vec![
                            driver.admit(volume, node)?,
                            driver.expel(volume, node)?,
                        ])
                    },
                    &mut || target::admit_to_scratch(&nvmet, host_nqn),
                ],
            )
        }
        Work::Create {
            pool,
            size,
            fs_type,
            port,
        } => {
            let wanted = wanted(pool, *size, fs_type, *port)?;
            let (zfs, nvmet) = (Zfs::load()?, Target::at(NVMET));
            rounds(
                job.rounds,
                &mut [
                    &mut || {
                        let (created, id) =
                            driver.create("pvc-bench-made", pool, *size, fs_type)?;
                        baseline::settle()?;
                        Ok(vec![created, driver.delete(&id)?])
                    },
                    &mut || {
                        let created = create::create(&zfs, &nvmet, &wanted)?;
                        // udevd looks at what mkfs has closed: the floor has no retry for a zvol that is open.
                        baseline::settle()?;
                        Ok(vec![created, create::delete(&zfs, &nvmet, &wanted)?])
                    },
                ],
            )
        }
    }
}

/// What the driver has told udevd. The other sides have it as it is without.
struct Quiet {
    rules: Option<Vec<u8>>,
}

impl Quiet {
    const FILE: &str = "/run/udev/rules.d/60-nvme-zvolt.rules";

    fn take() -> Self {
        Self {
            rules: fs::read(Self::FILE).ok(),
        }
    }

    /// Lets it be so, or not; udevd has read it when this returns.
    fn set(&self, quiet: bool) -> Result<()> {
        let Some(rules) = &self.rules else {
            return Ok(());
        };
        if Path::new(Self::FILE).exists() == quiet {
            return Ok(());
        }
        match quiet {
            true => fs::write(Self::FILE, rules)?,
            false => fs::remove_file(Self::FILE)?,
        }
        baseline::reload_udev()
    }
}

/// What one side does in a round.
type Play<'a> = &'a mut dyn FnMut() -> Result<Vec<Sample>>;

/// Lets the sides play round by round, each round begun by another one, each after udevd has done with the one before.
fn rounds(many: u32, sides: &mut [Play<'_>]) -> Result<()> {
    for round in 0..=many {
        for _ in 0..sides.len() {
            baseline::settle()?;
            let samples = sides[0]()?;
            // The first round warms caches for all sides.
            for sample in samples.iter().filter(|_| round > 0) {
                println!("{}", serde_json::to_string(sample)?);
            }
            sides.rotate_left(1);
        }
        sides.rotate_left(1);
    }
    Ok(())
}

fn by_driver(driver: &Driver, volume: &Volume) -> Result<[Sample; 2]> {
    let sample = attach(volume, || driver.attach(volume))?;
    Ok([sample, detach(|| driver.detach(volume))?])
}

/// A stage and publish, with what an orchestrator makes before it.
fn attach<T>(volume: &Volume, act: impl FnOnce() -> Result<T>) -> Result<T> {
    prepare(volume)?;
    act()
}

/// Its reverse, which in life comes long after.
fn detach<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    baseline::settle()?;
    act()
}

/// What an orchestrator makes before its calls.
fn prepare(volume: &Volume) -> Result<()> {
    fs::create_dir_all(volume.staging())?;
    let target = volume.target();
    let parent = target.parent().context("a target path has a parent")?;
    fs::create_dir_all(parent)?;
    Ok(())
}

/// Who the driver is to the target: its controller says it.
fn host_of(volume: &Volume) -> Result<HostIdentity> {
    let controllers = nvme::controllers(Path::new("/sys"))?;
    let Some(found) = controllers
        .into_iter()
        .find(|c| c.subsystem_nqn == volume.nqn)
    else {
        bail!("the driver has staged {} without a controller", volume.id);
    };
    let id = fs::read_to_string(format!("/sys/class/nvme/{}/hostid", found.name))?;
    Ok(HostIdentity {
        nqn: found.host_nqn,
        id: id.trim().parse()?,
    })
}

fn wanted(pool: &str, size: u64, fs_type: &str, port: u16) -> Result<create::Wanted> {
    let kind = match fs_type {
        "ext4" => FsKind::Ext4,
        "xfs" => FsKind::Xfs,
        other => bail!("no floor makes {other}"),
    };
    Ok(create::Wanted {
        dataset: format!("{pool}/csi/block/bench-floor"),
        size,
        kind,
        nqn: "nqn.2014-08.org.nvmexpress:bench-floor".into(),
        port,
    })
}
