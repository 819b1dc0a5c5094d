//! What the admission policies refuse: to agents, and to all but the controller.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;

use super::{KNOWN, Release, folder};
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

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_what_belongs_to_its_own_host_and_never_a_spec() {
    let release = Release::install("own-host").await;
    for (name, owner) in [("mine", "storage0"), ("theirs", "storage1")] {
        release.volume(name, owner).await;
    }
    let agent = Api::with_token(&release.token_on("storage0").await).await;
    let node = |name: &str| {
        json!({
            "apiVersion": format!("{DRIVER_NAME}/v1alpha1"), "kind": "StorageNode",
            "metadata": {"name": name}, "spec": {"nodeName": name},
        })
    };
    let nodes = release.target("storagenodes");
    // A policy is known some moments after it was made; until then, or while roles are not, another answer comes.
    let refused = async {
        loop {
            match put_status(&agent, &release, "theirs").await {
                Err(refusal) if refusal.message.contains("belongs to node storage1") => {
                    break refusal.message;
                }
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let message = timeout(KNOWN, refused).await.expect("the policy is known");
    assert!(
        message.contains("the agent of node storage0 may not write it"),
        "{message}"
    );

    put_status(&agent, &release, "mine")
        .await
        .expect("its own volume");
    agent
        .try_send("POST", &nodes, Some(&node("storage0")))
        .await
        .expect("its own host");
    let other = agent
        .try_send("POST", &nodes, Some(&node("storage1")))
        .await
        .expect_err("another host");
    assert!(
        other.message.contains("belongs to node storage1"),
        "{other:?}"
    );

    let volumes = release.target("volumes");
    let spec = tell(
        &agent,
        &format!("{volumes}/mine"),
        json!({"spec": {"capacity": 2_u64 << 30}}),
    )
    .await;
    let spec = spec.expect_err("a spec");
    assert!(spec.message.contains("never what is wanted"), "{spec:?}");
    let keep = json!({"metadata": {"finalizers": ["example.com/keep"]}});
    let let_go = json!({"metadata": {"finalizers": []}});
    for (name, change, why) in [
        ("theirs", &keep, "belongs to node storage1"),
        ("mine", &keep, "not being deleted"),
        (
            "mine",
            &json!({"metadata": {"annotations": {"a": "b"}}}),
            "leaves labels",
        ),
        (
            "mine",
            &json!({"metadata": {"labels": {"a": "b"}}}),
            "leaves labels",
        ),
    ] {
        let told = tell(&agent, &format!("{volumes}/{name}"), change.clone()).await;
        let refusal = told.expect_err(why);
        assert!(refusal.message.contains(why), "{refusal:?}");
    }
    let mine = format!("{volumes}/mine");
    tell(&release.api, &mine, keep).await.unwrap();
    let too_early = tell(&agent, &mine, let_go.clone())
        .await
        .expect_err("it is not being deleted");
    assert!(
        too_early.message.contains("not being deleted"),
        "{too_early:?}"
    );
    release.api.try_send("DELETE", &mine, None).await.unwrap();
    tell(&agent, &mine, let_go)
        .await
        .expect("its own volume, which is to go");
    release.volume("mine", "storage0").await;

    let anywhere = Api::with_token(&release.token(&json!({})).await).await;
    let nowhere = put_status(&anywhere, &release, "mine")
        .await
        .expect_err("a token of no pod");
    assert!(
        nowhere.message.contains("this token names none"),
        "{nowhere:?}"
    );
    put_status(&release.api, &release, "theirs")
        .await
        .expect("the policy is about agents alone");
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
    release.uninstall();
    api.try_send("DELETE", &format!("{volumes}/other"), None)
        .await
        .expect_err("it guards on");
    release.helm("install", &[&folder()]);
    let controller = Api::with_token(&release.token_of("controller", &json!({})).await).await;
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
