//! Read-only at the target, and the consumer on the owner itself.

use super::*;

/// Ready, read by these nodes, with this word on writes.
fn readers(mapped: &[&str], published: &[&str], word: WriteProtect) -> Volume {
    let mut volume = is_ready(mapped, published);
    for initiator in &mut volume.status.mapped_initiators {
        initiator.read_only = true;
    }
    volume.status.write_protect = word;
    volume
}

const SWITCH: [&str; 3] = ["nvmet.loop-open", "nvme.write-protect", "nvmet.loop-close"];

fn with_switch(before: &[&'static str], after: &[&'static str]) -> Vec<&'static str> {
    [before, &SWITCH, after].concat()
}

#[test]
fn rule_05_a_reader_is_let_in_after_the_switch_that_is_announced() {
    let volume = readers(&["node0"], &[], WriteProtect::Off);
    let now = seen(Some(exported(&[])), None);
    let expected = with_switch(&["store.status"], &["nvmet.allow-host", "store.status"]);
    assert_eq!(run(&volume, &now), ("agent.publish", expected));
    assert_eq!(written(&volume, &now).write_protect, WriteProtect::On);
    let Ok(Plan::Run(_, steps)) = plan(&volume, &now, &site()) else {
        panic!("steps")
    };
    let Some(Step::Status(announced)) = steps.first() else {
        panic!("{steps:?}")
    };
    assert_eq!(announced.write_protect, WriteProtect::Changing);
    assert!(announced.published_initiators.is_empty());
}

#[test]
fn rule_05_a_second_reader_needs_no_switch_and_a_writer_does() {
    let second = readers(&["node0", "node1"], &["node0"], WriteProtect::On);
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(run(&second, &now).1, ["nvmet.allow-host", "store.status"]);
    let mut writer = is_ready(&["node1"], &[]);
    writer.status.write_protect = WriteProtect::On;
    let now = seen(Some(exported(&[])), None);
    let expected = with_switch(&["store.status"], &["nvmet.allow-host", "store.status"]);
    assert_eq!(run(&writer, &now).1, expected);
    assert_eq!(written(&writer, &now).write_protect, WriteProtect::Off);
}

#[test]
fn rule_05_a_switch_that_was_cut_short_is_done_again() {
    let volume = readers(&["node0"], &["node0"], WriteProtect::Changing);
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(run(&volume, &now).1, with_switch(&[], &["store.status"]));
    let nobody = readers(&[], &[], WriteProtect::Changing);
    let now = seen(Some(exported(&[])), None);
    assert_eq!(
        plan(&nobody, &now, &site()),
        Ok(Plan::Nothing),
        "either will do"
    );
}

#[test]
fn what_a_switch_left_open_is_closed_and_is_no_consumer() {
    let volume = is_ready(&["node0"], &["node0"]);
    for leave in [
        (|e: &mut ObservedSubsystem| e.ports.push(9)) as fn(&mut ObservedSubsystem),
        |e| e.allowed_hosts.push(names::agent_nqn("storage0")),
    ] {
        let mut export = exported(&["node0"]);
        leave(&mut export);
        assert_eq!(
            run(&volume, &seen(Some(export), None)),
            ("agent.converge", vec!["nvmet.loop-close"])
        );
    }
}

#[test]
fn rule_05_a_namespace_made_anew_is_protected_before_anybody_is_let_in() {
    let volume = readers(&["node0"], &["node0"], WriteProtect::On);
    let found = || Some(storage(Some(dataset())));
    let expected = with_switch(
        &[
            "store.status",
            "nvmet.subsystem",
            "zvol.appear",
            "nvmet.namespace",
        ],
        &[
            "nvmet.allow-host",
            "nvmet.link",
            "nvmet.link",
            "store.status",
        ],
    );
    assert_eq!(
        run(&volume, &seen(None, found())),
        ("agent.converge", expected)
    );
    // At start-up it is done before the first link, and told.
    let prepared = prepare(&volume, &seen(None, found()), &site())
        .unwrap()
        .unwrap();
    let built: Vec<_> = prepared.build.iter().map(|s| s.name()).collect();
    let expected = with_switch(
        &[
            "store.status",
            "nvmet.subsystem",
            "zvol.appear",
            "nvmet.namespace",
        ],
        &["store.status", "nvmet.allow-host"],
    );
    assert_eq!((built, prepared.links.len()), (expected, 2));
    // A live one: its ports are unlinked meanwhile.
    let mut export = exported(&["node0"]);
    export.namespaces.clear();
    let expected = with_switch(
        &[
            "store.status",
            "nvmet.unlink",
            "nvmet.unlink",
            "zvol.appear",
            "nvmet.namespace",
        ],
        &["nvmet.link", "nvmet.link", "store.status"],
    );
    assert_eq!(run(&volume, &seen(Some(export), found())).1, expected);
}

#[test]
fn a_protected_namespace_is_not_drained() {
    let volume = readers(&[], &["node0"], WriteProtect::On);
    let plan = plan(&volume, &seen(Some(exported(&["node0"])), None), &site());
    let Ok(Plan::Run("agent.fence", steps)) = plan else {
        panic!("{plan:?}")
    };
    assert!(
        matches!(&steps[1], Step::Act(Act::Cut { drain: None, .. })),
        "{steps:?}"
    );
}

#[test]
fn the_owners_own_consumer_needs_neither_a_switch_nor_a_way_in() {
    let volume = readers(&["storage0"], &[], WriteProtect::Off);
    let now = seen(Some(exported(&[])), None);
    assert_eq!(run(&volume, &now), ("agent.publish", vec!["store.status"]));
    assert_eq!(
        written(&volume, &now).published_initiators,
        [names::host_nqn("storage0")]
    );
    let settled = readers(&["storage0"], &["storage0"], WriteProtect::Off);
    assert_eq!(plan(&settled, &now, &site()), Ok(Plan::Nothing));
}

#[test]
fn rule_04_the_owners_own_consumer_leaves_last_and_when_it_lets_go() {
    let both = is_ready(&[], &["storage0", "node0"]);
    let now = seen(Some(exported(&["storage0", "node0"])), None);
    let (_, steps) = run(&both, &now);
    assert_eq!(
        steps,
        ["nvmet.disallow-host", "nvmet.cut", "store.status"],
        "somebody is still there: nothing is mended"
    );
    assert_eq!(
        written(&both, &now).published_initiators,
        [names::host_nqn("storage0")]
    );
    let own = is_ready(&[], &["storage0"]);
    let now = seen(Some(exported(&[])), None);
    assert_eq!(
        run(&own, &now),
        (
            "agent.fence",
            vec!["zvol.released", "store.status", "zvol.mend"]
        )
    );
    let now = seen(Some(exported(&["storage0"])), None);
    assert_eq!(
        run(&own, &now).1,
        [
            "zvol.released",
            "nvmet.unlink",
            "nvmet.unlink",
            "nvmet.cut",
            "nvmet.disallow-host",
            "nvmet.link",
            "nvmet.link",
            "store.status",
            "zvol.mend"
        ]
    );
}
