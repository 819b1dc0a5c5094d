//! Room `mount`: the new mount API on tmpfs and on ext4 and XFS on loop devices.
//!
//! The runner starts this in a mount namespace of its own (`unshare -m`).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{MountPropagationFlags, UnmountFlags};
use zvolt_kernel::error::Errno;
use zvolt_kernel::mount::{self, Access, FsMount, Unmounted};
use zvolt_kernel::{SysError, block};

use super::format::{Loop, alone, must, run};

const DISK_BYTES: u64 = 64 << 20;
/// XFS refuses to be smaller.
const XFS_BYTES: u64 = 300 << 20;

/// A tmpfs with the parent directory that the calls get, taken down with all that is on it.
struct Area {
    dir: tempfile::TempDir,
    parent: OwnedFd,
    _alone: MutexGuard<'static, ()>,
}

impl Area {
    fn new() -> Self {
        let alone = alone();
        let dir = tempfile::tempdir().unwrap();
        must(
            "mount",
            &["-t", "tmpfs", "zvolt-test", dir.path().to_str().unwrap()],
        );
        let parent = mount::open_base(dir.path()).unwrap();
        Self {
            dir,
            parent,
            _alone: alone,
        }
    }

    fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn dir(&self, name: &str) -> PathBuf {
        mount::make_dir(self.parent(), OsStr::new(name)).unwrap();
        self.path(name)
    }

    fn mount(
        &self,
        disk: &Loop,
        fs_type: &str,
        access: Access,
        options: &[&str],
        name: &str,
    ) -> Result<(), SysError> {
        let options: Vec<String> = options.iter().map(|&o| o.to_owned()).collect();
        let filesystem = FsMount {
            fs_type,
            source: &disk.device,
            access,
            options: &options,
        };
        mount::mount_at(&filesystem, self.parent(), OsStr::new(name))
    }

    fn unmount(&self, name: &str) -> Result<Unmounted, SysError> {
        mount::unmount_at(&self.parent, OsStr::new(name), soon())
    }

    fn state(&self, name: &str) -> Option<mount::PathState> {
        mount::state_at(self.parent(), OsStr::new(name)).unwrap()
    }

    fn access(&self, name: &str) -> Access {
        mount::access_at(self.parent(), OsStr::new(name)).unwrap()
    }

    fn bind(&self, source: &str, name: &str, access: Access) -> Result<(), SysError> {
        mount::bind_at(
            self.parent(),
            OsStr::new(source),
            self.parent(),
            OsStr::new(name),
            access,
        )
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        run(
            "umount",
            &["--recursive", "--lazy", self.dir.path().to_str().unwrap()],
        );
    }
}

fn ext4() -> Loop {
    let disk = Loop::new(DISK_BYTES);
    must("mkfs.ext4", &["-q", "-F", disk.name()]);
    disk
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn errno_of_write(path: &Path) -> Option<i32> {
    fs::write(path, b"x").err().and_then(|e| e.raw_os_error())
}

#[test]
fn a_filesystem_is_mounted_seen_and_taken_off() {
    let area = Area::new();
    let disk = ext4();
    let at = area.dir("staging");
    assert!(!area.state("staging").unwrap().is_mount_root);

    area.mount(
        &disk,
        "ext4",
        Access::ReadWrite,
        &["noatime", "nosuid", "defaults", "errors=remount-ro"],
        "staging",
    )
    .unwrap();
    let state = area.state("staging").unwrap();
    assert!(state.is_mount_root && state.is_dir());
    assert_eq!(state.dev, block::dev_id(&disk.device).unwrap());
    assert_eq!(area.access("staging"), Access::ReadWrite);
    assert_eq!(errno_of_write(&at.join("file")), None);
    let options = must("findmnt", &["-n", "-o", "OPTIONS", at.to_str().unwrap()]);
    for expected in ["noatime", "nosuid", "errors=remount-ro"] {
        assert!(options.contains(expected), "{expected} is not in {options}");
    }

    assert_eq!(area.unmount("staging"), Ok(Unmounted::Clean));
    assert_eq!(area.unmount("staging"), Ok(Unmounted::WasNot));
    assert!(!area.state("staging").unwrap().is_mount_root);
    assert_eq!(area.unmount("none"), Ok(Unmounted::WasNot));
    assert_eq!(area.state("none"), None);
}

#[test]
fn rule_05_a_read_only_mount_writes_nothing() {
    let area = Area::new();
    let disk = ext4();
    let before = fs::read(&disk.device).unwrap();
    let at = area.dir("staging");
    area.mount(&disk, "ext4", Access::ReadOnly, &["noload"], "staging")
        .unwrap();
    assert_eq!(area.access("staging"), Access::ReadOnly);
    assert_eq!(errno_of_write(&at.join("file")), Some(Errno::EROFS as i32));
    // Both the superblock and the mount: making the mount writable again must not be enough.
    let remount = run("mount", &["-o", "remount,bind,rw", at.to_str().unwrap()]);
    assert!(remount.status.success(), "{remount:?}");
    assert_eq!(errno_of_write(&at.join("file")), Some(Errno::EROFS as i32));
    assert_eq!(area.unmount("staging"), Ok(Unmounted::Clean));
    assert!(
        before == fs::read(&disk.device).unwrap(),
        "the device changed"
    );
}

#[test]
fn rule_05_a_read_only_bind_is_never_writable() {
    let area = Area::new();
    let disk = ext4();
    let staging = area.dir("staging");
    let target = area.dir("target");
    area.mount(&disk, "ext4", Access::ReadWrite, &[], "staging")
        .unwrap();
    fs::write(staging.join("file"), b"1").unwrap();

    let over = AtomicBool::new(false);
    let (bound, opened_for_writing) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let file = target.join("file");
            let mut opened = 0;
            while !over.load(Ordering::Relaxed) {
                // Without the bind there is no such file; with it, it must be read-only.
                opened += u32::from(File::options().write(true).open(&file).is_ok());
            }
            opened
        });
        // A writer that got in would also make the change to read-only fail.
        let bound = (0..5000).try_for_each(|_| {
            area.bind("staging", "target", Access::ReadOnly)?;
            rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
            Ok::<_, SysError>(())
        });
        over.store(true, Ordering::Relaxed);
        (bound, watcher.join().unwrap())
    });
    assert_eq!((bound, opened_for_writing), (Ok(()), 0));

    area.bind("staging", "target", Access::ReadOnly).unwrap();
    assert_eq!(area.access("target"), Access::ReadOnly);
    assert_eq!(area.access("staging"), Access::ReadWrite);
    assert_eq!(
        errno_of_write(&target.join("file")),
        Some(Errno::EROFS as i32)
    );
    assert_eq!(errno_of_write(&staging.join("file")), None);
    assert_eq!(
        area.state("target").unwrap().dev,
        area.state("staging").unwrap().dev
    );
    assert_eq!(area.unmount("target"), Ok(Unmounted::Clean));

    area.bind("staging", "target", Access::ReadWrite).unwrap();
    assert_eq!(errno_of_write(&target.join("file")), None);
}

#[test]
fn rule_05_a_writable_bind_of_a_read_only_mount_is_read_only() {
    let area = Area::new();
    let disk = ext4();
    area.dir("staging");
    let target = area.dir("target");
    area.mount(&disk, "ext4", Access::ReadOnly, &[], "staging")
        .unwrap();
    area.bind("staging", "target", Access::ReadWrite).unwrap();
    assert_eq!(area.access("target"), Access::ReadOnly);
    assert_eq!(
        errno_of_write(&target.join("file")),
        Some(Errno::EROFS as i32)
    );
}

#[test]
fn bug_c_100_a_pod_never_gets_the_directory_in_place_of_its_volume() {
    let area = Area::new();
    area.dir("staging");
    area.dir("target");
    let error = area
        .bind("staging", "target", Access::ReadWrite)
        .unwrap_err();
    assert_eq!(error.errno, Errno::EINVAL);
    assert!(error.to_string().contains("nothing is mounted"), "{error}");
    assert!(!area.state("target").unwrap().is_mount_root);
}

#[test]
fn a_bad_option_is_answered_in_the_kernels_words() {
    let area = Area::new();
    let disk = ext4();
    let at = area.dir("staging");
    for option in ["nonsense", "nonsense=1"] {
        let error = area
            .mount(&disk, "ext4", Access::ReadWrite, &[option], "staging")
            .unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL);
        let text = error.to_string();
        for expected in [
            option,
            "ext4",
            disk.name(),
            at.to_str().unwrap(),
            "Unknown parameter 'nonsense'",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }
    for option in ["ro", "source=/dev/null", ""] {
        let error = area
            .mount(&disk, "ext4", Access::ReadWrite, &[option], "staging")
            .unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL, "{option}");
    }
    assert!(!area.state("staging").unwrap().is_mount_root);
}

#[test]
fn a_filesystem_that_is_not_what_was_said_is_not_mounted() {
    let area = Area::new();
    let disk = ext4();
    area.dir("staging");
    let error = area
        .mount(&disk, "xfs", Access::ReadWrite, &[], "staging")
        .unwrap_err();
    assert_eq!(
        (error.call, error.errno),
        ("fsconfig(create)", Errno::EINVAL)
    );
    assert!(!error.detail.is_empty());
    let error = area
        .mount(&disk, "nosuchfs", Access::ReadWrite, &[], "staging")
        .unwrap_err();
    assert_eq!(error.errno, Errno::ENODEV);
    assert!(error.detail.contains("modprobe nosuchfs"), "{error}");
    assert!(!area.state("staging").unwrap().is_mount_root);
}

#[test]
fn a_mount_in_use_stays_and_says_so() {
    let area = Area::new();
    let disk = ext4();
    let at = area.dir("staging");
    area.mount(&disk, "ext4", Access::ReadWrite, &[], "staging")
        .unwrap();
    let open = File::create(at.join("file")).unwrap();
    assert_eq!(area.unmount("staging").unwrap_err().errno, Errno::EBUSY);
    assert!(area.state("staging").unwrap().is_mount_root);
    drop(open);
    assert_eq!(area.unmount("staging"), Ok(Unmounted::Clean));
}

#[test]
fn rule_10_an_unmount_ends_by_its_deadline_when_the_device_does_not_answer() {
    let area = Area::new();
    // The inner disk's image is a file on the outer filesystem: frozen, that takes no writes.
    let outer_disk = ext4();
    let outer = area.dir("outer");
    area.mount(&outer_disk, "ext4", Access::ReadWrite, &[], "outer")
        .unwrap();
    let image = outer.join("image");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    must("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
    let device = must("losetup", &["--find", "--show", image.to_str().unwrap()]);
    let device = device.trim().to_owned();

    let at = area.dir("staging");
    must("mount", &["-t", "tmpfs", "below", at.to_str().unwrap()]);
    let options = [];
    let filesystem = FsMount {
        fs_type: "ext4",
        source: Path::new(&device),
        access: Access::ReadWrite,
        options: &options,
    };
    mount::mount_at(&filesystem, area.parent(), OsStr::new("staging")).unwrap();
    fs::write(at.join("file"), vec![1; 1 << 20]).unwrap();
    must("fsfreeze", &["--freeze", outer.to_str().unwrap()]);

    let begun = Instant::now();
    let bound = Duration::from_millis(300);
    let outcome = mount::unmount_at(&area.parent, OsStr::new("staging"), begun + bound);
    let took = begun.elapsed();
    let left = area.state("staging").unwrap();
    let device_id = block::dev_id(Path::new(&device)).unwrap();
    let held = block::is_held(Path::new(&device)).unwrap();
    must("fsfreeze", &["--unfreeze", outer.to_str().unwrap()]);

    assert_eq!(outcome, Ok(Unmounted::DetachedStillBusy));
    assert!(took >= bound && took < bound * 10, "{took:?}");
    assert!(
        left.is_mount_root && left.dev != device_id,
        "the mount below was taken off as well: {left:?}"
    );
    assert!(held, "nobody could tell that the filesystem is still alive");
    // Once the device answers, the filesystem ends by itself.
    let patience = soon();
    while block::is_held(Path::new(&device)).unwrap() && Instant::now() < patience {
        std::thread::yield_now();
    }
    must("losetup", &["--detach", &device]);
    must("e2fsck", &["-f", "-n", image.to_str().unwrap()]);
}

#[test]
fn rule_10_a_deadline_in_the_past_does_nothing() {
    let area = Area::new();
    let disk = ext4();
    area.dir("staging");
    area.mount(&disk, "ext4", Access::ReadWrite, &[], "staging")
        .unwrap();
    let error = mount::unmount_at(&area.parent, OsStr::new("staging"), Instant::now()).unwrap_err();
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    assert!(area.state("staging").unwrap().is_mount_root);
}

#[test]
fn bug_c_47_a_filesystem_that_answers_nothing_but_errors_is_still_mounted() {
    let area = Area::new();
    let disk = Loop::new(XFS_BYTES);
    must("mkfs.xfs", &["-q", disk.name()]);
    let at = area.dir("staging");
    area.mount(&disk, "xfs", Access::ReadWrite, &[], "staging")
        .unwrap();
    must("xfs_io", &["-x", "-c", "shutdown", at.to_str().unwrap()]);
    let asked = fs::symlink_metadata(&at)
        .map(drop)
        .map_err(|e| e.raw_os_error());
    assert_eq!(
        asked,
        Err(Some(Errno::EIO as i32)),
        "this test needs a filesystem that fails stat"
    );

    let state = area.state("staging").unwrap();
    assert!(state.is_mount_root && state.is_dir());
    assert_eq!(state.dev, block::dev_id(&disk.device).unwrap());
    mount::make_dir(area.parent(), OsStr::new("staging")).unwrap();
    assert_eq!(area.unmount("staging"), Ok(Unmounted::Clean));
}

#[test]
fn rule_12_no_way_leads_out_of_the_base_directory() {
    let area = Area::new();
    fs::create_dir_all(area.path("pods/1/volumes")).unwrap();
    symlink("1", area.path("pods/link")).unwrap();
    symlink("/etc", area.path("pods/out")).unwrap();
    let open =
        |path: &str| mount::open_dir_beneath(area.parent(), Path::new(path)).map_err(|e| e.errno);
    assert!(open("pods/1/volumes").is_ok());
    assert!(open(".").is_ok());
    for (path, errno) in [
        ("pods/link", Errno::ELOOP),
        ("pods/link/volumes", Errno::ELOOP),
        ("pods/out", Errno::ELOOP),
        ("..", Errno::EXDEV),
        ("pods/../../etc", Errno::EXDEV),
        ("/etc", Errno::EXDEV),
        ("pods/2", Errno::ENOENT),
    ] {
        assert_eq!(open(path).unwrap_err(), errno, "{path}");
    }
}

#[test]
fn rule_12_a_name_is_one_name() {
    let area = Area::new();
    fs::create_dir_all(area.path("a/b")).unwrap();
    for name in ["", ".", "..", "a/b", "/", "a/", "a\0"] {
        let name = OsStr::new(name);
        let outcomes = [
            mount::make_dir(area.parent(), name).unwrap_err(),
            mount::remove_dir(area.parent(), name).unwrap_err(),
            mount::state_at(area.parent(), name).unwrap_err(),
            mount::access_at(area.parent(), name).unwrap_err(),
            mount::unmount_at(&area.parent, name, soon()).unwrap_err(),
            mount::bind_at(
                area.parent(),
                name,
                area.parent(),
                OsStr::new("a"),
                Access::ReadOnly,
            )
            .unwrap_err(),
            mount::bind_at(
                area.parent(),
                OsStr::new("a"),
                area.parent(),
                name,
                Access::ReadOnly,
            )
            .unwrap_err(),
        ];
        for error in outcomes {
            assert_eq!(error.errno, Errno::EINVAL, "{error}");
            assert!(error.detail.contains("one name"), "{error}");
        }
    }
    assert!(area.path("a/b").is_dir());
}

#[test]
fn rule_12_a_link_in_place_of_a_directory_is_not_followed() {
    let area = Area::new();
    let disk = ext4();
    let elsewhere = area.dir("elsewhere");
    symlink(&elsewhere, area.path("link")).unwrap();

    assert_eq!(
        mount::make_dir(area.parent(), OsStr::new("link"))
            .unwrap_err()
            .errno,
        Errno::ENOTDIR
    );
    assert_eq!(
        mount::remove_dir(area.parent(), OsStr::new("link"))
            .unwrap_err()
            .errno,
        Errno::ENOTDIR
    );
    assert!(
        area.mount(&disk, "ext4", Access::ReadWrite, &[], "link")
            .is_err()
    );
    assert!(!area.state("elsewhere").unwrap().is_mount_root);

    area.mount(&disk, "ext4", Access::ReadWrite, &[], "elsewhere")
        .unwrap();
    let state = area.state("link").unwrap();
    assert!(!state.is_mount_root && !state.is_dir());
    assert_eq!(area.unmount("link"), Ok(Unmounted::WasNot));
    assert!(area.state("elsewhere").unwrap().is_mount_root);
    area.dir("target");
    assert_eq!(
        area.bind("link", "target", Access::ReadWrite)
            .unwrap_err()
            .errno,
        Errno::EINVAL
    );
}

#[test]
fn directories_are_made_and_removed_once() {
    let area = Area::new();
    let disk = ext4();
    area.dir("staging");
    area.dir("staging");
    fs::write(area.path("file"), b"").unwrap();
    assert_eq!(
        mount::make_dir(area.parent(), OsStr::new("file"))
            .unwrap_err()
            .errno,
        Errno::ENOTDIR
    );

    area.mount(&disk, "ext4", Access::ReadWrite, &[], "staging")
        .unwrap();
    let error = mount::remove_dir(area.parent(), OsStr::new("staging")).unwrap_err();
    assert_eq!(error.errno, Errno::EBUSY);
    assert!(error.subject.ends_with("/staging"), "{error}");
    assert_eq!(area.unmount("staging"), Ok(Unmounted::Clean));
    for _ in 0..2 {
        mount::remove_dir(area.parent(), OsStr::new("staging")).unwrap();
    }
}

#[test]
fn rule_13_shared_propagation_is_told_from_private() {
    let area = Area::new();
    let at = area.dir("kubelet");
    must("mount", &["-t", "tmpfs", "kubelet", at.to_str().unwrap()]);
    fs::create_dir(at.join("pods")).unwrap();
    let proc = Path::new("/proc");
    for (flags, shared) in [
        (MountPropagationFlags::SHARED, true),
        (MountPropagationFlags::PRIVATE, false),
    ] {
        rustix::mount::mount_change(&at, flags).unwrap();
        assert_eq!(mount::is_shared(proc, &at), Ok(shared));
        assert_eq!(mount::is_shared(proc, &at.join("pods")), Ok(shared));
    }
    assert_eq!(mount::fs_type(proc, &at).unwrap(), "tmpfs");
    assert_eq!(mount::fs_type(proc, proc).unwrap(), "proc");
}
