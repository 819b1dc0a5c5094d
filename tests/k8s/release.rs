//! The chart on a real API server: what it is refused, what each account may do, and what a release leaves.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;
use zvolt_lab::chart::{self, Helm};

use crate::chart::{objects, parse, value_sets};
use crate::plane::{Api, GROUP, KINDS, Refusal, plane};

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
async fn each_account_may_do_its_work_and_nothing_else() {
    let release = Release::install("rights").await;
    let here = release.namespace;
    let ours = |resource: &str| format!("{DRIVER_NAME}:{resource}");
    let known = async {
        while !release.may("agent", "get", &ours("volumes"), here).await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(KNOWN, known).await.expect("roles are known");
    let may: [(&str, &str, &str, &str); 29] = [
        (
            "controller",
            "create watch patch delete",
            "zfs:volumes",
            here,
        ),
        ("controller", "create watch delete", "zfs:snapshots", here),
        ("controller", "update", "zfs:volumes/status", here),
        ("controller", "list", "zfs:storagenodes", here),
        (
            "controller",
            "create update",
            "coordination.k8s.io:leases",
            here,
        ),
        (
            "controller",
            "create update delete",
            "storage.k8s.io:csistoragecapacities",
            here,
        ),
        ("controller", "get", "pods", here),
        ("controller", "get", "apps:replicasets", here),
        ("controller", "create delete patch", "persistentvolumes", ""),
        ("controller", "watch update", "persistentvolumeclaims", ""),
        ("controller", "patch", "persistentvolumeclaims/status", ""),
        ("controller", "create patch", "events", ""),
        (
            "controller",
            "watch patch",
            "storage.k8s.io:volumeattachments",
            "",
        ),
        (
            "controller",
            "patch",
            "storage.k8s.io:volumeattachments/status",
            "",
        ),
        ("controller", "watch", "storage.k8s.io:storageclasses", ""),
        (
            "controller",
            "watch",
            "storage.k8s.io:volumeattributesclasses",
            "",
        ),
        ("controller", "watch", "storage.k8s.io:csinodes", ""),
        (
            "controller",
            "watch update",
            "snapshot.storage.k8s.io:volumesnapshots",
            "",
        ),
        (
            "controller",
            "watch update patch",
            "snapshot.storage.k8s.io:volumesnapshotcontents",
            "",
        ),
        (
            "controller",
            "update patch",
            "snapshot.storage.k8s.io:volumesnapshotcontents/status",
            "",
        ),
        (
            "controller",
            "watch",
            "snapshot.storage.k8s.io:volumesnapshotclasses",
            "",
        ),
        (
            "controller",
            "watch patch",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotcontents",
            "",
        ),
        (
            "controller",
            "update",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotcontents/status",
            "",
        ),
        (
            "controller",
            "watch",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotclasses",
            "",
        ),
        ("agent", "get list watch patch", "zfs:volumes", here),
        ("agent", "get list watch patch", "zfs:snapshots", here),
        ("agent", "update", "zfs:volumes/status", here),
        ("agent", "create get", "zfs:storagenodes", here),
        ("agent", "update", "zfs:storagenodes/status", here),
    ];
    for (account, verbs, resource, namespace) in may {
        let resource = resource.replace("zfs:", &format!("{DRIVER_NAME}:"));
        for verb in verbs.split(' ') {
            assert!(
                release.may(account, verb, &resource, namespace).await,
                "{account} {verb} {resource}"
            );
        }
    }
    for account in ["controller", "agent", "node"] {
        for namespace in ["", here, "kube-system"] {
            for verb in ["get", "list", "watch", "create", "update"] {
                for resource in ["secrets", "configmaps", "serviceaccounts/token"] {
                    assert!(
                        !release.may(account, verb, resource, namespace).await,
                        "{account} {verb} {resource}"
                    );
                }
            }
        }
        for (verb, resource) in [
            ("create", "pods"),
            ("create", "pods/exec"),
            ("patch", "nodes"),
            ("delete", "nodes"),
            ("update", "rbac.authorization.k8s.io:clusterroles"),
            ("create", "apps:daemonsets"),
            ("create", "storage.k8s.io:storageclasses"),
            ("impersonate", "users"),
            ("get", "nodes/proxy"),
        ] {
            assert!(
                !release.may(account, verb, resource, here).await,
                "{account} {verb} {resource}"
            );
            assert!(
                !release.may(account, verb, resource, "").await,
                "{account} {verb} {resource}"
            );
        }
        assert!(
            !release
                .may(account, "list", &ours("volumes"), "kube-system")
                .await,
            "{account}"
        );
    }
    for (account, verb, resource) in [
        ("controller", "create", "storagenodes"),
        ("controller", "update", "storagenodes/status"),
        ("controller", "update", "snapshots/status"),
        ("controller", "patch", "snapshots"),
        ("controller", "watch", "storagenodes"),
        ("agent", "create", "volumes"),
        ("agent", "delete", "volumes"),
        ("agent", "delete", "storagenodes"),
        ("agent", "deletecollection", "volumes"),
        ("node", "get", "volumes"),
        ("node", "list", "storagenodes"),
    ] {
        assert!(
            !release.may(account, verb, &ours(resource), here).await,
            "{account} {verb} {resource}"
        );
    }
}

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
