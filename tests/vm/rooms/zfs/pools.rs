//! Pools: health, errors, space.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use zvolt_kernel::zfs::{CloneSpec, Error, Pool, PoolEvent, Vdev};

use super::{MIB, TestPool, device, must, noise, number, retry, run, write, zfs};

fn pool_number(pool: &str, property: &str) -> u64 {
    must("zpool", &["get", "-Hp", "-o", "value", property, pool])
        .parse()
        .unwrap()
}

/// Every device of the pool, in words like a line of `zpool status -p`.
fn lines(vdevs: &[Vdev]) -> Vec<String> {
    let mut lines = Vec::new();
    for vdev in vdevs {
        lines.push(format!(
            "{} {} {} {} {}",
            vdev.name, vdev.state, vdev.read_errors, vdev.write_errors, vdev.checksum_errors
        ));
        lines.extend(self::lines(&vdev.children));
    }
    lines
}

/// What `zpool status` says of them.
fn status(pool: &Pool) -> Vec<String> {
    must("zpool", &["status", "-pP", &pool.name])
        .lines()
        .map(|line| line.split_whitespace().take(5).collect::<Vec<_>>())
        .skip_while(|words| words.first() != Some(&"NAME"))
        .skip(2)
        .take_while(|words| !words.is_empty())
        .map(|words| words.join(" "))
        .collect()
}

#[test]
fn a_pool_tells_guid_health_and_space() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.create_zvol(&pool.spec("v")).unwrap();
    write(&pool.dataset("v"), 1, 4 * MIB);
    let found = zfs.pool(&pool.name).unwrap();
    assert_eq!(found.name, pool.name);
    assert_eq!(found.guid, pool_number(&pool.name, "guid"));
    assert_eq!(found.health, "ONLINE");
    assert!(!found.has_errors && !found.is_read_only);
    assert_eq!(found.size, pool_number(&pool.name, "size"));
    assert_eq!(found.size, found.allocated + found.free);
    assert!(found.allocated >= 4 * MIB, "{}", found.allocated);
    assert_eq!(lines(&found.vdevs), status(&found));
    assert_eq!(
        found.vdevs[0].name,
        pool.file(0).to_str().unwrap(),
        "{found:?}"
    );
    assert!(matches!(
        zfs.pool("no-such-pool"),
        Err(Error::NotFound { .. })
    ));
    let names: Vec<_> = zfs.pools().unwrap().into_iter().map(|p| p.name).collect();
    let mut told: Vec<_> = must("zpool", &["list", "-H", "-o", "name"])
        .lines()
        .map(str::to_owned)
        .collect();
    told.sort();
    assert!(names.contains(&pool.name));
    assert_eq!(names, told);
}

#[test]
fn what_happens_to_a_pool_is_heard_of() {
    let (zfs, pool) = (zfs(), TestPool::of(&["mirror"], 2, 256 * MIB));
    let (tell, told) = mpsc::channel();
    zfs.on_pool_event(move |event| tell.send(event).is_ok())
        .unwrap();
    let hears = |event: PoolEvent, act: &dyn Fn()| {
        told.try_iter().for_each(drop);
        act();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = told.recv_timeout(left).expect("it is heard of").unwrap();
            if heard == event {
                return;
            }
        }
    };
    hears(PoolEvent::History, &|| {
        zfs.create_zvol(&pool.spec("v")).unwrap();
    });
    let leg = pool.file(1);
    let leg = leg.to_str().unwrap();
    hears(PoolEvent::State, &|| {
        must("zpool", &["offline", &pool.name, leg]);
    });
    must("zpool", &["online", &pool.name, leg]);
    retry(|| (zfs.pool(&pool.name).unwrap().health == "ONLINE").then_some(()));
    hears(PoolEvent::State, &|| pool.export());
    hears(PoolEvent::State, &|| pool.import());
}

#[test]
fn fault_a_degraded_pool_serves_and_tells_which_device() {
    let (zfs, pool) = (zfs(), TestPool::of(&["mirror"], 2, 256 * MIB));
    let leg = pool.file(1);
    must("zpool", &["offline", &pool.name, leg.to_str().unwrap()]);
    let found = zfs.pool(&pool.name).unwrap();
    assert_eq!(found.health, "DEGRADED");
    assert!(!found.has_errors, "no data is lost");
    let states: Vec<_> = found.vdevs[0]
        .children
        .iter()
        .map(|vdev| vdev.state.as_str())
        .collect();
    assert_eq!(found.vdevs[0].name, "mirror-0");
    assert_eq!(found.vdevs[0].state, "DEGRADED");
    assert_eq!(states, ["ONLINE", "OFFLINE"]);
    assert_eq!(lines(&found.vdevs), status(&found));
    // It takes everything that a healthy one takes.
    zfs.create_zvol(&pool.spec("v")).unwrap();
    write(&pool.dataset("v"), 1, MIB);
    let snapshot = pool.dataset("v@s");
    zfs.snapshot(std::slice::from_ref(&snapshot), &[]).unwrap();
    let clone = CloneSpec {
        dataset: pool.dataset("c"),
        origin: snapshot,
        properties: Vec::new(),
        user_properties: Vec::new(),
    };
    zfs.clone_zvol(&clone).unwrap();
    must("zpool", &["online", &pool.name, leg.to_str().unwrap()]);
    retry(|| (zfs.pool(&pool.name).unwrap().health == "ONLINE").then_some(()));
}

#[test]
fn fault_a_pool_that_lost_data_says_so() {
    let (zfs, pool) = (zfs(), TestPool::of(&[], 1, 256 * MIB));
    let mut spec = pool.spec("v");
    spec.properties.push(("compression".into(), "off".into()));
    zfs.create_zvol(&spec).unwrap();
    write(&spec.dataset, 7, 16384);
    overwrite(&pool, &noise(7, 16384));
    must("zpool", &["scrub", "-w", &pool.name]);
    let found = zfs.pool(&pool.name).unwrap();
    assert!(found.has_errors, "{found:?}");
    assert!(found.vdevs[0].checksum_errors > 0, "{found:?}");
    assert_eq!(lines(&found.vdevs), status(&found));
}

/// Finds the block in the pool's file, and writes over it.
fn overwrite(pool: &TestPool, block: &[u8]) {
    let path = pool.file(0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut bytes = vec![0; MIB as usize];
    let at = (0..file.metadata().unwrap().len() / MIB)
        .find_map(|piece| {
            file.read_exact_at(&mut bytes, piece * MIB).unwrap();
            let mut sectors = bytes.chunks(512);
            let found = sectors.position(|sector| *sector == block[..512])?;
            Some(piece * MIB + found as u64 * 512)
        })
        .unwrap_or_else(|| panic!("the block is not in {}", path.display()));
    file.write_all_at(&noise(8, block.len()), at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn fault_a_pool_that_was_imported_read_only_says_so() {
    let (zfs, pool) = (zfs(), TestPool::new());
    zfs.create_zvol(&pool.spec("v")).unwrap();
    zfs.snapshot(&[pool.dataset("v@s")], &[]).unwrap();
    pool.export();
    pool.import_with(&["-o", "readonly=on"]);
    let found = zfs.pool(&pool.name).unwrap();
    assert!(found.is_read_only);
    assert_eq!(found.health, "ONLINE");
    for result in [
        zfs.create_zvol(&pool.spec("w")),
        zfs.snapshot(&[pool.dataset("v@t")], &[]),
        zfs.rename(&pool.dataset("v"), &pool.dataset("w")),
        zfs.rollback_to(&pool.dataset("v@s")),
    ] {
        assert!(
            matches!(&result, Err(Error::Sys(e)) if e.errno == Errno::EROFS),
            "{result:?}"
        );
    }
    pool.export();
    pool.import();
    assert!(!zfs.pool(&pool.name).unwrap().is_read_only);
}

#[test]
fn fault_a_full_pool_is_no_space() {
    let (zfs, pool) = (zfs(), TestPool::of(&[], 1, 256 * MIB));
    let mut spec = pool.spec("v");
    spec.volsize = 256 * MIB;
    spec.properties.push(("compression".into(), "off".into()));
    zfs.create_zvol(&spec).unwrap();
    // Others have reserved all but a little.
    let reserved = number(&pool.name, "available") - 4 * MIB;
    zfs.ensure_container(&pool.dataset("others")).unwrap();
    zfs.set_property(
        &pool.dataset("others"),
        "reservation",
        &reserved.to_string(),
    )
    .unwrap();
    // Directly: what the cache took before it heard of an error would be tried for minutes.
    let of = format!("of={}", device(&spec.dataset).display());
    let wrote = run(
        "dd",
        &["if=/dev/urandom", &of, "bs=1M", "count=16", "oflag=direct"],
    );
    assert!(!wrote.status.success(), "16 MiB went into 4 MiB");
    must("zpool", &["sync", &pool.name]);
    let found = zfs.pool(&pool.name).unwrap();
    assert_eq!(found.health, "ONLINE");
    assert_eq!(found.free, pool_number(&pool.name, "free"));
    let available = number(&pool.name, "available");
    assert!(available < 2 * MIB, "{available}");
    let mut thick = pool.spec("w");
    thick
        .properties
        .push(("refreservation".into(), (64 * MIB).to_string()));
    for result in [
        zfs.create_zvol(&thick),
        zfs.set_property(&spec.dataset, "refreservation", &(256 * MIB).to_string()),
    ] {
        assert!(matches!(result, Err(Error::NoSpace { .. })), "{result:?}");
    }
    retry(|| zfs.destroy(&spec.dataset).ok());
    retry(|| (number(&pool.name, "available") > 3 * MIB).then_some(()));
}

#[test]
fn bug_c_81_what_a_full_volume_takes_is_known_before() {
    const SIZE: u64 = 16 * MIB;
    let zfs = zfs();
    let mut costs = Vec::new();
    for (layout, files) in [(&[][..], 1), (&["mirror"], 2), (&["raidz"], 3)] {
        let pool = TestPool::of(&[&["-o", "ashift=12"], layout].concat(), files, 256 * MIB);
        let cost = |block| zfs.reservation_for(&pool.name, SIZE, block).unwrap();
        costs.push((cost(4096), cost(16384)));
        // What ZFS itself reserves for a volume that is not sparse.
        let name = pool.dataset("v");
        let size = SIZE.to_string();
        let options = ["-o", "compression=off", "-b", "4096", "-V", &size];
        must("zfs", &[&["create"], &options[..], &[&name]].concat());
        assert_eq!(number(&name, "refreservation"), cost(4096), "{layout:?}");
        write(&name, 1, SIZE);
        let referenced = number(&name, "referenced");
        assert!(
            referenced >= SIZE && referenced <= cost(4096),
            "{layout:?}: {referenced} of {}",
            cost(4096)
        );
    }
    let [(single, _), (mirror, _), (raidz, raidz_large)] = costs[..] else {
        panic!("{costs:?}");
    };
    assert_eq!(single, mirror);
    assert!(single > SIZE && single < SIZE * 5 / 4, "{single}");
    assert!(raidz > SIZE * 5 / 4, "{raidz}");
    assert!(raidz_large < raidz, "{raidz_large}");
    for (volsize, block, property) in [
        (0, 16384, "volsize"),
        (SIZE, 0, "volblocksize"),
        (1 << 61, 16384, "volsize"),
    ] {
        let error = zfs
            .reservation_for("no-such-pool", volsize, block)
            .unwrap_err();
        assert!(matches!(&error, Error::BadProperty { property: p, .. } if p == property));
    }
    assert!(matches!(
        zfs.reservation_for("no-such-pool", MIB, 16384),
        Err(Error::NotFound { name }) if name == "no-such-pool"
    ));
}
