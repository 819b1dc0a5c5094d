//! Room `preflight` on real mounts.

use std::fs;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use zvolt_kernel::preflight::{Roots, node};

use super::format::{alone, must};

/// Whether `check` is found wrong.
fn found(roots: &Roots, kubelet_dir: &Path, check: &str) -> bool {
    node(roots, kubelet_dir).iter().any(|f| f.check == check)
}

#[test]
fn rule_13_the_faults_of_a_badly_mounted_pod_are_found() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    must("mount", &["-t", "tmpfs", "pod", at.to_str().unwrap()]);
    let kubelet = at.join("kubelet");
    fs::create_dir(&kubelet).unwrap();

    mount_change(at, MountPropagationFlags::PRIVATE).unwrap();
    assert!(found(&Roots::default(), &kubelet, "propagation"));
    mount_change(at, MountPropagationFlags::SHARED).unwrap();
    assert!(!found(&Roots::default(), &kubelet, "propagation"));

    let pod = Roots {
        sys: at.to_owned(),
        dev: at.to_owned(),
        ..Roots::default()
    };
    assert!(found(&pod, &kubelet, "dev.private"));
    assert!(
        !found(&Roots::default(), &kubelet, "dev.private"),
        "/dev of this machine is no devtmpfs"
    );

    assert!(!found(&pod, &kubelet, "sys"));
    must("mount", &["-o", "remount,ro", at.to_str().unwrap()]);
    assert!(found(&pod, &kubelet, "sys"));
    unmount(at, UnmountFlags::DETACH).unwrap();
}
