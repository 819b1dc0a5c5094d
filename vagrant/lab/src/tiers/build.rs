//! Cargo builds of what the tiers run.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::workspace;
use crate::progress;

/// Cargo, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace()).stdin(Stdio::null());
    // What cargo sets for this program is not meant for what it starts.
    for (key, _) in env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// Builds a test program; gives its file.
///
/// Every build selects the whole workspace, so that all of them share one set of the dependencies'
/// features, and with it what has been built of them.
pub(super) fn test(name: &str) -> Result<PathBuf> {
    test_with(name, &[])
}

/// The same with more arguments.
pub(super) fn test_with(name: &str, more: &[&str]) -> Result<PathBuf> {
    progress::part(&format!("building the tests `{name}`"), || {
        let all = [&["test", "--workspace", "--test", name, "--no-run"], more];
        executable(&all.concat(), name)
    })
}

/// Builds the driver with the points at which the tests can kill it; gives its file.
pub(super) fn driver() -> Result<PathBuf> {
    progress::part("building the driver", || {
        executable(
            &[
                "build",
                "--workspace",
                "--bin",
                "zvolt",
                "--features",
                "zvolt/fault-points",
            ],
            "zvolt",
        )
    })
}

/// Builds the driver as it is released, but for its optimisation; gives its file.
pub(super) fn plain_driver() -> Result<PathBuf> {
    progress::part("building the driver", || {
        executable(&["build", "--workspace", "--bin", "zvolt"], "zvolt")
    })
}

/// Builds one of the workspace's programs as it is released; gives its file.
pub(crate) fn release(name: &str) -> Result<PathBuf> {
    progress::part(&format!("building {name} as it is released"), || {
        let packages = ["-p", "zvolt", "-p", "zvolt-bench"];
        let mut arguments = vec!["build", "--release", "--bin", name];
        arguments.extend(packages);
        executable(&arguments, name)
    })
}

fn executable(arguments: &[&str], target: &str) -> Result<PathBuf> {
    let output = cargo()
        .args(arguments)
        .args([
            "--locked",
            "--message-format=json-render-diagnostics",
            "--quiet",
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo")?;
    ensure!(
        output.status.success(),
        "cargo {} failed",
        arguments.join(" ")
    );
    find_executable(&String::from_utf8_lossy(&output.stdout), target)
        .with_context(|| format!("cargo {} made no program {target}", arguments.join(" ")))
}

fn find_executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact" && message["target"]["name"] == target
        })
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"host"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"host"},"executable":"/t/host"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#
        );
        assert_eq!(
            find_executable(messages, "host"),
            Some(PathBuf::from("/t/host"))
        );
        assert_eq!(find_executable(messages, "absent"), None);
    }
}
