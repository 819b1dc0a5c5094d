//! Changes of a volume that is there.

use super::*;

/// Ready at generation 1, and changed since.
fn changed(mapped: &[&str], change: impl FnOnce(&mut Volume)) -> Volume {
    let mut volume = is_ready(mapped, mapped);
    volume.metadata.generation = 2;
    change(&mut volume);
    volume
}

fn look(dataset: Dataset) -> Seen {
    seen(Some(exported(&[])), Some(storage(Some(dataset))))
}

/// The properties that are set, in order.
fn sets(volume: &Volume, dataset: Dataset) -> Vec<(&'static str, String)> {
    match plan(volume, &look(dataset), &site()).unwrap() {
        Plan::Run("agent.modify", steps) => steps
            .into_iter()
            .map(|step| match step {
                Step::Act(Act::Set {
                    property,
                    value,
                    guid: GUID,
                    ..
                }) => (property, value),
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn owning(pairs: &[(&str, &str)]) -> Dataset {
    let own = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Dataset {
        own: own.collect(),
        ..dataset()
    }
}

#[test]
fn a_change_never_holds_up_a_publish() {
    let mut volume = changed(&["node0"], |v| v.spec.capacity *= 2);
    volume.status.published_initiators.clear();
    let now = seen(Some(exported(&[])), None);
    assert_eq!(
        run(&volume, &now),
        ("agent.publish", vec!["nvmet.allow-host", "store.status"])
    );
    volume.status.published_initiators = vec![names::host_nqn("node0")];
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(plan(&volume, &now, &site()), Ok(Plan::LookAtStorage));
}

#[test]
fn each_property_that_differs_is_set_and_space_comes_last() {
    let volume = changed(&[], |v| {
        v.spec.capacity = 2 << 30;
        v.spec.tuning = Tuning {
            compression: "zstd-3-fast".into(),
            sync: "always".into(),
            logbias: String::new(),
            primarycache: "metadata".into(),
            provisioning: Provisioning::Thick,
        };
    });
    let found = owning(&[
        ("sync", "disabled"),
        ("logbias", "throughput"),
        ("primarycache", "metadata"),
    ]);
    let pair = |k, v: &str| (k, v.to_owned());
    assert_eq!(
        sets(&volume, found),
        [
            pair("compression", "zstd-fast-3"),
            pair("sync", "always"),
            pair("logbias", ""),
            pair("refreservation", "auto"),
            pair("volsize", "2147483648"),
        ]
    );
    let thin = changed(&[], |_| {});
    let reserved = |reserved| Dataset {
        reserved,
        ..dataset()
    };
    for part in [Reserved::Part, Reserved::All] {
        assert_eq!(
            sets(&thin, reserved(part)),
            [pair("refreservation", "none")]
        );
    }
    let thick = changed(&[], |v| v.spec.tuning.provisioning = Provisioning::Thick);
    assert_eq!(
        sets(&thick, reserved(Reserved::Part)),
        [pair("refreservation", "auto")]
    );
}

#[test]
fn rule_09_a_size_is_told_after_zfs_and_the_target_have_it() {
    let volume = changed(&[], |v| v.spec.capacity = 2 << 30);
    assert_eq!(
        sets(&volume, dataset()),
        [("volsize", "2147483648".to_owned())]
    );
    let larger = Dataset {
        volsize: Some(2 << 30),
        ..dataset()
    };
    let now = look(larger);
    assert_eq!(
        run(&volume, &now),
        ("agent.modify", vec!["nvmet.revalidate", "store.status"])
    );
    let status = written(&volume, &now);
    assert_eq!(
        (status.actual_capacity, status.observed_generation),
        (Some(2 << 30), 2)
    );
    let mut reached = volume;
    reached.status = status;
    assert_eq!(
        reached.condition("Applied").map(|c| c.observed_generation),
        Some(2)
    );
    assert_eq!(
        plan(&reached, &seen(Some(exported(&[])), None), &site()),
        Ok(Plan::Nothing)
    );
}

#[test]
fn rule_09_a_size_never_shrinks() {
    let volume = changed(&[], |v| v.spec.capacity = 1 << 20);
    let now = look(dataset());
    assert_eq!(run(&volume, &now), ("agent.modify", vec!["store.status"]));
    assert_eq!(
        written(&volume, &now).actual_capacity,
        Some(1 << 30),
        "what ZFS has"
    );
}

#[test]
fn rule_07_a_larger_size_is_a_multiple_of_the_block_that_the_zvol_has() {
    let volume = changed(&[], |v| v.spec.capacity = (1 << 30) + 1);
    let block = Dataset {
        volblocksize: Some(64 << 10),
        ..dataset()
    };
    let size = (1_u64 << 30) + (64 << 10);
    assert_eq!(sets(&volume, block), [("volsize", size.to_string())]);
}

#[test]
fn what_zfs_refuses_leaves_the_volume_ready_and_is_told() {
    let mut volume = changed(&["node0"], |v| v.spec.capacity = 2 << 30);
    let failure = Failure::lasting(reason::NO_SPACE, "full");
    volume.status = status::refused(&volume, &failure, NOW);
    assert_eq!(
        (volume.status.state, volume.trouble()),
        (State::Ready, None)
    );
    let applied = volume.condition("Applied").unwrap();
    assert_eq!(
        (
            applied.status.as_str(),
            applied.reason.as_str(),
            applied.observed_generation
        ),
        ("False", reason::NO_SPACE, 2)
    );
    // It goes on serving, and the change is tried again.
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(plan(&volume, &now, &site()), Ok(Plan::LookAtStorage));
    let larger = Dataset {
        volsize: Some(2 << 30),
        ..dataset()
    };
    let now = seen(Some(exported(&["node0"])), Some(storage(Some(larger))));
    let status = written(&volume, &now);
    let applied = status
        .conditions
        .iter()
        .find(|c| c.kind == "Applied")
        .unwrap();
    assert_eq!(applied.status, "True");
}

#[test]
fn what_makes_no_sense_is_refused_without_touching_the_volume() {
    let volume = changed(&[], |v| v.spec.capacity = u64::MAX);
    let plan = plan(&volume, &look(dataset()), &site());
    assert!(
        matches!(
            plan,
            Ok(Plan::Refuse(Failure {
                reason: reason::BAD_PROPERTY,
                ..
            }))
        ),
        "{plan:?}"
    );
}

#[test]
fn a_generation_that_is_not_reached_is_not_told() {
    let volume = changed(&["node0"], |v| v.spec.tuning.sync = "always".into());
    let mut export = exported(&["node0"]);
    export.ports.clear();
    let now = seen(Some(export), Some(storage(Some(dataset()))));
    assert_eq!(
        run(&volume, &now),
        ("agent.converge", vec!["nvmet.link", "nvmet.link"])
    );
    let now = seen(Some(exported(&["node0"])), Some(storage(Some(dataset()))));
    assert_eq!(run(&volume, &now), ("agent.modify", vec!["zfs.set"]));
}

#[test]
fn a_volume_that_was_never_ready_is_what_was_asked_for_before_anybody_is_told() {
    let mut volume = wanted();
    volume.spec.capacity = 2 << 30;
    let made = Dataset {
        format: Format::Pending,
        ..dataset()
    };
    let now = seen(None, Some(storage(Some(made))));
    assert_eq!(run(&volume, &now), ("agent.create", vec!["zfs.set"]));
}

#[test]
fn a_degraded_pool_still_serves() {
    let volume = is_ready(&["node0"], &["node0"]);
    let mut degraded = storage(Some(dataset()));
    degraded.pool.as_mut().unwrap().health = "DEGRADED".into();
    let now = seen(None, Some(degraded));
    assert_eq!(run(&volume, &now).0, "agent.converge");
}

#[test]
fn rule_02_nothing_is_changed_in_another_pool_of_the_name() {
    let volume = changed(&[], |v| v.spec.capacity = 2 << 30);
    let mut other = storage(Some(dataset()));
    other.pool.as_mut().unwrap().guid += 1;
    let now = seen(Some(exported(&[])), Some(other));
    assert_eq!(failure(&volume, &now).reason, reason::POOL_REPLACED);
}

#[test]
fn a_value_that_zfs_tells_by_another_name_is_not_set_for_ever() {
    let volume = changed(&[], |v| v.spec.tuning.compression = "zstd-1-fast".into());
    assert_eq!(
        sets(&volume, dataset()),
        [("compression", "zstd-fast".to_owned())]
    );
    let now = look(owning(&[("compression", "zstd-fast")]));
    assert_eq!(run(&volume, &now), ("agent.modify", vec!["store.status"]));
}
