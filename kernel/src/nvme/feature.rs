//! Features of a controller that is connected: Namespace Write Protect.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::ioctl::{AdminCommand, admin};
use super::sysfs::component;
use crate::error::SysError;

/// Set Features, Get Features (NVMe base specification 2.0, figure "Opcodes for Admin Commands").
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
/// Feature identifier of Namespace Write Protection Config (5.27.1.33).
const WRITE_PROTECTION: u8 = 0x84;
/// Status code type and status code; the bits above are More and Do Not Retry.
const STATUS: u16 = 0x7ff;

/// Whether a namespace takes writes (`nvmet_set_feat_write_protect`; since Linux 5.0). It belongs to the target's
/// namespace, holds for every host and ends with the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteProtect {
    /// It does.
    Off,
    /// Writes are refused until it is taken back.
    On,
}

impl WriteProtect {
    fn value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::On => 1,
        }
    }
}

/// Switches write protection of namespace `nsid` by the controller called `controller` (`nvme3`). Every host with
/// the namespace is told, and its block device follows. On return the target has flushed what it had taken.
/// `EINTR` or a negative status when the controller goes within `timeout`.
pub fn set_write_protect(
    dev: &Path,
    controller: &str,
    nsid: u32,
    state: WriteProtect,
    timeout: Duration,
) -> Result<(), SysError> {
    let mut command = AdminCommand {
        opcode: SET_FEATURES,
        nsid,
        cdw10: WRITE_PROTECTION.into(),
        cdw11: state.value(),
        timeout_ms: millis(timeout),
        ..AdminCommand::default()
    };
    send(dev, controller, "Set Features", &mut command)
}

/// Reads write protection of namespace `nsid`.
pub fn write_protect(
    dev: &Path,
    controller: &str,
    nsid: u32,
    timeout: Duration,
) -> Result<WriteProtect, SysError> {
    let mut command = AdminCommand {
        opcode: GET_FEATURES,
        nsid,
        cdw10: WRITE_PROTECTION.into(),
        timeout_ms: millis(timeout),
        ..AdminCommand::default()
    };
    send(dev, controller, "Get Features", &mut command)?;
    match command.result {
        0 => Ok(WriteProtect::Off),
        1 => Ok(WriteProtect::On),
        other => Err(SysError::new(
            "Get Features",
            node(dev, controller)?.display(),
            Errno::EBADMSG,
        )
        .with_detail(format!(
            "write protection reads {other}: 0 or 1 was expected"
        ))),
    }
}

fn send(
    dev: &Path,
    controller: &str,
    name: &'static str,
    command: &mut AdminCommand,
) -> Result<(), SysError> {
    let path = node(dev, controller)?;
    let device = File::open(&path).map_err(|e| SysError::io("open", &path, &e))?;
    let status = admin(&device, command).map_err(|errno| {
        SysError::new("ioctl(NVME_IOCTL_ADMIN_CMD)", path.display(), errno).with_detail(name)
    })?;
    match status {
        0 => Ok(()),
        status => Err(
            SysError::new(name, path.display(), Errno::EIO).with_detail(format!(
                "NVMe status {:#x} (linux/nvme.h, NVME_SC_…)",
                status & STATUS
            )),
        ),
    }
}

fn node(dev: &Path, controller: &str) -> Result<PathBuf, SysError> {
    Ok(dev.join(component(controller)?))
}

/// 0 would mean the kernel's own time-out of 60 s.
fn millis(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis())
        .unwrap_or(u32::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_controller_is_the_kernels_error() {
        let dev = tempfile::tempdir().unwrap();
        std::fs::write(dev.path().join("nvme0"), "").unwrap();
        let soon = Duration::from_secs(1);
        let error = write_protect(dev.path(), "nvme0", 1, soon).unwrap_err();
        assert_eq!(error.errno, Errno::ENOTTY, "{error}");
        let error = set_write_protect(dev.path(), "nvme1", 1, WriteProtect::On, soon).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT, "{error}");
    }

    #[test]
    fn rule_12_a_controllers_name_stays_in_its_directory() {
        let error = write_protect(Path::new("/dev"), "../etc/passwd", 1, Duration::ZERO);
        assert_eq!(error.unwrap_err().errno, Errno::EINVAL);
        assert_eq!(
            (millis(Duration::ZERO), millis(Duration::MAX)),
            (1, u32::MAX)
        );
    }
}
