//! Snapshots, groups of them, and volumes that are made from something: by the driver's calls, against what ZFS
//! says.

mod crash;
mod orders;

use std::collections::{BTreeMap, HashMap};

use tonic::Code;
use zvolt_lab::orchestrator::{Wanted, create_request};
use zvolt_lab::snapshots::From;
use zvolt_lab::{Running, Vm};
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume};

use crate::fleet::{Fleet, Journey, assert_refused};

const GIB: i64 = 1 << 30;

fn make_from<'a>(fleet: &'a Fleet, wanted: &Wanted, source: From<'_>) -> Journey<'a> {
    let volume = fleet.controller.create_from(wanted, source).unwrap();
    let told = volume.content_source.expect("it says what it is made from");
    assert_eq!(told, source.to_csi());
    assert!(volume.capacity_bytes >= wanted.size);
    Journey {
        fleet,
        id: volume.volume_id,
        fs_type: wanted.fs_type.clone(),
    }
}

/// A property of a dataset or snapshot, by the zfs program: numbers are plain.
fn get(storage: &Vm, name: &str, property: &str) -> String {
    let out = storage.ok(&format!("zfs get -Hp -o value {property} {name}"));
    out.unwrap().trim().to_owned()
}

/// Where ZFS has the snapshots of an object now.
fn places(storage: &Vm, object: &str) -> Vec<String> {
    let out = storage.ok(&format!(
        "zfs list -H -o name -t snapshot -r tank | grep '@{object}\\.' || true"
    ));
    out.unwrap().lines().map(str::to_owned).collect()
}

fn zvols(storage: &Vm) -> Vec<String> {
    let out = storage.ok("zfs list -H -o name -t volume -r tank/csi 2>/dev/null || true");
    out.unwrap().lines().map(str::to_owned).collect()
}

/// The bytes that a filesystem on a node has room for, its own included.
fn filesystem_bytes(volume: &Journey<'_>, node: &str) -> i64 {
    let command = format!("stat -f -c '%b %S' {}", volume.target());
    let out = volume.fleet.vm(node).ok(&command).unwrap();
    let numbers: Vec<i64> = out.split_whitespace().map(|n| n.parse().unwrap()).collect();
    numbers[0] * numbers[1]
}

/// A raw volume of 16 MiB, which is written and read on the storage host, where its zvol is.
pub(super) struct Raw<'a> {
    fleet: &'a Fleet,
    id: String,
}

impl<'a> Raw<'a> {
    fn request(name: &str) -> csi::CreateVolumeRequest {
        let mut request = create_request(&Wanted::named(name).size(16 << 20));
        request.volume_capabilities = vec![csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Block(BlockVolume {})),
        }];
        request
    }

    fn make(fleet: &'a Fleet, name: &str) -> Self {
        let volume = fleet.controller.create_raw(Self::request(name)).unwrap();
        Self {
            fleet,
            id: volume.volume_id,
        }
    }

    fn make_from(fleet: &'a Fleet, name: &str, source: From<'_>) -> Self {
        let mut request = Self::request(name);
        request.volume_content_source = Some(source.to_csi());
        let volume = fleet.controller.create_raw(request).unwrap();
        Self {
            fleet,
            id: volume.volume_id,
        }
    }

    fn dataset(&self) -> String {
        format!("tank/csi/block/{}", self.id)
    }

    /// Fills the first MiB with noise; gives the checksum of all.
    fn write(&self) -> String {
        let device = format!("/dev/zvol/{}", self.dataset());
        let out = self.fleet.vm("storage0").ok(&format!(
            "udevadm settle; dd if=/dev/urandom of={device} bs=1M count=1 oflag=direct status=none && sha256sum < {device}"
        ));
        out.unwrap().trim().to_owned()
    }

    fn read(&self) -> String {
        let device = format!("/dev/zvol/{}", self.dataset());
        let out = self
            .fleet
            .vm("storage0")
            .ok(&format!("udevadm settle; sha256sum < {device}"));
        out.unwrap().trim().to_owned()
    }

    fn delete(self) {
        self.fleet.controller.delete(&self.id).unwrap();
    }
}

/// Restored beside its source, on the same node: XFS refuses a second filesystem of the same UUID unless told
/// otherwise (C-25); a larger one grows when it is staged (C-26).
#[test]
fn bug_c_25_bug_c_26_a_restore_of_the_same_size_and_a_larger_one_beside_their_source() {
    for fs_type in ["ext4", "xfs"] {
        let fleet = Fleet::fresh();
        let source = fleet.create(&Wanted::named("pvc-source").fs(fs_type));
        source.bring_to("node0");
        let before = source.write("node0");
        let snapshot = fleet
            .controller
            .create_snapshot("snap-1", &source.id)
            .unwrap();
        let after = source.write("node0");
        assert_ne!(before, after);

        let same = Wanted::named("pvc-same").fs(fs_type);
        let larger = Wanted::named("pvc-larger").fs(fs_type).size(2 * GIB);
        for wanted in [same, larger] {
            let restored = make_from(&fleet, &wanted, From::Snapshot(&snapshot.snapshot_id));
            restored.bring_to("node0");
            assert_eq!(restored.read("node0"), before, "{fs_type}");
            assert_eq!(source.read("node0"), after, "{fs_type}");
            let room = filesystem_bytes(&restored, "node0");
            let least = wanted.size / 10 * 9;
            assert!(room > least, "{fs_type}: {room} of {}", wanted.size);
            restored.write("node0");
            assert_eq!(source.read("node0"), after, "{fs_type}: they are two");
            restored.take_from("node0");
            restored.delete();
        }
        let small = Wanted::named("pvc-small").fs(fs_type).size(GIB / 2);
        assert_refused(
            fleet
                .controller
                .create_from(&small, From::Snapshot(&snapshot.snapshot_id)),
            Code::OutOfRange,
            &["required_bytes"],
        );
        source.take_from("node0");
        source.delete();
        fleet
            .controller
            .delete_snapshot(&snapshot.snapshot_id)
            .unwrap();
        fleet.assert_clean();
    }
}

#[test]
fn what_is_told_of_a_snapshot_is_what_zfs_says() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let volume = Raw::make(&fleet, "pvc-told");
    let mut told = BTreeMap::new();
    for name in ["snap-a", "snap-b", "snap-c"] {
        let snapshot = fleet.controller.create_snapshot(name, &volume.id).unwrap();
        assert!(snapshot.ready_to_use);
        assert_eq!(snapshot.source_volume_id, volume.id);
        let again = fleet.controller.create_snapshot(name, &volume.id).unwrap();
        assert_eq!(again, snapshot, "asked twice, taken once");
        let [path] = places(storage, name).try_into().unwrap();
        let path: String = path;
        let created = snapshot.creation_time.unwrap();
        assert_eq!(created.seconds.to_string(), get(storage, &path, "creation"));
        let size = get(storage, &path, "volsize");
        assert_eq!(snapshot.size_bytes.to_string(), size);
        told.insert(snapshot.snapshot_id.clone(), snapshot);
    }
    let listed = fleet.controller.snapshots(2).unwrap();
    assert_eq!(listed.len(), 3, "each once, over two pages");
    for snapshot in listed {
        assert_eq!(told[&snapshot.snapshot_id], snapshot);
    }
    // Somebody destroys one behind the driver's back.
    let [path] = places(storage, "snap-b").try_into().unwrap();
    let path: String = path;
    storage.ok(&format!("zfs destroy {path}")).unwrap();
    fleet.storage.stop().unwrap();
    fleet.storage.start().unwrap();
    let mut wanted = Raw::request("pvc-lost");
    let lost = format!("{}@snap-b", volume.id);
    wanted.volume_content_source = Some(From::Snapshot(&lost).to_csi());
    let refused = fleet.controller.create_raw(wanted);
    assert!(refused.is_err(), "{refused:?}");
    assert!(
        places(storage, "snap-b").is_empty(),
        "it is not taken again"
    );
    for id in told.keys() {
        fleet.controller.delete_snapshot(id).unwrap();
    }
    volume.delete();
    fleet.assert_clean();
}

/// The volume goes, its snapshot stays and keeps its name for the orchestrator; a restart in between.
#[test]
fn a_restore_from_a_volume_that_is_deleted() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let source = fleet.create(&Wanted::named("pvc-gone"));
    source.bring_to("node0");
    let sum = source.write("node0");
    let snapshot = fleet
        .controller
        .create_snapshot("snap-left", &source.id)
        .unwrap();
    source.write("node0");
    source.take_from("node0");
    source.delete();
    let [kept] = zvols(storage).try_into().unwrap();
    let kept: String = kept;
    assert!(kept.starts_with("tank/csi/deleted/pvc-gone."), "{kept}");
    let written: u64 = get(storage, &kept, "written").parse().unwrap();
    assert!(
        written < 64 << 10,
        "{written}: of what was written after the snapshot only ZFS's own KiB is left"
    );
    assert_eq!(get(storage, &kept, "volmode"), "none");
    let listed = fleet.controller.snapshots(10).unwrap();
    assert_eq!(listed, [snapshot.clone()], "told as before");

    fleet.storage.kill().unwrap();
    fleet.storage.start().unwrap();
    // The name is free for another volume.
    let namesake = fleet.create(&Wanted::named("pvc-gone"));
    let restored = make_from(
        &fleet,
        &Wanted::named("pvc-back"),
        From::Snapshot(&snapshot.snapshot_id),
    );
    restored.bring_to("node1");
    assert_eq!(restored.read("node1"), sum);
    fleet
        .controller
        .delete_snapshot(&snapshot.snapshot_id)
        .unwrap();
    assert_eq!(
        zvols(storage),
        ["tank/csi/block/pvc-back", "tank/csi/block/pvc-gone"],
        "nothing is kept for it any more"
    );
    assert_eq!(restored.read("node1"), sum);
    restored.take_from("node1");
    restored.delete();
    namesake.delete();
    fleet.assert_clean();
}

/// A pod that writes numbers into files, one after the other, each synced before the next.
struct Counter<'a> {
    vm: &'static Vm,
    process: Running<'a>,
}

impl Counter<'_> {
    fn start(vm: &'static Vm, files: &[String]) -> Self {
        vm.ok("rm -f /run/counted; touch /run/counting").unwrap();
        let each: Vec<String> = files
            .iter()
            .map(|file| format!("echo $i >> {file} && sync {file}"))
            .collect();
        let process = vm
            .spawn(&format!(
                "i=0; while [ -e /run/counting ]; do i=$((i+1)); {} && echo $i > /run/next && \
                 mv /run/next /run/counted || exit 1; done",
                each.join(" && ")
            ))
            .unwrap();
        vm.ok("until [ -e /run/counted ]; do :; done").unwrap();
        Self { vm, process }
    }

    fn counted(&self) -> u64 {
        self.vm
            .ok("cat /run/counted")
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    fn finish(self) {
        self.vm.ok("rm -f /run/counting").unwrap();
        let out = self.process.wait().unwrap();
        assert_eq!(out.status, 0, "no write failed: {}", out.stderr);
    }
}

/// How far the numbers in a file go: all from 1 on, each once.
fn last_number(volume: &Journey<'_>, node: &str) -> u64 {
    let file = format!("{}/log", volume.target());
    let check = format!("n=$(wc -l < {file}); seq 1 $n | cmp - {file} && echo $n");
    let out = volume.fleet.vm(node).ok(&check);
    out.unwrap().trim().parse().unwrap()
}

#[test]
fn a_clone_of_a_volume_under_writes_has_all_that_was_synced() {
    let fleet = Fleet::fresh();
    let source = fleet.create(&Wanted::named("pvc-busy"));
    source.bring_to("node0");
    let file = format!("{}/log", source.target());
    let counter = Counter::start(fleet.vm("node0"), &[file]);
    let before = counter.counted();
    let clone = make_from(&fleet, &Wanted::named("pvc-twin"), From::Volume(&source.id));
    let after = counter.counted();
    clone.bring_to("node1");
    let last = last_number(&clone, "node1");
    assert!(
        last >= before,
        "{last} of {before}: synced before the clone"
    );
    assert!(last <= after + 1, "{last} of {after}");
    counter.finish();
    let storage = fleet.vm("storage0");
    let origin = get(storage, "tank/csi/block/pvc-twin", "origin");
    assert_eq!(get(storage, &origin, "defer_destroy"), "on");
    source.take_from("node0");
    source.delete();
    assert_eq!(
        get(storage, "tank/csi/block/pvc-twin", "origin"),
        "-",
        "it stands for itself"
    );
    assert_eq!(last_number(&clone, "node1"), last);
    clone.take_from("node1");
    clone.delete();
    fleet.assert_clean();
}

/// A number is written to one volume, synced, then to the other: at any one moment the second has all of the first's
/// numbers but, at most, the last.
#[test]
fn a_group_is_of_one_moment() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    let sources = ["pvc-first", "pvc-second"].map(|name| fleet.create(&Wanted::named(name)));
    for source in &sources {
        source.bring_to("node0");
    }
    let files = sources.each_ref().map(|s| format!("{}/log", s.target()));
    let counter = Counter::start(fleet.vm("node0"), &files);
    let ids = sources.each_ref().map(|s| s.id.as_str());
    let group = fleet.controller.create_group("group-1", &ids).unwrap();
    counter.finish();
    assert!(group.ready_to_use);
    assert_eq!(group.snapshots.len(), 2);
    let object = &group.group_snapshot_id;
    let paths = places(storage, object);
    assert_eq!(paths.len(), 2, "{object}: {paths:?}");
    let txgs = paths.iter().map(|path| get(storage, path, "createtxg"));
    let txgs: std::collections::BTreeSet<String> = txgs.collect();
    assert_eq!(txgs.len(), 1, "one transaction group");
    assert_refused(
        fleet
            .controller
            .delete_snapshot(&group.snapshots[0].snapshot_id),
        Code::InvalidArgument,
        &["DeleteVolumeGroupSnapshot"],
    );
    let by_source: HashMap<&str, &str> = group
        .snapshots
        .iter()
        .map(|s| (s.source_volume_id.as_str(), s.snapshot_id.as_str()))
        .collect();
    let last = |source: &str, name: &str| {
        let snapshot = From::Snapshot(by_source[source]);
        let restored = make_from(&fleet, &Wanted::named(name), snapshot);
        restored.bring_to("node1");
        let last = last_number(&restored, "node1");
        restored.take_from("node1");
        restored.delete();
        last
    };
    let first = last("pvc-first", "pvc-third");
    let second = last("pvc-second", "pvc-fourth");
    assert!(
        first == second || first == second + 1,
        "{first} and {second} are of different moments"
    );
    for source in &sources {
        source.take_from("node0");
        source.delete();
    }
    assert_eq!(zvols(storage).len(), 2, "kept for the group");
    fleet.controller.delete_group(&group).unwrap();
    fleet.assert_clean();
}

#[test]
fn a_group_across_pools_is_refused() {
    let fleet = Fleet::fresh();
    let storage = fleet.vm("storage0");
    storage
        .ok("truncate -s 1G /var/tmp/other.img && zpool create -f other /var/tmp/other.img")
        .unwrap();
    let one = Raw::make(&fleet, "pvc-one");
    let mut request = Raw::request("pvc-elsewhere");
    request.parameters.insert("pool".into(), "other".into());
    let two = fleet.controller.create_raw(request).unwrap();
    assert_refused(
        fleet
            .controller
            .create_group("group-far", &[&one.id, &two.volume_id]),
        Code::FailedPrecondition,
        &["pool other", "pool tank"],
    );
    let snapshots = storage.ok("zfs list -H -o name -t snapshot").unwrap();
    assert_eq!(snapshots.trim(), "", "none is taken");
    one.delete();
    fleet.controller.delete(&two.volume_id).unwrap();
    storage
        .ok("zpool destroy other; rm /var/tmp/other.img")
        .unwrap();
    fleet.assert_clean();
}
