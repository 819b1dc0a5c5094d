//! `mount_setattr(2)`: the one call that rustix does not wrap.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Errno;

/// `struct mount_attr` (`include/uapi/linux/mount.h`, `MOUNT_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Debug, Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a detached mount read-only.
pub(super) fn set_read_only(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = MountAttr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        ..MountAttr::default()
    };
    // SAFETY: the path is a NUL-terminated empty string, `attributes` is a live `struct mount_attr` of the
    // size that is passed, and the kernel reads both and keeps neither (mount_setattr(2)).
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_of_its_first_version() {
        assert_eq!(size_of::<MountAttr>(), 32);
    }
}
