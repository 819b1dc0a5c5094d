//! The sides, in turn: noise that comes and goes meets all of them.

use std::fs;
use std::path::Path;
use std::thread;

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
    let driver = || Driver::connect(&job.socket);
    let many = job.rounds;
    match &job.work {
        Work::Remote { volume, warm } => remote(&driver()?, many, volume, warm.as_ref()),
        Work::AtOnce { volumes, numbers } => numbers_at_once(&driver()?, many, volumes, numbers),
        Work::Driver(volume) => {
            let driver = driver()?;
            rounds(many, &mut [&mut || Ok(by_driver(&driver, volume)?.into())])
        }
        Work::Local(volume) => local(&driver()?, many, volume),
        Work::Admit {
            volume,
            node,
            host_nqn,
        } => admit(&driver()?, many, volume, (node, host_nqn)),
        Work::Create {
            pool,
            size,
            fs_type,
            port,
        } => {
            let wanted = wanted(pool, *size, fs_type, *port)?;
            create_and_delete(&driver()?, many, pool, fs_type, &wanted)
        }
        Work::Export { zvols } => {
            let (nvmet, devices) = (Target::at(NVMET), target::devices(zvols)?);
            rounds(many, &mut [&mut || target::export(&nvmet, &devices)])
        }
    }
}

fn remote(driver: &Driver, many: u32, volume: &Volume, warm: Option<&Volume>) -> Result<()> {
    let host = host_of(driver, volume)?;
    let quiet = Quiet::take();
    let mut cold = || {
        quiet.set(true)?;
        let [attached, detached] = by_driver(driver, volume)?;
        Ok(vec![attached, detached, driver.probe()?])
    };
    let mut warm = || {
        let Some(volume) = warm else {
            return Ok(Vec::new());
        };
        quiet.set(true)?;
        let [attached, detached] = by_driver(driver, volume)?;
        Ok(vec![
            attached.called("warm attach"),
            detached.called("warm detach"),
        ])
    };
    let mut floor = || {
        quiet.set(false)?;
        let (sample, controller) = attach(volume, || attach::remote(volume, &host, QUEUES))?;
        let detached = detach(|| attach::detach(volume, Some(&controller)))?;
        Ok(vec![sample, detached])
    };
    let mut children = || {
        quiet.set(false)?;
        let sample = attach(volume, || baseline::attach(volume, &host))?;
        Ok(vec![sample, detach(|| baseline::detach(volume))?])
    };
    rounds(many, &mut [&mut cold, &mut warm, &mut floor, &mut children])?;
    quiet.set(true)
}

fn numbers_at_once(
    driver: &Driver,
    many: u32,
    volumes: &[Volume],
    numbers: &[usize],
) -> Result<()> {
    let host = host_of(driver, volumes.first().context("no volume")?)?;
    for number in numbers {
        let some = volumes.get(..*number).context("too few volumes")?;
        let mut driver = || by_driver_at_once(driver, some);
        let mut floor = || by_floor_at_once(some, &host);
        rounds(many, &mut [&mut driver, &mut floor])?;
    }
    Ok(())
}

fn local(driver: &Driver, many: u32, volume: &Volume) -> Result<()> {
    let mut driver = || Ok(by_driver(driver, volume)?.into());
    let mut floor = || {
        let sample = attach(volume, || attach::local(volume))?;
        Ok(vec![sample, detach(|| attach::detach(volume, None))?])
    };
    rounds(many, &mut [&mut driver, &mut floor])
}

fn admit(
    driver: &Driver,
    many: u32,
    volume: &Volume,
    (node, host_nqn): (&str, &str),
) -> Result<()> {
    let nvmet = Target::at(NVMET);
    let mut driver = || {
        let admitted = driver.admit(volume, node)?;
        Ok(vec![admitted, driver.expel(volume, node)?])
    };
    let mut floor = || target::admit_to_scratch(&nvmet, host_nqn);
    rounds(many, &mut [&mut driver, &mut floor])
}

fn create_and_delete(
    driver: &Driver,
    many: u32,
    pool: &str,
    fs_type: &str,
    wanted: &create::Wanted,
) -> Result<()> {
    let (zfs, nvmet) = (Zfs::load()?, Target::at(NVMET));
    // udevd looks at what mkfs has closed: the floor has no retry for a zvol that is open.
    let mut driver = || {
        let (created, id) = driver.create("pvc-bench-made", pool, wanted.size, fs_type)?;
        Ok(vec![created, detach(|| driver.delete(&id))?])
    };
    let mut floor = || {
        let created = create::create(&zfs, &nvmet, wanted)?;
        Ok(vec![
            created,
            detach(|| create::delete(&zfs, &nvmet, wanted))?,
        ])
    };
    rounds(many, &mut [&mut driver, &mut floor])
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

fn by_driver_at_once(driver: &Driver, volumes: &[Volume]) -> Result<Vec<Sample>> {
    volumes.iter().try_for_each(prepare)?;
    let samples = driver.attach_all(volumes)?;
    for volume in volumes {
        driver.detach(volume)?;
    }
    Ok(at_once(samples))
}

fn by_floor_at_once(volumes: &[Volume], host: &HostIdentity) -> Result<Vec<Sample>> {
    volumes.iter().try_for_each(prepare)?;
    let attached = thread::scope(|scope| {
        let threads: Vec<_> = volumes
            .iter()
            .map(|volume| scope.spawn(|| attach::remote(volume, host, QUEUES)))
            .collect();
        let joined = threads.into_iter().map(|t| match t.join() {
            Ok(done) => done,
            Err(_) => bail!("a thread panicked"),
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut samples = Vec::new();
    for (volume, (sample, controller)) in volumes.iter().zip(attached) {
        samples.push(sample);
        attach::detach(volume, Some(&controller))?;
    }
    Ok(at_once(samples))
}

/// Called by how many there were.
fn at_once(samples: Vec<Sample>) -> Vec<Sample> {
    let what = format!("attach x{}", samples.len());
    samples.into_iter().map(|s| s.called(&what)).collect()
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

/// Who the driver is to the target: its controller says it, while it has the volume.
fn host_of(driver: &Driver, volume: &Volume) -> Result<HostIdentity> {
    attach(volume, || driver.attach(volume))?;
    let mut controllers = nvme::controllers(Path::new("/sys"))?;
    controllers.retain(|c| c.subsystem_nqn == volume.nqn);
    let Some(found) = controllers.pop() else {
        bail!("the driver has staged {} without a controller", volume.id);
    };
    let id = fs::read_to_string(format!("/sys/class/nvme/{}/hostid", found.name))?;
    detach(|| driver.detach(volume))?;
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
