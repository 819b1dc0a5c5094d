//! The block queues of a controller's namespaces.

use std::path::Path;

use super::sysfs::{component, names_in};
use crate::attr;
use crate::error::{Errno, SysError};

/// Bounds the requests of every namespace of a controller to `kib` KiB
/// (`queue/max_sectors_kb`, `Documentation/ABI/stable/sysfs-block`); one that is bounded lower is left alone.
///
/// nvmet-tcp refuses a request of more than 4 MiB for good (`nvmet_tcp_map_data`, `NVMET_TCP_MAXH2CDATA`), but announces
/// no limit, and a zvol's optimal size makes the host merge up to 32 MiB: without this bound a large write is an
/// I/O error, and lost. The bound is set on the paths, whose queues merge and split for a multipath head too;
/// it outlives a reconnect.
pub fn bound_requests(sys: &Path, controller: &str, kib: u32) -> Result<(), SysError> {
    let dir = sys.join("class/nvme").join(component(controller)?);
    // Disks only: a controller's directory has some thirty attributes beside them.
    for name in names_in(&dir)?.iter().filter(|n| n.starts_with("nvme")) {
        let attribute = dir.join(name).join("queue/max_sectors_kb");
        let Some(text) = attr::read_if_present(&attribute)? else {
            continue;
        };
        if text.parse().is_ok_and(|now: u32| now <= kib) {
            continue;
        }
        attr::write(&attribute, &kib.to_string())?;
        let found = attr::read(&attribute)?;
        if found != kib.to_string() {
            return Err(SysError::new("read", attribute.display(), Errno::EIO)
                .with_detail(format!("reads {found:?} after {kib} was written")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_queue_is_bounded_and_never_widened() {
        let sys = tempfile::tempdir().expect("a directory");
        let queue = |name: &str, kib: &str| {
            let dir = sys.path().join("class/nvme/nvme0").join(name).join("queue");
            fs::create_dir_all(&dir).expect("mkdir");
            fs::write(dir.join("max_sectors_kb"), kib).expect("write");
            dir.join("max_sectors_kb")
        };
        let (wide, narrow) = (queue("nvme0c0n1", "32768"), queue("nvme0c0n2", "512"));
        fs::write(sys.path().join("class/nvme/nvme0/address"), "traddr=1").expect("write");
        // A plain file keeps what is behind the shorter value that is written over it.
        fs::write(&wide, "4096").expect("write");
        bound_requests(sys.path(), "nvme0", 1024).expect("bounded");
        assert_eq!(fs::read_to_string(wide).expect("read"), "1024");
        assert_eq!(fs::read_to_string(narrow).expect("read"), "512");
        bound_requests(sys.path(), "nvme9", 1024).expect("a controller that is gone has no queue");
    }
}
