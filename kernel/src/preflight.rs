//! What must be true of this machine before the driver serves (design rule 13; C-12, C-14, C-63,
//! C-73, C-100). Every finding says what to do.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};
use rustix::fs::{Access, access};

use crate::error::SysError;
use crate::{module, mount};

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

/// The consumer's checks: module `nvme_tcp`, native multipath, `/dev/nvme-fabrics`, a writable `/sys`, the
/// kernel's own `/dev`, shared propagation of the kubelet directory, `CAP_SYS_ADMIN`.
pub fn node(roots: &Roots, kubelet_dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(module_missing(roots, "nvme_tcp", "nvme-tcp"));
    findings.extend(multipath_off(roots));
    findings.extend(fabrics_closed(roots));
    findings.extend(read_only("sys", &roots.sys));
    findings.extend(private_dev(roots));
    findings.extend(not_shared(roots, kubelet_dir));
    findings.extend(no_admin());
    findings
}

/// The storage side's checks: modules `zfs`, `nvmet` and `nvmet_tcp`, the target's configfs tree,
/// writable, `/dev/zfs`, the kernel's own `/dev`, `CAP_SYS_ADMIN`.
pub fn agent(roots: &Roots) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tree = roots.sys.join("kernel/config/nvmet");
    findings.extend(module_missing(roots, "zfs", "zfs"));
    // Built in and without parameters, nvmet shows nowhere but in its tree.
    if !tree.is_dir() {
        findings.extend(module_missing(roots, "nvmet", "nvmet"));
        findings.push(finding(
            "configfs",
            format!("{} does not exist", tree.display()),
            "run: mount -t configfs none /sys/kernel/config; modprobe nvmet; in a container, mount the host's \
             /sys/kernel/config",
        ));
    } else {
        findings.extend(read_only("configfs", &tree));
    }
    findings.extend(module_missing(roots, "nvmet_tcp", "nvmet-tcp"));
    if !roots.dev.join("zfs").exists() {
        findings.push(finding(
            "dev.zfs",
            format!("{} does not exist", roots.dev.join("zfs").display()),
            "run: modprobe zfs; in a container, mount the host's /dev",
        ));
    }
    findings.extend(private_dev(roots));
    findings.extend(no_admin());
    findings
}

fn finding(
    check: impl Into<String>,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        check: check.into(),
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

fn module_missing(roots: &Roots, name: &str, spelling: &str) -> Option<Finding> {
    (!module::is_present(&roots.sys, name)).then(|| {
        finding(
            format!("module.{name}"),
            format!("the kernel module {spelling} is not loaded"),
            format!("run: modprobe {spelling}; to have it at every boot: echo {spelling} > /etc/modules-load.d/{spelling}.conf"),
        )
    })
}

/// Opened as a connect opens it: a container's device rules refuse the open, and nothing before it.
fn fabrics_closed(roots: &Roots) -> Option<Finding> {
    let path = roots.dev.join("nvme-fabrics");
    let error = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .err()?;
    let remedy = match error.kind() {
        ErrorKind::NotFound => "run: modprobe nvme-fabrics; in a container, mount the host's /dev",
        _ => "run as root, or privileged in a pod",
    };
    Some(finding(
        "fabrics",
        SysError::io("open", &path, &error).to_string(),
        remedy,
    ))
}

/// C-73: a container's `/sys` is mounted read-only unless it is privileged.
fn read_only(check: &str, path: &Path) -> Option<Finding> {
    let errno = access(path, Access::WRITE_OK).err()?;
    let problem = format!("{} cannot be written to: {errno}", path.display());
    let remedy = "run as root, or privileged in a pod, which mounts /sys for writing";
    Some(finding(check, problem, remedy))
}

fn multipath_off(roots: &Roots) -> Option<Finding> {
    let off = match module::parameter(&roots.sys, "nvme_core", "multipath") {
        Ok(Some(value)) => value != "Y",
        // Without the parameter the kernel has no native multipath; without the module, that is said already.
        Ok(None) => module::is_present(&roots.sys, "nvme_core"),
        Err(_) => true,
    };
    off.then(|| {
        finding(
            "multipath",
            "native NVMe multipath is off: a lost connection would take the block device with it",
            "boot with nvme_core.multipath=Y, on a kernel with CONFIG_NVME_MULTIPATH",
        )
    })
}

/// A container's own `/dev` never shows the devices that the kernel makes later.
fn private_dev(roots: &Roots) -> Option<Finding> {
    let (problem, remedy) = match mount::fs_type(&roots.proc, &roots.dev) {
        Ok(found) if found == "devtmpfs" => return None,
        Ok(found) => (
            format!(
                "{} is on {found}, not the kernel's devtmpfs: new block devices would never appear in it",
                roots.dev.display()
            ),
            "run on the host, or mount the host's /dev into the container (hostPath /dev)",
        ),
        Err(error) => (error.to_string(), "mount /proc and the host's /dev"),
    };
    Some(finding("dev.private", problem, remedy))
}

fn not_shared(roots: &Roots, kubelet_dir: &Path) -> Option<Finding> {
    let problem = match mount::is_shared(&roots.proc, kubelet_dir) {
        Ok(true) => return None,
        Ok(false) => format!(
            "{} lies on a mount without shared propagation: what is mounted below it would stay unseen by the \
             host and by every pod",
            kubelet_dir.display()
        ),
        Err(error) => {
            let remedy =
                "name the directory that kubelet runs with (--root-dir), and mount it into the pod";
            return Some(finding("propagation", error.to_string(), remedy));
        }
    };
    Some(finding(
        "propagation",
        problem,
        format!(
            "run: mount --make-rshared $(findmnt -n -o TARGET -T {}); in a pod, mountPropagation: Bidirectional",
            kubelet_dir.display()
        ),
    ))
}

fn no_admin() -> Option<Finding> {
    let has = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false);
    (!has).then(|| {
        finding(
            "capability",
            "this process lacks CAP_SYS_ADMIN, without which nothing is mounted or connected",
            "run as root, or privileged in a pod",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine on one mount, which is both `/dev` and the kubelet directory.
    struct Machine(tempfile::TempDir);

    fn mount_id(path: &Path) -> u64 {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let seen = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).expect("statx");
        seen.stx_mnt_id
    }

    impl Machine {
        fn new(dev_type: &str, kubelet: &str) -> Self {
            let machine = Self(tempfile::tempdir().expect("a directory"));
            let root = machine.0.path().canonicalize().expect("a path");
            for dir in [
                "sys/module/nvme_core/parameters",
                "dev",
                "proc/self",
                "kubelet",
            ] {
                fs::create_dir_all(root.join(dir)).expect("mkdir");
            }
            fs::write(
                root.join("sys/module/nvme_core/parameters/multipath"),
                "Y\n",
            )
            .expect("write");
            let id = mount_id(&root);
            let table = format!("{id} 0 8:1 / / rw {kubelet}- {dev_type} none rw\n");
            fs::write(root.join("proc/self/mountinfo"), table).expect("write");
            machine
        }

        fn with(self, path: &str) -> Self {
            let path = self.0.path().join(path);
            if path.starts_with(self.0.path().join("dev")) {
                fs::write(path, "").expect("write");
            } else {
                fs::create_dir_all(path).expect("mkdir");
            }
            self
        }

        fn roots(&self) -> Roots {
            Roots {
                sys: self.0.path().join("sys"),
                dev: self.0.path().join("dev"),
                proc: self.0.path().join("proc"),
            }
        }

        fn node(&self) -> Vec<String> {
            checks(node(&self.roots(), &self.0.path().join("kubelet")))
        }

        fn agent(&self) -> Vec<String> {
            checks(agent(&self.roots()))
        }
    }

    /// What is found, but for the capability, which is the test runner's own.
    fn checks(findings: Vec<Finding>) -> Vec<String> {
        for finding in &findings {
            assert!(
                !finding.problem.is_empty() && !finding.remedy.is_empty(),
                "{finding:?}"
            );
        }
        let checks = findings.into_iter().map(|f| f.check);
        checks.filter(|check| check != "capability").collect()
    }

    #[test]
    fn a_fit_machine_has_no_findings() {
        let machine = Machine::new("devtmpfs", "shared:3 ")
            .with("sys/module/nvme_tcp")
            .with("dev/nvme-fabrics");
        assert_eq!(machine.node(), Vec::<String>::new());
    }

    #[test]
    fn rule_13_each_fault_is_found_by_its_name() {
        let fit = |dev, kubelet| {
            Machine::new(dev, kubelet)
                .with("sys/module/nvme_tcp")
                .with("dev/nvme-fabrics")
        };
        assert_eq!(fit("tmpfs", "shared:3 ").node(), ["dev.private"]);
        assert_eq!(fit("devtmpfs", "").node(), ["propagation"]);
        assert_eq!(
            Machine::new("devtmpfs", "shared:3 ").node(),
            ["module.nvme_tcp", "fabrics"]
        );
    }
    #[test]
    fn bug_c_63_a_machine_without_native_multipath_is_unfit() {
        let machine = Machine::new("devtmpfs", "shared:3 ")
            .with("sys/module/nvme_tcp")
            .with("dev/nvme-fabrics");
        let parameter = machine
            .0
            .path()
            .join("sys/module/nvme_core/parameters/multipath");
        fs::write(&parameter, "N\n").expect("write");
        assert_eq!(machine.node(), ["multipath"]);
        fs::remove_file(&parameter).expect("unlink");
        assert_eq!(machine.node(), ["multipath"]);
    }

    #[test]
    fn bug_c_100_a_kubelet_directory_that_is_not_there_is_unfit() {
        let machine = Machine::new("devtmpfs", "shared:3 ")
            .with("sys/module/nvme_tcp")
            .with("dev/nvme-fabrics");
        fs::remove_dir(machine.0.path().join("kubelet")).expect("rmdir");
        assert_eq!(machine.node(), ["propagation"]);
    }

    #[test]
    fn bug_c_73_each_thing_that_a_storage_host_lacks_is_found() {
        let machine = Machine::new("devtmpfs", "");
        assert_eq!(
            machine.agent(),
            [
                "module.zfs",
                "module.nvmet",
                "configfs",
                "module.nvmet_tcp",
                "dev.zfs"
            ]
        );
        let machine = machine
            .with("sys/module/zfs")
            .with("sys/module/nvmet_tcp")
            .with("sys/kernel/config/nvmet")
            .with("dev/zfs");
        // Built in, nvmet itself is in no list of modules.
        assert_eq!(machine.agent(), Vec::<String>::new());
    }
}
