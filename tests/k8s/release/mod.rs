//! The chart on a real API server: that it is taken as it is, and what a release leaves.

mod accounts;
mod policies;

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;
use zvolt_lab::chart::{self, Helm};

use crate::chart::{objects, parse, value_sets};
use crate::plane::{Api, GROUP, KINDS, plane};

/// How long the API server may take to know what was told to it.
const KNOWN: Duration = Duration::from_secs(60);

/// A release in a namespace of its own, which ends with the test.
struct Release {
    api: Api,
    namespace: &'static str,
    kubeconfig: String,
}

impl Release {
    /// Without the policy that guards data: other tests delete volumes.
    async fn install(namespace: &'static str) -> Self {
        Self::install_with(namespace, &["--set", "dataPolicy.enabled=false"]).await
    }

    async fn install_with(namespace: &'static str, values: &[&str]) -> Self {
        let release = Self {
            api: crate::plane::namespace(namespace).await,
            namespace,
            kubeconfig: plane().kubeconfig("tests").to_string_lossy().into_owned(),
        };
        // Other tests have put the definitions there without Helm.
        let folder = folder();
        let chart = [folder.as_str(), "--take-ownership", "--force-conflicts"];
        release.helm("install", &[&chart, values].concat());
        release
    }

    fn helm(&self, verb: &str, more: &[&str]) -> String {
        let whose = [
            "--namespace",
            self.namespace,
            "--kubeconfig",
            &self.kubeconfig,
        ];
        let all = [&[verb, "zvolt"], more, &whose].concat();
        Helm::given().unwrap().run(&all).unwrap()
    }

    fn uninstall(&self) {
        self.helm("uninstall", &[]);
    }

    fn account(&self, component: &str) -> String {
        format!("system:serviceaccount:{}:zvolt-{component}", self.namespace)
    }

    /// `volumes` is one kind, `volumes/status` its subresource, `apps/replicasets` has its group before it.
    async fn may(&self, component: &str, verb: &str, resource: &str, namespace: &str) -> bool {
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

    /// A token that is bound to a pod on a node, as kubelet asks for one.
    async fn token_on(&self, node: &str) -> String {
        let at = format!("/api/v1/namespaces/{}", self.namespace);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
            "spec": {
                "nodeName": node, "serviceAccountName": "zvolt-agent",
                "containers": [{"name": "zvolt", "image": "none"}],
            },
        });
        let pod = self.api.send("POST", &format!("{at}/pods"), &pod).await;
        let bound =
            json!({"apiVersion": "v1", "kind": "Pod", "name": node, "uid": pod["metadata"]["uid"]});
        self.token(&json!({"boundObjectRef": bound})).await
    }

    async fn token(&self, spec: &Value) -> String {
        self.token_of("agent", spec).await
    }

    async fn token_of(&self, component: &str, spec: &Value) -> String {
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let target = format!(
            "/api/v1/namespaces/{}/serviceaccounts/zvolt-{component}/token",
            self.namespace
        );
        let answer = self.api.send("POST", &target, &request).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    fn target(&self, plural: &str) -> String {
        format!("{GROUP}/namespaces/{}/{plural}", self.namespace)
    }

    async fn volume(&self, name: &str, owner: &str) {
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

fn folder() -> String {
    chart::folder().to_string_lossy().into_owned()
}

/// The definitions of snapshots, until the server serves them.
async fn define_snapshots(api: &Api) {
    for entry in fs::read_dir(Helm::given().unwrap().snapshot_definitions()).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for definition in parse(&text)
            .iter()
            .filter(|d| d["kind"] == "CustomResourceDefinition")
        {
            api.apply(definition, "").await.unwrap();
        }
    }
    for group in ["snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"] {
        let target = format!("/apis/{group}/v1");
        let served = async {
            while api.try_send("GET", &target, None).await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(KNOWN, served)
            .await
            .unwrap_or_else(|_| panic!("{target} is not served"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_as_it_is() {
    let api = crate::plane::namespace(chart::NAMESPACE).await;
    define_snapshots(&api).await;
    let mut sets: Vec<_> = value_sets().iter().map(|values| objects(values)).collect();
    sets.push(parse(&chart::written_manifests().unwrap()));
    for object in sets.iter().flatten() {
        let taken = api.apply(object, "&dryRun=All").await;
        let taken = taken.unwrap_or_else(|refusal| panic!("{refusal}\n{object:#}"));
        if object["kind"] != "CSIDriver" {
            continue;
        }
        for (field, value) in object["spec"].as_object().unwrap() {
            // Behind a gate that is off: known, and dropped.
            if field != "preventPodSchedulingIfMissing" {
                assert_eq!(taken["spec"][field], *value, "{field}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_goes_leaves_every_volume_and_one_that_comes_finds_them() {
    let release = Release::install("leaves").await;
    release.volume("kept", "storage0").await;
    let told = release.helm(
        "upgrade",
        &[
            &folder(),
            "--set",
            "controller.replicas=3,dataPolicy.enabled=false",
        ],
    );
    assert!(
        told.contains("kubectl --namespace leaves get storagenodes"),
        "{told}"
    );
    let deployment = "/apis/apps/v1/namespaces/leaves/deployments/zvolt-controller";
    assert_eq!(release.api.get(deployment).await["spec"]["replicas"], 3);

    let before = release
        .api
        .get(&format!("{}/kept", release.target("volumes")))
        .await;
    release.uninstall();
    let driver = format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER_NAME}");
    release
        .api
        .try_send("GET", &driver, None)
        .await
        .expect_err("the driver is gone");
    release
        .api
        .try_send("GET", deployment, None)
        .await
        .expect_err("so is the controller");
    for plural in KINDS {
        let target = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{DRIVER_NAME}"
        );
        release.api.get(&target).await;
    }
    let after = || async {
        release
            .api
            .get(&format!("{}/kept", release.target("volumes")))
            .await
    };
    assert_eq!(after().await, before);

    release.helm("install", &[&folder(), "--set", "dataPolicy.enabled=false"]);
    assert_eq!(after().await, before);
    release.api.get(&driver).await;
}
