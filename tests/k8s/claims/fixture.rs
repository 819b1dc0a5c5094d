//! A cluster short of its kubelets: the rest of the control plane, the chart, and what the pods that come of it run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zvolt_lab::chart::{self, Helm};
use zvolt_lab::control_plane::{
    CONTROLLER_MANAGER, CONTROLLERS_IN, SCHEDULER, SIDECARS_IN, SNAPSHOT_CONTROLLER,
};
use zvolt_lab::fleet::{Member, assert_clean, scrub};
use zvolt_lab::orchestrator::Csi;
use zvolt_lab::tiers::DRIVER_HERE;
use zvolt_proto::csi;

use super::kubelet::pod_at;
use super::objects::{GROUPS, Objects, SNAPSHOTS, USERS, VOLUMES};
use super::processes::{Process, leashed, on_host};
use crate::cluster::fixture::{CERTIFICATE, KUBECONFIG, MACHINES, lab};
use crate::plane::{GROUP, plane};
use crate::release::define_snapshots;

pub(super) const DRIVER: &str = zvolt::model::DRIVER_NAME;
/// Of the release.
pub(super) const NAMESPACE: &str = "claims";
const CONSUMERS: [&str; 2] = ["node0", "node1"];
const NODES: &str = "/api/v1/nodes";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

/// Where objects of the driver are, by their plural.
pub(super) fn ours(plural: &str) -> String {
    format!("{GROUP}/namespaces/{NAMESPACE}/{plural}")
}

fn in_release(api: &str, plural: &str) -> String {
    format!("{api}/namespaces/{NAMESPACE}/{plural}")
}

/// A pod of the Deployment, as processes of this machine.
pub(super) struct Replica {
    pub(super) pod: String,
    pub(super) csi: Csi,
    _processes: Vec<Process>,
}

/// All of it.
pub(super) struct Cluster {
    pub(super) objects: Objects,
    pub(super) replicas: Vec<Replica>,
    pub(super) nodes: HashMap<&'static str, Csi>,
    agent: Member<'static>,
    _control: Vec<Process>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Freshly started, with so many replicas of the controller.
    pub(super) fn fresh(replicas: usize) -> Self {
        let lab = lab();
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::new();
        for name in ["node0", "node1", "storage0"] {
            scrub(lab.vm(name)).unwrap();
        }
        forget_all(&objects);
        objects.run(async |api| define_snapshots(api).await);
        let consumers = CONSUMERS.map(|name| Member::node(lab, name));
        for name in MACHINES {
            join(&objects, name);
        }
        install(&objects, replicas);
        let control = control(folder.path());
        for consumer in &consumers {
            consumer.start().unwrap();
        }
        let sockets = consumers.map(|consumer| consumer.csi().unwrap());
        let nodes: HashMap<_, _> = CONSUMERS.into_iter().zip(sockets).collect();
        for (name, csi) in &nodes {
            register(&objects, name, csi);
        }
        let agent = agent(&objects);
        let mut cluster = Self {
            replicas: Vec::new(),
            objects,
            nodes,
            agent,
            _control: control,
            _folder: folder,
        };
        let pods = cluster.controllers(replicas);
        let folder = cluster._folder.path();
        cluster.replicas = pods
            .iter()
            .map(|pod| Replica::start(&cluster.objects, pod, folder))
            .collect();
        cluster
    }

    /// The pods that the Deployment's controller has made.
    fn controllers(&self, replicas: usize) -> Vec<Value> {
        let pods = in_release("/api/v1", "pods");
        let selector = "labelSelector=app.kubernetes.io/component=controller";
        let target = format!("{pods}?{selector}");
        self.objects
            .until(&target, "made by the Deployment", |listed| {
                let items = listed["items"].as_array()?;
                (items.len() == replicas).then(|| items.clone())
            })
    }

    /// Nothing is left of any volume, on no machine and in the API; and nobody has lacked a right.
    pub(super) fn assert_clean(&self) {
        assert_eq!(refused(), [""; 0]);
        assert_clean(lab(), &MACHINES).unwrap();
        let here = ["volumes", "snapshots"].map(ours);
        let contents = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
        for target in here.iter().map(String::as_str).chain([VOLUMES, contents]) {
            let left = self.objects.items(target);
            assert!(left.is_empty(), "{target}: {left:#?}");
        }
    }
}

impl Drop for Cluster {
    /// Other tests have the API server next: they look at what they install themselves.
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the agent's log:\n{}", self.agent.log().unwrap_or_default());
        }
        // It is about to lose its rights.
        let _ = self.agent.kill();
        self.replicas.clear();
        self._control.clear();
        forget_all(&self.objects);
    }
}

/// What the release's accounts have asked for and may not, so far.
fn refused() -> Vec<String> {
    let account = |name| format!("system:serviceaccount:{NAMESPACE}:zvolt-{name}");
    let audited = ["controller", "agent"].map(|name| plane().audited(&account(name)).unwrap());
    let forbidden = |event: &&Value| event["responseStatus"]["code"] == 403;
    let said = |event: &Value| format!("{} {}", event["verb"], event["requestURI"]);
    audited
        .iter()
        .flatten()
        .filter(forbidden)
        .map(said)
        .collect()
}

fn helm(arguments: &[&str]) -> String {
    let kubeconfig = plane().kubeconfig("tests");
    let kubeconfig = kubeconfig.to_string_lossy();
    let whose = ["--namespace", NAMESPACE, "--kubeconfig", &kubeconfig];
    let all = [arguments, &whose].concat();
    Helm::given().unwrap().run(&all).unwrap()
}

/// The chart with its examples' classes, by Helm.
fn install(objects: &Objects, replicas: usize) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let _ = objects.try_send("POST", "/api/v1/namespaces", Some(&body));
    let folder = chart::folder();
    let folder = folder.to_string_lossy();
    let [flag, classes] = chart::values(Path::new("examples/classes.yaml"));
    let replicas = format!("controller.replicas={replicas}");
    let values = [flag.as_str(), &classes, "--set", &replicas];
    // Other tests have put the definitions there without Helm.
    let over = ["--take-ownership", "--force-conflicts"];
    helm(&[&["install", "zvolt", &folder], &over[..], &values].concat());
}

/// The release, and what an earlier test has left.
fn forget_all(objects: &Objects) {
    helm(&["uninstall", "zvolt", "--ignore-not-found"]);
    // It stays when a release goes; here others delete volumes next.
    for plural in [
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicies",
    ] {
        objects.delete(&format!("{POLICIES}/{plural}/zvolt-data"));
    }
    let now = json!({"gracePeriodSeconds": 0});
    let free = json!({"metadata": {
        "finalizers": null, "annotations": {format!("{DRIVER}/destroy-data"): "yes"},
    }});
    for target in [
        in_release("/apis/apps/v1", "replicasets"),
        in_release("/apis/apps/v1", "controllerrevisions"),
        in_release("/api/v1", "pods"),
        in_release("/apis/storage.k8s.io/v1", "csistoragecapacities"),
        in_release("/apis/coordination.k8s.io/v1", "leases"),
        format!("{USERS}/pods"),
        "/apis/storage.k8s.io/v1/volumeattachments".into(),
        // The controller manager holds on to those, and has ended.
        "/apis/storage.k8s.io/v1/volumeattributesclasses".into(),
        GROUPS.into(),
        SNAPSHOTS.into(),
        "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents".into(),
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents".into(),
        format!("{USERS}/persistentvolumeclaims"),
        VOLUMES.into(),
        ours("volumes"),
        ours("snapshots"),
        ours("storagenodes"),
        format!("{USERS}/events"),
        CSI_NODES.into(),
    ] {
        let listed = objects.find(&target).unwrap_or_default();
        for item in listed["items"].as_array().into_iter().flatten() {
            let one = format!("{target}/{}", item["metadata"]["name"].as_str().unwrap());
            let _ = objects.try_send("PATCH", &one, Some(&free));
            let _ = objects.try_send("DELETE", &one, Some(&now));
        }
    }
    for name in MACHINES {
        objects.delete(&format!("{NODES}/{name}"));
    }
}

/// A machine as a node that pods can be on.
fn join(objects: &Objects, name: &str) {
    let mut labels = json!({"kubernetes.io/hostname": name});
    if name == "storage0" {
        labels[format!("{DRIVER}/storage")] = "true".into();
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": labels,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
    });
    objects.create(NODES, &node);
    let target = format!("{NODES}/{name}");
    // The API server holds every node for unfit until something says otherwise.
    objects.patch(&target, &json!({"spec": {"taints": null}}));
    let room = json!({"cpu": "4", "memory": "4Gi", "pods": "100"});
    let status = json!({"status": {
        "capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Played"}],
    }});
    objects.patch(&format!("{target}/status"), &status);
}

/// What kubelet writes when node-driver-registrar has told it of a driver.
fn register(objects: &Objects, name: &str, node: &Csi) {
    let request = node.request(csi::NodeGetInfoRequest {});
    let info = node.call(node.node().node_get_info(request)).unwrap();
    assert_eq!(info.node_id, name);
    assert!(info.accessible_topology.is_none(), "every node is as near");
    let csi_node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
        "spec": {"drivers": [{
            "name": DRIVER, "nodeID": info.node_id, "topologyKeys": null,
            "allocatable": {"count": info.max_volumes_per_node},
        }]},
    });
    objects.create(CSI_NODES, &csi_node);
}

fn folder_in(key: &str) -> PathBuf {
    let folder = std::env::var_os(key);
    PathBuf::from(
        folder.unwrap_or_else(|| panic!("{key}: run these tests by `cargo lab test k8s`")),
    )
}

/// The controller manager, the scheduler and the snapshot controller.
fn control(folder: &Path) -> Vec<Process> {
    let start = |from: &str, name: &str, arguments: &[&str]| {
        let mut command = leashed(&folder_in(from).join(name));
        command.arg("--kubeconfig").arg(plane().kubeconfig("tests"));
        command.args(arguments);
        Process::start(name, command, folder)
    };
    let alone = ["--leader-elect=false", "--secure-port=0"];
    // No kubelet says that its node lives.
    let without = "--controllers=*,-node-lifecycle-controller";
    vec![
        start(
            CONTROLLERS_IN,
            CONTROLLER_MANAGER,
            &[&alone[..], &[without]].concat(),
        ),
        start(CONTROLLERS_IN, SCHEDULER, &alone),
        start(SIDECARS_IN, SNAPSHOT_CONTROLLER, &[]),
    ]
}

/// The agent's pod on storage0, in the machine of that name.
fn agent(objects: &Objects) -> Member<'static> {
    let vm = lab().vm("storage0");
    let pods = in_release("/api/v1", "pods");
    let pod = objects.until(
        &format!("{pods}?labelSelector=app.kubernetes.io/component=agent"),
        "scheduled to storage0",
        |listed| {
            let mut items = listed["items"].as_array()?.iter();
            items
                .find(|pod| pod["spec"]["nodeName"] == vm.name())
                .cloned()
        },
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = plane().kubeconfig_of(&token_of(objects, &pod), Path::new(CERTIFICATE));
    std::fs::write(&file, text).unwrap();
    vm.put(&file, KUBECONFIG).unwrap();
    vm.put(&plane().certificate(), CERTIFICATE).unwrap();
    let agent = Member::agent(lab(), vm.name(), NAMESPACE, KUBECONFIG);
    agent.start().unwrap();
    agent
}

/// The token that kubelet would give to a pod.
fn token_of(objects: &Objects, pod: &Value) -> String {
    let about = &pod["metadata"];
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"boundObjectRef": {
            "apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"],
        }},
    });
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let accounts = in_release("/api/v1", "serviceaccounts");
    let answer = objects.create(&format!("{accounts}/{account}/token"), &request);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

impl Replica {
    /// Runs the containers of a pod that are to be had as programs: all but livenessprobe.
    fn start(objects: &Objects, pod: &Value, folder: &Path) -> Self {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        let kubeconfig = folder.join("kubeconfig");
        let text = plane().kubeconfig_of(&token_of(objects, pod), &plane().certificate());
        std::fs::write(&kubeconfig, text).unwrap();
        let socket = folder.join("csi.sock");
        let mut processes = Vec::new();
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let program = match container["name"].as_str().unwrap() {
                "livenessprobe" => continue,
                "zvolt" => folder_in(DRIVER_HERE),
                sidecar => folder_in(SIDECARS_IN).join(sidecar),
            };
            let mut command = on_host(name, &program);
            give(&mut command, container, pod, &socket);
            command.arg("--kubeconfig").arg(&kubeconfig);
            let container = container["name"].as_str().unwrap();
            processes.push(Process::start(container, command, &folder));
        }
        let csi = connected(&socket, &mut processes[0]);
        Self {
            pod: name.into(),
            csi,
            _processes: processes,
        }
    }
}

/// A container's arguments and variables; its folder for the socket is this machine's.
fn give(command: &mut Command, container: &Value, pod: &Value, socket: &Path) {
    for argument in container["args"].as_array().unwrap() {
        let argument = argument.as_str().unwrap();
        let argument = argument.replace("/csi/csi.sock", &socket.to_string_lossy());
        match argument.starts_with("--http-endpoint=") {
            // Its pods have no networks of their own here.
            true => command.arg("--http-endpoint=127.0.0.1:0"),
            false => command.arg(argument),
        };
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => &pod["metadata"]["name"],
            Some("metadata.namespace") => &pod["metadata"]["namespace"],
            Some(other) => panic!("{other} is not played"),
            None => &variable["value"],
        };
        let name = variable["name"].as_str().unwrap();
        command.env(name, value.as_str().unwrap());
    }
}

fn connected(socket: &Path, driver: &mut Process) -> Csi {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(csi) = Csi::connect(socket) {
            return csi;
        }
        driver.assert_runs();
        assert!(Instant::now() < end, "the controller does not serve");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Deletes a pod that never ran.
pub(super) fn forget_pod(objects: &Objects, name: &str) {
    let now = json!({"gracePeriodSeconds": 0});
    objects
        .try_send("DELETE", &pod_at(name), Some(&now))
        .unwrap();
}
