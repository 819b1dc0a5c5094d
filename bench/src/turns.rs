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
    let driver = Driver::connect(&job.socket)?;
    for round in 0..=job.rounds {
        let samples = match &job.work {
            Work::Remote(volume) => remote(&driver, volume)?,
            Work::Local(volume) => local(&driver, volume)?,
            Work::Admit {
                volume,
                node,
                host_nqn,
            } => admit(&driver, volume, node, host_nqn)?,
            Work::Create {
                pool,
                size,
                fs_type,
                port,
            } => create_and_delete(&driver, pool, *size, fs_type, *port)?,
        };
        // The first round warms caches for all sides.
        for sample in samples.iter().filter(|_| round > 0) {
            println!("{}", serde_json::to_string(sample)?);
        }
    }
    Ok(())
}

/// What an orchestrator makes before its calls.
fn prepare(volume: &Volume) -> Result<()> {
    fs::create_dir_all(volume.staging())?;
    let target = volume.target();
    let parent = target.parent().context("a target path has a parent")?;
    fs::create_dir_all(parent)?;
    Ok(())
}

fn remote(driver: &Driver, volume: &Volume) -> Result<Vec<Sample>> {
    prepare(volume)?;
    let mut samples = vec![driver.attach(volume)?];
    let host = host_of(volume)?;
    samples.push(driver.detach(volume)?);
    prepare(volume)?;
    let (sample, controller) = attach::remote(volume, &host, QUEUES)?;
    samples.push(sample);
    samples.push(attach::detach(volume, Some(&controller))?);
    samples.push(baseline::attach(volume, &host)?);
    samples.push(baseline::detach(volume)?);
    Ok(samples)
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

fn local(driver: &Driver, volume: &Volume) -> Result<Vec<Sample>> {
    prepare(volume)?;
    let mut samples = vec![driver.attach(volume)?, driver.detach(volume)?];
    prepare(volume)?;
    samples.push(attach::local(volume)?);
    samples.push(attach::detach(volume, None)?);
    Ok(samples)
}

fn admit(driver: &Driver, volume: &Volume, node: &str, host_nqn: &str) -> Result<Vec<Sample>> {
    let mut samples = vec![driver.admit(volume, node)?, driver.expel(volume, node)?];
    let nvmet = Target::at(NVMET);
    samples.push(target::admit_to_scratch(&nvmet, host_nqn)?);
    Ok(samples)
}

fn create_and_delete(
    driver: &Driver,
    pool: &str,
    size: u64,
    fs_type: &str,
    port: u16,
) -> Result<Vec<Sample>> {
    let (created, id) = driver.create("pvc-bench-made", pool, size, fs_type)?;
    let mut samples = vec![created, driver.delete(&id)?];
    let kind = match fs_type {
        "ext4" => FsKind::Ext4,
        "xfs" => FsKind::Xfs,
        other => bail!("no floor makes {other}"),
    };
    let wanted = create::Wanted {
        dataset: format!("{pool}/csi/block/bench-floor"),
        size,
        kind,
        nqn: "nqn.2014-08.org.nvmexpress:bench-floor".into(),
        port,
    };
    let (zfs, nvmet) = (Zfs::load()?, Target::at(NVMET));
    samples.push(create::create(&zfs, &nvmet, &wanted)?);
    // udevd looks at what mkfs has closed: the floor has no retry for a zvol that is open.
    baseline::settle()?;
    samples.push(create::delete(&zfs, &nvmet, &wanted)?);
    Ok(samples)
}
