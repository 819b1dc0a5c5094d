//! The programs that zvolt runs, because no library does their work: `mkfs.xfs` and `e2fsck`.
//!
//! Run directly: no shell, no `PATH`, no environment, an absolute device path as the last argument. Both
//! open the device with `O_EXCL`, so that one left over from a killed agent makes the next one fail with
//! "busy" instead of mixing with it.

use std::io::{PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::PoisonError;

use nix::errno::Errno;

use super::{EXCLUSIVE, Error};
use crate::error::SysError;

/// How much of what it said is kept.
const SAID_MAX: usize = 2048;

/// A program, by the first of the places where distributions keep it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) places: [&'static str; 2],
}

/// How it ended, and the end of what it said, on one line.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) said: String,
}

impl Program {
    /// Runs it on `device` and waits for its end.
    pub(super) fn run(self, arguments: &[String], device: &Path) -> Result<Ended, Error> {
        let path = first(self.places.iter().map(Path::new)).ok_or(Error::Missing {
            what: self.name,
            package: self.package,
        })?;
        run(self.name, &path, arguments, device)
    }
}

fn first<'a>(candidates: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    candidates
        .filter(|path| path.is_file())
        .map(Path::to_path_buf)
        .next()
}

#[expect(
    clippy::disallowed_methods,
    reason = "no library does this; the agent runs it off the publish path"
)]
fn run(
    name: &'static str,
    program: &Path,
    arguments: &[String],
    device: &Path,
) -> Result<Ended, Error> {
    if !device.is_absolute() {
        let error = SysError::new(name, device.display(), Errno::EINVAL);
        return Err(error.with_detail("the device path must be absolute").into());
    }
    let failed = |call, e: std::io::Error| SysError::io(call, program, &e);
    let no_device = EXCLUSIVE.write().unwrap_or_else(PoisonError::into_inner);
    let (reader, writer) = std::io::pipe().map_err(|e| failed("pipe2", e))?;
    let other = writer.try_clone().map_err(|e| failed("dup", e))?;
    // The command holds the pipe's other ends: it must be gone before the end can be read.
    let spawned = std::process::Command::new(program)
        .env_clear()
        .current_dir("/")
        .args(arguments)
        .arg(device)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(other)
        .spawn();
    let mut child = spawned.map_err(|e| failed("posix_spawn", e))?;
    drop(no_device);
    let said = tail(reader);
    let status = child.wait().map_err(|e| failed("waitpid", e))?;
    Ok(Ended { status, said })
}

/// The last words, on one line. Reads to the end, so that the program never blocks on a full pipe.
fn tail(mut said: PipeReader) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0_u8; 1024];
    while let Ok(read @ 1..) = said.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..read]);
        let excess = kept.len().saturating_sub(SAID_MAX);
        kept.drain(..excess);
    }
    let text = String::from_utf8_lossy(&kept);
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A script that is still open for writing in a child of another test cannot be executed (ETXTBSY).
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn script(dir: &Path, body: &str) -> PathBuf {
        let path = dir.join("program");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_program_gets_its_arguments_and_no_environment() {
        let _guard = ONE_AT_A_TIME.lock();
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "echo \"$@\"; echo \"home=$HOME\"; pwd");
        let arguments = ["-q".to_owned(), "a b".to_owned()];
        let ended = run("program", &program, &arguments, Path::new("/dev/zd0")).unwrap();
        assert!(ended.status.success());
        assert_eq!(ended.said, "-q a b /dev/zd0; home=; /");
    }

    #[test]
    fn a_failure_carries_the_status_and_the_end_of_what_it_said() {
        let _guard = ONE_AT_A_TIME.lock();
        let dir = tempfile::tempdir().unwrap();
        let program = script(
            dir.path(),
            "i=0; while [ $i -lt 20000 ]; do echo line >&2; i=$((i+1)); done; echo 'cannot open' >&2; exit 3",
        );
        let ended = run("program", &program, &[], Path::new("/dev/zd0")).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.said.ends_with("line; cannot open"), "{}", ended.said);
        assert!(ended.said.len() < 2 * SAID_MAX);
    }

    #[test]
    fn an_option_is_no_device() {
        let error = run("x", Path::new("/no/such"), &[], Path::new("-d")).unwrap_err();
        assert!(
            matches!(&error, Error::Sys(e) if e.errno == Errno::EINVAL),
            "{error}"
        );
    }

    #[test]
    fn the_first_candidate_that_is_there_is_taken() {
        let _guard = ONE_AT_A_TIME.lock();
        let dir = tempfile::tempdir().unwrap();
        let there = script(dir.path(), "");
        let missing = dir.path().join("missing");
        assert_eq!(
            first([missing.as_path(), &there].into_iter()),
            Some(there.clone())
        );
        assert_eq!(first([missing.as_path()].into_iter()), None);
    }
}
