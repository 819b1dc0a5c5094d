//! The machine image: Debian 13 with its kernel and ZFS, built once and cached by what goes in.
//!
//! Two stages, each with a key: the *tree* (packages, and ZFS built by DKMS: minutes) and the *image*
//! (the provisioning scripts and the lab's key: seconds). Each is built beside its place and renamed
//! into it, so that an interrupted build is never used.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{cleanup, host, progress};

const SUITE: &str = "trixie";
/// To be raised when the way of building changes what comes out.
const FORMAT: &str = "1";
/// The script that has no part in the image.
const VAGRANT_ONLY: &str = "packages.sh";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

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
    let cache = host::cache_dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let scripts = provision_dir();
    let packages = packages(&scripts)?;
    let tree_key = key_of(&[FORMAT, SUITE, &packages.join(",")]);
    let image_key = image_key(&tree_key, &scripts)?;
    let image = Image::at(cache.join(format!("image-{image_key}")));
    if image.dir.exists() {
        return Ok(image);
    }

    let lock = File::create(cache.join("lock")).context("make the cache's lock file")?;
    if lock.try_lock().is_err() {
        progress::note("waiting for another build of the image");
        lock.lock().context("lock the cache")?;
    }
    sweep(&cache)?;
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
    forget_old(&cache, &[&image.dir, &tree])?;
    Ok(image)
}

/// Removes every tree and image, and whatever an interrupted build left. Gives the folder.
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

fn key_of(parts: &[impl AsRef<str>]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Builds a folder beside its place, and renames it when it is whole.
fn into_place(place: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let partial = place.with_file_name(format!("partial-{name}"));
    fs::create_dir(&partial).with_context(|| format!("make {}", partial.display()))?;
    let guard = {
        let partial = partial.clone();
        cleanup::on_end(move || {
            if let Err(error) = remove(&partial) {
                progress::note(format!("{error:#}"));
            }
        })
    };
    build(&partial)?;
    fs::rename(&partial, place)
        .with_context(|| format!("rename {} into place", partial.display()))?;
    drop(guard);
    Ok(())
}

/// What builds left that were killed. The lock is held, so no build is running.
fn sweep(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache).context("read the cache")? {
        let path = entry?.path();
        if path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("partial-"))
        {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes trees and images of earlier scripts that were made over a day ago and that no lab uses.
fn forget_old(cache: &Path, present: &[&Path]) -> Result<()> {
    for entry in fs::read_dir(cache).context("read the cache")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ours = name.starts_with("image-") || name.starts_with("tree-");
        let old = fs::metadata(&path)?
            .modified()?
            .elapsed()
            .is_ok_and(|age| age > DAY);
        if !ours || !old || present.contains(&path.as_path()) {
            continue;
        }
        let in_use = File::open(path.join("kernel")).is_ok_and(|kernel| kernel.try_lock().is_err());
        if !in_use {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a folder, also one with root's files in it.
fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    let status = host::root_command("rm").arg("-rf").arg(dir).status()?;
    ensure!(status.success(), "could not remove {}", dir.display());
    Ok(())
}

/// A command as root whose mounts and processes end with it, however it ends.
fn contained(program: &str) -> Command {
    let mut command = host::root_command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.args([
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.arg(program);
    command
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

/// Runs a long command: all of its output goes to a log, its milestones (`I: …`) to the terminal.
fn logged(mut command: Command, log: &Path, name: &str) -> Result<()> {
    let mut file = File::create(log).with_context(|| format!("make {}", log.display()))?;
    let (reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    // The command keeps the writing ends; the reader must see it end.
    drop(command);
    let undo = {
        let pid = child.id().to_string();
        cleanup::on_end(move || {
            // Its own children are killed by the kernel, which takes a moment.
            let _ = host::root_command("kill")
                .args(["-KILL", &pid])
                .stderr(Stdio::null())
                .status();
            std::thread::sleep(Duration::from_millis(500));
        })
    };
    let mut tail: Vec<String> = Vec::new();
    let mut said = Instant::now();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        writeln!(file, "{line}")?;
        let heartbeat = said.elapsed() > Duration::from_secs(30);
        if let Some(milestone) = line.strip_prefix("I: ") {
            progress::note(milestone);
            said = Instant::now();
        } else if heartbeat {
            progress::note(format!(
                "… {} so far: {line}",
                progress::seconds(begin.elapsed())
            ));
            said = Instant::now();
        }
        if tail.len() == 30 {
            tail.remove(0);
        }
        tail.push(line);
    }
    let status = child.wait()?;
    undo.disarm();
    cleanup::yield_to_signal();
    if !status.success() {
        bail!(
            "{name} failed ({status}); the end of what it said:\n{}",
            tail.join("\n")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_every_part_and_its_border() {
        assert_eq!(key_of(&["a", "b"]), key_of(&["a", "b"]));
        assert_ne!(key_of(&["ab", ""]), key_of(&["a", "b"]));
        assert_ne!(key_of(&["a"]), key_of(&["b"]));
    }

    #[test]
    fn an_interrupted_build_is_never_in_place() {
        let dir = std::env::temp_dir().join(format!("zvolt-lab-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let place = dir.join("image-x");
        assert!(into_place(&place, |_| bail!("cut")).is_err());
        assert!(!place.exists());
        into_place(&place, |partial| Ok(fs::write(partial.join("f"), "")?)).unwrap();
        assert!(place.join("f").exists());
        assert_eq!(
            fs::read_dir(&dir).unwrap().count(),
            1,
            "no partial folder is left"
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
