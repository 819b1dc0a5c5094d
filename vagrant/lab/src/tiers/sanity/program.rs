//! The program that runs csi-test's checks: built of `tests/sanity`, kept in the cache by its sources.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache::{self, into_place, key_of, logged};
use crate::golang::Toolchain;
use crate::progress;
use crate::tiers::workspace;

/// To be raised when the way of building changes what comes out.
const FORMAT: &str = "1";
const NAME: &str = "zvolt-sanity";

/// The program for the present sources.
pub(super) fn ensure() -> Result<PathBuf> {
    let module = workspace().join("tests/sanity");
    let cache = cache::dir()?;
    let place = cache.join(format!("sanity-{}", key(&module)?));
    let program = place.join(NAME);
    if program.exists() {
        return Ok(program);
    }
    let _lock = cache::lock(&cache)?;
    if !program.exists() {
        let go = Toolchain::find(&cache, &module)?;
        progress::part("building csi-sanity (once; 1 to 3 minutes)", || {
            into_place(&place, |dir| build(&go, &module, dir))
        })?;
        cache::forget_old(&cache, &["sanity-"], &[&place])?;
    }
    Ok(program)
}

fn build(go: &Toolchain, module: &Path, dir: &Path) -> Result<()> {
    let scratch = dir.join("scratch");
    let mut vet = go.command(module, &scratch);
    vet.args(["vet", "."]);
    logged(vet, &dir.join("vet.log"), "go vet")?;
    let mut build = go.command(module, &scratch);
    build.args(["build", "-buildvcs=false", "-ldflags=-s -w", "-o"]);
    build.arg(dir.join(NAME)).arg(".");
    logged(build, &dir.join("build.log"), "go build")?;
    cache::remove(&scratch)
}

/// What goes in: every file of the module.
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
                folders.push(path);
            } else if path.extension().is_some_and(|e| e != "md") {
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
