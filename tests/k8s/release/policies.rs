//! What the admission policies refuse: to agents, and to all but the controller.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;

use super::fixture::{KNOWN, Release, folder, report};
use crate::plane::{Api, Refusal};

/// What an agent says of a volume, or the refusal.
async fn tell(agent: &Api, target: &str, change: Value) -> Result<Value, Refusal> {
    agent.try_send("PATCH", target, Some(&change)).await
}

/// Replaces the status as the store does: by a PUT of the whole object.
async fn put_status(agent: &Api, release: &Release, name: &str) -> Result<Value, Refusal> {
    let target = format!("{}/{name}", release.target("volumes"));
    let mut volume = release.api.get(&target).await;
    volume["status"] = json!({"state": "Ready"});
    agent
        .try_send("PUT", &format!("{target}/status"), Some(&volume))
        .await
}

/// Refused by a policy, which says why.
async fn refused(agent: &Api, target: &str, change: &Value, why: &str) {
    let told = tell(agent, target, change.clone()).await;
    let refusal = told.expect_err(&format!("{change} of {target}"));
    assert!(refusal.message.contains(why), "{change}: {refusal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_what_belongs_to_its_own_host_and_never_a_spec() {
    let release = Release::install("own-host").await;
    for (name, owner) in [("mine", "storage0"), ("theirs", "storage1")] {
        release.volume(name, owner).await;
    }
    let agent = Api::with_token(&release.token_on("storage0").await).await;
    let not_its_own = "belongs to node storage1; the agent of node storage0 may not write it";

    put_status(&agent, &release, "mine")
        .await
        .expect("its own volume");
    let status = put_status(&agent, &release, "theirs").await;
    let status = status.expect_err("another host's volume");
    assert!(status.message.contains(not_its_own), "{status:?}");
    let nodes = release.target("storagenodes");
    agent
        .try_send("POST", &nodes, Some(&report("storage0")))
        .await
        .expect("its own host");
    let other = agent
        .try_send("POST", &nodes, Some(&report("storage1")))
        .await
        .expect_err("another host");
    assert!(other.message.contains(not_its_own), "{other:?}");
    let other = release.api.send("POST", &nodes, &report("storage1")).await;
    let status = format!("{nodes}/storage1/status");
    let status = agent.try_send("PUT", &status, Some(&other)).await;
    let status = status.expect_err("what another host has told");
    assert!(status.message.contains(not_its_own), "{status:?}");

    let [mine, theirs] =
        ["mine", "theirs"].map(|name| format!("{}/{name}", release.target("volumes")));
    for (change, why) in [
        (
            json!({"spec": {"capacity": 2_u64 << 30}}),
            "never what is wanted",
        ),
        (
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "leaves labels",
        ),
        (json!({"metadata": {"labels": {"a": "b"}}}), "leaves labels"),
        (
            json!({"metadata": {"finalizers": ["example.com/keep"]}}),
            "being deleted",
        ),
    ] {
        refused(&agent, &mine, &change, why).await;
        refused(&agent, &theirs, &change, not_its_own).await;
    }
    put_status(&release.api, &release, "theirs")
        .await
        .expect("the policy is about agents alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_its_finalizer_from_what_is_being_deleted_and_from_nothing_else() {
    let release = Release::install("finalizers").await;
    release.volume("held", "storage0").await;
    let held = format!("{}/held", release.target("volumes"));
    let own = format!("{DRIVER_NAME}/volume-protect");
    let finalizers = |list: &[&str]| json!({"metadata": {"finalizers": list}});
    let both = finalizers(&[&own, "example.com/keep"]);
    tell(&release.api, &held, both).await.unwrap();
    let agent = Api::with_token(&release.token_on("storage0").await).await;
    let without_own = finalizers(&["example.com/keep"]);
    refused(&agent, &held, &without_own, "being deleted").await;
    release.api.try_send("DELETE", &held, None).await.unwrap();
    for more_than_its_own in [finalizers(&[]), finalizers(&[&own])] {
        refused(&agent, &held, &more_than_its_own, "and no other").await;
    }
    let left = tell(&agent, &held, without_own).await.unwrap();
    assert_eq!(left["metadata"]["finalizers"], json!(["example.com/keep"]));
    tell(&release.api, &held, finalizers(&[])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_token_that_no_pod_has_writes_nothing() {
    let release = Release::install("no-pod").await;
    release.volume("mine", "storage0").await;
    let agent = Api::with_token(&release.token("agent").await).await;
    let why = "this token names none";
    let status = put_status(&agent, &release, "mine").await;
    let status = status.expect_err("a token of no pod");
    assert!(status.message.contains(why), "{status:?}");
    let mine = format!("{}/mine", release.target("volumes"));
    let let_go = json!({"metadata": {"finalizers": []}});
    refused(&agent, &mine, &let_go, why).await;
    let nodes = release.target("storagenodes");
    let node = report("storage0");
    let node = agent.try_send("POST", &nodes, Some(&node)).await;
    let node = node.expect_err("a token of no pod");
    assert!(node.message.contains(why), "{node:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_controller_deletes_volumes_and_nobody_their_definitions() {
    let release = Release::install_with("guarded", &[]).await;
    let api = &release.api;
    release.volume("other", "storage0").await;
    let volumes = release.target("volumes");
    // A policy is known some moments after it was made: an unguarded delete needs a volume to make again.
    let refused = async {
        loop {
            match api
                .try_send("DELETE", &format!("{volumes}/other"), None)
                .await
            {
                Err(refusal) => break refusal.message,
                Ok(_) => release.volume("other", "storage0").await,
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let message = timeout(KNOWN, refused).await.expect("the policy is known");
    assert!(message.contains("delete the claim"), "{message}");
    api.try_send("DELETE", &volumes, None)
        .await
        .expect_err("all at once");
    for plural in ["volumes", "snapshots"] {
        let target = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{DRIVER_NAME}"
        );
        api.try_send("DELETE", &target, None)
            .await
            .expect_err(plural);
    }
    let guards = [
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicies",
    ];
    let guards =
        guards.map(|plural| format!("/apis/admissionregistration.k8s.io/v1/{plural}/zvolt-data"));
    release.helm("uninstall", &[]);
    api.try_send("DELETE", &format!("{volumes}/other"), None)
        .await
        .expect_err("it guards on");
    release.helm("install", &[&folder()]);
    let controller = Api::with_token(&release.token("controller").await).await;
    let deleted = async {
        // Roles are known some moments after they were made.
        while let Err(refusal) = controller
            .try_send("DELETE", &format!("{volumes}/other"), None)
            .await
        {
            assert!(!refusal.message.contains("destroy"), "{refusal:?}");
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(KNOWN, deleted).await.expect("the controller may");
    release.volume("meant", "storage0").await;
    let meant = format!("{volumes}/meant");
    let annotations =
        json!({"metadata": {"annotations": {format!("{DRIVER_NAME}/destroy-data"): "yes"}}});
    api.try_send("PATCH", &meant, Some(&annotations))
        .await
        .unwrap();
    api.try_send("DELETE", &meant, None)
        .await
        .expect("a person who says so may");

    for guard in &guards {
        api.try_send("DELETE", guard, None).await.unwrap();
    }
    release.volume("last", "storage0").await;
    let unguarded = async {
        while api
            .try_send("DELETE", &format!("{volumes}/last"), None)
            .await
            .is_err()
        {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(KNOWN, unguarded)
        .await
        .expect("other tests delete volumes");
}
