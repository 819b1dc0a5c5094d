//! Who the driver is in a cluster: the accounts of `deploy/rbac`, with exactly the rights that it gives them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::plane::{Api, GROUP, alone, deployed, plane};

/// The namespace that `deploy/` names.
pub(crate) const NAMESPACE: &str = "zvolt";
/// The controller, as the API server calls it.
pub(crate) const CONTROLLER: &str = "system:serviceaccount:zvolt:zvolt-controller";
/// Every agent, as the API server calls it.
pub(crate) const AGENT: &str = "system:serviceaccount:zvolt:zvolt-agent";
/// Nodes of the cluster that have agents.
const STORAGE: [&str; 2] = ["storage0", "storage1"];

static ROLES: LazyLock<()> = LazyLock::new(|| alone(deploy()));

/// Where the objects of one kind are.
pub(crate) fn objects(kind: &str) -> String {
    format!("{GROUP}/namespaces/{NAMESPACE}/{kind}")
}

/// A token of the controller.
pub(crate) async fn controller() -> String {
    token("zvolt-controller", None).await
}

/// A token of the agent whose pod is on `node`.
pub(crate) async fn agent(node: &str) -> String {
    token("zvolt-agent", Some(node)).await
}

/// A token of an agent's account that no pod has.
pub(crate) async fn agent_of_nowhere() -> String {
    token("zvolt-agent", None).await
}

/// Requests of whoever has this token.
pub(crate) async fn api_of(token: &str) -> Api {
    Api::of(&kubeconfig_of(token)).await
}

/// A kubeconfig file on this machine.
pub(crate) fn kubeconfig_of(token: &str) -> PathBuf {
    let certificate = plane().certificate();
    let name = format!("{}.kubeconfig", uuid::Uuid::new_v4());
    let path = certificate.with_file_name(name);
    let text = plane().kubeconfig_of(token, &certificate);
    std::fs::write(&path, text).unwrap();
    path
}

/// What a kubeconfig file says on a machine that has the certificate at `certificate`.
pub(crate) fn kubeconfig_text(token: &str, certificate: &Path) -> String {
    plane().kubeconfig_of(token, certificate)
}

async fn token(account: &str, node: Option<&str>) -> String {
    LazyLock::force(&ROLES);
    let api = Api::new().await;
    let Some(node) = node else {
        return token_of(&api, account, json!({})).await;
    };
    let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/agent-{node}");
    let pod = api.get(&pod).await;
    let bound = json!({
        "apiVersion": "v1", "kind": "Pod",
        "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
    });
    token_of(&api, account, json!({"boundObjectRef": bound})).await
}

async fn token_of(api: &Api, account: &str, spec: Value) -> String {
    let body =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    let made = api
        .send("POST", &format!("{accounts}/{account}/token"), &body)
        .await;
    made["status"]["token"].as_str().unwrap().to_owned()
}

/// The accounts and their rights, and a pod of an agent on each node of storage.
async fn deploy() {
    let api = crate::plane::namespace(NAMESPACE).await;
    for file in ["rbac/controller.yaml", "rbac/agent.yaml"] {
        for document in deployed(file).split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            api.apply(&target(&object), document.to_owned()).await;
        }
    }
    for node in STORAGE {
        let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        api.send("POST", "/api/v1/nodes", &body).await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("agent-{node}")},
            "spec": {
                "nodeName": node, "serviceAccountName": "zvolt-agent",
                "automountServiceAccountToken": false,
                "containers": [{"name": "agent", "image": "zvolt"}],
            },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        api.send("POST", &pods, &pod).await;
    }
    let within = tokio::time::timeout(Duration::from_secs(60), policies_hold(&api));
    within.await.expect("the policies are in force");
}

fn target(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    let in_namespace = |api: &str| format!("{api}/namespaces/{NAMESPACE}");
    let kind = match object["kind"].as_str().unwrap() {
        "ServiceAccount" => in_namespace("/api/v1") + "/serviceaccounts",
        "Role" => in_namespace("/apis/rbac.authorization.k8s.io/v1") + "/roles",
        "RoleBinding" => in_namespace("/apis/rbac.authorization.k8s.io/v1") + "/rolebindings",
        "ValidatingAdmissionPolicy" => {
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies".into()
        }
        "ValidatingAdmissionPolicyBinding" => {
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings".into()
        }
        kind => panic!("{kind} has no place here"),
    };
    format!("{kind}/{name}")
}

/// The API server takes a moment to see new rights and policies, one by one.
async fn policies_hold(api: &Api) {
    let agent = api_of(&token_of(api, "zvolt-agent", json!({})).await).await;
    for (kind, probe) in [
        ("volumes", volume("probe", "nobody")),
        ("storagenodes", report("probe", "nobody")),
    ] {
        let made = api.send("POST", &objects(kind), &probe).await;
        let target = format!("{}/probe", objects(kind));
        let status = format!("{target}/status");
        loop {
            let written = agent.try_send("PUT", &status, Some(&made)).await;
            if written.is_err_and(|refusal| refusal.message.contains("the token is of no node")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        api.try_send("DELETE", &target, None).await.unwrap();
    }
}

/// A Volume as its controller writes it, but for the finalizer.
pub(crate) fn volume(name: &str, owner: &str) -> Value {
    json!({
        "apiVersion": "zfs.csi.randomvariable.co.uk/v1alpha1", "kind": "Volume",
        "metadata": {"name": name},
        "spec": {
            "pool": "tank", "capacity": 1 << 30, "volBlockSize": "16k", "ownerNode": owner,
            "volName": name, "volumeID": name,
        },
    })
}

/// A StorageNode as its agent writes it.
pub(crate) fn report(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "zfs.csi.randomvariable.co.uk/v1alpha1", "kind": "StorageNode",
        "metadata": {"name": name}, "spec": {"nodeName": node},
    })
}
