//! What the accounts of `deploy/rbac` may not do. That they may do all that they must is shown by `cluster`, where the
//! driver has no other rights.

use serde_json::{Value, json};

use crate::accounts::{
    AGENT, CONTROLLER, NAMESPACE, agent, agent_of_nowhere, api_of, controller, objects, report,
    volume,
};
use crate::plane::{Api, GROUP};

const KINDS: [&str; 3] = ["volumes", "snapshots", "storagenodes"];

/// One that the API server refuses for want of a right, or by a policy, which says why.
async fn refused(api: &Api, verb: &str, target: &str, body: &Value, why: &str) {
    let refusal = api.try_send(verb, target, Some(body)).await;
    let refusal = refusal.expect_err(&format!("{verb} {target} must be refused"));
    assert!(
        refusal.message.contains(why),
        "{verb} {target}: {}",
        refusal.message
    );
}

async fn lacks(api: &Api, user: &str, verb: &str, target: &str, body: &Value) {
    let why = format!("User \"{user}\" cannot ");
    refused(api, verb, target, body, &why).await;
}

/// Neither account sees anything but the driver's own objects in its own namespace.
async fn is_confined(api: &Api, user: &str) {
    for target in [
        "/api/v1/nodes".to_owned(),
        "/api/v1/secrets".to_owned(),
        format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
        format!("/api/v1/namespaces/{NAMESPACE}/pods"),
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
        format!("{GROUP}/volumes"),
        format!("{GROUP}/namespaces/default/volumes"),
    ] {
        lacks(api, user, "GET", &target, &Value::Null).await;
    }
    for kind in KINDS {
        lacks(api, user, "DELETE", &objects(kind), &Value::Null).await;
    }
}

/// Somebody who may do all has made these.
async fn made(kind: &str, object: &Value) -> Value {
    let api = Api::new().await;
    api.send("POST", &objects(kind), object).await
}

async fn removed(kind: &str, name: &str) {
    let api = Api::new().await;
    let target = format!("{}/{name}", objects(kind));
    let free = json!({"metadata": {"finalizers": null}});
    api.send("PATCH", &target, &free).await;
    let _ = api.try_send("DELETE", &target, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_writes_what_is_wanted_and_nothing_else() {
    let api = api_of(&controller().await).await;
    is_confined(&api, CONTROLLER).await;
    let node = made("storagenodes", &report("other", "storage1")).await;
    let target = format!("{}/other", objects("storagenodes"));
    lacks(&api, CONTROLLER, "POST", &objects("storagenodes"), &node).await;
    lacks(&api, CONTROLLER, "PUT", &format!("{target}/status"), &node).await;
    lacks(&api, CONTROLLER, "PATCH", &target, &json!({})).await;
    lacks(&api, CONTROLLER, "DELETE", &target, &Value::Null).await;
    let snapshot = format!("{}/s", objects("snapshots"));
    for (verb, target) in [
        ("PATCH", snapshot.clone()),
        ("PUT", format!("{snapshot}/status")),
        ("PATCH", format!("{snapshot}/status")),
        ("PUT", format!("{}/v", objects("volumes"))),
        ("PATCH", format!("{}/v/status", objects("volumes"))),
    ] {
        lacks(&api, CONTROLLER, verb, &target, &json!({})).await;
    }
    removed("storagenodes", "other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_the_status_of_what_its_node_owns_and_nothing_else() {
    let api = api_of(&agent("storage0").await).await;
    is_confined(&api, AGENT).await;
    let own = made("volumes", &volume("own", "storage0")).await;
    let foreign = made("volumes", &volume("foreign", "storage1")).await;
    let [own_at, foreign_at] =
        ["own", "foreign"].map(|name| format!("{}/{name}", objects("volumes")));
    // What no right allows.
    lacks(&api, AGENT, "POST", &objects("volumes"), &own).await;
    lacks(&api, AGENT, "POST", &objects("snapshots"), &own).await;
    lacks(&api, AGENT, "PUT", &own_at, &own).await;
    lacks(&api, AGENT, "DELETE", &own_at, &Value::Null).await;
    let node_at = format!("{}/storage0", objects("storagenodes"));
    lacks(&api, AGENT, "PATCH", &node_at, &json!({})).await;
    lacks(&api, AGENT, "DELETE", &node_at, &Value::Null).await;
    // What the policies do not.
    let not_its_own = "this is storage1, and the token is of storage0";
    let status = format!("{foreign_at}/status");
    refused(&api, "PUT", &status, &foreign, not_its_own).await;
    for (patch, why) in [
        (json!({"spec": {"capacity": 2_i64 << 30}}), "writes no spec"),
        (json!({"metadata": {"labels": {"a": "b"}}}), "no labels"),
        (
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "annotations",
        ),
        (json!({"metadata": {"finalizers": ["a/b"]}}), "finalizer"),
    ] {
        refused(&api, "PATCH", &own_at, &patch, why).await;
        refused(&api, "PATCH", &foreign_at, &patch, not_its_own).await;
    }
    let node = report("storage1", "storage1");
    refused(&api, "POST", &objects("storagenodes"), &node, not_its_own).await;
    // What it may.
    api.send("PUT", &format!("{own_at}/status"), &own).await;
    for name in ["own", "foreign"] {
        removed("volumes", name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_its_finalizer_from_what_is_being_deleted_and_from_nothing_else() {
    let api = api_of(&agent("storage0").await).await;
    let everybody = Api::new().await;
    let mut held = volume("held", "storage0");
    let ours = "zfs.csi.randomvariable.co.uk/volume-protect";
    held["metadata"]["finalizers"] = json!([ours, "a/b"]);
    made("volumes", &held).await;
    let target = format!("{}/held", objects("volumes"));
    let without = json!({"metadata": {"finalizers": ["a/b"]}});
    refused(&api, "PATCH", &target, &without, "being deleted").await;
    everybody
        .try_send("DELETE", &target, None)
        .await
        .expect("it is marked");
    let none = json!({"metadata": {"finalizers": null}});
    refused(&api, "PATCH", &target, &none, "and no other").await;
    let left = api.send("PATCH", &target, &without).await;
    assert_eq!(left["metadata"]["finalizers"], json!(["a/b"]));
    removed("volumes", "held").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_token_that_no_pod_has_writes_nothing() {
    let api = api_of(&agent_of_nowhere().await).await;
    let own = made("volumes", &volume("own", "storage0")).await;
    let target = format!("{}/own", objects("volumes"));
    let why = "the token is of no node";
    refused(&api, "PUT", &format!("{target}/status"), &own, why).await;
    refused(&api, "PATCH", &target, &json!({"spec": {}}), why).await;
    let node = report("storage0", "storage0");
    refused(&api, "POST", &objects("storagenodes"), &node, why).await;
    removed("volumes", "own").await;
}
