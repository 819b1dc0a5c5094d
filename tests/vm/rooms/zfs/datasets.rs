//! Zvols and their containers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use uuid::Uuid;
use zvolt_kernel::probe::{Content, FsKind};
use zvolt_kernel::zfs::Error;
use zvolt_kernel::{block, format, probe};

use super::{HANDLE, MIB, TestPool, device, get, must, retry, write, zfs};

#[test]
fn create_sets_every_property_in_one_call() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let mut spec = pool.spec("v");
    spec.properties.extend([
        ("compression".into(), "zstd-3".into()),
        ("refreservation".into(), "67108864".into()),
        ("logbias".into(), "throughput".into()),
    ]);
    spec.user_properties
        .push(("uk.co.example.zvolt:full-name".into(), "ns/ä b=c".into()));
    zfs.create_zvol(&spec).unwrap();
    let properties = zfs.properties(&spec.dataset).unwrap();
    for (property, value) in [
        ("type", "volume"),
        ("volsize", "67108864"),
        ("volblocksize", "16384"),
        ("volmode", "dev"),
        ("snapdev", "hidden"),
        ("compression", "zstd-3"),
        ("refreservation", "67108864"),
        ("logbias", "throughput"),
        (HANDLE, "v"),
        ("uk.co.example.zvolt:full-name", "ns/ä b=c"),
    ] {
        assert_eq!(get(&spec.dataset, property), value, "{property} by zfs get");
        assert_eq!(
            properties.get(property).map(String::as_str),
            Some(value),
            "{property}"
        );
    }
    for property in ["guid", "used", "available", "referenced", "createtxg"] {
        let number = properties
            .get(property)
            .unwrap_or_else(|| panic!("no {property}"));
        assert!(number.parse::<u64>().is_ok(), "{property}={number}");
    }
    assert_eq!(properties["guid"], get(&spec.dataset, "guid"));
    let history = must("zpool", &["history", "-i", &pool.name]);
    let creates = history
        .lines()
        .filter(|line| line.contains("create") && line.contains(&spec.dataset));
    assert_eq!(creates.count(), 1, "{history}");
}

#[test]
fn a_create_that_fails_says_why_and_leaves_nothing() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let mut spec = pool.spec("missing/v");
    let parent = pool.dataset("missing");
    assert!(matches!(zfs.create_zvol(&spec), Err(Error::NotFound { name }) if name == parent));
    spec = pool.spec("v");
    for (property, value) in [
        ("compression", "zip"),
        ("volmode", "yes"),
        ("no_such", "1"),
        ("guid", "1"),
        ("recordsize", "4096"),
        ("refreservation", "auto"),
    ] {
        let mut spec = spec.clone();
        spec.properties.push((property.into(), value.into()));
        let error = zfs.create_zvol(&spec).unwrap_err();
        assert!(
            matches!(&error, Error::BadProperty { property: p, .. } if p == property),
            "{error}"
        );
        assert!(!zfs.exists(&spec.dataset).unwrap());
    }
    let mut large = spec.clone();
    large
        .properties
        .push(("refreservation".into(), (64_u64 << 30).to_string()));
    let error = zfs.create_zvol(&large).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(!zfs.exists(&spec.dataset).unwrap());
    zfs.create_zvol(&spec).unwrap();
    assert!(matches!(zfs.create_zvol(&spec), Err(Error::Exists { name }) if name == spec.dataset));
}

#[test]
fn rule_02_missing_is_believed_only_with_the_pool_imported() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    assert!(!zfs.exists(&spec.dataset).unwrap());
    zfs.create_zvol(&spec).unwrap();
    assert!(zfs.exists(&spec.dataset).unwrap());
    pool.export();
    assert!(
        matches!(zfs.exists(&spec.dataset), Err(Error::NotFound { name }) if name == pool.name)
    );
    assert!(matches!(zfs.pool(&pool.name), Err(Error::NotFound { .. })));
    pool.import();
    assert!(zfs.exists(&spec.dataset).unwrap());
    // A name that would be cut to one that is missing is refused.
    let long = pool.dataset(&"x".repeat(300));
    assert!(matches!(zfs.exists(&long), Err(Error::Sys(_))));
}

#[test]
fn rule_06_destroy_is_never_recursive() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    zfs.create_zvol(&spec).unwrap();
    let snapshot = format!("{}@s", spec.dataset);
    must("zfs", &["snapshot", &snapshot]);
    let error = retry(|| match zfs.destroy(&spec.dataset) {
        Err(Error::Busy { detail, .. }) => Some(detail),
        other => panic!("{other:?}"),
    });
    assert_eq!(error, format!("it has snapshots: {snapshot}"));
    must("zfs", &["list", "-t", "snapshot", &snapshot]);
    zfs.ensure_container(&pool.dataset("c/d")).unwrap();
    let error = zfs.destroy(&pool.dataset("c")).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(zfs.exists(&pool.dataset("c/d")).unwrap());
    must("zfs", &["destroy", &snapshot]);
    retry(|| zfs.destroy(&spec.dataset).ok());
    assert!(!zfs.exists(&spec.dataset).unwrap());
    assert!(matches!(
        zfs.destroy(&spec.dataset),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn a_volume_that_is_open_is_busy() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    zfs.create_zvol(&spec).unwrap();
    let open = File::open(device(&spec.dataset)).unwrap();
    let error = zfs.destroy(&spec.dataset).unwrap_err();
    assert!(
        matches!(&error, Error::Busy { detail, .. } if detail.contains("open")),
        "{error}"
    );
    drop(open);
    retry(|| zfs.destroy(&spec.dataset).ok());
}

#[test]
fn rule_05_read_only_holds_at_once_for_who_has_the_volume_open() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    zfs.create_zvol(&spec).unwrap();
    let path = device(&spec.dataset);
    let open = File::options().write(true).open(&path).unwrap();
    open.write_all_at(&[1; 4096], 0).unwrap();
    open.sync_all().unwrap();
    zfs.set_property(&spec.dataset, "readonly", "on").unwrap();
    assert!(block::is_read_only(&open, &path).unwrap());
    let error = open.write_all_at(&[2; 4096], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EPERM), "{error}");
    let error = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS), "{error}");
    zfs.set_property(&spec.dataset, "readonly", "off").unwrap();
    open.write_all_at(&[2; 4096], 0).unwrap();
}

#[test]
fn containers_are_made_with_what_is_above_and_never_mounted() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let block = pool.dataset("csi/block");
    for _ in 0..2 {
        zfs.ensure_container(&block).unwrap();
    }
    for dataset in [&pool.dataset("csi"), &block] {
        assert_eq!(get(dataset, "canmount"), "off");
        assert_eq!(get(dataset, "mountpoint"), "none");
        assert_eq!(get(dataset, "mounted"), "no");
    }
    assert!(matches!(
        zfs.ensure_container("no-such-pool/csi"),
        Err(Error::NotFound { name }) if name == "no-such-pool"
    ));
}

#[test]
fn children_are_those_directly_below() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let block = pool.dataset("csi/block");
    zfs.ensure_container(&block).unwrap();
    assert!(zfs.children(&block).unwrap().is_empty());
    assert!(zfs.children(&pool.dataset("missing")).unwrap().is_empty());
    for name in ["csi/block/a", "csi/block/b"] {
        zfs.create_zvol(&pool.spec(name)).unwrap();
    }
    must("zfs", &["snapshot", &format!("{block}/a@s")]);
    let mut children = zfs.children(&block).unwrap();
    children.sort();
    assert_eq!(children, [format!("{block}/a"), format!("{block}/b")]);
    assert_eq!(zfs.children(&pool.dataset("csi")).unwrap(), [block]);
}

#[test]
fn properties_set_elsewhere_prove_nothing() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.ensure_container(&pool.dataset("csi")).unwrap();
    zfs.set_property(&pool.dataset("csi"), HANDLE, "above")
        .unwrap();
    let mut spec = pool.spec("csi/v");
    spec.user_properties.clear();
    zfs.create_zvol(&spec).unwrap();
    assert_eq!(get(&spec.dataset, HANDLE), "above", "inherited");
    assert!(!zfs.properties(&spec.dataset).unwrap().contains_key(HANDLE));
    zfs.set_property(&spec.dataset, HANDLE, "own").unwrap();
    assert_eq!(zfs.properties(&spec.dataset).unwrap()[HANDLE], "own");
    // Received with the stream, so a copy, not the volume itself.
    let snapshot = format!("{}@s", spec.dataset);
    must("zfs", &["snapshot", &snapshot]);
    let copy = pool.dataset("copy");
    let mut send = Command::new("zfs")
        .args(["send", "-p", &snapshot])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stream = send.stdout.take().unwrap();
    let received = Command::new("zfs")
        .args(["receive", &copy])
        .stdin(stream)
        .status()
        .unwrap();
    assert!(received.success() && send.wait().unwrap().success());
    assert_eq!(get(&copy, HANDLE), "own", "received");
    assert!(!zfs.properties(&copy).unwrap().contains_key(HANDLE));
}

#[test]
fn rule_09_volsize_grows_reads_back_and_never_shrinks() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    zfs.create_zvol(&spec).unwrap();
    let path = device(&spec.dataset);
    let size = || block::size_bytes(&File::open(&path).unwrap(), &path).unwrap();
    assert_eq!(size(), 64 * MIB);
    zfs.set_property(&spec.dataset, "volsize", &(128 * MIB).to_string())
        .unwrap();
    assert_eq!(
        zfs.properties(&spec.dataset).unwrap()["volsize"],
        (128 * MIB).to_string()
    );
    assert_eq!(size(), 128 * MIB);
    for (value, why) in [
        (64 * MIB, "shrinks"),
        (128 * MIB + 512, "is no multiple of volblocksize"),
    ] {
        let error = zfs
            .set_property(&spec.dataset, "volsize", &value.to_string())
            .unwrap_err();
        assert!(
            matches!(&error, Error::BadProperty { property, .. } if property == "volsize"),
            "{why}: {error}"
        );
    }
    assert_eq!(size(), 128 * MIB);
}

#[test]
fn space_is_told_in_plain_bytes() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let mut spec = pool.spec("v");
    spec.properties
        .push(("refreservation".into(), (64 * MIB).to_string()));
    zfs.create_zvol(&spec).unwrap();
    write(&spec.dataset, 1, 4 * MIB);
    zfs.snapshot(&[format!("{}@s", spec.dataset)], &[]).unwrap();
    write(&spec.dataset, 2, 2 * MIB);
    let properties = zfs.properties(&spec.dataset).unwrap();
    for property in [
        "available",
        "logicalused",
        "referenced",
        "refreservation",
        "used",
        "usedbydataset",
        "usedbyrefreservation",
        "usedbysnapshots",
        "written",
    ] {
        let told = properties
            .get(property)
            .unwrap_or_else(|| panic!("no {property}"));
        assert_eq!(*told, get(&spec.dataset, property), "{property}");
        let bytes: u64 = told.parse().unwrap();
        assert!(bytes >= MIB, "{property}={bytes}");
    }
    // A quota above is what counts, not the pool.
    must("zfs", &["set", "quota=200M", &pool.name]);
    let available: u64 = zfs.properties(&pool.name).unwrap()["available"]
        .parse()
        .unwrap();
    assert!(available < 200 * MIB - 64 * MIB, "{available}");
    must("zfs", &["set", "quota=none", &pool.name]);
}

#[test]
fn a_property_goes_back_to_what_is_inherited() {
    let (zfs, pool) = (zfs(), TestPool::new());
    must("zfs", &["set", "compression=gzip-2", &pool.name]);
    let mut spec = pool.spec("v");
    spec.properties.push(("compression".into(), "off".into()));
    zfs.create_zvol(&spec).unwrap();
    for _ in 0..2 {
        for property in ["compression", HANDLE] {
            zfs.inherit_property(&spec.dataset, property).unwrap();
        }
    }
    assert_eq!(get(&spec.dataset, "compression"), "gzip-2");
    assert_eq!(get(&spec.dataset, HANDLE), "-");
    assert!(!zfs.properties(&spec.dataset).unwrap().contains_key(HANDLE));
    for property in ["volsize", "refreservation", "guid", "no_such", "uk:X"] {
        let error = zfs.inherit_property(&spec.dataset, property).unwrap_err();
        assert!(
            matches!(&error, Error::BadProperty { property: p, .. } if p == property),
            "{property}: {error}"
        );
    }
    let missing = pool.dataset("missing");
    assert!(
        matches!(zfs.inherit_property(&missing, HANDLE), Err(Error::NotFound { name }) if name == missing)
    );
}

#[test]
fn set_property_says_which_one_is_wrong() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let spec = pool.spec("v");
    zfs.create_zvol(&spec).unwrap();
    zfs.set_property(&spec.dataset, "compression", "off")
        .unwrap();
    assert_eq!(get(&spec.dataset, "compression"), "off");
    for (property, value) in [
        ("compression", "zip"),
        ("volblocksize", "8192"),
        ("no_such", "1"),
        ("uk:X", "1"),
    ] {
        let error = zfs
            .set_property(&spec.dataset, property, value)
            .unwrap_err();
        assert!(
            matches!(&error, Error::BadProperty { property: p, .. } if p == property),
            "{property}: {error}"
        );
    }
    let huge = (64_u64 << 30).to_string();
    let error = zfs
        .set_property(&spec.dataset, "refreservation", &huge)
        .unwrap_err();
    assert!(
        matches!(error, Error::NoSpace { .. } | Error::BadProperty { .. }),
        "{error}"
    );
    let missing = pool.dataset("missing");
    assert!(
        matches!(zfs.set_property(&missing, HANDLE, "x"), Err(Error::NotFound { name }) if name == missing)
    );
}

#[test]
fn bug_c_83_versions_of_both_halves_are_told() {
    let version = zfs().version().unwrap();
    let told = must("zfs", &["version"]);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines,
        [
            format!("zfs-{}", version.userland),
            format!("zfs-kmod-{}", version.module)
        ]
    );
    assert!(version.agree());
}

#[test]
fn many_threads_share_one_room() {
    let (zfs, pool) = (zfs(), TestPool::new());
    let zfs = &zfs;
    std::thread::scope(|scope| {
        for number in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                let spec = pool.spec(&format!("v{number}"));
                zfs.create_zvol(&spec).unwrap();
                for round in 0..5 {
                    let value = format!("{number}-{round}");
                    zfs.set_property(&spec.dataset, HANDLE, &value).unwrap();
                    assert_eq!(zfs.properties(&spec.dataset).unwrap()[HANDLE], value);
                }
                retry(|| zfs.destroy(&spec.dataset).ok());
            });
        }
    });
    assert!(zfs.children(&pool.name).unwrap().is_empty());
}

#[test]
fn bug_c_6_a_device_is_known_by_its_dataset() {
    let (zfs, pool) = (zfs(), TestPool::new());
    for name in ["a", "b"] {
        zfs.create_zvol(&pool.spec(name)).unwrap();
    }
    let (a, b) = (device(&pool.dataset("a")), device(&pool.dataset("b")));
    assert_ne!(a, b);
    assert!(
        probe::is_blank(&File::open(&a).unwrap(), &a).unwrap(),
        "a new zvol is blank"
    );
    assert!(!block::is_held(&a).unwrap());
}

#[test]
fn a_new_zvol_is_formatted_and_grows_while_mounted() {
    let (zfs, pool) = (zfs(), TestPool::new());
    for kind in [FsKind::Ext4, FsKind::Xfs] {
        let mut spec = pool.spec(kind.name());
        spec.volsize = 400 * MIB;
        zfs.create_zvol(&spec).unwrap();
        let path = device(&spec.dataset);
        let uuid = Uuid::new_v4();
        format::make(kind, &path, uuid).unwrap();
        let used: u64 = zfs.properties(&spec.dataset).unwrap()["used"]
            .parse()
            .unwrap();
        assert!(used < 16 * MIB, "{kind:?} took {used} bytes of the pool");
        let at = pool.directory.path().join(kind.name());
        std::fs::create_dir(&at).unwrap();
        must(
            "mount",
            &[
                "-t",
                kind.name(),
                path.to_str().unwrap(),
                at.to_str().unwrap(),
            ],
        );
        zfs.set_property(&spec.dataset, "volsize", &(800 * MIB).to_string())
            .unwrap();
        let root = File::open(&at).unwrap();
        let size = block::size_bytes(&File::open(&path).unwrap(), &path).unwrap();
        assert_eq!(size, 800 * MIB);
        let grown = format::grow(kind, std::os::fd::AsFd::as_fd(&root), &path, size).unwrap();
        assert_eq!(grown, 800 * MIB, "{kind:?}");
        drop(root);
        must("umount", &[at.to_str().unwrap()]);
        let file = File::open(&path).unwrap();
        let Content::Filesystem(found) = probe::superblock(&file, &path).unwrap() else {
            panic!("no filesystem");
        };
        assert_eq!(
            (found.kind, found.uuid, found.size_bytes),
            (kind, uuid, 800 * MIB)
        );
        drop(file);
        retry(|| zfs.destroy(&spec.dataset).ok());
    }
}
