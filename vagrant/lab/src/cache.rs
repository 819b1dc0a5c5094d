//! What is built once and kept in the user's cache folder: under a key of what goes in, beside its
//! place first, so that an interrupted build is never used.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{cleanup, host, progress};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The cache folder, made when it is not there.
pub(crate) fn dir() -> Result<PathBuf> {
    let cache = host::cache_dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    Ok(cache)
}

/// Waits until nobody else builds, and removes what interrupted builds left. The lock is held as long as
/// the file is.
pub(crate) fn lock(cache: &Path) -> Result<File> {
    let lock = File::create(cache.join("lock")).context("make the cache's lock file")?;
    if lock.try_lock().is_err() {
        progress::note("waiting for another build in the cache");
        lock.lock().context("lock the cache")?;
    }
    sweep(cache)?;
    Ok(lock)
}

/// A short name for what goes in.
pub(crate) fn key_of(parts: &[impl AsRef<str>]) -> String {
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
pub(crate) fn into_place(place: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
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

/// Removes folders under earlier keys that were made over a day ago and that no lab uses.
pub(crate) fn forget_old(cache: &Path, prefixes: &[&str], present: &[&Path]) -> Result<()> {
    for entry in fs::read_dir(cache).context("read the cache")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ours = prefixes.iter().any(|prefix| name.starts_with(prefix));
        let old = fs::metadata(&path)?
            .modified()?
            .elapsed()
            .is_ok_and(|age| age > DAY);
        if !ours || !old || present.contains(&path.as_path()) {
            continue;
        }
        // A lab holds the kernel of its image.
        let in_use = File::open(path.join("kernel")).is_ok_and(|kernel| kernel.try_lock().is_err());
        if !in_use {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a folder, also one with root's files in it.
pub(crate) fn remove(dir: &Path) -> Result<()> {
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
pub(crate) fn contained(program: &str) -> Command {
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

/// Runs a long command: all of its output goes to a log, its milestones (`I: …`) to the terminal.
pub(crate) fn logged(mut command: Command, log: &Path, name: &str) -> Result<()> {
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
