//! XFS by `mkfs.xfs`: the one program that zvolt runs, because no library makes an XFS.
//!
//! Run directly: no shell, no `PATH`, no environment, an absolute device path and a parsed UUID as
//! its only data. It opens the device with `O_EXCL`, so that one left over from a killed agent
//! makes the next one fail with "busy" instead of mixing with it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Stdio};
use std::sync::PoisonError;

use nix::errno::Errno;
use uuid::Uuid;

use super::{EXCLUSIVE, Error};
use crate::error::SysError;

const PROGRAMS: [&str; 2] = ["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"];

/// How much of its standard error an error may carry.
const STDERR_MAX: usize = 2048;

pub(super) fn make(device: &Path, uuid: Uuid) -> Result<(), Error> {
    let program = program(PROGRAMS.iter().map(Path::new)).ok_or(Error::Missing {
        what: "mkfs.xfs",
        package: "xfsprogs",
    })?;
    run(&program, device, uuid)
}

fn program<'a>(candidates: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    candidates
        .filter(|path| path.is_file())
        .map(Path::to_path_buf)
        .next()
}

#[expect(
    clippy::disallowed_methods,
    reason = "no library makes an XFS; the agent runs this off the publish path"
)]
fn run(program: &Path, device: &Path, uuid: Uuid) -> Result<(), Error> {
    if !device.is_absolute() {
        let error = SysError::new("mkfs.xfs", device.display(), Errno::EINVAL);
        return Err(error.with_detail("the device path must be absolute").into());
    }
    let no_device = EXCLUSIVE.write().unwrap_or_else(PoisonError::into_inner);
    let mut child = std::process::Command::new(program)
        .env_clear()
        .current_dir("/")
        // -f: a crash in the middle of the last run may have left a superblock. -K: no discard (C-28).
        .args(["-q", "-f", "-K", "-m"])
        .arg(format!("uuid={uuid}"))
        .arg(device)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| SysError::io("posix_spawn", program, &e))?;
    drop(no_device);
    let stderr = child.stderr.take().map(tail).unwrap_or_default();
    let status = child
        .wait()
        .map_err(|e| SysError::io("waitpid", program, &e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Xfs {
        device: device.display().to_string(),
        status: status.to_string(),
        stderr,
    })
}

/// The last words, on one line. Reads to the end, so that the program never blocks on a full pipe.
fn tail(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0_u8; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..read]);
        let excess = kept.len().saturating_sub(STDERR_MAX);
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
        let path = dir.join("mkfs.xfs");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_program_gets_these_arguments_and_no_environment() {
        let _guard = ONE_AT_A_TIME.lock();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let program = script(
            dir.path(),
            &format!(
                "echo \"$@\" > {0}; echo \"home=$HOME\" >> {0}; pwd >> {0}",
                out.display()
            ),
        );
        run(&program, Path::new("/dev/zd0"), Uuid::from_u128(1)).unwrap();
        assert_eq!(
            fs::read_to_string(out).unwrap(),
            "-q -f -K -m uuid=00000000-0000-0000-0000-000000000001 /dev/zd0\nhome=\n/\n"
        );
    }

    #[test]
    fn a_failure_carries_the_status_and_the_end_of_what_it_said() {
        let _guard = ONE_AT_A_TIME.lock();
        let dir = tempfile::tempdir().unwrap();
        let program = script(
            dir.path(),
            "i=0; while [ $i -lt 20000 ]; do echo line >&2; i=$((i+1)); done; echo 'cannot open' >&2; exit 3",
        );
        let Err(Error::Xfs {
            device,
            status,
            stderr,
        }) = run(&program, Path::new("/dev/zd0"), Uuid::nil())
        else {
            panic!("no failure");
        };
        assert_eq!(
            (device.as_str(), status.as_str()),
            ("/dev/zd0", "exit status: 3")
        );
        assert!(stderr.ends_with("line; cannot open"), "{stderr}");
        assert!(stderr.len() < 2 * STDERR_MAX);
    }

    #[test]
    fn an_option_is_no_device() {
        let error = run(Path::new("/no/such"), Path::new("-d"), Uuid::nil()).unwrap_err();
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
            program([missing.as_path(), &there].into_iter()),
            Some(there.clone())
        );
        assert_eq!(program([missing.as_path()].into_iter()), None);
    }
}
