//! A release of the chart, and who its accounts are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;
use zvolt_lab::chart::{self, Helm};

use crate::plane::{Api, GROUP, plane};

/// How long the API server may take to know what was told to it.
pub(super) const KNOWN: Duration = Duration::from_secs(60);

/// A release in a namespace of its own, which ends with the test. No controller manager runs: its workloads are objects
/// alone, and whoever has a token of its accounts is the driver.
pub(crate) struct Release {
    pub(super) api: Api,
    pub(super) namespace: &'static str,
    kubeconfig: String,
}

impl Release {
    /// Without the policy that guards data: other tests delete volumes.
    pub(crate) async fn install(namespace: &'static str) -> Self {
        Self::install_with(namespace, &["--set", "dataPolicy.enabled=false"]).await
    }

    pub(super) async fn install_with(namespace: &'static str, values: &[&str]) -> Self {
        let release = Self {
            api: crate::plane::namespace(namespace).await,
            namespace,
            kubeconfig: plane().kubeconfig("tests").to_string_lossy().into_owned(),
        };
        // Other tests have put the definitions there without Helm.
        let folder = folder();
        let chart = [folder.as_str(), "--take-ownership", "--force-conflicts"];
        release.helm("install", &[&chart, values].concat());
        let in_force = timeout(KNOWN, release.is_in_force());
        in_force.await.expect("rights and policies are in force");
        release
    }

    /// The API server takes a moment to see new rights and policies, one by one.
    async fn is_in_force(&self) {
        let nowhere = Api::with_token(&self.token("agent").await).await;
        let target = format!("{}?dryRun=All", self.target("storagenodes"));
        let report = report("probe");
        loop {
            let told = nowhere.try_send("POST", &target, Some(&report)).await;
            if told.is_err_and(|refusal| refusal.message.contains("this token names none")) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) fn helm(&self, verb: &str, more: &[&str]) -> String {
        let whose = [
            "--namespace",
            self.namespace,
            "--kubeconfig",
            &self.kubeconfig,
        ];
        let all = [&[verb, "zvolt"], more, &whose].concat();
        Helm::given().unwrap().run(&all).unwrap()
    }

    /// An account, as the API server calls it.
    pub(crate) fn account(&self, component: &str) -> String {
        format!("system:serviceaccount:{}:zvolt-{component}", self.namespace)
    }

    /// `volumes` is one kind, `volumes/status` its subresource, `apps:replicasets` has its group before it.
    pub(super) async fn may(
        &self,
        component: &str,
        verb: &str,
        resource: &str,
        namespace: &str,
    ) -> bool {
        let (group, resource) = resource.split_once(':').unwrap_or(("", resource));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": self.account(component),
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb, "group": group, "resource": resource, "subresource": subresource,
                    "namespace": namespace,
                },
            },
        });
        let target = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        self.api.send("POST", target, &review).await["status"]["allowed"] == true
    }

    /// A token of the agent whose pod is on a node, as kubelet asks for one.
    pub(crate) async fn token_on(&self, node: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": node, "namespace": self.namespace},
            "spec": {
                "nodeName": node, "serviceAccountName": "zvolt-agent",
                "automountServiceAccountToken": false,
                "containers": [{"name": "zvolt", "image": "none"}],
            },
        });
        let pod = Api::new().await.apply(&pod, "").await.unwrap();
        let bound =
            json!({"apiVersion": "v1", "kind": "Pod", "name": node, "uid": pod["metadata"]["uid"]});
        self.token_of("agent", &json!({"boundObjectRef": bound}))
            .await
    }

    /// A token of an account that no pod has.
    pub(crate) async fn token(&self, component: &str) -> String {
        self.token_of(component, &json!({})).await
    }

    /// By a client of its own: one ends with the runtime that it was made in, and not every caller is in that of `install`.
    async fn token_of(&self, component: &str, spec: &Value) -> String {
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let target = format!(
            "/api/v1/namespaces/{}/serviceaccounts/zvolt-{component}/token",
            self.namespace
        );
        let answer = Api::new().await.send("POST", &target, &request).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Where the objects of one kind are.
    pub(super) fn target(&self, plural: &str) -> String {
        format!("{GROUP}/namespaces/{}/{plural}", self.namespace)
    }

    pub(super) async fn volume(&self, name: &str, owner: &str) {
        let volume = json!({
            "apiVersion": format!("{DRIVER_NAME}/v1alpha1"), "kind": "Volume", "metadata": {"name": name},
            "spec": {"pool": "tank", "capacity": 1 << 30, "ownerNode": owner, "volName": name, "volumeID": name},
        });
        self.api
            .send("POST", &self.target("volumes"), &volume)
            .await;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let whose = [
            "--namespace",
            self.namespace,
            "--kubeconfig",
            &self.kubeconfig,
        ];
        let gone = Helm::given()
            .unwrap()
            .run(&[&["uninstall", "zvolt", "--ignore-not-found"][..], &whose].concat());
        if let Err(error) = gone {
            eprintln!("{error:#}");
        }
    }
}

pub(super) fn folder() -> String {
    chart::folder().to_string_lossy().into_owned()
}

/// A StorageNode as the agent of a node writes it.
pub(super) fn report(node: &str) -> Value {
    json!({
        "apiVersion": format!("{DRIVER_NAME}/v1alpha1"), "kind": "StorageNode",
        "metadata": {"name": node}, "spec": {"nodeName": node},
    })
}

/// A kubeconfig file of whoever has this token, on this machine.
pub(crate) fn kubeconfig_of(token: &str) -> PathBuf {
    let certificate = plane().certificate();
    let name = format!("{}.kubeconfig", uuid::Uuid::new_v4());
    let path = certificate.with_file_name(name);
    std::fs::write(&path, kubeconfig_text(token, &certificate)).unwrap();
    path
}

/// What a kubeconfig file says on a machine that has the certificate at `certificate`.
pub(crate) fn kubeconfig_text(token: &str, certificate: &Path) -> String {
    plane().kubeconfig_of(token, certificate)
}
