//! The chart of `deploy/chart/`, by Helm itself, which is built of `deploy/tools/go.mod`; and the plain manifests that
//! are made of it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::programs::{Programs, Vetted};
use crate::tiers;

/// The variable that names the folder of Helm and of what comes with it.
pub const TOOLS: &str = "ZVOLT_HELM";
/// Where the plain manifests put everything.
pub const NAMESPACE: &str = "zvolt-system";
const PROGRAM: &str = "helm";
/// The definitions of snapshots, which the chart leaves to the cluster.
const SNAPSHOT_DEFINITIONS: &str = "snapshot-definitions";
const MANIFESTS: &str = "deploy/manifests/zvolt.yaml";
const HEAD: &str = "\
# Made of deploy/chart by `cargo lab manifests`: change that one. How to install: docs/kubernetes.md. In short, once the
# images are on all nodes, the sidecars' too (under localhost/sig-storage/, or write where they are instead), and the
# snapshot controller is in the cluster:
#
#     kubectl create namespace zvolt-system
#     kubectl label namespace zvolt-system pod-security.kubernetes.io/enforce=privileged
#     kubectl apply --server-side -f zvolt.yaml
#
# Not for kubectl delete -f: that would delete the definitions, and with them every Volume. Its policy zvolt-data refuses
# it; the namespace is not in here for the same reason.
";

const PROGRAMS: Programs = Programs {
    module: "deploy/tools",
    prefix: "helm-",
    said: "building Helm (once; 2 to 5 minutes)",
    programs: &[(PROGRAM, "helm.sh/helm/v4/cmd/helm")],
    stamp: None,
    folders: &[(
        SNAPSHOT_DEFINITIONS,
        "github.com/kubernetes-csi/external-snapshotter/client/v8",
        "config/crd",
    )],
    vetted: Vetted::No,
};

/// Builds Helm when it is not there yet; gives its folder.
pub(crate) fn tools() -> Result<PathBuf> {
    PROGRAMS.ensure()
}

/// Writes the plain manifests; gives the file, as it is called in the workspace.
pub fn write_manifests() -> Result<&'static str> {
    let text = Helm::ensure()?.manifests()?;
    let file = tiers::workspace().join(MANIFESTS);
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    Ok(MANIFESTS)
}

/// The manifests that are in the tree.
pub fn written_manifests() -> Result<String> {
    let file = tiers::workspace().join(MANIFESTS);
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}

/// The chart's folder.
pub fn folder() -> PathBuf {
    tiers::workspace().join("deploy/chart")
}

/// Helm, with nothing of the user's own.
#[derive(Debug)]
pub struct Helm {
    tools: PathBuf,
}

impl Helm {
    /// Helm, built when it is not there yet.
    pub fn ensure() -> Result<Self> {
        Ok(Self { tools: tools()? })
    }

    /// The one that a tier has built for its tests.
    pub fn given() -> Result<Self> {
        let tools = env::var_os(TOOLS).with_context(|| {
            format!("{TOOLS} is not set: run these tests by `cargo lab test k8s`")
        })?;
        Ok(Self {
            tools: tools.into(),
        })
    }

    /// The definitions of snapshots and group snapshots, as the snapshot controller's makers publish them.
    pub fn snapshot_definitions(&self) -> PathBuf {
        self.tools.join(SNAPSHOT_DEFINITIONS)
    }

    /// What the chart gives for a release of its name in a namespace.
    pub fn template<S: AsRef<str>>(&self, namespace: &str, more: &[S]) -> Result<String> {
        let chart = folder();
        let chart = chart.to_string_lossy();
        let mut arguments = vec!["template", "zvolt", &chart, "--namespace", namespace];
        arguments.extend(more.iter().map(AsRef::as_ref));
        self.run(&arguments)
    }

    /// The plain manifests.
    pub fn manifests(&self) -> Result<String> {
        Ok(format!("{HEAD}{}", self.template::<&str>(NAMESPACE, &[])?))
    }

    /// Runs it; gives what it printed. An error has all that it said.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let nowhere = self.tools.join("none");
        let mut command = Command::new(self.tools.join(PROGRAM));
        for (key, _) in env::vars_os() {
            if key.to_string_lossy().starts_with("HELM_") {
                command.env_remove(key);
            }
        }
        for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(home, &nowhere);
        }
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("run helm")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("helm {} failed:\n{said}{complaint}", arguments.join(" "));
        }
        Ok(said)
    }
}

/// A file of values in the chart's folder, as Helm is told of it.
pub fn values(file: &Path) -> [String; 2] {
    let path = folder().join(file);
    ["--values".into(), path.to_string_lossy().into_owned()]
}
