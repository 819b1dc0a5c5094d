//! `mount_setattr(2)`, which rustix does not have.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc::{AT_EMPTY_PATH, MOUNT_ATTR_RDONLY, SYS_mount_setattr, mount_attr, syscall};

/// Makes the mount that `mount` refers to read-only.
pub(super) fn set_read_only(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = mount_attr {
        attr_set: MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string, and the kernel reads as many bytes of the struct as it is told.
    let code = unsafe {
        syscall(
            SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<mount_attr>(),
        )
    };
    Errno::result(code).map(drop)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_struct_is_that_of_the_header() {
        // linux/mount.h: MOUNT_ATTR_SIZE_VER0 is 32, four fields of 64 bits.
        assert_eq!(size_of::<mount_attr>(), 32);
        assert_eq!(offset_of!(mount_attr, attr_clr), 8);
        assert_eq!(offset_of!(mount_attr, propagation), 16);
        assert_eq!(offset_of!(mount_attr, userns_fd), 24);
        assert_eq!(MOUNT_ATTR_RDONLY, 1);
        assert_eq!(SYS_mount_setattr, 442);
    }
}
