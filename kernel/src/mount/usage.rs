//! How full a mounted filesystem is, and how well.

use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::fstatvfs;

use super::{entry, errno_of, info};
use crate::attr;
use crate::error::SysError;

/// Of one thing: bytes, or inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// All there is.
    pub total: u64,
    /// What is taken.
    pub used: u64,
    /// What anybody but root can still take; what is reserved for root is neither used nor available.
    pub available: u64,
}

/// How full a filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: Amount,
    /// Inodes. XFS makes them as they are needed: the total is what would still fit.
    pub inodes: Amount,
}

/// Asks the filesystem that an open descriptor is on (`fstatvfs`; `O_PATH` is enough). Can block for as
/// long as the filesystem does.
pub fn usage_of(opened: impl AsFd) -> Result<Usage, SysError> {
    let seen = fstatvfs(&opened).map_err(|errno| {
        let path = info::descriptor_path(&opened);
        let path = std::fs::read_link(&path).unwrap_or(path);
        SysError::new("fstatvfs", path.display(), errno_of(errno))
    })?;
    let bytes = |blocks: u64| blocks.saturating_mul(seen.f_frsize);
    Ok(Usage {
        bytes: Amount {
            total: bytes(seen.f_blocks),
            used: bytes(seen.f_blocks.saturating_sub(seen.f_bfree)),
            available: bytes(seen.f_bavail),
        },
        inodes: Amount {
            total: seen.f_files,
            used: seen.f_files.saturating_sub(seen.f_ffree),
            available: seen.f_favail,
        },
    })
}

/// How many errors an ext4 has counted since it was last checked (`<sys>/fs/ext4/<block>/errors_count`);
/// `None` when no ext4 is mounted from the device `block`.
pub fn ext4_errors(sys: &Path, block: &str) -> Result<Option<u64>, SysError> {
    entry("open", block.as_ref())?;
    let path = sys.join("fs/ext4").join(block).join("errors_count");
    let Some(text) = attr::read_if_present(&path)? else {
        return Ok(None);
    };
    let count = text.parse().map_err(|_| {
        SysError::new("read", path.display(), Errno::EBADMSG).with_detail(format!("{text:?}"))
    })?;
    Ok(Some(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_ext4_are_counted_by_the_kernel() {
        let sys = tempfile::tempdir().unwrap();
        let dir = sys.path().join("fs/ext4/nvme0n1");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("errors_count"), "3\n").unwrap();
        assert_eq!(ext4_errors(sys.path(), "nvme0n1").unwrap(), Some(3));
        assert_eq!(ext4_errors(sys.path(), "nvme1n1").unwrap(), None);
        assert!(ext4_errors(sys.path(), "../x").is_err());
        std::fs::write(dir.join("errors_count"), "").unwrap();
        assert!(ext4_errors(sys.path(), "nvme0n1").is_err());
    }
}
