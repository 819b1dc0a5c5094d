//! The block queues of a namespace.

use std::path::Path;

use super::sysfs::{component, names_in, subsystem_of};
use crate::attr;
use crate::error::{Errno, SysError};

/// Bounds the requests of the namespace `block` (`nvme0n1`), by every controller that leads to it, to `kib` KiB
/// (`queue/max_sectors_kb`, `Documentation/ABI/stable/sysfs-block`); a queue that is bounded lower is left alone.
/// ENODEV when no controller leads to it. EAGAIN when none of those has a queue for it yet: a new controller's
/// `nvme_mpath_update` may set a head live while the scan still registers the path (drivers/nvme/host/multipath.c).
///
/// nvmet-tcp refuses a request of more than 4 MiB for good (`nvmet_tcp_map_data`, `NVMET_TCP_MAXH2CDATA`), but announces
/// no limit, and a zvol's optimal size makes the host merge up to 32 MiB: without this bound a large write is an
/// I/O error, and lost. The bound is set on the paths, whose queues merge and split for a multipath head too;
/// it outlives a reconnect.
pub fn bound_requests(sys: &Path, block: &str, kib: u32) -> Result<(), SysError> {
    let head = sys.join("block").join(component(block)?);
    let nsid = attr::read_if_present(&head.join("nsid"))?.unwrap_or_default();
    let controllers = subsystem_of(sys, block)?.map_or_else(Vec::new, |s| s.controllers);
    let nothing =
        |errno, why: &str| Err(SysError::new("readdir", head.display(), errno).with_detail(why));
    if controllers.is_empty() {
        return nothing(Errno::ENODEV, "no controller leads to it");
    }
    let mut queues = 0;
    for controller in &controllers {
        let dir = sys.join("class/nvme").join(component(controller)?);
        for path in paths(&dir, controller, block, &nsid)? {
            queues += usize::from(bound(&dir.join(path).join("queue/max_sectors_kb"), kib)?);
        }
    }
    match queues {
        0 => nothing(
            Errno::EAGAIN,
            "no controller has a queue that leads to it yet",
        ),
        _ => Ok(()),
    }
}

/// Whether there is such a queue, bounded now.
fn bound(attribute: &Path, kib: u32) -> Result<bool, SysError> {
    let Some(text) = attr::read_if_present(attribute)? else {
        return Ok(false);
    };
    if text.parse().is_ok_and(|now: u32| now <= kib) {
        return Ok(true);
    }
    attr::write(attribute, &kib.to_string())?;
    let found = attr::read(attribute)?;
    if found != kib.to_string() {
        return Err(SysError::new("read", attribute.display(), Errno::EIO)
            .with_detail(format!("reads {found:?} after {kib} was written")));
    }
    Ok(true)
}

/// A controller's disks that lead to the namespace `nsid`, which is `block`: the one that is called as its path is
/// (`nvme_mpath_set_disk_name`, drivers/nvme/host/multipath.c), else all that have the nsid. A name alone is not believed
/// (C-34), and a neighbour is never taken for a path that is not registered yet.
fn paths(dir: &Path, controller: &str, block: &str, nsid: &str) -> Result<Vec<String>, SysError> {
    let instance = controller.trim_start_matches("nvme");
    let called = match block.rsplit_once('n') {
        Some((subsystem, head)) if !dir.join(block).exists() => {
            format!("{subsystem}c{instance}n{head}")
        }
        _ => block.to_owned(), // without native multipath the controller's disk is the block device itself
    };
    let leads = |disk: &str| -> Result<bool, SysError> {
        let found = attr::read_if_present(&dir.join(disk).join("nsid"))?;
        Ok(found.as_deref() == Some(nsid))
    };
    if leads(&called)? {
        return Ok(vec![called]);
    }
    let mut found = Vec::new();
    // Disks only: a controller's directory has some thirty attributes beside them.
    for disk in names_in(dir)?.into_iter().filter(|n| n.starts_with("nvme")) {
        if leads(&disk)? {
            found.push(disk);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A subsystem with one controller, as native multipath shows them.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            let sys = Self(tempfile::tempdir().expect("a directory"));
            sys.file("class/nvme/nvme3/address", "traddr=1");
            sys.file("class/nvme-subsystem/nvme-subsys0/subsysnqn", "nqn.a");
            let subsystem = sys.0.path().join("class/nvme-subsystem/nvme-subsys0");
            symlink(
                sys.0.path().join("class/nvme-subsystem"),
                subsystem.join("subsystem"),
            )
            .expect("a link");
            symlink(
                sys.0.path().join("class/nvme/nvme3"),
                subsystem.join("nvme3"),
            )
            .expect("a link");
            sys
        }

        fn file(&self, path: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            fs::write(&path, text).expect("write");
            path
        }

        fn head(&self, block: &str, nsid: &str) {
            self.file(&format!("block/{block}/nsid"), nsid);
            let device = self.0.path().join("block").join(block).join("device");
            symlink(
                self.0.path().join("class/nvme-subsystem/nvme-subsys0"),
                device,
            )
            .expect("a link");
        }

        /// A path of the controller; gives its bound.
        fn path(&self, name: &str, nsid: &str, kib: &str) -> PathBuf {
            self.file(&format!("class/nvme/nvme3/{name}/nsid"), nsid);
            self.file(
                &format!("class/nvme/nvme3/{name}/queue/max_sectors_kb"),
                kib,
            )
        }

        fn bound(&self, block: &str) -> Result<(), SysError> {
            bound_requests(self.0.path(), block, 1024)
        }
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("read")
    }

    #[test]
    fn a_queue_is_bounded_and_never_widened() {
        let sys = Sys::new();
        sys.head("nvme0n1", "1");
        sys.head("nvme0n2", "2");
        // A plain file keeps what is behind the shorter value that is written over it.
        let (wide, narrow) = (
            sys.path("nvme0c3n1", "1", "4096"),
            sys.path("nvme0c3n2", "2", "512"),
        );
        sys.bound("nvme0n1").expect("bounded");
        assert_eq!((read(&wide), read(&narrow)), ("1024".into(), "512".into()));
        sys.bound("nvme0n2").expect("bounded");
        assert_eq!(read(&narrow), "512");
    }

    #[test]
    fn c_34_one_of_many_is_bounded_by_its_nsid_also_where_the_names_mislead() {
        let sys = Sys::new();
        sys.head("nvme0n2", "700");
        let queues = [
            ("nvme0c3n1", "1"),
            ("nvme0c3n2", "700"),
            ("nvme0c3n12", "12"),
        ]
        .map(|(name, nsid)| sys.path(name, nsid, "4096"));
        let kib = || queues.each_ref().map(|q| read(q));
        sys.bound("nvme0n2").expect("bounded");
        assert_eq!(kib(), ["4096", "1024", "4096"]);
        sys.file("block/nvme0n2/nsid", "12");
        sys.bound("nvme0n2").expect("bounded");
        assert_eq!(kib(), ["4096", "1024", "1024"]);
    }

    #[test]
    fn a_neighbours_queue_is_not_taken_for_one_that_is_not_registered_yet() {
        let sys = Sys::new();
        sys.head("nvme0n2", "700");
        let neighbour = sys.path("nvme0c3n1", "1", "4096");
        let error = sys.bound("nvme0n2").expect_err("no path yet");
        assert_eq!(
            (error.errno, read(&neighbour)),
            (Errno::EAGAIN, "4096".into())
        );
    }

    #[test]
    fn a_namespace_without_a_queue_is_an_error_and_never_left_unbounded_in_silence() {
        let sys = Sys::new();
        sys.head("nvme0n1", "1");
        for (block, errno) in [("nvme0n1", Errno::EAGAIN), ("nvme9n9", Errno::ENODEV)] {
            let error = sys.bound(block).expect_err("no queue");
            assert_eq!(error.errno, errno, "{error}");
        }
        let path = sys.path("nvme0c3n1", "1", "4096");
        sys.bound("nvme0n1").expect("registered meanwhile");
        assert_eq!(read(&path), "1024");
    }
}
