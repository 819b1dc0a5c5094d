//! Room `zfs` against the real module, with `zfs` and `zpool` as judges. Every test has a pool of
//! its own on files, gone afterwards.

#![allow(
    clippy::disallowed_methods,
    reason = "the system's own tools are the judges, and a test may wait for udev"
)]

mod clones;
mod datasets;
mod pools;
mod renames;
mod snapshots;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zvolt_kernel::block;
use zvolt_kernel::zfs::{Zfs, ZvolSpec};

const MIB: u64 = 1 << 20;
const HANDLE: &str = "uk.co.example.zvolt:handle";

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program} is needed: {e}"))
}

fn must(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A pool on sparse files.
struct TestPool {
    name: String,
    directory: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl TestPool {
    fn new() -> Self {
        Self::of(&[], 1, 1024 * MIB)
    }

    /// Of so many files of `size` bytes each, with what `zpool create` is told before them.
    fn of(layout: &[&str], files: usize, size: u64) -> Self {
        let alone = super::format::host::alone();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "rooms-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // Not on a tmpfs: a pool on a file wants a real one.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let pool = Self {
            name,
            directory,
            _alone: alone,
        };
        let files: Vec<_> = (0..files).map(|number| pool.file(number)).collect();
        for file in &files {
            File::create(file).unwrap().set_len(size).unwrap();
        }
        let mut arguments = vec!["create", "-O", "mountpoint=none", &pool.name];
        arguments.extend(layout);
        arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
        must("zpool", &arguments);
        pool
    }

    /// The path of one of its files.
    fn file(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("vdev{number}"))
    }

    fn dataset(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn spec(&self, name: &str) -> ZvolSpec {
        ZvolSpec {
            dataset: self.dataset(name),
            volsize: 64 * MIB,
            volblocksize: 16384,
            properties: vec![
                ("volmode".into(), "dev".into()),
                ("snapdev".into(), "hidden".into()),
            ],
            user_properties: vec![(HANDLE.into(), name.into())],
        }
    }

    fn export(&self) {
        retry(|| {
            run("zpool", &["export", &self.name])
                .status
                .success()
                .then_some(())
        });
    }

    fn import(&self) {
        self.import_with(&[]);
    }

    fn import_with(&self, options: &[&str]) {
        let directory = self.directory.path().to_str().unwrap();
        let mut arguments = vec!["import", "-d", directory];
        arguments.extend(options);
        arguments.push(&self.name);
        must("zpool", &arguments);
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        let gone = || {
            run("zpool", &["destroy", "-f", &self.name])
                .status
                .success()
                .then_some(())
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while gone().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// udev and the zvol's own task queue hold devices for a moment.
fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "nothing came in 30 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The device of a zvol, found by asking every zvol device for its name (C-1, C-7: not by links).
fn device(dataset: &str) -> PathBuf {
    retry(|| {
        let names = block::list(Path::new("/sys"), "zd").unwrap();
        names
            .iter()
            .map(|name| Path::new("/dev").join(name))
            .find(|path| {
                let Ok(file) = File::open(path) else {
                    return false;
                };
                block::zvol_name(&file, path).is_ok_and(|name| name == dataset)
            })
    })
}

fn get(dataset: &str, property: &str) -> String {
    must("zfs", &["get", "-Hp", "-o", "value", property, dataset])
}

fn number(dataset: &str, property: &str) -> u64 {
    get(dataset, property).parse().unwrap()
}

/// Bytes that do not compress, always the same for a seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Writes noise at the head of a zvol, and waits until ZFS has it.
fn write(dataset: &str, seed: u64, length: u64) {
    let path = device(dataset);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&noise(seed, length as usize), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    must("zpool", &["sync", dataset.split('/').next().unwrap()]);
}

/// The head of a zvol.
fn head(dataset: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let file = File::open(device(dataset)).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn zfs() -> Zfs {
    Zfs::load().unwrap()
}
