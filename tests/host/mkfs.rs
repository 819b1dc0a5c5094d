//! What can be chosen about a new filesystem, against e2fsprogs, xfsprogs and the kernel.

#![allow(
    clippy::disallowed_methods,
    reason = "the system's own tools are the judges of what the rooms made"
)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use uuid::Uuid;
use zvolt_kernel::format;

use super::format::{Loop, alone, must, run};

const MIB: u64 = 1 << 20;

/// What `e2fsck` and the kernel say of an ext4 that was made so; gives what `dumpe2fs -h` shows.
fn ext4_with(options: &format::Ext4Options) -> String {
    let device = Loop::new(256 * MIB);
    let options = format::Options::Ext4(options.clone());
    format::make_with(&options, &device.device, Uuid::new_v4()).unwrap();
    let what = format!("{options:?}");
    let checked = run("e2fsck", &["-fn", device.name()]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{what}: {said}");
    let root = tempfile::tempdir().unwrap();
    let at = root.path().to_str().unwrap();
    must("mount", &["-t", "ext4", device.name(), at]);
    fs::write(root.path().join("small"), "small").unwrap();
    fs::write(root.path().join("large"), vec![7; 1 << 20]).unwrap();
    must("umount", &[at]);
    must("e2fsck", &["-fn", device.name()]);
    must("dumpe2fs", &["-h", device.name()])
}

#[test]
fn ext4_is_made_as_it_was_chosen() {
    let _alone = alone();
    let plain = format::Ext4Options::default;
    let shown = ext4_with(&format::Ext4Options {
        reserved_hundredths: 500,
        inodes: format::Inodes::Count(5000),
        inode_size: 512,
        stride: 4,
        stripe_width: 16,
        large_dir: true,
        verity: true,
        ..plain()
    });
    for line in [
        "Reserved block count:     3276",
        "Inode size:\t          512",
        "RAID stride:              4",
        "RAID stripe width:        16",
    ] {
        assert!(shown.contains(line), "{line:?} in\n{shown}");
    }
    for feature in ["large_dir", "verity", "has_journal"] {
        assert!(shown.contains(feature), "{feature} in\n{shown}");
    }
    let shown = ext4_with(&format::Ext4Options {
        journal: false,
        inline_data: true,
        encrypt: true,
        inodes: format::Inodes::BytesEach(65_536),
        ..plain()
    });
    assert!(!shown.contains("has_journal"), "{shown}");
    assert!(
        shown.contains("inline_data") && shown.contains("encrypt"),
        "{shown}"
    );
    assert!(shown.contains("Inode count:              4096"), "{shown}");
}

#[test]
fn eager_tables_leave_the_kernel_nothing_to_zero() {
    let _alone = alone();
    let device = Loop::new(256 * MIB);
    let options = format::Options::Ext4(format::Ext4Options {
        eager_tables: true,
        eager_journal: true,
        ..format::Ext4Options::default()
    });
    // What was there before must not be taken for inodes.
    let dirt = File::options().write(true).open(&device.device).unwrap();
    for megabyte in 0..256 {
        dirt.write_all_at(&[0xff; 1 << 16], megabyte << 20).unwrap();
    }
    drop(dirt);
    format::make_with(&options, &device.device, Uuid::new_v4()).unwrap();
    must("e2fsck", &["-fn", device.name()]);
    let shown = must("dumpe2fs", &[device.name()]);
    let groups = shown
        .lines()
        .filter(|line| line.contains(": (Blocks "))
        .count();
    assert!(groups > 1, "{shown}");
    assert_eq!(shown.matches("ITABLE_ZEROED").count(), groups, "{shown}");
}

#[test]
fn xfs_is_made_as_it_was_chosen() {
    let _alone = alone();
    let device = Loop::new(512 * MIB);
    let set = |flag, key, value| (format::XfsSetting::named(flag, key).unwrap(), value);
    let options = format::Options::Xfs(vec![
        set('m', "reflink", 0),
        set('i', "size", 1024),
        set('d', "agcount", 3),
    ]);
    let uuid = Uuid::new_v4();
    format::make_with(&options, &device.device, uuid).unwrap();
    let shown = must("xfs_db", &["-r", "-c", "info", device.name()]);
    for word in ["isize=1024", "agcount=3", "reflink=0"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    let impossible = format::Options::Xfs(vec![set('d', "su", 4096)]);
    let refused = format::make_with(&impossible, &device.device, uuid).unwrap_err();
    assert!(
        matches!(refused, format::Error::Program { .. }),
        "{refused}"
    );
}
