//! Stage and publish, and back.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use uuid::Uuid;
use zvolt_kernel::mount::{self, Access, FsMount};
use zvolt_kernel::nvme::{self, ConnectOptions, HostIdentity, Transport};
use zvolt_kernel::probe::{self, Content};
use zvolt_kernel::uevent::{Received, UeventSocket};

use crate::job::Volume;
use crate::sample::{Sample, Side, Watch};

const SYS: &str = "/sys";
const DEV: &str = "/dev";

/// Connects, waits for the namespace, reads the superblock, mounts and binds. Gives the controller too.
pub fn remote(volume: &Volume, host: &HostIdentity, queues: u32) -> Result<(Sample, String)> {
    let options = ConnectOptions {
        transport: Transport::Tcp {
            portal: volume.portal,
            host_traddr: None,
            host_iface: None,
        },
        subsystem_nqn: volume.nqn.clone(),
        host: host.clone(),
        nr_io_queues: Some(queues),
        queue_size: None,
        ctrl_loss_tmo: Some(-1),
        reconnect_delay: Some(2),
        fast_io_fail_tmo: Some(-1),
        keep_alive_tmo: Some(5),
    };
    let mut watch = Watch::start();
    let events = UeventSocket::open()?;
    let connected = nvme::connect_once(Path::new(DEV), &options)?;
    watch.step("fabrics.connect");
    let device = await_namespace(&events, volume.uuid)?;
    watch.step("namespace.await");
    mount_and_bind(volume, &device, &mut watch)?;
    let controller = format!("nvme{}", connected.instance);
    Ok((watch.stop(Side::Floor, "attach"), controller))
}

/// The same with the zvol's own device.
pub fn local(volume: &Volume) -> Result<Sample> {
    let device = volume
        .device
        .clone()
        .context("a local volume has a device")?;
    let mut watch = Watch::start();
    mount_and_bind(volume, &device, &mut watch)?;
    Ok(watch.stop(Side::Floor, "attach"))
}

fn await_namespace(events: &UeventSocket, uuid: Uuid) -> Result<PathBuf> {
    loop {
        let Received::Event(event) = events.recv(None)? else {
            bail!("uevents were lost");
        };
        if event.action != "add" || event.subsystem != "block" || event.devtype != "disk" {
            continue;
        }
        let found = nvme::namespace(Path::new(SYS), &event.devname)?;
        if found.is_some_and(|n| n.uuid == Some(uuid)) {
            return Ok(Path::new(DEV).join(event.devname));
        }
    }
}

fn mount_and_bind(volume: &Volume, device: &Path, watch: &mut Watch) -> Result<()> {
    if volume.is_raw() {
        return bind_node(volume, device, watch);
    }
    let superblock = probe::superblock(&File::open(device)?, device)?;
    ensure!(
        matches!(superblock, Content::Filesystem(_)),
        "{} holds {superblock:?}",
        device.display()
    );
    watch.step("device.verify");
    let (staging, staging_name) = parent_of(&volume.staging())?;
    let mount = FsMount {
        fs_type: &volume.fs_type,
        source: device,
        access: Access::ReadWrite,
        options: &[],
    };
    mount::mount_at(&mount, staging.as_fd(), &staging_name)?;
    watch.step("mount.attach");
    let (target, target_name) = parent_of(&volume.target())?;
    mount::make_dir(target.as_fd(), &target_name)?;
    watch.step("directory.make");
    mount::bind_at(
        staging.as_fd(),
        &staging_name,
        target.as_fd(),
        &target_name,
        Access::ReadWrite,
    )?;
    watch.step("mount.bind");
    Ok(())
}

fn bind_node(volume: &Volume, device: &Path, watch: &mut Watch) -> Result<()> {
    let node = File::open(device)?;
    let (target, name) = parent_of(&volume.target())?;
    mount::make_file(target.as_fd(), &name)?;
    watch.step("file.make");
    mount::bind_node_at(node.as_fd(), target.as_fd(), &name, Access::ReadWrite)?;
    watch.step("mount.bind");
    Ok(())
}

fn parent_of(path: &Path) -> Result<(std::os::fd::OwnedFd, std::ffi::OsString)> {
    let parent = path.parent().context("a path below a directory")?;
    let name = path.file_name().context("a path with a name")?;
    Ok((mount::open_base(parent)?, name.to_owned()))
}

/// Unmounts what is mounted and deletes the controller, where there is one.
pub fn detach(volume: &Volume, controller: Option<&str>) -> Result<Sample> {
    let mut watch = Watch::start();
    let target = volume.target();
    unmount(&target, UnmountFlags::empty()).context("umount the target")?;
    watch.step("mount.unbind");
    if volume.is_raw() {
        fs::remove_file(&target)?;
        watch.step("file.remove");
    } else {
        fs::remove_dir(&target)?;
        watch.step("directory.remove");
        unmount(volume.staging(), UnmountFlags::empty()).context("umount the staging path")?;
        watch.step("mount.detach");
    }
    if let Some(controller) = controller {
        nvme::delete(Path::new(SYS), controller)?;
        watch.step("controller.delete");
    }
    Ok(watch.stop(Side::Floor, "detach"))
}
