//! Who is admitted, who is fenced, and what is exported.

use super::*;

#[test]
fn rule_04_a_host_leaves_by_disallow_cut_and_then_the_status() {
    let volume = is_ready(&[], &["node0"]);
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(
        run(&volume, &now),
        (
            "agent.fence",
            vec![
                "nvmet.disallow-host",
                "nvmet.cut",
                "store.status",
                "zvol.mend"
            ]
        )
    );
    assert!(written(&volume, &now).published_initiators.is_empty());
}

#[test]
fn rule_04_a_new_host_waits_for_the_old_ones_fence() {
    let volume = is_ready(&["node1"], &["node0"]);
    let (operation, steps) = run(&volume, &seen(Some(exported(&["node0"])), None));
    assert_eq!(operation, "agent.fence");
    assert!(!steps.contains(&"nvmet.allow-host"));
    let fenced = is_ready(&["node1"], &[]);
    assert_eq!(
        run(&fenced, &seen(Some(exported(&[])), None)),
        ("agent.publish", vec!["nvmet.allow-host", "store.status"])
    );
}

#[test]
fn rule_04_a_crash_after_the_disallow_still_cuts() {
    let volume = is_ready(&[], &["node0"]);
    assert_eq!(
        run(&volume, &seen(Some(exported(&[])), None)),
        (
            "agent.fence",
            vec![
                "nvmet.disallow-host",
                "nvmet.cut",
                "store.status",
                "zvol.mend"
            ]
        )
    );
}

#[test]
fn rule_04_a_host_that_was_admitted_without_a_word_is_fenced_too() {
    let volume = is_ready(&["node1"], &[]);
    let now = seen(Some(exported(&["node0"])), None);
    assert_eq!(run(&volume, &now), ("agent.fence", vec!["store.status"]));
    assert_eq!(
        written(&volume, &now).published_initiators,
        [names::host_nqn("node0")]
    );
}

#[test]
fn rule_04_those_who_share_it_lose_nothing() {
    let cut = |volume: &Volume, now: &Seen| match plan(volume, now, &site()).unwrap() {
        Plan::Run(_, steps) => steps
            .into_iter()
            .find_map(|s| match s {
                Step::Act(Act::Cut { ports, drain, .. }) => Some((ports, drain)),
                _ => None,
            })
            .expect("a cut"),
        other => panic!("{other:?}"),
    };
    let shared = is_ready(&["node1"], &["node0", "node1"]);
    let now = seen(Some(exported(&["node0", "node1"])), None);
    assert_eq!(
        cut(&shared, &now),
        (vec![1, 2], None),
        "they keep their namespace"
    );
    assert_eq!(
        written(&shared, &now).published_initiators,
        [names::host_nqn("node1")]
    );
    let alone = is_ready(&[], &["node0"]);
    let (_, drain) = cut(&alone, &seen(Some(exported(&["node0"])), None));
    assert_eq!(
        drain.expect("nobody else has it").uuid,
        identity().namespace_uuid
    );
}

#[test]
fn rule_04_a_fence_needs_no_pool() {
    let mut volume = is_ready(&[], &["node0"]);
    volume.status.state = State::Error;
    let mut away = storage(None);
    away.pool = None;
    let now = seen(Some(exported(&["node0"])), Some(away));
    assert_eq!(run(&volume, &now).0, "agent.fence");
}

#[test]
fn a_publish_does_not_look_at_the_storage() {
    let volume = is_ready(&["node0"], &[]);
    let now = seen(Some(exported(&[])), None);
    assert_eq!(
        run(&volume, &now),
        ("agent.publish", vec!["nvmet.allow-host", "store.status"])
    );
    assert_eq!(
        written(&volume, &now).published_initiators,
        [names::host_nqn("node0")]
    );
    let told = seen(Some(exported(&["node0"])), None);
    assert_eq!(
        run(&volume, &told).1,
        ["store.status"],
        "a crash before the word"
    );
    assert_eq!(
        plan(&is_ready(&["node0"], &["node0"]), &told, &site()),
        Ok(Plan::Nothing)
    );
}

#[test]
fn after_a_reboot_hosts_are_let_in_before_the_link() {
    let volume = is_ready(&["node0", "node1"], &["node0"]);
    let now = seen(None, Some(storage(Some(dataset()))));
    assert_eq!(
        run(&volume, &now),
        (
            "agent.converge",
            vec![
                "nvmet.subsystem",
                "zvol.appear",
                "nvmet.namespace",
                "nvmet.allow-host",
                "nvmet.link",
                "nvmet.link",
                "nvmet.allow-host",
                "store.status",
            ]
        )
    );
    let prepared = prepare(&volume, &now, &site()).unwrap().unwrap();
    let built: Vec<_> = prepared.build.iter().map(|s| s.name()).collect();
    assert_eq!(
        built,
        [
            "nvmet.subsystem",
            "zvol.appear",
            "nvmet.namespace",
            "nvmet.allow-host"
        ]
    );
    assert_eq!(prepared.links.len(), 2);
    assert_eq!(
        prepare(&volume, &seen(None, None), &site()),
        Ok(None),
        "it looks first"
    );
    let running = seen(Some(exported(&["node0"])), None);
    assert_eq!(
        prepare(&volume, &running, &site()),
        Ok(Some(Prepared::default())),
        "nothing to build"
    );
    assert_eq!(
        prepare(&wanted(), &now, &site()),
        Ok(Some(Prepared::default())),
        "never Ready: not yet"
    );
}

#[test]
fn an_export_that_differs_is_mended() {
    let volume = is_ready(&["node0"], &["node0"]);
    let found = || Some(storage(Some(dataset())));
    let mend = |change: fn(&mut ObservedSubsystem)| {
        let mut export = exported(&["node0"]);
        change(&mut export);
        let blind = plan(&volume, &seen(Some(export.clone()), None), &site());
        assert_eq!(blind, Ok(Plan::LookAtStorage));
        run(&volume, &seen(Some(export), found())).1
    };
    assert_eq!(mend(|e| e.ports = vec![2]), ["nvmet.link"]);
    assert_eq!(
        mend(|e| e.namespaces[0].enabled = false),
        ["zvol.appear", "nvmet.namespace"]
    );
    assert_eq!(
        mend(|e| e.namespaces[0].uuid = Uuid::nil()),
        ["zvol.appear", "nvmet.namespace"]
    );
    assert_eq!(
        mend(|e| e.namespaces.clear()),
        ["zvol.appear", "nvmet.namespace"]
    );
    let mut wrong = storage(Some(dataset()));
    wrong.backing = Some("tank/csi/block/other".into());
    let mut export = exported(&["node0"]);
    export.ports.clear();
    let steps = run(&volume, &seen(Some(export), Some(wrong))).1;
    assert_eq!(
        steps,
        ["zvol.appear", "nvmet.namespace", "nvmet.link", "nvmet.link"],
        "rule 3: the right device"
    );
}

#[test]
fn a_port_whose_address_is_away_holds_up_nothing() {
    let volume = is_ready(&["node0"], &["node0"]);
    let mut now = seen(None, Some(storage(Some(dataset()))));
    now.ports = vec![2];
    let (_, steps) = run(&volume, &now);
    assert_eq!(steps.iter().filter(|s| **s == "nvmet.link").count(), 1);
    let mut export = exported(&["node0"]);
    export.ports = vec![2];
    let mut now = seen(Some(export), None);
    now.ports = vec![2];
    assert_eq!(
        plan(&volume, &now, &site()),
        Ok(Plan::Nothing),
        "served by the other"
    );
    now.ports = vec![1, 2];
    now.storage = Some(storage(Some(dataset())));
    assert_eq!(run(&volume, &now), ("agent.converge", vec!["nvmet.link"]));
    // One that is linked stays so when its address goes: nothing re-makes it.
    let mut now = seen(Some(exported(&["node0"])), None);
    now.ports = vec![1];
    assert_eq!(plan(&volume, &now, &site()), Ok(Plan::Nothing));
}
