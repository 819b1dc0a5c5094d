//! What must be true of this machine before the driver serves (design rule 13; C-12, C-14, C-63,
//! C-73, C-100). Every finding says what to do.

use std::path::{Path, PathBuf};

/// Something that keeps the driver from serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// A stable name: `module.nvme_tcp`, `dev.private`, `propagation`, `fabrics`, `configfs`, …
    pub check: String,
    /// What is wrong.
    pub problem: String,
    /// The next command to type, or what to change.
    pub remedy: String,
}

/// Where to look. `Default` is the running machine.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
            proc: "/proc".into(),
        }
    }
}

/// The consumer's checks: `nvme_tcp` present, native multipath on, `/dev/nvme-fabrics` openable,
/// `/dev` is the kernel's devtmpfs (not a container's private tmpfs), `kubelet_dir` lies on a mount with shared propagation,
/// the capability `CAP_SYS_ADMIN` is effective, `ext4`/`xfs` known to the kernel or loadable is *not* checked.
pub fn node(roots: &Roots, kubelet_dir: &Path) -> Vec<Finding> {
    let _ = (roots, kubelet_dir);
    unimplemented!()
}

/// The storage side's checks: `nvmet`, `nvmet_tcp` and `zfs` present, configfs mounted with
/// `nvmet` in it, `/dev/zfs` there, `CAP_SYS_ADMIN` effective.
pub fn agent(roots: &Roots) -> Vec<Finding> {
    let _ = roots;
    unimplemented!()
}
