//! What a new name changes, and what not.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;
use zvolt_kernel::block;
use zvolt_kernel::zfs::{CloneSpec, Error};

use super::{MIB, TestPool, device, head, must, noise, number, retry, write, zfs};

#[test]
fn a_renamed_volume_keeps_its_guid_its_snapshots_and_its_clones() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.ensure_container(&pool.dataset("trash")).unwrap();
    let [from, to] = ["v", "trash/w"].map(|name| pool.dataset(name));
    zfs.create_zvol(&pool.spec("v")).unwrap();
    write(&from, 1, MIB);
    zfs.snapshot(&[format!("{from}@s")], &[]).unwrap();
    let clone = CloneSpec {
        dataset: pool.dataset("c"),
        origin: format!("{from}@s"),
        properties: Vec::new(),
        user_properties: Vec::new(),
    };
    zfs.clone_zvol(&clone).unwrap();
    let (guid, snapshots) = (number(&from, "guid"), zfs.snapshots(&from).unwrap());
    zfs.rename(&from, &to).unwrap();
    assert!(!zfs.exists(&from).unwrap());
    assert_eq!(number(&to, "guid"), guid);
    let after = zfs.snapshots(&to).unwrap();
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].name, format!("{to}@s"));
    assert_eq!(after[0].guid, snapshots[0].guid);
    assert_eq!(after[0].clones, std::slice::from_ref(&clone.dataset));
    assert_eq!(
        zfs.properties(&clone.dataset).unwrap()["origin"],
        format!("{to}@s")
    );
    assert_eq!(head(&to, MIB as usize), noise(1, MIB as usize));
}

#[test]
fn bug_c_6_an_open_device_stays_and_tells_its_new_name() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let [from, to] = ["v", "w"].map(|name| pool.dataset(name));
    zfs.create_zvol(&pool.spec("v")).unwrap();
    let path = device(&from);
    let open = File::options().read(true).write(true).open(&path).unwrap();
    let number = open.metadata().unwrap().rdev();
    zfs.rename(&from, &to).unwrap();
    // The minor is renamed by a task of its own, after the call.
    retry(|| (block::zvol_name(&open, &path).unwrap() == to).then_some(()));
    open.write_all_at(&noise(3, MIB as usize), 0).unwrap();
    open.sync_all().unwrap();
    drop(open);
    assert_eq!(device(&to), path);
    assert_eq!(
        File::open(&path).unwrap().metadata().unwrap().rdev(),
        number
    );
    assert_eq!(head(&to, MIB as usize), noise(3, MIB as usize));
    // What takes the old name gets another device.
    zfs.create_zvol(&pool.spec("v")).unwrap();
    assert_ne!(device(&from), path);
}

#[test]
fn a_rename_takes_what_is_below_with_it() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.ensure_container(&pool.dataset("csi")).unwrap();
    zfs.create_zvol(&pool.spec("csi/v")).unwrap();
    zfs.rename(&pool.dataset("csi"), &pool.dataset("old csi"))
        .unwrap();
    assert_eq!(
        zfs.children(&pool.dataset("old csi")).unwrap(),
        [pool.dataset("old csi/v")]
    );
    device(&pool.dataset("old csi/v"));
}

#[test]
fn a_rename_that_fails_says_why_and_changes_nothing() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let [v, w, c] = ["v", "w", "c"].map(|name| pool.dataset(name));
    for name in ["v", "w"] {
        zfs.create_zvol(&pool.spec(name)).unwrap();
    }
    zfs.ensure_container(&c).unwrap();
    let missing = pool.dataset("missing");
    let error = zfs.rename(&v, &w).unwrap_err();
    assert!(
        matches!(&error, Error::Exists { name } if *name == w),
        "{error}"
    );
    let error = zfs.rename(&v, &v).unwrap_err();
    assert!(
        matches!(&error, Error::Exists { name } if *name == v),
        "{error}"
    );
    let error = zfs.rename(&missing, &pool.dataset("x")).unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { name } if *name == missing),
        "{error}"
    );
    let error = zfs.rename(&v, &pool.dataset("missing/v")).unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { name } if *name == missing),
        "{error}"
    );
    for (from, to, says) in [
        (&v, "other/v".to_owned(), "must be in pool"),
        (&v, format!("{w}/v"), "its parent is a volume"),
        (&c, format!("{c}/c"), "below itself"),
    ] {
        let error = zfs.rename(from, &to).unwrap_err();
        assert!(error.to_string().contains(says), "{to}: {error}");
    }
    assert!(zfs.exists(&v).unwrap() && zfs.exists(&c).unwrap());
}

#[test]
fn bug_c_107_a_name_that_a_snapshot_would_outgrow_is_refused() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let v = pool.dataset("v");
    zfs.create_zvol(&pool.spec("v")).unwrap();
    zfs.snapshot(&[format!("{v}@{}", "s".repeat(200))], &[])
        .unwrap();
    let error = zfs.rename(&v, &pool.dataset(&"w".repeat(100))).unwrap_err();
    assert!(
        matches!(&error, Error::Sys(e) if e.errno == Errno::ENAMETOOLONG),
        "{error}"
    );
    // The longest name that there is does all that a name can.
    let longest = pool.dataset(&"l".repeat(255 - pool.name.len() - 1 - 2));
    let spec = pool.spec(&longest[pool.name.len() + 1..]);
    zfs.create_zvol(&spec).unwrap();
    zfs.snapshot(&[format!("{longest}@s")], &[]).unwrap();
    assert_eq!(zfs.snapshots(&longest).unwrap().len(), 1);
    let full = format!("{longest}xx");
    assert_eq!(full.len(), 255);
    must("zfs", &["destroy", &format!("{longest}@s")]);
    retry(|| zfs.rename(&longest, &full).ok());
    assert!(zfs.snapshots(&full).unwrap().is_empty());
    retry(|| zfs.destroy(&full).ok());
}
