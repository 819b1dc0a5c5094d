//! The machine image: Debian 13 with its kernel and ZFS, built once and cached by what goes in.
//!
//! Two stages, each with a key: the *tree* (packages, and ZFS built by DKMS: minutes) and the *image*
//! (the provisioning scripts and the lab's key: seconds).

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache::{self, contained, into_place, key_of, logged, remove};
use crate::{host, progress};

const SUITE: &str = "trixie";
/// To be raised when the way of building changes what comes out.
const FORMAT: &str = "1";
/// The script that has no part in the image.
const VAGRANT_ONLY: &str = "packages.sh";

/// A built image.
#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
}

impl Image {
    /// An image in the folder where it was built.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps the image from being removed as an old one, as long as the file is held.
    pub fn hold(&self) -> Result<File> {
        let kernel = File::open(self.kernel())
            .with_context(|| format!("open {}", self.kernel().display()))?;
        kernel.lock_shared().context("lock the image")?;
        Ok(kernel)
    }

    /// The root disk, to be used as the base of copies only.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("root.img")
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("kernel")
    }

    /// The initial RAM disk.
    pub fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }

    /// The private key that root of every machine admits.
    pub fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// The host key of every machine, under the name `zvolt-lab`.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir.join("known_hosts")
    }
}

/// The folder of the provisioning scripts.
pub fn provision_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../provision")
}

/// The image for the present scripts; builds what is missing.
pub fn ensure() -> Result<Image> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the lab runs on x86_64 hosts only: its machines are x86_64 and would be too slow elsewhere"
    );
    let cache = cache::dir()?;
    let scripts = provision_dir();
    let packages = packages(&scripts)?;
    let tree_key = key_of(&[FORMAT, SUITE, &packages.join(",")]);
    let image_key = image_key(&tree_key, &scripts)?;
    let image = Image::at(cache.join(format!("image-{image_key}")));
    if image.dir.exists() {
        return Ok(image);
    }

    let _lock = cache::lock(&cache)?;
    if image.dir.exists() {
        return Ok(image);
    }
    host::require(host::BUILD)?;
    let tree = cache.join(format!("tree-{tree_key}"));
    if !tree.exists() {
        progress::part(
            "building the machines' Debian tree with ZFS (once; 5 to 15 minutes)",
            || into_place(&tree, |dir| build_tree(dir, &packages)),
        )?;
    }
    progress::part("making the machines' disk image", || {
        into_place(&image.dir, |dir| assemble(dir, &tree, &scripts))
    })?;
    cache::forget_old(&cache, &["image-", "tree-"], &[&image.dir, &tree])?;
    Ok(image)
}

/// Removes all that is kept in the cache, and whatever an interrupted build left. Gives the folder.
pub fn clean() -> Result<PathBuf> {
    let cache = host::cache_dir()?;
    if cache.exists() {
        remove(&cache)?;
    }
    Ok(cache)
}

fn packages(scripts: &Path) -> Result<Vec<String>> {
    let file = scripts.join("packages.txt");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect())
}

fn image_key(tree_key: &str, scripts: &Path) -> Result<String> {
    let mut files: Vec<PathBuf> = fs::read_dir(scripts)
        .with_context(|| format!("read {}", scripts.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "sh") && !path.ends_with(VAGRANT_ONLY))
        .collect();
    files.sort();
    let mut parts = vec![tree_key.to_owned()];
    for file in files {
        parts.push(
            file.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        );
        parts.push(fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(key_of(&parts))
}

fn build_tree(dir: &Path, packages: &[String]) -> Result<()> {
    let mut command = contained("mmdebstrap");
    command.args([
        "--mode=root",
        "--variant=minbase",
        "--components=main,contrib",
    ]);
    command.arg(format!("--include={}", packages.join(",")));
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    for docs in [
        "/usr/share/doc/*",
        "/usr/share/man/*",
        "/usr/share/locale/*",
    ] {
        command.arg(format!("--dpkgopt=path-exclude={docs}"));
    }
    command.arg(SUITE).arg(dir.join("tree.tar"));
    command.args(host::debian_mirror());
    logged(command, &dir.join("log"), "mmdebstrap")
}

fn assemble(dir: &Path, tree: &Path, scripts: &Path) -> Result<()> {
    let key = dir.join("key");
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "zvolt-lab", "-f"])
        .arg(&key)
        .status()
        .context("run ssh-keygen")?;
    ensure!(status.success(), "ssh-keygen failed ({status})");
    let mut command = contained("sh");
    command.arg(scripts.join("assemble.sh"));
    command
        .arg(tree.join("tree.tar"))
        .arg(dir)
        .arg(dir.join("key.pub"));
    logged(command, &dir.join("log"), "assemble.sh")?;
    if !host::is_root() {
        let me = fs::metadata(&key)?;
        let status = host::root_command("chown")
            .args(["-R", &format!("{}:{}", me.uid(), me.gid())])
            .arg(dir)
            .status()?;
        ensure!(status.success(), "could not take over {}", dir.display());
    }
    Ok(())
}
