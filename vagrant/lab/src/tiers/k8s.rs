//! Tier `k8s`: the store on a real API server. etcd and kube-apiserver are built of `tests/k8s/go.mod`; the test program
//! starts them on this machine's loopback, since it has to kill them too.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Counts, build, libtest, workspace};
use crate::control_plane::{API_SERVER, DATA, ETCD, PROGRAMS_IN};
use crate::programs::{Programs, Vetted};
use crate::{cleanup, host};

const PROGRAMS: Programs = Programs {
    module: "tests/k8s",
    prefix: "k8s-",
    said: "building etcd and kube-apiserver (once; 5 to 15 minutes)",
    programs: &[
        (ETCD, "go.etcd.io/etcd/server/v3"),
        (API_SERVER, "k8s.io/kubernetes/cmd/kube-apiserver"),
    ],
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
    let data = std::env::temp_dir().join(format!("zvolt-k8s-{}", std::process::id()));
    std::fs::create_dir(&data)?;
    let _guard = {
        let data = data.clone();
        cleanup::on_end(move || {
            let _ = std::fs::remove_dir_all(data);
        })
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(tests);
    command
        .args(["--test-threads=1", "--color=never"])
        .args(filter)
        .env(PROGRAMS_IN, programs)
        .env(DATA, data)
        .current_dir(workspace());
    libtest::run_in_turn(command, counts)
}
