//! The container images: a few Debian packages and the driver, without a container engine and without a registry.
//!
//! What goes in decides what comes out, bit by bit: packages are unpacked and not configured, everything is root's and of
//! the epoch, and names are sorted.

mod debian;
mod layout;
mod sbom;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub(crate) use debian::{Package, packages};

use crate::{host, progress, tiers};

/// The version of the images and of what is in them.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The chart asks for images under this name; no runtime takes it for that of a registry.
const REGISTRY: &str = "localhost";
/// Where the driver is in an image.
pub(crate) const PROGRAM: &str = "usr/bin/zvolt";
/// Who an image's process is when nobody says otherwise.
pub(crate) const USER: u32 = 65532;

/// An image that can be built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipe {
    /// What it is called.
    pub(crate) name: &'static str,
    /// The list of its packages.
    pub(crate) list: &'static str,
}

/// Both images.
pub(crate) const RECIPES: [Recipe; 2] = [
    Recipe {
        name: "zvolt",
        list: "full.txt",
    },
    Recipe {
        name: "zvolt-node",
        list: "node.txt",
    },
];

/// An image that was built.
#[derive(Debug, Serialize)]
pub struct Built {
    /// What a pod calls it.
    pub reference: String,
    /// Of its manifest.
    pub digest: String,
    /// An OCI image layout, as `ctr images import` and `skopeo` take it.
    pub file: PathBuf,
    /// Of that file.
    pub bytes: u64,
    /// Its bill of materials, SPDX 2.3.
    pub sbom: PathBuf,
    /// Debian packages in it.
    pub packages: usize,
    /// Crates in the driver.
    pub crates: usize,
}

/// Builds both images into a folder, of packages from the cache.
pub fn build(folder: &Path) -> Result<Vec<Built>> {
    host::require(host::CONTAINERS)?;
    let debs = debian::cached()?;
    let program = tiers::release("zvolt")?;
    progress::part("making the images", || {
        let all = RECIPES.iter();
        all.map(|recipe| assemble(recipe, &debs, &program, folder))
            .collect()
    })
}

/// Fetches every package of every image into a new folder.
pub(crate) fn fetch(folder: &Path) -> Result<()> {
    host::require(host::CONTAINERS)?;
    debian::fetch(folder)
}

/// One image, of packages and a program that are there.
pub(crate) fn assemble(
    recipe: &Recipe,
    debs: &Path,
    program: &Path,
    folder: &Path,
) -> Result<Built> {
    let reference = format!("{REGISTRY}/{}:{VERSION}", recipe.name);
    let scratch = folder.join(format!("{}.partial", recipe.name));
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    let root = scratch.join("root");
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let packages = packages(recipe.list, debs)?;
    for package in &packages {
        package.unpack(&root)?;
    }
    install(program, &root)?;
    name_users(&root)?;
    let crates = sbom::crates()?;
    let sbom = folder.join(format!("{}-{VERSION}.spdx.json", recipe.name));
    write(&sbom, &sbom::document(recipe.name, &packages, &crates)?)?;
    let file = folder.join(format!("{}-{VERSION}.oci.tar", recipe.name));
    let digest = layout::write(&scratch, &root, &reference, &file)?;
    fs::remove_dir_all(&scratch)?;
    Ok(Built {
        reference,
        digest,
        bytes: fs::metadata(&file)?.len(),
        file,
        sbom,
        packages: packages.len(),
        crates: crates.len(),
    })
}

/// The driver without what only a debugger reads.
fn install(program: &Path, root: &Path) -> Result<()> {
    let place = root.join(PROGRAM);
    let status = Command::new("strip")
        .arg("-o")
        .args([&place, program])
        .status()
        .context("run strip")?;
    ensure!(status.success(), "strip failed ({status})");
    fs::set_permissions(&place, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Names for the two users: some tools look them up.
fn name_users(root: &Path) -> Result<()> {
    let passwd = format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\nzvolt:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n"
    );
    write(&root.join("etc/passwd"), &passwd)?;
    write(
        &root.join("etc/group"),
        &format!("root:x:0:\nzvolt:x:{USER}:\n"),
    )
}

/// A file that all may read, whatever this user's mask is.
fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o644))?;
    Ok(())
}
