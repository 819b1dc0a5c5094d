//! Rooms `format`, `probe` and `block` on loop devices, against e2fsprogs, xfsprogs and the kernel.

#![allow(
    clippy::disallowed_methods,
    reason = "the system's own tools are the judges of what the rooms made"
)]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;
use zvolt_kernel::probe::{Content, FsKind};
use zvolt_kernel::{block, format, probe};

const MIB: u64 = 1 << 20;

/// `linux/capability.h`.
const CAP_SYS_RESOURCE: u32 = 24;

pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|e| panic!("{program} is needed: {e}"))
}

pub(crate) fn must(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{text}{errors}",
        output.status
    );
    text
}

/// One test at a time: until it executes its program, a child that another test forks has a copy of
/// every descriptor, and so holds devices that were opened with `O_EXCL`.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loop device on a sparse file, gone with the value.
pub(crate) struct Loop {
    directory: tempfile::TempDir,
    pub(super) device: PathBuf,
}

impl Loop {
    pub(super) fn new(size: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        let device = must("losetup", &["--find", "--show", image.to_str().unwrap()]);
        Self {
            directory,
            device: PathBuf::from(device.trim()),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.device.to_str().unwrap()
    }

    fn resize(&self, size: u64) {
        let image = self.directory.path().join("image");
        File::options()
            .write(true)
            .open(image)
            .unwrap()
            .set_len(size)
            .unwrap();
        must("losetup", &["--set-capacity", self.name()]);
    }

    fn probe(&self) -> Content {
        probe::superblock(&File::open(&self.device).unwrap(), &self.device).unwrap()
    }

    fn size(&self) -> u64 {
        block::size_bytes(&File::open(&self.device).unwrap(), &self.device).unwrap()
    }

    fn mount(&self, kind: FsKind) -> Mounted {
        let at = self.directory.path().join("mnt");
        fs::create_dir_all(&at).unwrap();
        must(
            "mount",
            &["-t", kind.name(), self.name(), at.to_str().unwrap()],
        );
        Mounted { at }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The flag would stay with the device's number.
        run("blockdev", &["--setrw", self.name()]);
        run("losetup", &["--detach", self.name()]);
    }
}

struct Mounted {
    at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[self.at.to_str().unwrap()]);
    }
}

fn filesystem(content: Content) -> probe::Superblock {
    match content {
        Content::Filesystem(superblock) => superblock,
        other => panic!("no filesystem: {other:?}"),
    }
}

/// `dumpe2fs`, groups and all, without what differs by nature: UUID, hash seed, times, checksums.
fn dumpe2fs(path: &str) -> Vec<String> {
    const OWN: [&str; 9] = [
        "Filesystem UUID",
        "Directory Hash Seed",
        "Filesystem created",
        "Last mount time",
        "Last write time",
        "Last checked",
        "Checksum:",
        "Journal checksum",
        "Lifetime writes",
    ];
    must("dumpe2fs", &[path])
        .lines()
        .filter(|line| !OWN.iter().any(|own| line.starts_with(own)))
        .map(|line| {
            let words = line
                .split_whitespace()
                .filter(|word| !word.starts_with("0x"));
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn ext4_is_what_mke2fs_makes() {
    let _alone = alone();
    for size in [
        64 * MIB,
        300 * MIB + 4096,
        1024 * MIB,
        40 * 1024 * MIB + 12 * 4096,
        200 * 1024 * MIB,
    ] {
        let (ours, theirs) = (Loop::new(size), Loop::new(size));
        format::make(FsKind::Ext4, &ours.device, Uuid::new_v4()).unwrap();
        // What differs from mke2fs's defaults by choice is asked of it here.
        must(
            "mke2fs",
            &[
                "-q",
                "-t",
                "ext4",
                "-b",
                "4096",
                "-m",
                "0",
                "-O",
                "^metadata_csum_seed,^orphan_file",
                "-E",
                "nodiscard,lazy_itable_init=1,lazy_journal_init=1",
                theirs.name(),
            ],
        );
        assert_eq!(
            dumpe2fs(ours.name()),
            dumpe2fs(theirs.name()),
            "{size} bytes"
        );
        let check = run("e2fsck", &["-fn", ours.name()]);
        assert!(
            check.status.success(),
            "{size} bytes: {}",
            String::from_utf8_lossy(&check.stdout)
        );
    }
}

#[test]
fn ext4_mounts_and_its_root_belongs_to_root() {
    let _alone = alone();
    let device = Loop::new(256 * MIB);
    let uuid = Uuid::new_v4();
    format::make(FsKind::Ext4, &device.device, uuid).unwrap();
    let found = filesystem(device.probe());
    assert_eq!(
        (found.kind, found.uuid, found.size_bytes),
        (FsKind::Ext4, uuid, 256 * MIB)
    );
    assert!(!found.has_errors && !found.needs_recovery);
    {
        let mounted = device.mount(FsKind::Ext4);
        let root = fs::metadata(&mounted.at).unwrap();
        assert_eq!(
            (root.uid(), root.gid(), root.mode() & 0o7777),
            (0, 0, 0o755)
        );
        let lost = fs::metadata(mounted.at.join("lost+found")).unwrap();
        assert_eq!((lost.mode() & 0o7777, lost.size()), (0o700, 16384));
        fs::write(mounted.at.join("file"), vec![7; 1 << 20]).unwrap();
        assert!(
            filesystem(device.probe()).needs_recovery,
            "a mounted ext4 has a journal to replay"
        );
        assert!(block::is_held(&device.device).unwrap());
    }
    assert!(!block::is_held(&device.device).unwrap());
    let check = run("e2fsck", &["-fn", device.name()]);
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
}

#[test]
fn xfs_mounts_and_its_root_belongs_to_root() {
    let _alone = alone();
    let device = Loop::new(400 * MIB);
    let uuid = Uuid::new_v4();
    format::make(FsKind::Xfs, &device.device, uuid).unwrap();
    let found = filesystem(device.probe());
    assert_eq!(
        (found.kind, found.uuid, found.size_bytes),
        (FsKind::Xfs, uuid, 400 * MIB)
    );
    let mounted = device.mount(FsKind::Xfs);
    let root = fs::metadata(&mounted.at).unwrap();
    assert_eq!(
        (root.uid(), root.gid(), root.mode() & 0o7777),
        (0, 0, 0o755)
    );
}

#[test]
fn bug_c_26_xfs_smaller_than_its_device_grows_while_it_is_mounted() {
    let _alone = alone();
    grows(FsKind::Xfs);
}

#[test]
fn bug_c_26_ext4_smaller_than_its_device_grows_while_it_is_mounted() {
    let _alone = alone();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .unwrap();
    let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
    if effective & (1 << CAP_SYS_RESOURCE) == 0 {
        assert!(
            std::env::var_os("REQUIRE_ROOT").is_none(),
            "CAP_SYS_RESOURCE is missing"
        );
        eprintln!("not run: ext4 grows only with CAP_SYS_RESOURCE; the vm tier has the same test");
        return;
    }
    grows(FsKind::Ext4);
}

fn grows(kind: FsKind) {
    let device = Loop::new(400 * MIB);
    format::make(kind, &device.device, Uuid::new_v4()).unwrap();
    let mounted = device.mount(kind);
    fs::write(mounted.at.join("file"), vec![7; 1 << 20]).unwrap();
    let root = File::open(&mounted.at).unwrap();
    let grow = |bytes| format::grow(kind, root.as_fd(), &device.device, bytes).unwrap();
    assert_eq!(grow(device.size()), 400 * MIB, "{kind:?}: nothing to do");
    device.resize(1024 * MIB);
    assert_eq!(grow(device.size()), 1024 * MIB, "{kind:?}");
    assert_eq!(grow(400 * MIB), 1024 * MIB, "{kind:?}: never shrinks");
    let stat = rustix::fs::fstatfs(&root).unwrap();
    assert!(stat.f_blocks * 4096 > 900 * MIB, "{kind:?}: {stat:?}");
    drop(root);
    drop(mounted);
    assert_eq!(filesystem(device.probe()).size_bytes, 1024 * MIB);
    let (program, flags) = match kind {
        FsKind::Ext4 => ("e2fsck", "-fn"),
        FsKind::Xfs => ("xfs_repair", "-n"),
    };
    must(program, &[flags, device.name()]);
}

#[test]
fn the_other_filesystem_leaves_nothing_that_is_recognised() {
    let _alone = alone();
    let device = Loop::new(400 * MIB);
    for kind in [FsKind::Ext4, FsKind::Xfs, FsKind::Ext4] {
        let uuid = Uuid::new_v4();
        format::make(kind, &device.device, uuid).unwrap();
        let found = filesystem(device.probe());
        assert_eq!((found.kind, found.uuid), (kind, uuid));
        let blkid = must("blkid", &["-p", "-o", "value", "-s", "TYPE", device.name()]);
        assert_eq!(blkid.trim(), kind.name(), "libblkid sees one filesystem");
    }
}

#[test]
fn rule_01_a_device_in_use_is_not_formatted() {
    let _alone = alone();
    let device = Loop::new(400 * MIB);
    let uuid = Uuid::new_v4();
    format::make(FsKind::Ext4, &device.device, uuid).unwrap();
    let mounted = device.mount(FsKind::Ext4);
    for kind in [FsKind::Ext4, FsKind::Xfs] {
        let error = format::make(kind, &device.device, Uuid::new_v4()).unwrap_err();
        assert!(
            matches!(&error, format::Error::Sys(e) if e.errno == nix::errno::Errno::EBUSY),
            "{error}"
        );
    }
    drop(mounted);
    assert_eq!(filesystem(device.probe()).uuid, uuid);
}

/// What `debugfs` does to the superblock is what the kernel does when it meets an error.
#[test]
fn a_filesystem_with_the_error_flag_is_repaired_and_keeps_its_identity() {
    let _alone = alone();
    let device = Loop::new(64 * MIB);
    let uuid = Uuid::new_v4();
    format::make(FsKind::Ext4, &device.device, uuid).unwrap();
    must(
        "debugfs",
        &["-w", "-R", "set_super_value state 2", device.name()],
    );
    assert!(filesystem(device.probe()).has_errors);
    format::repair_ext4(&device.device).unwrap();
    let mended = filesystem(device.probe());
    assert!(!mended.has_errors && mended.uuid == uuid);
    let error = format::repair_ext4(Path::new("/dev/null")).unwrap_err();
    assert!(
        matches!(&error, format::Error::Program { name: "e2fsck", said, .. } if !said.is_empty()),
        "{error}"
    );
}

#[test]
fn a_device_too_small_is_an_error_in_words() {
    let _alone = alone();
    let device = Loop::new(MIB);
    let ext4 = format::make(FsKind::Ext4, &device.device, Uuid::new_v4()).unwrap_err();
    assert!(matches!(ext4, format::Error::Ext2 { .. }), "{ext4}");
    let xfs = format::make(FsKind::Xfs, &device.device, Uuid::new_v4()).unwrap_err();
    assert!(
        matches!(&xfs, format::Error::Program { said, .. } if !said.is_empty()),
        "{xfs}"
    );
    assert!(!matches!(device.probe(), Content::Filesystem(_)));
}

#[test]
fn rule_01_a_killed_mkfs_is_known_and_mounts_nowhere_and_is_made_again() {
    let _alone = alone();
    let device = Loop::new(400 * MIB);
    for kind in [FsKind::Ext4, FsKind::Xfs] {
        // A finished one with the mark set again.
        let uuid = Uuid::new_v4();
        format::make(kind, &device.device, uuid).unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .open(&device.device)
            .unwrap();
        let mut head = [0; 4096];
        file.read_exact_at(&mut head, 0).unwrap();
        match kind {
            FsKind::Ext4 => head[1024 + 99] |= 0x80,
            FsKind::Xfs => head[126] = 1,
        }
        file.write_all_at(&head, 0).unwrap();
        // XFS reads past the page cache of the device.
        file.sync_all().unwrap();
        assert_eq!(probe::unfinished(&head), Some((kind, uuid)));
        assert!(matches!(device.probe(), Content::Foreign(_)));
        let at = device.directory.path().to_str().unwrap();
        let mount = run("mount", &["-t", kind.name(), device.name(), at]);
        assert!(!mount.status.success(), "{kind:?}");
        format::make(kind, &device.device, uuid).unwrap();
        assert_eq!(filesystem(device.probe()).uuid, uuid);
    }
}

#[test]
fn bug_c_28_make_does_not_touch_most_of_a_large_device() {
    let _alone = alone();
    for kind in [FsKind::Ext4, FsKind::Xfs] {
        let device = Loop::new(100 * 1024 * MIB);
        format::make(kind, &device.device, Uuid::new_v4()).unwrap();
        let allocated = fs::metadata(device.directory.path().join("image"))
            .unwrap()
            .blocks()
            * 512;
        assert!(allocated < 200 * MIB, "{kind:?}: {allocated} bytes written");
    }
}

/// A device-mapper device over a loop device, gone with the value.
struct Mapped {
    name: String,
}

impl Mapped {
    fn new(name: &str, table: &str) -> Self {
        let name = format!("zvolt-test-{name}-{}", std::process::id());
        must("dmsetup", &["create", &name, "--table", table]);
        Self { name }
    }

    fn path(&self) -> PathBuf {
        // Without udevd nobody makes the link: the node is found by number.
        let numbers = must(
            "dmsetup",
            &["info", "-c", "--noheadings", "-o", "minor", &self.name],
        );
        PathBuf::from(format!("/dev/dm-{}", numbers.trim()))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        run("dmsetup", &["remove", "--retry", &self.name]);
    }
}

#[test]
fn bug_c_17_unreadable_is_never_blank() {
    let _alone = alone();
    // Where there is no modprobe, the module is built in or not there.
    drop(Command::new("modprobe").arg("dm-mod").output());
    if !Path::new("/dev/mapper/control").exists() {
        assert!(
            std::env::var_os("REQUIRE_ROOT").is_none(),
            "no device mapper"
        );
        // No device mapper in this kernel: the unit tests of `probe` have the same rule on a file.
        eprintln!("not run: no device mapper in this kernel");
        return;
    }
    let device = Loop::new(16 * MIB);
    let sectors = 16 * MIB / 512;
    let linear = |from: u64, count: u64| format!("{from} {count} linear {} {from}", device.name());
    let broken = |from: u64, count: u64| format!("{from} {count} error");
    for (name, table) in [
        (
            "first",
            format!("{}\n{}", broken(0, 8), linear(8, sectors - 8)),
        ),
        (
            "last",
            format!("{}\n{}", linear(0, sectors - 8), broken(sectors - 8, 8)),
        ),
        ("all", broken(0, sectors)),
    ] {
        let mapped = Mapped::new(name, &table);
        let path = mapped.path();
        let file = File::open(&path).unwrap();
        let error = probe::is_blank(&file, &path).unwrap_err();
        assert_eq!(error.errno, nix::errno::Errno::EIO, "{name}: {error}");
    }
}

#[test]
fn bug_c_22_formatting_is_not_repeated_by_looking() {
    let _alone = alone();
    let device = Loop::new(64 * MIB);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&device.device)
        .unwrap();
    assert!(probe::is_blank(&file, &device.device).unwrap());
    format::make(FsKind::Ext4, &device.device, Uuid::new_v4()).unwrap();
    assert!(!probe::is_blank(&file, &device.device).unwrap());
    // Even with the superblock gone, the rest speaks.
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(device.probe(), Content::Zeros);
    assert!(!probe::is_blank(&file, &device.device).unwrap());
}

#[test]
fn block_tells_number_name_and_size_of_a_loop_device() {
    let _alone = alone();
    let device = Loop::new(16 * MIB);
    let sys = Path::new("/sys");
    let id = block::dev_id(&device.device).unwrap();
    let name = block::kernel_name(sys, id).unwrap();
    assert_eq!(Path::new("/dev").join(&name), device.device);
    assert!(
        block::sysfs_dir(sys, id)
            .unwrap()
            .ends_with(format!("block/{name}"))
    );
    assert!(block::list(sys, "loop").unwrap().contains(&name));
    assert_eq!(device.size(), 16 * MIB);
    let file = File::open(&device.device).unwrap();
    assert!(!block::is_read_only(&file, &device.device).unwrap());
    must("blockdev", &["--setro", device.name()]);
    assert!(block::is_read_only(&file, &device.device).unwrap());
    let error = block::zvol_name(&file, &device.device).unwrap_err();
    assert_eq!(
        error.errno,
        nix::errno::Errno::ENOTTY,
        "a loop device is no zvol: {error}"
    );
}
