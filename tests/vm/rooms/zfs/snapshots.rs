//! Snapshots of zvols.

use std::fs::File;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use zvolt_kernel::block;
use zvolt_kernel::zfs::{Destroy, Error, Snapshot, Zfs};

use super::{
    HANDLE, MIB, TestPool, device, get, head, must, noise, number, retry, run, write, zfs,
};

/// Zvols of these names.
fn zvols(zfs: &Zfs, pool: &TestPool, names: &[&str]) {
    for name in names {
        zfs.create_zvol(&pool.spec(name)).unwrap();
    }
}

fn snapshots(zfs: &Zfs, dataset: &str) -> Vec<String> {
    let found = zfs.snapshots(dataset).unwrap();
    found.into_iter().map(|snapshot| snapshot.name).collect()
}

#[test]
fn a_group_is_of_one_moment() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["a", "b", "c"]);
    let names = ["a@s", "b@s", "c@other name"].map(|name| pool.dataset(name));
    zfs.snapshot(&names, &[(HANDLE.into(), "the group".into())])
        .unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let found = names.clone().map(|name| zfs.snapshot_info(&name).unwrap());
    for (snapshot, name) in found.iter().zip(&names) {
        assert_eq!(snapshot.name, *name);
        assert_eq!(snapshot.createtxg, found[0].createtxg, "{name}");
        assert_eq!(snapshot.volsize, Some(64 * MIB));
        assert_eq!(snapshot.user_properties[HANDLE], "the group");
        assert_eq!(get(name, HANDLE), "the group");
        assert!((now.as_secs().cast_signed() - snapshot.creation).abs() < 120);
        for (property, value) in [
            ("guid", snapshot.guid),
            ("createtxg", snapshot.createtxg),
            ("creation", snapshot.creation.cast_unsigned()),
            ("used", snapshot.used),
            ("referenced", snapshot.referenced),
            ("userrefs", snapshot.holds),
        ] {
            assert_eq!(number(name, property), value, "{property} of {name}");
        }
        assert!(snapshot.clones.is_empty() && !snapshot.is_deferred);
    }
    assert_ne!(found[0].guid, found[1].guid);
}

#[test]
fn a_group_is_made_whole_or_not_at_all() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["a", "b"]);
    let group = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| pool.dataset(name)).collect();
        zfs.snapshot(&names, &[])
    };
    let missing = pool.dataset("missing");
    let error = group(&["a@s", "missing@s", "b@s"]).unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { name } if *name == missing),
        "{error}"
    );
    group(&["b@old"]).unwrap();
    let error = group(&["a@s", "b@old"]).unwrap_err();
    let there = pool.dataset("b@old");
    assert!(
        matches!(&error, Error::Exists { name } if *name == there),
        "{error}"
    );
    group(&["a@old"]).unwrap();
    let error = group(&["b@old", "a@old"]).unwrap_err();
    assert!(
        matches!(&error, Error::Exists { name } if *name == there),
        "{error}"
    );
    assert_eq!(snapshots(&zfs, &pool.dataset("a")), [pool.dataset("a@old")]);
    assert_eq!(snapshots(&zfs, &pool.dataset("b")), [there]);
    for (names, errno) in [
        (vec![pool.dataset("a@s"), "other/a@s".into()], Errno::EXDEV),
        (
            vec![pool.dataset("a@s"), pool.dataset("a@t")],
            Errno::EINVAL,
        ),
        (vec![pool.dataset("a@s+t")], Errno::EINVAL),
        (vec![], Errno::EINVAL),
    ] {
        let error = zfs.snapshot(&names, &[]).unwrap_err();
        assert!(
            matches!(&error, Error::Sys(e) if e.errno == errno),
            "{error}"
        );
    }
    let error = zfs
        .snapshot(
            &[pool.dataset("a@s")],
            &[("compression".into(), "off".into())],
        )
        .unwrap_err();
    assert!(matches!(error, Error::BadProperty { .. }), "{error}");
    assert_eq!(snapshots(&zfs, &pool.dataset("a")).len(), 1);
}

#[test]
fn snapshots_are_of_one_dataset_and_oldest_first() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let container = pool.dataset("csi");
    zfs.ensure_container(&container).unwrap();
    zvols(&zfs, &pool, &["csi/v"]);
    let volume = pool.dataset("csi/v");
    assert!(zfs.snapshots(&volume).unwrap().is_empty());
    let mut made = Vec::new();
    for name in ["z", "m", "a"] {
        let snapshot = format!("{volume}@{name}");
        zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
        write(&volume, 1, MIB);
        made.push(snapshot);
    }
    zfs.snapshot(&[format!("{container}@c")], &[]).unwrap();
    assert_eq!(snapshots(&zfs, &volume), made);
    assert_eq!(snapshots(&zfs, &container), [format!("{container}@c")]);
    let of_container = zfs.snapshot_info(&format!("{container}@c")).unwrap();
    assert_eq!(of_container.volsize, None);
    // What is set on the volume is not the snapshot's.
    assert!(
        zfs.snapshots(&volume).unwrap()[0]
            .user_properties
            .is_empty()
    );
    let (missing, gone) = (pool.dataset("missing"), format!("{volume}@gone"));
    assert!(matches!(zfs.snapshots(&missing), Err(Error::NotFound { name }) if name == missing));
    assert!(matches!(zfs.snapshot_info(&gone), Err(Error::NotFound { name }) if name == gone));
}

#[test]
fn rule_02_a_snapshot_is_missing_only_with_the_pool_imported() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let (volume, snapshot) = (pool.dataset("v"), pool.dataset("v@s"));
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    pool.export();
    let errors = [
        zfs.snapshots(&volume).map(drop),
        zfs.snapshot_info(&snapshot).map(drop),
        zfs.destroy_snapshot(&snapshot, Destroy::Now),
        zfs.destroy_snapshot(&snapshot, Destroy::Deferred),
        zfs.rollback_to(&snapshot),
        zfs.snapshot(&[pool.dataset("v@t")], &[]),
        zfs.promote(&volume),
        zfs.rename(&volume, &pool.dataset("w")),
        zfs.destroy(&volume),
    ];
    for (at, result) in errors.into_iter().enumerate() {
        assert!(
            matches!(&result, Err(Error::NotFound { name }) if *name == pool.name),
            "{at}: {result:?}"
        );
    }
    pool.import();
    assert_eq!(zfs.snapshot_info(&snapshot).unwrap().name, snapshot);
}

#[test]
fn bug_c_81_a_snapshot_tells_what_it_really_takes() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let (volume, snapshot) = (pool.dataset("v"), pool.dataset("v@s"));
    write(&volume, 1, 8 * MIB);
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    let before = zfs.snapshot_info(&snapshot).unwrap();
    assert!(before.referenced >= 8 * MIB, "{}", before.referenced);
    assert!(before.used < MIB, "{}", before.used);
    write(&volume, 2, 8 * MIB);
    let after = zfs.snapshot_info(&snapshot).unwrap();
    assert!(after.used >= 8 * MIB, "{}", after.used);
    // The size is that of the moment.
    zfs.set_property(&volume, "volsize", &(128 * MIB).to_string())
        .unwrap();
    assert_eq!(
        zfs.snapshot_info(&snapshot).unwrap().volsize,
        Some(64 * MIB)
    );
}

#[test]
fn a_snapshot_that_a_reservation_has_no_room_for_is_no_space() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.ensure_container(&pool.dataset("csi")).unwrap();
    let mut spec = pool.spec("csi/v");
    spec.properties
        .push(("refreservation".into(), (64 * MIB).to_string()));
    zfs.create_zvol(&spec).unwrap();
    zvols(&zfs, &pool, &["csi/w"]);
    write(&spec.dataset, 1, 48 * MIB);
    zfs.set_property(&pool.dataset("csi"), "quota", &(100 * MIB).to_string())
        .unwrap();
    let names = ["csi/w@s", "csi/v@s"].map(|name| pool.dataset(name));
    let error = zfs.snapshot(&names, &[]).unwrap_err();
    assert!(
        matches!(&error, Error::NoSpace { name, .. } if *name == names[1]),
        "{error}"
    );
    assert!(zfs.snapshots(&pool.dataset("csi/w")).unwrap().is_empty());
    zfs.set_property(&pool.dataset("csi"), "quota", "none")
        .unwrap();
    zfs.snapshot(&names, &[]).unwrap();
}

#[test]
fn destroying_a_snapshot_says_what_holds_it() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let snapshot = pool.dataset("v@s");
    let busy = |when| match zfs.destroy_snapshot(&snapshot, when) {
        Err(Error::Busy { name, detail }) if name == snapshot => detail,
        other => panic!("{other:?}"),
    };
    let gone = |when| matches!(zfs.destroy_snapshot(&snapshot, when), Err(Error::NotFound { name }) if name == snapshot);
    assert!(gone(Destroy::Now) && gone(Destroy::Deferred));

    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    must("zfs", &["hold", "keep", &snapshot]);
    assert_eq!(zfs.snapshot_info(&snapshot).unwrap().holds, 1);
    assert_eq!(busy(Destroy::Now), "it has 1 holds (zfs holds)");
    must("zfs", &["release", "keep", &snapshot]);

    let clone = pool.dataset("c");
    must("zfs", &["clone", &snapshot, &clone]);
    assert_eq!(
        zfs.snapshot_info(&snapshot).unwrap().clones,
        std::slice::from_ref(&clone)
    );
    assert_eq!(busy(Destroy::Now), format!("it has clones: {clone}"));
    retry(|| zfs.destroy(&clone).ok());

    must("zfs", &["set", "snapdev=visible", &pool.dataset("v")]);
    let open = File::open(device(&snapshot)).unwrap();
    for when in [Destroy::Now, Destroy::Deferred] {
        let detail = busy(when);
        assert!(detail.contains("open"), "{detail}");
    }
    drop(open);
    retry(|| zfs.destroy_snapshot(&snapshot, Destroy::Now).ok());
    assert!(gone(Destroy::Now) && gone(Destroy::Deferred));
}

#[test]
fn a_deferred_snapshot_goes_with_its_last_hold() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let snapshot = pool.dataset("v@s");
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    must("zfs", &["hold", "keep", &snapshot]);
    for _ in 0..2 {
        zfs.destroy_snapshot(&snapshot, Destroy::Deferred).unwrap();
        assert!(zfs.snapshot_info(&snapshot).unwrap().is_deferred);
    }
    must("zfs", &["release", "keep", &snapshot]);
    assert!(matches!(
        zfs.snapshot_info(&snapshot),
        Err(Error::NotFound { .. })
    ));
    // With nothing that holds it, deferred is now.
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    zfs.destroy_snapshot(&snapshot, Destroy::Deferred).unwrap();
    assert!(zfs.snapshots(&pool.dataset("v")).unwrap().is_empty());
}

#[test]
fn a_rollback_goes_to_the_newest_snapshot_of_a_volume_that_nobody_uses() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let volume = pool.dataset("v");
    let [old, new] = ["v@old", "v@new"].map(|name| pool.dataset(name));
    zfs.snapshot(std::slice::from_ref(&old), &[]).unwrap();
    write(&volume, 1, MIB);
    zfs.snapshot(std::slice::from_ref(&new), &[]).unwrap();
    write(&volume, 2, MIB);
    zfs.set_property(&volume, "volsize", &(128 * MIB).to_string())
        .unwrap();

    let error = zfs.rollback_to(&old).unwrap_err();
    assert!(
        matches!(&error, Error::Sys(e) if e.errno == Errno::EEXIST && e.subject == old),
        "{error}"
    );
    let gone = pool.dataset("v@gone");
    assert!(matches!(zfs.rollback_to(&gone), Err(Error::NotFound { name }) if name == gone));
    let missing = pool.dataset("missing");
    assert!(matches!(
        zfs.rollback_to(&format!("{missing}@s")),
        Err(Error::NotFound { name }) if name == missing
    ));

    let open = File::open(device(&volume)).unwrap();
    let error = zfs.rollback_to(&new).unwrap_err();
    assert!(
        matches!(&error, Error::Busy { name, .. } if *name == volume),
        "{error}"
    );
    drop(open);
    assert_eq!(head(&volume, MIB as usize), noise(2, MIB as usize));

    retry(|| zfs.rollback_to(&new).ok());
    assert_eq!(head(&volume, MIB as usize), noise(1, MIB as usize));
    let Snapshot { volsize, .. } = zfs.snapshot_info(&new).unwrap();
    assert_eq!(volsize, Some(64 * MIB));
    assert_eq!(
        zfs.properties(&volume).unwrap()["volsize"],
        (64 * MIB).to_string()
    );
    let path = device(&volume);
    let size = block::size_bytes(&File::open(&path).unwrap(), Path::new(&path)).unwrap();
    assert_eq!(size, 64 * MIB);
}

/// Why `rollback_to` is a channel program.
#[test]
fn zfs_rollback_changes_an_open_volume() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zvols(&zfs, &pool, &["v"]);
    let (volume, snapshot) = (pool.dataset("v"), pool.dataset("v@s"));
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    write(&volume, 1, MIB);
    let open = File::open(device(&volume)).unwrap();
    assert!(run("zfs", &["rollback", &snapshot]).status.success());
    drop(open);
}
