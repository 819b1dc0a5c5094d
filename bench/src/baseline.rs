//! The baseline: stage and publish by child processes, in the order in which common drivers and Kubernetes' mount
//! helper start them: connect, settle, look for a filesystem, check it, mount it, bind it, and remount the bind.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use zvolt_kernel::nvme::HostIdentity;

use crate::job::Volume;
use crate::sample::{Sample, Side, Watch};

/// Runs a program to its end; gives what it printed.
fn run(program: &str, arguments: &[&OsStr]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {arguments:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words<'a>(line: &'a [&'a str]) -> Vec<&'a OsStr> {
    line.iter().map(OsStr::new).collect()
}

/// Stages and publishes over NVMe/TCP.
pub fn attach(volume: &Volume, host: &HostIdentity) -> Result<Sample> {
    let (address, port) = (
        volume.portal.ip().to_string(),
        volume.portal.port().to_string(),
    );
    let id = host.id.to_string();
    let mut watch = Watch::start();
    run(
        "nvme",
        &words(&[
            "connect",
            "--transport=tcp",
            "--traddr",
            &address,
            "--trsvcid",
            &port,
            "--nqn",
            &volume.nqn,
            "--hostnqn",
            &host.nqn,
            "--hostid",
            &id,
        ]),
    )?;
    watch.step("nvme connect");
    settle()?;
    watch.step("udevadm settle");
    let device = device_of(volume)?;
    watch.step("look in /dev/disk");
    if volume.is_raw() {
        bind_node(volume, &device, &mut watch)?;
    } else {
        mount_and_bind(volume, &device, &mut watch)?;
    }
    Ok(watch.stop(Side::Baseline, "attach"))
}

fn device_of(volume: &Volume) -> Result<PathBuf> {
    let link = format!("/dev/disk/by-id/nvme-uuid.{}", volume.uuid);
    match fs::canonicalize(&link) {
        Ok(device) => Ok(device),
        Err(error) => bail!("{link}: {error}: udev made no link for the namespace"),
    }
}

fn mount_and_bind(volume: &Volume, device: &Path, watch: &mut Watch) -> Result<()> {
    let device = device.as_os_str();
    let (staging, target) = (volume.staging(), volume.target());
    let probe = [
        OsStr::new("-p"),
        "-s".as_ref(),
        "TYPE".as_ref(),
        "-s".as_ref(),
        "PTTYPE".as_ref(),
        "-o".as_ref(),
        "export".as_ref(),
        device,
    ];
    let found = run("blkid", &probe)?;
    ensure!(
        found.contains(&format!("TYPE={}", volume.fs_type)),
        "blkid says {found:?}"
    );
    watch.step("blkid");
    run("fsck", &["-a".as_ref(), device])?;
    watch.step("fsck -a");
    let kind: [&OsStr; 2] = ["-t".as_ref(), volume.fs_type.as_ref()];
    run(
        "mount",
        &[
            kind[0],
            kind[1],
            "-o".as_ref(),
            "defaults".as_ref(),
            device,
            staging.as_os_str(),
        ],
    )?;
    watch.step("mount");
    fs::create_dir(&target)?;
    run(
        "mount",
        &["--bind".as_ref(), staging.as_os_str(), target.as_os_str()],
    )?;
    watch.step("mount --bind");
    run(
        "mount",
        &[
            "-o".as_ref(),
            "bind,remount".as_ref(),
            staging.as_os_str(),
            target.as_os_str(),
        ],
    )?;
    watch.step("mount -o bind,remount");
    Ok(())
}

fn bind_node(volume: &Volume, device: &Path, watch: &mut Watch) -> Result<()> {
    let target = volume.target();
    fs::File::create_new(&target)?;
    let arguments = ["--bind".as_ref(), device.as_os_str(), target.as_os_str()];
    run("mount", &arguments)?;
    watch.step("mount --bind");
    Ok(())
}

/// Waits until udevd has looked at everything.
pub fn settle() -> Result<()> {
    run("udevadm", &words(&["settle"])).map(drop)
}

/// Has udevd read its rules anew.
pub fn reload_udev() -> Result<()> {
    run("udevadm", &words(&["control", "--reload"])).map(drop)
}

/// Takes it down.
pub fn detach(volume: &Volume) -> Result<Sample> {
    let (staging, target) = (volume.staging(), volume.target());
    let mut watch = Watch::start();
    run("umount", &[target.as_os_str()])?;
    if volume.is_raw() {
        fs::remove_file(&target)?;
        watch.step("umount target");
    } else {
        fs::remove_dir(&target)?;
        watch.step("umount target");
        run("umount", &[staging.as_os_str()])?;
        watch.step("umount staging");
    }
    run("nvme", &words(&["disconnect", "--nqn", &volume.nqn]))?;
    watch.step("nvme disconnect");
    Ok(watch.stop(Side::Baseline, "detach"))
}
