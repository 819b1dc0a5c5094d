//! Go, for the tests that are written in it: the user's own where it is new enough, else Debian's, which
//! is unpacked into the cache and needs no installation. Where modules come from is left to Go's
//! defaults and the user's environment (`GOPROXY`, `GOFLAGS`, `GOSUMDB`, …).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache::{self, contained, into_place, key_of, logged};
use crate::{host, progress};

const SUITE: &str = "trixie";
/// Debian 13's own is too old for the newest csi-test.
const BACKPORTS: &str = "trixie-backports";
/// To be raised when the way of unpacking changes what comes out.
const FORMAT: &str = "1";

/// A Go that can build a module.
#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The user's, with the user's caches.
    Own(PathBuf),
    /// Unpacked into the cache.
    Unpacked(PathBuf),
}

impl Toolchain {
    /// The Go for the module in a folder; it is fetched when the machine has none that will do. The
    /// cache's lock must be held.
    pub(crate) fn find(cache: &Path, module: &Path) -> Result<Self> {
        if let Some(own) = installed().into_iter().find(|go| suits(go, module)) {
            return Ok(Self::Own(own));
        }
        let tree = cache.join(format!("go-{}", key_of(&[FORMAT, BACKPORTS])));
        if !tree.exists() {
            host::require(host::BUILD)?;
            progress::part("fetching Go (once; half a minute)", || {
                into_place(&tree, unpack)
            })?;
        }
        cache::forget_old(cache, &["go-"], &[&tree])?;
        let program = tree.join("root/usr/lib/go/bin/go");
        ensure!(
            suits(&program, module),
            "neither this machine's Go nor that of {BACKPORTS} builds {}; install the Go that its go.mod asks for",
            module.display()
        );
        Ok(Self::Unpacked(program))
    }

    /// The command, in the module's folder. Scratch holds what an unpacked one would leave in the user's
    /// folders.
    pub(crate) fn command(&self, module: &Path, scratch: &Path) -> Command {
        let (Self::Own(program) | Self::Unpacked(program)) = self;
        let mut command = Command::new(program);
        command.current_dir(module).stdin(Stdio::null());
        command.env("CGO_ENABLED", "0");
        if matches!(self, Self::Unpacked(_)) {
            for (key, folder) in [("GOPATH", "path"), ("GOCACHE", "cache")] {
                if env::var_os(key).is_none() {
                    command.env(key, scratch.join(folder));
                }
            }
            let flags = env::var("GOFLAGS").unwrap_or_default();
            command.env("GOFLAGS", format!("{flags} -modcacherw").trim());
        }
        command
    }
}

/// Where people have Go, also when PATH does not reach there.
fn installed() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = host::find("go").into_iter().collect();
    all.push("/usr/local/go/bin/go".into());
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    all.extend(
        versions
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("go-"))
            .map(|entry| entry.path().join("bin/go")),
    );
    all.retain(|go| go.is_file());
    all
}

/// Whether Go itself takes the module: one that is too old and may not fetch a newer one refuses it.
fn suits(go: &Path, module: &Path) -> bool {
    Command::new(go)
        .args(["list", "-m"])
        .current_dir(module)
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

fn unpack(dir: &Path) -> Result<()> {
    let mut command = contained("mmdebstrap");
    command.args(["--mode=root", "--variant=extract", "--components=main"]);
    command.arg("--include=golang-go");
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    command.arg(format!("--aptopt=APT::Default-Release \"{BACKPORTS}\""));
    command.arg("--dpkgopt=path-exclude=/usr/share/doc/*");
    // Whatever mirror mmdebstrap took has the backports beside the suite.
    command.arg(format!(
        "--setup-hook=sed 's/ {SUITE} / {BACKPORTS} /;t;d' \"$1\"/etc/apt/sources.list | grep . > \"$1\"/etc/apt/sources.list.d/backports.list"
    ));
    command.arg(SUITE).arg(dir.join("root"));
    command.args(host::debian_mirror());
    logged(command, &dir.join("log"), "mmdebstrap").context("unpack Debian's Go")
}
