//! The rules, one by one.

mod changes;
mod delete;
mod export;
mod protect;
mod source;

use uuid::Uuid;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::{Pool, Properties};

use super::super::observe::{Class, Dataset, Format, Reserved, Storage};
use super::*;
use crate::model::volume::{
    Claim, DeletionPolicy, FsType, Provisioning, State, Tuning, VolumeMode, VolumeType,
    WriteProtect,
};
use crate::ops::Step as _;
use crate::store::conformance::{initiator, volume};

const POOL: u64 = 77;
const GUID: u64 = 4711;
const NOW: &str = "2026-11-01T12:00:00Z";

fn site() -> Site {
    Site {
        node: "storage0".into(),
        portal: "192.0.2.1:4420".into(),
        loop_port: 9,
    }
}

fn identity() -> names::Identity {
    names::Identity::new(POOL, GUID)
}

/// A Volume that the agent has not touched.
fn wanted() -> Volume {
    let mut volume = volume("v");
    volume.metadata.uid = "uid-1".into();
    volume.metadata.generation = 1;
    volume
}

fn dataset() -> Dataset {
    Dataset {
        guid: GUID,
        volsize: Some(1 << 30),
        volblocksize: Some(16 << 10),
        reserved: Reserved::Nothing,
        own: Properties::new(),
        origin: None,
        handle: Some("v".into()),
        uid: Some("uid-1".into()),
        format: Format::Made(FsType::Ext4, identity().filesystem_uuid),
    }
}

fn storage(dataset: Option<Dataset>) -> Storage {
    Storage {
        pool: Some(Pool {
            name: "tank".into(),
            guid: POOL,
            health: "ONLINE".into(),
            ..Pool::default()
        }),
        backing: dataset.is_some().then(|| "tank/csi/block/v".into()),
        dataset,
    }
}

fn exported(hosts: &[&str]) -> ObservedSubsystem {
    ObservedSubsystem {
        nqn: names::subsystem_nqn("v"),
        serial: identity().serial(),
        allowed_hosts: hosts.iter().map(|h| names::host_nqn(h)).collect(),
        namespaces: vec![ObservedNamespace {
            nsid: 1,
            device: "/dev/zd16".into(),
            uuid: identity().namespace_uuid,
            nguid: identity().nguid,
            enabled: true,
        }],
        ports: vec![1, 2],
    }
}

fn seen(export: Option<ObservedSubsystem>, storage: Option<Storage>) -> Seen {
    Seen {
        placed: Vec::new(),
        ports: vec![1, 2],
        export,
        storage,
        source: None,
        family: Some(Default::default()),
        now: NOW.into(),
    }
}

/// A Volume that is Ready, with these nodes mapped and published.
fn is_ready(mapped: &[&str], published: &[&str]) -> Volume {
    let mut volume = wanted();
    let found = storage(Some(dataset()));
    volume.status = status::ready(
        &volume,
        Exported {
            placements: Vec::new(),
            pool: found.pool.as_ref().unwrap(),
            dataset: &dataset(),
            filesystem: Some(identity().filesystem_uuid),
            published: published.iter().map(|n| names::host_nqn(n)).collect(),
            write_protect: WriteProtect::Off,
            changes: Changes::Applied,
        },
        &site(),
        NOW,
    );
    volume.status.mapped_initiators = mapped.iter().map(|n| initiator(n)).collect();
    volume
}

fn deleting(mut volume: Volume) -> Volume {
    volume.metadata.deletion_timestamp = Some(NOW.into());
    volume
}

fn steps(plan: &Plan) -> Vec<&'static str> {
    match plan {
        Plan::Run(_, steps) => steps.iter().map(|s| s.name()).collect(),
        _ => Vec::new(),
    }
}

fn run(volume: &Volume, seen: &Seen) -> (&'static str, Vec<&'static str>) {
    let plan = plan(volume, seen, &site()).unwrap();
    match &plan {
        Plan::Run(operation, _) => (operation, steps(&plan)),
        other => panic!("{other:?}"),
    }
}

fn failure(volume: &Volume, seen: &Seen) -> Failure {
    plan(volume, seen, &site()).unwrap_err()
}

fn written(volume: &Volume, seen: &Seen) -> VolumeStatus {
    match plan(volume, seen, &site()).unwrap() {
        Plan::Run(_, steps) => {
            let mut written = steps.into_iter().filter_map(|step| match step {
                Step::Status(status) => Some(*status),
                _ => None,
            });
            written.next_back().expect("the plan writes a status")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_volume_is_looked_for_then_created_then_made_ready() {
    let volume = wanted();
    assert_eq!(
        plan(&volume, &seen(None, None), &site()),
        Ok(Plan::LookAtStorage)
    );
    assert_eq!(
        run(&volume, &seen(None, Some(storage(None)))),
        ("agent.create", vec!["zfs.create"])
    );
    let created = Dataset {
        format: Format::Pending,
        ..dataset()
    };
    let now = seen(None, Some(storage(Some(created))));
    assert_eq!(
        run(&volume, &now),
        (
            "agent.create",
            vec![
                "zvol.appear",
                "zvol.format",
                "zfs.record-format",
                "nvmet.subsystem",
                "zvol.appear",
                "nvmet.namespace",
                "nvmet.link",
                "nvmet.link",
                "store.status",
            ]
        )
    );
    let status = written(&volume, &now);
    assert_eq!(status.state, State::Ready);
    assert!(status.was_ready);
    assert_eq!(status.portal.as_deref(), Some("192.0.2.1:4420"));
    assert_eq!(
        status.target_nqn.as_deref(),
        Some(names::subsystem_nqn("v").as_str())
    );
    assert_eq!(
        status.zvol_path.as_deref(),
        Some("/dev/zvol/tank/csi/block/v")
    );
    assert_eq!(status.dataset_path.as_deref(), Some("tank/csi/block/v"));
    assert_eq!(status.device_guid, Some(identity().nguid_hex()));
    assert_eq!(status.device_uuid, Some(identity().namespace_uuid));
    assert_eq!(status.filesystem_uuid, Some(identity().filesystem_uuid));
    assert_eq!(status.pool_guid.as_deref(), Some("77"));
    assert_eq!(status.observed_generation, 1);
    assert_eq!(status.conditions[0].reason, reason::RECONCILED);
    let mut ready = volume;
    ready.status = status;
    assert_eq!(
        plan(&ready, &seen(Some(exported(&[])), None), &site()),
        Ok(Plan::Nothing)
    );
}

#[test]
fn the_one_create_says_whose_it_is() {
    let mut volume = wanted();
    volume.spec.tuning.compression = "zstd-3-fast".into();
    volume.spec.claim = Some(Claim {
        namespace: "shop".into(),
        name: "db".into(),
    });
    let Act::Create { spec, provisioning } = create::step(&volume).unwrap() else {
        panic!("a create")
    };
    assert_eq!(provisioning, Provisioning::Thin);
    assert_eq!(spec.dataset, "tank/csi/block/v");
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    let tuned = pair("compression", "zstd-fast-3");
    assert!(spec.properties.contains(&tuned), "{:?}", spec.properties);
    assert!(
        !spec.properties.iter().any(|(k, _)| k == "refreservation"),
        "thin"
    );
    for (key, value) in [
        ("handle", "v"),
        ("uid", "uid-1"),
        ("name", "v"),
        ("claim", "shop/db"),
        ("fstype", "ext4"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("format", "pending"),
    ] {
        let key = format!("zfs.csi.randomvariable.co.uk:{key}");
        assert!(spec.user_properties.contains(&pair(&key, value)), "{key}");
    }
}

#[test]
fn rule_01_only_a_pending_zvol_of_its_own_is_formatted() {
    let volume = wanted();
    let look = |format: Format, change: fn(&mut Dataset)| {
        let mut found = Dataset {
            format,
            ..dataset()
        };
        change(&mut found);
        seen(None, Some(storage(Some(found))))
    };
    assert!(
        run(&volume, &look(Format::Pending, |_| {}))
            .1
            .contains(&"zvol.format")
    );
    let made = Format::Made(FsType::Ext4, Uuid::from_u128(9));
    assert!(
        !run(&volume, &look(made.clone(), |_| {}))
            .1
            .contains(&"zvol.format"),
        "it is recorded"
    );
    for (what, now) in [
        ("no record", look(Format::Absent, |_| {})),
        (
            "a record of a newer version",
            look(Format::Unknown("zfs:1".into()), |_| {}),
        ),
        (
            "another filesystem",
            look(Format::Made(FsType::Xfs, Uuid::nil()), |_| {}),
        ),
        (
            "a clone",
            look(Format::Pending, |d| d.origin = Some("tank/x@s".into())),
        ),
        (
            "another handle",
            look(Format::Pending, |d| d.handle = Some("w".into())),
        ),
        ("no handle", look(Format::Pending, |d| d.handle = None)),
        (
            "another volume of this name",
            look(Format::Pending, |d| d.uid = Some("uid-0".into())),
        ),
        ("no zvol", look(Format::Pending, |d| d.volsize = None)),
    ] {
        let failure = failure(&volume, &now);
        assert_eq!(
            (failure.reason, failure.class),
            (reason::DATASET_FOREIGN, Class::Final),
            "{what}"
        );
    }
    let mut now = look(Format::Pending, |_| {});
    now.export = Some(exported(&[]));
    assert_eq!(
        failure(&volume, &now).reason,
        reason::DATASET_FOREIGN,
        "exported"
    );
    let mut again = is_ready(&[], &[]);
    again.status.state = State::Error;
    assert_eq!(
        failure(&again, &look(Format::Pending, |_| {})).reason,
        reason::DATASET_FOREIGN,
        "Ready once"
    );
}

#[test]
fn rule_01_nothing_is_ever_made_on_a_raw_volume() {
    let mut volume = wanted();
    volume.spec.volume_mode = VolumeMode::Block;
    let Act::Create { spec, .. } = create::step(&volume).unwrap() else {
        panic!("a create")
    };
    let record = |key: &str| {
        let key = format!("zfs.csi.randomvariable.co.uk:{key}");
        spec.user_properties
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, v)| v.as_str())
    };
    assert_eq!(
        (record("format"), record("fstype")),
        (Some("none"), Some("none"))
    );
    let with = |format: Format| {
        seen(
            None,
            Some(storage(Some(Dataset {
                format,
                ..dataset()
            }))),
        )
    };
    let now = with(Format::Raw);
    assert_eq!(
        run(&volume, &now).1,
        [
            "nvmet.subsystem",
            "zvol.appear",
            "nvmet.namespace",
            "nvmet.link",
            "nvmet.link",
            "store.status"
        ]
    );
    assert_eq!(written(&volume, &now).filesystem_uuid, None);
    // Whatever else the record says, it is neither formatted nor handed out.
    for format in [
        Format::Pending,
        Format::Absent,
        Format::Made(FsType::Ext4, Uuid::from_u128(9)),
        Format::Unknown("zfs:1".into()),
    ] {
        let refused = failure(&volume, &with(format.clone()));
        assert_eq!(refused.reason, reason::DATASET_FOREIGN, "{format:?}");
    }
    volume.spec.volume_mode = VolumeMode::Filesystem;
    let refused = failure(&volume, &now);
    assert_eq!(
        refused.reason,
        reason::DATASET_FOREIGN,
        "a raw zvol is not formatted later"
    );
}

#[test]
fn rule_01_nothing_is_exported_before_the_record() {
    let created = Dataset {
        format: Format::Pending,
        ..dataset()
    };
    let (_, steps) = run(&wanted(), &seen(None, Some(storage(Some(created)))));
    let at = |name| steps.iter().position(|s| *s == name).unwrap();
    assert!(at("zvol.format") < at("zfs.record-format"));
    assert!(at("zfs.record-format") < at("nvmet.namespace"));
    assert!(at("nvmet.namespace") < at("nvmet.link"));
}

#[test]
fn rule_02_a_volume_that_was_ready_is_never_created_again() {
    let volume = is_ready(&[], &[]);
    let missing = failure(&volume, &seen(None, Some(storage(None))));
    assert_eq!(
        (missing.reason, missing.class),
        (reason::DATASET_MISSING, Class::Final)
    );
    let mut away = storage(None);
    away.pool = None;
    assert_eq!(
        failure(&volume, &seen(None, Some(away))).reason,
        reason::POOL_NOT_FOUND
    );
    let mut other = storage(None);
    other.pool.as_mut().unwrap().guid = 78;
    assert_eq!(
        failure(&volume, &seen(None, Some(other))).reason,
        reason::POOL_REPLACED
    );
    let mut suspended = storage(None);
    suspended.pool.as_mut().unwrap().health = "SUSPENDED".into();
    let failure = failure(&volume, &seen(None, Some(suspended)));
    assert_eq!(
        (failure.reason, failure.class),
        (reason::KERNEL, Class::Retry),
        "missing is not believed"
    );
}

#[test]
fn rule_02_another_dataset_in_its_place_is_not_exported() {
    let replaced = Dataset {
        guid: GUID + 1,
        ..dataset()
    };
    let failure = failure(
        &is_ready(&[], &[]),
        &seen(None, Some(storage(Some(replaced)))),
    );
    assert_eq!(
        (failure.reason, failure.class),
        (reason::DATASET_FOREIGN, Class::Final)
    );
}

#[test]
fn rule_07_the_size_is_a_multiple_of_the_block_and_read_back() {
    let size = |capacity: u64, block: &str| {
        let mut volume = wanted();
        volume.spec.capacity = capacity;
        volume.spec.vol_block_size = block.into();
        create::step(&volume).map(|act| match act {
            Act::Create { spec, .. } => (spec.volsize, spec.volblocksize),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(size(1 << 30, "16k"), Ok((1 << 30, 16384)));
    assert_eq!(size((1 << 30) + 1, "16k"), Ok(((1 << 30) + 16384, 16384)));
    assert_eq!(size(1, ""), Ok((16384, 16384)));
    assert_eq!(size(1000, "512"), Ok((1024, 512)));
    assert_eq!(size(1, "128K"), Ok((131_072, 131_072)));
    for (capacity, block) in [
        (0, "16k"),
        (u64::MAX, "16k"),
        (1 << 63, "16k"),
        (1, "3k"),
        (1, "256"),
        (1, "1m"),
    ] {
        assert_eq!(
            size(capacity, block).unwrap_err().reason,
            reason::BAD_PROPERTY,
            "{capacity} {block}"
        );
    }
    for block in [
        "k",
        "-1",
        "16 k",
        "1e3",
        "16kk",
        "99999999999999999999g",
        "16384g",
        "é",
    ] {
        assert_eq!(
            size(1, block).unwrap_err().reason,
            reason::BAD_PROPERTY,
            "{block}"
        );
    }
    let larger = Dataset {
        volsize: Some(1 << 31),
        ..dataset()
    };
    let now = seen(None, Some(storage(Some(larger))));
    assert_eq!(
        written(&wanted(), &now).actual_capacity,
        Some(1 << 31),
        "what ZFS has, not what was asked"
    );
}

#[test]
fn what_this_version_would_get_wrong_is_refused() {
    let asks: [fn(&mut Volume); 6] = [
        |v| v.spec.volume_type = VolumeType::Filesystem,
        |v| {
            v.spec.source_volume_id = Some("w".into());
            v.spec.source_snapshot_id = Some("w@s".into());
        },
        |v| v.spec.encryption_key_ref = Some("kv/x".into()),
        |v| v.spec.pool = "tank/other".into(),
        |v| v.spec.pool = "-tank".into(),
        |v| v.spec.pool = String::new(),
    ];
    for ask in asks {
        let mut volume = wanted();
        ask(&mut volume);
        let failure = failure(&volume, &seen(None, Some(storage(None))));
        assert_eq!(
            (failure.reason, failure.class),
            (reason::BAD_PROPERTY, Class::Final)
        );
        assert_eq!(
            run(&deleting(volume), &seen(None, None)).1,
            ["store.finalize"]
        );
    }
}

#[test]
fn a_volume_that_is_well_again_says_so() {
    let mut volume = is_ready(&[], &[]);
    volume.status = status::failed(
        &volume,
        &Failure::lasting(reason::POOL_NOT_FOUND, "away"),
        NOW,
    );
    let export = Some(exported(&[]));
    assert_eq!(
        plan(&volume, &seen(export.clone(), None), &site()),
        Ok(Plan::LookAtStorage)
    );
    let now = seen(export, Some(storage(Some(dataset()))));
    assert_eq!(run(&volume, &now), ("agent.converge", vec!["store.status"]));
    assert_eq!(written(&volume, &now).state, State::Ready);
    assert_eq!(written(&volume, &now).conditions[0].status, "True");
}
