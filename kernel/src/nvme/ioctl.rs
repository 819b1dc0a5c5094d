//! `NVME_IOCTL_ADMIN_CMD` (`include/uapi/linux/nvme_ioctl.h`, `drivers/nvme/host/ioctl.c`; since Linux 3.3).

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc::Ioctl;

/// `struct nvme_passthru_cmd`, which is `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AdminCommand {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) reserved: u16,
    pub(super) nsid: u32,
    pub(super) cdw2: u32,
    pub(super) cdw3: u32,
    pub(super) metadata: u64,
    pub(super) addr: u64,
    pub(super) metadata_len: u32,
    pub(super) data_len: u32,
    pub(super) cdw10: u32,
    pub(super) cdw11: u32,
    pub(super) cdw12: u32,
    pub(super) cdw13: u32,
    pub(super) cdw14: u32,
    pub(super) cdw15: u32,
    pub(super) timeout_ms: u32,
    pub(super) result: u32,
}

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: Ioctl =
    nix::request_code_readwrite!(b'N', 0x41, size_of::<AdminCommand>());

/// Sends a command that moves no data. The controller's status, 0 for success; the command has the result then.
pub(super) fn admin(controller: impl AsFd, command: &mut AdminCommand) -> Result<u16, Errno> {
    command.addr = 0;
    command.data_len = 0;
    command.metadata = 0;
    command.metadata_len = 0;
    let descriptor = controller.as_fd().as_raw_fd();
    let command: *mut AdminCommand = command;
    // SAFETY: the kernel reads and writes one struct nvme_passthru_cmd through the pointer, and with a length of 0
    // touches no buffer (nvme_user_cmd).
    let code = unsafe { nix::libc::ioctl(descriptor, NVME_IOCTL_ADMIN_CMD, command) };
    Errno::result(code).map(|status| u16::try_from(status).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn number_and_layout_are_those_of_the_header() {
        assert_eq!(NVME_IOCTL_ADMIN_CMD, 0xc048_4e41);
        assert_eq!(size_of::<AdminCommand>(), 72);
        assert_eq!(offset_of!(AdminCommand, nsid), 4);
        assert_eq!(offset_of!(AdminCommand, metadata), 16);
        assert_eq!(offset_of!(AdminCommand, cdw10), 40);
        assert_eq!(offset_of!(AdminCommand, timeout_ms), 64);
        assert_eq!(offset_of!(AdminCommand, result), 68);
    }
}
