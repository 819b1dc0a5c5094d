//! Volumes that are made from something.

use zvolt_kernel::zfs::{self, CloneSpec};

use super::super::source::Source;
use super::*;
use crate::model::snapshot::{
    Snapshot, SnapshotKind, SnapshotSpec, SnapshotState, SnapshotStatus, Source as Member, Taken,
};
use crate::model::volume::{Provisioning, VolumeMode};

const MADE: Uuid = Uuid::from_u128(7);

fn object() -> Snapshot {
    Snapshot {
        metadata: crate::model::object::Metadata {
            name: "s".into(),
            uid: "0f9d2c1e".into(),
            ..Default::default()
        },
        spec: SnapshotSpec {
            snap_name: "s".into(),
            kind: SnapshotKind::Single,
            owner_node: "storage0".into(),
            pool: "tank".into(),
            pool_guid: POOL.to_string(),
            members: vec![Member {
                volume_id: "w".into(),
                volume_uid: "uid of w".into(),
                dataset_path: "tank/csi/block/w".into(),
                volume_mode: VolumeMode::Filesystem,
                fs_type: FsType::Ext4,
                filesystem_uuid: Some(MADE),
                vol_block_size: "16k".into(),
            }],
        },
        status: SnapshotStatus {
            state: SnapshotState::Ready,
            members: vec![Taken {
                volume_id: "w".into(),
                snapshot_path: "tank/csi/block/w@s.0f9d2c1e".into(),
                guid: "5".into(),
                created: 0,
                size: 2 << 30,
            }],
            was_ready: true,
            ..Default::default()
        },
    }
}

/// Where a promotion has taken it.
fn found() -> zfs::Snapshot {
    zfs::Snapshot {
        name: "tank/csi/deleted/w.00000000@s.0f9d2c1e".into(),
        guid: 5,
        volsize: Some(2 << 30),
        ..Default::default()
    }
}

fn of_snapshot(capacity: u64) -> Volume {
    let mut volume = wanted();
    volume.spec.source_snapshot_id = Some("w@s".into());
    volume.spec.capacity = capacity;
    volume
}

fn of_volume() -> Volume {
    let mut volume = wanted();
    volume.spec.source_volume_id = Some("w".into());
    volume
}

fn with(source: Source, dataset: Option<Dataset>) -> Seen {
    Seen {
        source: Some(source),
        ..seen(None, Some(storage(dataset)))
    }
}

fn snapshot(object: Option<Snapshot>, found: Option<zfs::Snapshot>) -> Seen {
    let object = object.map(Box::new);
    with(Source::Snapshot { object, found }, None)
}

/// A volume `w` that is Ready, and its zvol.
fn live() -> (Volume, Dataset) {
    let mut volume = volume("w");
    let dataset = Dataset {
        handle: Some("w".into()),
        format: Format::Made(FsType::Ext4, MADE),
        ..dataset()
    };
    volume.status.was_ready = true;
    volume.status.device_guid = Some(identity().nguid_hex());
    (volume, dataset)
}

fn internal(is_deferred: bool) -> zfs::Snapshot {
    zfs::Snapshot {
        name: "tank/csi/block/w@clone.uid-1".into(),
        volsize: Some(2 << 30),
        is_deferred,
        user_properties: [
            (property("clone"), "uid-1".to_owned()),
            (property("format"), Format::record(FsType::Ext4, MADE)),
        ]
        .into(),
        ..Default::default()
    }
}

fn property(key: &str) -> String {
    super::super::super::observe::property(key)
}

fn clone(volume: &Volume, seen: &Seen) -> (CloneSpec, Option<u64>) {
    match plan(volume, seen, &site()).unwrap() {
        Plan::Run("agent.create", steps) => match steps.into_iter().next() {
            Some(Step::Act(Act::Clone { spec, thick })) => (*spec, thick),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn get<'a>(pairs: &'a [(String, String)], key: &str) -> &'a str {
    let (_, value) = pairs.iter().find(|(k, _)| k == key).expect(key);
    value
}

#[test]
fn rule_01_a_restored_volume_is_a_clone_with_its_sources_filesystem() {
    let volume = of_snapshot(2 << 30);
    assert_eq!(
        plan(&volume, &seen(None, Some(storage(None))), &site()),
        Ok(Plan::LookAtSource)
    );
    let (spec, thick) = clone(&volume, &snapshot(Some(object()), Some(found())));
    assert_eq!(spec.dataset, "tank/csi/block/v");
    assert_eq!(spec.origin, found().name, "where it is now");
    assert_eq!(thick, None);
    for (key, value) in [("handle", "v"), ("uid", "uid-1")] {
        assert_eq!(get(&spec.user_properties, &property(key)), value);
    }
    assert_eq!(
        get(&spec.user_properties, &property("format")),
        Format::record(FsType::Ext4, MADE),
        "never pending"
    );
}

#[test]
fn rule_07_a_restored_volume_is_never_smaller_than_its_source() {
    for (asked, made) in [(1, 2 << 30), (2 << 30, 2_u64 << 30), (3 << 30, 3 << 30)] {
        let seen = snapshot(Some(object()), Some(found()));
        let (spec, _) = clone(&of_snapshot(asked), &seen);
        assert_eq!(get(&spec.properties, "volsize"), made.to_string());
    }
    let mut thick = of_snapshot(2 << 30);
    thick.spec.tuning.provisioning = Provisioning::Thick;
    let seen = snapshot(Some(object()), Some(found()));
    assert_eq!(clone(&thick, &seen).1, Some(16 << 10));
}

#[test]
fn a_raw_volume_takes_what_there_is_and_gets_no_filesystem() {
    let mut raw = of_snapshot(2 << 30);
    raw.spec.volume_mode = VolumeMode::Block;
    let (spec, _) = clone(&raw, &snapshot(Some(object()), Some(found())));
    assert_eq!(get(&spec.user_properties, &property("format")), Format::RAW);
    let mut of_raw = object();
    of_raw.spec.members[0].volume_mode = VolumeMode::Block;
    let refused = failure(
        &of_snapshot(2 << 30),
        &snapshot(Some(of_raw), Some(found())),
    );
    assert_eq!(refused.reason, reason::BAD_PROPERTY);
}

#[test]
fn a_source_that_is_not_there_is_said_once_and_for_all() {
    let volume = of_snapshot(2 << 30);
    let refused = |change: fn(&mut Snapshot), found: Option<zfs::Snapshot>| {
        let mut it = object();
        change(&mut it);
        let failure = failure(&volume, &snapshot(Some(it), found));
        (failure.reason, failure.class)
    };
    let missing = (reason::SOURCE_MISSING, Class::Final);
    let nothing = failure(&volume, &snapshot(None, None));
    assert_eq!((nothing.reason, nothing.class), missing);
    assert_eq!(refused(|_| {}, None), missing);
    let deleted: fn(&mut Snapshot) = |s| s.metadata.deletion_timestamp = Some(NOW.into());
    assert_eq!(refused(deleted, Some(found())), missing);
    let other: fn(&mut Snapshot) = |s| s.spec.members[0].volume_id = "x".into();
    assert_eq!(refused(other, Some(found())), missing);
    let pending: fn(&mut Snapshot) = |s| {
        s.status = SnapshotStatus::default();
    };
    assert_eq!(refused(pending, None), (reason::BUSY, Class::Retry));
    let failed: fn(&mut Snapshot) = |s| {
        s.status = SnapshotStatus {
            state: SnapshotState::Error,
            ..Default::default()
        };
    };
    assert_eq!(refused(failed, None), missing);
}

#[test]
fn a_clone_is_made_where_its_source_is_with_its_blocks() {
    let volume = of_snapshot(2 << 30);
    let changes: [fn(&mut Snapshot); 4] = [
        |s| s.spec.pool = "other".into(),
        |s| s.spec.owner_node = "storage1".into(),
        |s| s.spec.pool_guid = "78".into(),
        |s| s.spec.members[0].vol_block_size = "8k".into(),
    ];
    for change in changes {
        let mut it = object();
        change(&mut it);
        let refused = failure(&volume, &snapshot(Some(it), Some(found())));
        assert_eq!(
            (refused.reason, refused.class),
            (reason::BAD_PROPERTY, Class::Final),
            "{refused}"
        );
    }
}

#[test]
fn a_clone_of_a_volume_is_taken_cloned_and_let_go() {
    let (object, source) = live();
    let now = |internal: Option<zfs::Snapshot>, own: Option<Dataset>| {
        let source = Source::Volume {
            object: Some(Box::new(object.clone())),
            dataset: Some(source.clone()),
            internal,
        };
        with(source, own)
    };
    let volume = of_volume();
    assert_eq!(
        run(&volume, &now(None, None)),
        ("agent.create", vec!["zfs.snapshot"])
    );
    let (spec, _) = clone(&volume, &now(Some(internal(false)), None));
    assert_eq!(spec.origin, "tank/csi/block/w@clone.uid-1");
    let own = Dataset {
        origin: Some(spec.origin),
        format: Format::Made(FsType::Ext4, MADE),
        ..dataset()
    };
    let steps = run(&volume, &now(Some(internal(false)), Some(own.clone()))).1;
    assert_eq!(steps[0], "zfs.destroy-snapshot");
    assert_eq!(steps.last(), Some(&"store.status"));
    let steps = run(&volume, &now(Some(internal(true)), Some(own.clone()))).1;
    assert!(!steps.contains(&"zfs.destroy-snapshot"), "{steps:?}");
    let deleted = deleting(volume);
    let steps = run(&deleted, &now(Some(internal(false)), Some(own))).1;
    assert_eq!(
        steps,
        ["zfs.destroy-snapshot", "zfs.destroy", "store.finalize"]
    );
    let steps = run(&deleted, &now(Some(internal(false)), None)).1;
    assert_eq!(steps, ["zfs.destroy-snapshot", "store.finalize"]);
}

#[test]
fn only_a_volume_that_is_well_is_cloned() {
    let refused = |change: fn(&mut Volume, &mut Dataset)| {
        let (mut object, mut source) = live();
        change(&mut object, &mut source);
        let source = Source::Volume {
            object: Some(Box::new(object)),
            dataset: Some(source),
            internal: None,
        };
        failure(&of_volume(), &with(source, None)).reason
    };
    assert_eq!(
        refused(|v, _| v.metadata.deletion_timestamp = Some(NOW.into())),
        reason::SOURCE_MISSING
    );
    assert_eq!(refused(|v, _| v.status.was_ready = false), reason::BUSY);
    assert_eq!(refused(|_, d| d.guid += 1), reason::SOURCE_MISSING);
    assert_eq!(
        refused(|v, _| v.spec.pool = "x".into()),
        reason::BAD_PROPERTY
    );
    assert_eq!(
        refused(|v, _| v.spec.vol_block_size = "8k".into()),
        reason::BAD_PROPERTY
    );
    assert_eq!(
        refused(|_, d| d.format = Format::Unknown("none".into())),
        reason::BAD_PROPERTY
    );
    let nobody = Source::Volume {
        object: None,
        dataset: None,
        internal: None,
    };
    assert_eq!(
        failure(&of_volume(), &with(nobody, None)).reason,
        reason::SOURCE_MISSING
    );
}
