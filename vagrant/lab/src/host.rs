//! What the host must have, and how the lab gets it: Debian or Ubuntu packages, by apt.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::progress;

/// A program and the package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    program: &'static str,
    package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// What building the image needs.
pub const BUILD: &[Tool] = &[
    tool("mmdebstrap", "mmdebstrap"),
    tool("mke2fs", "e2fsprogs"),
    tool("tar", "tar"),
    tool("unshare", "util-linux"),
    tool("ssh-keygen", "openssh-client"),
];

/// What running the machines needs.
pub const RUN: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("qemu-img", "qemu-utils"),
    tool("setpriv", "util-linux"),
    tool("ssh", "openssh-client"),
];

/// What tier `host` needs: the tests compare with these.
pub const HOST_TESTS: &[Tool] = &[
    tool("mke2fs", "e2fsprogs"),
    tool("mkfs.xfs", "xfsprogs"),
    tool("unshare", "util-linux"),
];

/// What building the container images needs.
pub const CONTAINERS: &[Tool] = &[
    tool("mmdebstrap", "mmdebstrap"),
    tool("unshare", "util-linux"),
    tool("dpkg-deb", "dpkg"),
    tool("tar", "tar"),
    tool("gzip", "gzip"),
    tool("strip", "binutils"),
];

/// What tier `image` reads them with.
pub const CONTAINER_TESTS: &[Tool] = &[tool("skopeo", "skopeo"), tool("chroot", "coreutils")];

/// What tier `k8s` needs to keep its servers on a leash.
pub const CONTROL_PLANE: &[Tool] = &[tool("setpriv", "util-linux")];

const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether this process is root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A command that runs as root: as it is, or by `sudo -n` (which never asks).
pub fn root_command(program: &str) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", "--", program]);
    command
}

/// Installs the packages of those tools that are missing.
pub fn require(tools: &[Tool]) -> Result<()> {
    let mut missing: Vec<&str> = tools
        .iter()
        .filter(|t| find(t.program).is_none())
        .map(|t| t.package)
        .collect();
    let builds = tools.iter().any(|t| t.program == "mmdebstrap");
    if builds && !Path::new(DEBIAN_KEYRING).exists() {
        // Ubuntu does not bring the keys that Debian signs with.
        missing.push("debian-archive-keyring");
    }
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        find("apt-get").is_some(),
        "this host lacks {}; the lab can install packages only by apt (Debian, Ubuntu): install them yourself",
        missing.join(", ")
    );
    progress::part(
        &format!("installing packages: {}", missing.join(" ")),
        || {
            apt(&["update", "-q"])?;
            let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
            arguments.extend(&missing);
            apt(&arguments)
        },
    )
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = root_command("env")
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("run apt-get (as root, or by sudo -n)")?;
    if !output.status.success() {
        bail!(
            "apt-get {} failed ({}):\n{}{}\nrun it by hand as root, then try again",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Where a program is, if it is: in PATH, or where PATH of a plain user does not reach.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

fn is_debian() -> bool {
    os_release().lines().any(|line| line == "ID=debian")
}

fn os_release() -> String {
    fs::read_to_string("/etc/os-release").unwrap_or_default()
}

/// The Debian mirror to take packages from: `ZVOLT_LAB_MIRROR`, else the one that a Debian host itself
/// uses, else none (mmdebstrap has its own default).
pub fn debian_mirror() -> Option<String> {
    if let Ok(mirror) = env::var("ZVOLT_LAB_MIRROR")
        && !mirror.is_empty()
    {
        return Some(mirror);
    }
    if !is_debian() {
        return None;
    }
    let mut files: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    files.insert(0, PathBuf::from("/etc/apt/sources.list"));
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|text| mirror_in(&text))
}

/// The first archive of Debian proper in a sources file of either format.
fn mirror_in(sources: &str) -> Option<String> {
    sources.lines().find_map(|line| {
        let line = line.trim();
        let rest = line
            .strip_prefix("URIs:")
            .or_else(|| line.strip_prefix("deb "))?;
        rest.split_whitespace()
            .find(|word| word.contains("://"))
            .filter(|uri| uri.trim_end_matches('/').ends_with("/debian"))
            .map(str::to_owned)
    })
}

/// `${XDG_CACHE_HOME:-~/.cache}/zvolt-lab`.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|v| Path::new(v).is_absolute()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(
            env::var_os("HOME").context("HOME is not set, so there is no place for the image")?,
        )
        .join(".cache"),
    };
    Ok(base.join("zvolt-lab"))
}

/// Where the running lab of this user is found: `ZVOLT_LAB_RUN`, else one place for each user.
pub fn run_dir() -> PathBuf {
    if let Some(dir) = env::var_os("ZVOLT_LAB_RUN").filter(|v| !v.is_empty()) {
        return PathBuf::from(dir);
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|v| Path::new(v).is_dir()) {
        Some(dir) => PathBuf::from(dir).join("zvolt-lab"),
        None => PathBuf::from(format!("/tmp/zvolt-lab-{}", nix::unistd::geteuid())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mirror_in_both_formats() {
        let deb822 = "Types: deb\nURIs: http://m.example/debian/\nSuites: trixie\n";
        assert_eq!(
            mirror_in(deb822).as_deref(),
            Some("http://m.example/debian/")
        );
        let one_line = "# deb http://old.example/debian x\ndeb [signed-by=/k] https://m.example/debian trixie main\n";
        assert_eq!(
            mirror_in(one_line).as_deref(),
            Some("https://m.example/debian")
        );
    }

    #[test]
    fn takes_no_other_archive_for_debian() {
        assert_eq!(
            mirror_in("deb http://security.example/debian-security trixie-security main\n"),
            None
        );
        assert_eq!(mirror_in("URIs: http://m.example/ubuntu/\n"), None);
    }
}
