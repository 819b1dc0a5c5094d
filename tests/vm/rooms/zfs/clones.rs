//! Clones of zvols, their promotion, and what happens to snapshots that are to go.

use std::fs::File;

use nix::errno::Errno;
use zvolt_kernel::block;
use zvolt_kernel::zfs::{CloneSpec, Destroy, Error, Zfs};

use super::{HANDLE, MIB, TestPool, device, get, head, must, noise, number, retry, write, zfs};

/// A zvol with a MiB of noise and a snapshot of it.
fn origin(zfs: &Zfs, pool: &TestPool, name: &str) -> String {
    let spec = pool.spec(name);
    zfs.create_zvol(&spec).unwrap();
    write(&spec.dataset, 1, MIB);
    let snapshot = format!("{}@s", spec.dataset);
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    snapshot
}

fn spec(pool: &TestPool, name: &str, origin: &str) -> CloneSpec {
    CloneSpec {
        dataset: pool.dataset(name),
        origin: origin.to_owned(),
        properties: vec![
            ("volmode".into(), "dev".into()),
            ("snapdev".into(), "hidden".into()),
        ],
        user_properties: Vec::new(),
    }
}

fn clone(zfs: &Zfs, pool: &TestPool, name: &str, origin: &str) -> String {
    let spec = spec(pool, name, origin);
    zfs.clone_zvol(&spec).unwrap();
    spec.dataset
}

fn is_gone(zfs: &Zfs, snapshot: &str) -> bool {
    match zfs.snapshot_info(snapshot) {
        Ok(_) => false,
        Err(Error::NotFound { name }) if name == snapshot => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_clone_has_what_it_is_given_and_no_settings_of_its_origin() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    let volume = pool.dataset("v");
    zfs.set_property(&volume, "compression", "zstd-9").unwrap();
    zfs.set_property(&volume, "uk.co.example.zvolt:other", "x")
        .unwrap();
    zfs.set_property(&volume, "refreservation", &(64 * MIB).to_string())
        .unwrap();
    write(&volume, 2, MIB);
    let mut spec = spec(&pool, "c", &snapshot);
    spec.properties.extend([
        ("volsize".into(), (128 * MIB).to_string()),
        ("logbias".into(), "throughput".into()),
        ("refreservation".into(), (32 * MIB).to_string()),
    ]);
    spec.user_properties = vec![(HANDLE.into(), "c".into())];
    zfs.clone_zvol(&spec).unwrap();
    let properties = zfs.properties(&spec.dataset).unwrap();
    for (property, value) in [
        ("origin", snapshot.as_str()),
        ("type", "volume"),
        ("volsize", "134217728"),
        ("volblocksize", "16384"),
        ("logbias", "throughput"),
        ("refreservation", "33554432"),
        (HANDLE, "c"),
    ] {
        assert_eq!(properties[property], value, "{property}");
        assert_eq!(get(&spec.dataset, property), value, "{property} by zfs get");
    }
    assert!(!properties.contains_key("uk.co.example.zvolt:other"));
    assert_ne!(get(&spec.dataset, "compression"), "zstd-9");
    assert_eq!(
        zfs.snapshot_info(&snapshot).unwrap().clones,
        [spec.dataset.clone()]
    );
    assert_eq!(head(&spec.dataset, MIB as usize), noise(1, MIB as usize));
    let path = device(&spec.dataset);
    let size = || block::size_bytes(&File::open(&path).unwrap(), &path).unwrap();
    assert_eq!(size(), 128 * MIB);
    zfs.set_property(&spec.dataset, "volsize", &(192 * MIB).to_string())
        .unwrap();
    assert_eq!(size(), 192 * MIB);
    let error = zfs
        .set_property(&spec.dataset, "volsize", &(64 * MIB).to_string())
        .unwrap_err();
    assert!(matches!(error, Error::BadProperty { .. }), "{error}");
    // As large as the origin was when nothing is said.
    let plain = clone(&zfs, &pool, "plain", &snapshot);
    assert_eq!(number(&plain, "volsize"), 64 * MIB);
    assert_eq!(number(&plain, "refreservation"), 0);
}

#[test]
fn a_clone_that_fails_says_why_and_leaves_nothing() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    zfs.ensure_container(&pool.dataset("csi")).unwrap();
    let of_filesystem = pool.dataset("csi@s");
    zfs.snapshot(std::slice::from_ref(&of_filesystem), &[])
        .unwrap();

    let gone = pool.dataset("v@gone");
    let error = zfs.clone_zvol(&spec(&pool, "c", &gone)).unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { name } if *name == gone),
        "{error}"
    );
    let parent = pool.dataset("missing");
    let error = zfs
        .clone_zvol(&spec(&pool, "missing/c", &snapshot))
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { name } if *name == parent),
        "{error}"
    );
    let error = zfs.clone_zvol(&spec(&pool, "v", &snapshot)).unwrap_err();
    assert!(
        matches!(&error, Error::Exists { name } if *name == pool.dataset("v")),
        "{error}"
    );
    let mut elsewhere = spec(&pool, "c", &snapshot);
    elsewhere.dataset = "other/c".into();
    for (spec, errno) in [
        (elsewhere, Errno::EXDEV),
        (spec(&pool, "c", &of_filesystem), Errno::EINVAL),
        (spec(&pool, "c", &pool.dataset("v")), Errno::EINVAL),
    ] {
        let error = zfs.clone_zvol(&spec).unwrap_err();
        assert!(
            matches!(&error, Error::Sys(e) if e.errno == errno),
            "{error}"
        );
    }
    for (property, value) in [
        ("volsize", (32 * MIB).to_string()),
        ("volblocksize", "16384".into()),
        ("encryption", "off".into()),
        ("compression", "zip".into()),
        ("guid", "1".into()),
    ] {
        let mut spec = spec(&pool, "c", &snapshot);
        spec.properties.push((property.into(), value));
        let error = zfs.clone_zvol(&spec).unwrap_err();
        assert!(
            matches!(&error, Error::BadProperty { property: p, .. } if p == property),
            "{property}: {error}"
        );
    }
    let mut uneven = spec(&pool, "c", &snapshot);
    uneven
        .properties
        .push(("volsize".into(), (64 * MIB + 512).to_string()));
    let error = zfs.clone_zvol(&uneven).unwrap_err();
    assert!(matches!(&error, Error::BadProperty { .. }), "{error}");
    let mut large = spec(&pool, "c", &snapshot);
    large
        .properties
        .push(("refreservation".into(), (64_u64 << 30).to_string()));
    let error = zfs.clone_zvol(&large).unwrap_err();
    assert!(matches!(&error, Error::NoSpace { .. }), "{error}");
    assert!(!zfs.exists(&pool.dataset("c")).unwrap());
    assert!(zfs.snapshot_info(&snapshot).unwrap().clones.is_empty());
}

#[test]
fn a_promotion_takes_the_origin_and_what_is_older() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let [volume, first, second, third] =
        ["v", "v@first", "v@second", "v@third"].map(|name| pool.dataset(name));
    zfs.create_zvol(&pool.spec("v")).unwrap();
    for (seed, snapshot) in [&first, &second, &third].into_iter().enumerate() {
        write(&volume, seed as u64, MIB);
        zfs.snapshot(std::slice::from_ref(snapshot), &[]).unwrap();
    }
    zfs.set_property(&second, HANDLE, "kept").unwrap_err();
    must("zfs", &["set", &format!("{HANDLE}=kept"), &second]);
    let before = zfs.snapshots(&volume).unwrap();
    let dataset = clone(&zfs, &pool, "c", &second);
    zfs.promote(&dataset).unwrap();

    let moved = zfs.snapshots(&dataset).unwrap();
    let names: Vec<_> = moved
        .iter()
        .map(|snapshot| snapshot.name.as_str())
        .collect();
    assert_eq!(
        names,
        [format!("{dataset}@first"), format!("{dataset}@second")]
    );
    for (old, new) in before.iter().zip(&moved) {
        assert_eq!(old.guid, new.guid);
        assert_eq!((old.createtxg, old.creation), (new.createtxg, new.creation));
        assert_eq!(old.volsize, new.volsize);
    }
    assert_eq!(moved[1].clones, std::slice::from_ref(&volume));
    assert_eq!(moved[1].user_properties[HANDLE], "kept");
    let left = zfs.snapshots(&volume).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((&left[0].name, left[0].guid), (&third, before[2].guid));
    assert_eq!(
        zfs.properties(&volume).unwrap()["origin"],
        format!("{dataset}@second")
    );
    assert!(!zfs.properties(&dataset).unwrap().contains_key("origin"));
    assert_eq!(head(&dataset, MIB as usize), noise(1, MIB as usize));
    assert_eq!(head(&volume, MIB as usize), noise(2, MIB as usize));
}

#[test]
fn bug_c_74_a_promotion_that_fails_names_what_is_in_the_way() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    let dataset = clone(&zfs, &pool, "c", &snapshot);
    let conflict = format!("{dataset}@s");
    zfs.snapshot(std::slice::from_ref(&conflict), &[]).unwrap();
    let error = zfs.promote(&dataset).unwrap_err();
    assert!(
        matches!(&error, Error::Exists { name } if *name == conflict),
        "{error}"
    );
    zfs.destroy_snapshot(&conflict, Destroy::Now).unwrap();
    zfs.promote(&dataset).unwrap();
    for _ in 0..2 {
        let error = zfs.promote(&dataset).unwrap_err();
        assert!(error.to_string().contains("no clone"), "{error}");
    }
    let missing = pool.dataset("missing");
    assert!(matches!(zfs.promote(&missing), Err(Error::NotFound { name }) if name == missing));
}

#[test]
fn an_open_volume_and_an_open_clone_do_not_keep_a_promotion_back() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    let dataset = clone(&zfs, &pool, "c", &snapshot);
    let open = [pool.dataset("v"), dataset.clone()].map(|name| File::open(device(&name)).unwrap());
    zfs.promote(&dataset).unwrap();
    assert!(is_gone(&zfs, &snapshot));
    drop(open);
}

#[test]
fn bug_c_74_a_deferred_snapshot_goes_with_its_last_clone() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    let clones = ["c", "d"].map(|name| clone(&zfs, &pool, name, &snapshot));
    for _ in 0..2 {
        zfs.destroy_snapshot(&snapshot, Destroy::Deferred).unwrap();
    }
    let it = zfs.snapshot_info(&snapshot).unwrap();
    assert!(it.is_deferred);
    assert_eq!(it.clones.len(), 2);
    // It is still there for all to see, and its dataset with it.
    assert!(matches!(
        retry(|| match zfs.destroy(&pool.dataset("v")) {
            Err(Error::Busy { detail, .. }) if detail.contains("open") => None,
            other => Some(other),
        }),
        Err(Error::Busy { detail, .. }) if detail.contains(&snapshot)
    ));
    let error = zfs
        .snapshot(std::slice::from_ref(&snapshot), &[])
        .unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    retry(|| zfs.destroy(&clones[0]).ok());
    assert_eq!(
        zfs.snapshot_info(&snapshot).unwrap().clones,
        [clones[1].clone()]
    );
    retry(|| zfs.destroy(&clones[1]).ok());
    assert!(is_gone(&zfs, &snapshot));
    retry(|| zfs.destroy(&pool.dataset("v")).ok());
}

#[test]
fn bug_c_76_a_deferred_snapshot_is_still_deferred_after_a_promotion() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let (volume, snapshot) = (pool.dataset("v"), origin(&zfs, &pool, "v"));
    let dataset = clone(&zfs, &pool, "c", &snapshot);
    zfs.destroy_snapshot(&snapshot, Destroy::Deferred).unwrap();
    zfs.promote(&dataset).unwrap();
    assert!(is_gone(&zfs, &snapshot));
    let moved = format!("{dataset}@s");
    let it = zfs.snapshot_info(&moved).unwrap();
    assert!(it.is_deferred);
    assert_eq!(it.clones, std::slice::from_ref(&volume));
    retry(|| zfs.destroy(&volume).ok());
    assert!(is_gone(&zfs, &moved));
    assert_eq!(head(&dataset, MIB as usize), noise(1, MIB as usize));
    retry(|| zfs.destroy(&dataset).ok());
    assert!(zfs.children(&pool.name).unwrap().is_empty());
}

/// A snapshot whose destruction is deferred can be cloned, and the clone keeps it.
#[test]
fn bug_c_75_a_clone_of_a_deferred_snapshot_keeps_it() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let snapshot = origin(&zfs, &pool, "v");
    let first = clone(&zfs, &pool, "c", &snapshot);
    zfs.destroy_snapshot(&snapshot, Destroy::Deferred).unwrap();
    let second = clone(&zfs, &pool, "d", &snapshot);
    retry(|| zfs.destroy(&first).ok());
    assert!(!is_gone(&zfs, &snapshot));
    assert_eq!(head(&second, MIB as usize), noise(1, MIB as usize));
    retry(|| zfs.destroy(&second).ok());
    assert!(is_gone(&zfs, &snapshot));
}
