//! Tier `k8s`: the store, the chart and the modes of a cluster on a real API server. etcd and kube-apiserver are built of
//! `tests/k8s/go.mod`, Helm of `deploy/tools/go.mod`; the test program starts the servers on this machine's loopback, since
//! it has to kill them too. The tests of a whole cluster have the lab's machines besides, and those of claims the rest of
//! Kubernetes' own: controller manager, scheduler, sidecars.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::vm::matching;
use super::{Counts, DRIVER, build, install_everywhere, libtest, vm, with_lab, workspace};
use crate::control_plane::{
    API_SERVER, CONTROLLER_MANAGER, CONTROLLERS_IN, DATA, ETCD, PROGRAMS_IN, SCHEDULER,
    SIDECARS_IN, SNAPSHOT_CONTROLLER,
};
use crate::programs::{Programs, Vetted};
use crate::{chart, cleanup, host, machines, progress};

/// The variable that names the driver, for what the tests run of it on this machine.
pub const DRIVER_HERE: &str = "ZVOLT_K8S_DRIVER";
/// What the names of tests that need machines begin with.
const CLUSTER: &str = "cluster::";
/// The same of tests that need the rest of the control plane and the sidecars besides.
const CLAIMS: &str = "claims::";
/// What says which release a program of Kubernetes is of.
const STAMP: Option<(&str, &str)> = Some((
    "k8s.io/component-base/version.gitVersion",
    "k8s.io/kubernetes",
));

const PROGRAMS: Programs = Programs {
    module: "tests/k8s",
    prefix: "k8s-",
    said: "building etcd and kube-apiserver (once; 5 to 15 minutes)",
    programs: &[
        (ETCD, "go.etcd.io/etcd/server/v3"),
        (API_SERVER, "k8s.io/kubernetes/cmd/kube-apiserver"),
    ],
    stamp: STAMP,
    folders: &[],
    vetted: Vetted::No,
};

const CONTROLLERS: Programs = Programs {
    module: "tests/k8s",
    prefix: "controllers-",
    said: "building kube-controller-manager and kube-scheduler (once; 3 to 10 minutes)",
    programs: &[
        (
            CONTROLLER_MANAGER,
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        (SCHEDULER, "k8s.io/kubernetes/cmd/kube-scheduler"),
    ],
    stamp: STAMP,
    folders: &[],
    vetted: Vetted::No,
};

const SIDECARS: Programs = Programs {
    module: "tests/k8s/sidecars",
    prefix: "sidecars-",
    said: "building the sidecars (once; 3 to 10 minutes)",
    programs: &[
        (
            "csi-provisioner",
            "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
        ),
        (
            "csi-attacher",
            "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
        ),
        (
            "csi-resizer",
            "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
        ),
        (
            "csi-snapshotter",
            "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
        ),
        (
            SNAPSHOT_CONTROLLER,
            "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
        ),
    ],
    stamp: None,
    folders: &[],
    vetted: Vetted::No,
};

/// Builds the test program; gives its file.
pub(super) fn tests() -> Result<PathBuf> {
    build::test_with("k8s", &["--features", "zvolt/conformance"])
}

pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let tests = tests()?;
    host::require(host::CONTROL_PLANE)?;
    let programs = PROGRAMS.ensure()?;
    let helm = chart::tools()?;
    let data = std::env::temp_dir().join(format!("zvolt-k8s-{}", std::process::id()));
    std::fs::create_dir(&data)?;
    let _guard = {
        let data = data.clone();
        cleanup::on_end(move || {
            let _ = std::fs::remove_dir_all(data);
        })
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(&tests);
    command
        .args(["--test-threads=1", "--color=never"])
        .args(filter)
        .env(PROGRAMS_IN, programs)
        .env(chart::TOOLS, helm)
        .env(DATA, data)
        .current_dir(workspace());
    let wanted = matching(&tests, filter)?;
    let is_wanted = |room: &str| wanted.iter().any(|name| name.starts_with(room));
    if is_wanted(CLAIMS) {
        command
            .env(CONTROLLERS_IN, CONTROLLERS.ensure()?)
            .env(SIDECARS_IN, SIDECARS.ensure()?);
    } else if !is_wanted(CLUSTER) {
        return libtest::run_in_turn(command, counts);
    }
    let driver = build::plain_driver()?;
    with_lab(&machines(1, 2), |lab| {
        progress::part("copying the driver to the machines", || {
            install_everywhere(lab, &driver, DRIVER)
        })?;
        command
            .env("ZVOLT_LAB_RUN", lab.run_dir())
            .env(DRIVER_HERE, &driver);
        let before = counts.failed;
        let outcome = libtest::run_in_turn(command, counts);
        if counts.failed > before {
            vm::collect(lab);
        }
        outcome
    })
}
