//! Programs in Go that the tests need: built of a module in the workspace, kept in the cache by its sources.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cache::{self, into_place, key_of, logged};
use crate::golang::Toolchain;
use crate::{progress, tiers};

/// To be raised when the way of building changes what comes out.
const FORMAT: &str = "2";

/// What is built of one module.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The module's folder, in the workspace.
    pub(crate) module: &'static str,
    /// What begins the name of its folder in the cache.
    pub(crate) prefix: &'static str,
    /// What is said while it is built.
    pub(crate) said: &'static str,
    /// Names of programs, and their packages.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// A variable that says which release this is, and the module whose version it gets: else programs of Kubernetes say
    /// that they are of none.
    pub(crate) stamp: Option<(&'static str, &'static str)>,
    /// Names of folders, and what is copied there: a module that it requires, and a folder of that.
    pub(crate) folders: &'static [(&'static str, &'static str, &'static str)],
    /// Whether the module has code of ours.
    pub(crate) vetted: Vetted,
}

/// Whether `go vet` is to like the module first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vetted {
    /// It is.
    Yes,
    /// There is no code of ours in it.
    No,
}

impl Programs {
    /// The folder with the programs for the present sources.
    pub(crate) fn ensure(&self) -> Result<PathBuf> {
        let module = tiers::workspace().join(self.module);
        let cache = cache::dir()?;
        let place = cache.join(format!("{}{}", self.prefix, self.key(&module)?));
        if place.exists() {
            return Ok(place);
        }
        let _lock = cache::lock(&cache)?;
        if !place.exists() {
            let go = Toolchain::find(&cache, &module)?;
            progress::part(self.said, || {
                into_place(&place, |dir| self.build(&go, &module, dir))
            })?;
            cache::forget_old(&cache, &[self.prefix], &[&place])?;
        }
        Ok(place)
    }

    /// What goes in.
    fn key(&self, module: &Path) -> Result<String> {
        let key = key(module)?;
        Ok(match self.stamp {
            Some((variable, _)) => key_of(&[&key, variable]),
            None => key,
        })
    }

    fn build(&self, go: &Toolchain, module: &Path, dir: &Path) -> Result<()> {
        let scratch = dir.join("scratch");
        if self.vetted == Vetted::Yes {
            let mut vet = go.command(module, &scratch);
            vet.args(["vet", "."]);
            logged(vet, &dir.join("vet.log"), "go vet")?;
        }
        let mut flags = "-ldflags=-s -w".to_owned();
        if let Some((variable, required)) = self.stamp {
            let version = told(go, module, &scratch, required)?.version;
            flags.push_str(&format!(" -X {variable}={version}"));
        }
        for (name, package) in self.programs {
            let mut build = go.command(module, &scratch);
            build.args(["build", "-buildvcs=false", "-trimpath", &flags]);
            build.arg("-o").arg(dir.join(name)).arg(package);
            let log = dir.join(format!("{name}.log"));
            logged(build, &log, &format!("go build {package}"))?;
        }
        for (name, required, folder) in self.folders {
            let from = told(go, module, &scratch, required)?.dir;
            copy(&from.join(folder), &dir.join(name))?;
        }
        cache::remove(&scratch)
    }
}

/// What Go says of a module.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Told {
    version: String,
    dir: PathBuf,
}

/// A module that another requires; fetched, where it is not there yet.
fn told(go: &Toolchain, module: &Path, scratch: &Path, required: &str) -> Result<Told> {
    let output = go
        .command(module, scratch)
        .args(["mod", "download", "-json", required])
        .output()
        .context("run go mod download")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "go mod download {required} failed ({}): {said}",
        output.status
    );
    serde_json::from_str(&said).with_context(|| format!("read what Go says of {required}"))
}

/// The files of a folder, as new ones: those of Go's cache may not be written to.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        fs::write(to.join(entry.file_name()), fs::read(entry.path())?)?;
    }
    Ok(())
}

/// What goes in of the module: every file that can change a program.
fn key(module: &Path) -> Result<String> {
    let mut parts = vec![FORMAT.to_owned()];
    let mut folders = vec![module.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            if path.is_dir() {
                // Else it is another module.
                if !path.join("go.mod").exists() {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e != "md" && e != "rs") {
                parts.push(path.strip_prefix(module)?.to_string_lossy().into_owned());
                parts.push(
                    fs::read_to_string(&path)
                        .with_context(|| format!("read {}", path.display()))?,
                );
            }
        }
    }
    Ok(key_of(&parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_of_what_go_builds() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("go.mod"), "module x").unwrap();
        let first = key(dir.path()).unwrap();
        fs::write(dir.path().join("main.rs"), "fn main() {}").unwrap();
        fs::write(dir.path().join("README.md"), "x").unwrap();
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("go.mod"), "module y").unwrap();
        assert_eq!(key(dir.path()).unwrap(), first);
        fs::write(dir.path().join("go.sum"), "x").unwrap();
        assert_ne!(key(dir.path()).unwrap(), first);
    }
}
