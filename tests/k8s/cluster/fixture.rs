//! The machines and the processes of a cluster, and a volume's way through them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Status;
use zvolt_lab::chart::NAMESPACE;
use zvolt_lab::fleet::{Member, assert_clean, scrub, staging_path, target_path};
use zvolt_lab::orchestrator::{Csi, Wanted};
use zvolt_lab::tiers::DRIVER_HERE;
use zvolt_lab::{Lab, Vm};

use crate::plane::{Api, GROUP, alone, plane};
use crate::release::fixture::{Release, kubeconfig_of, kubeconfig_text};

pub(crate) const MACHINES: [&str; 3] = ["storage0", "node0", "node1"];
/// Where storage0 has the way to the API server.
pub(crate) const KUBECONFIG: &str = "/etc/zvolt-agent.kubeconfig";
pub(crate) const CERTIFICATE: &str = "/etc/zvolt-apiserver.crt";
pub(super) const FS: &str = "ext4";

static LAB: LazyLock<Lab> = LazyLock::new(|| {
    let lab = Lab::attach().expect("these tests need a lab: run them by `cargo lab test k8s`");
    // The machines have no way to this one but that of their commands.
    lab.vm("storage0").lend(plane().port()).unwrap();
    lab
});

pub(crate) fn lab() -> &'static Lab {
    &LAB
}

/// A controller: a process of this machine, without a capability. It ends when this is dropped.
pub(super) struct Controller {
    process: Child,
    pub(super) csi: Csi,
    _folder: tempfile::TempDir,
}

impl Controller {
    pub(super) fn start(release: &Release) -> Self {
        let token = alone(release.token("controller"));
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("controller.sock");
        let driver = std::env::var_os(DRIVER_HERE).expect("cargo lab test k8s names the driver");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--no-new-privs"]);
        if is_root() {
            command.args(["--bounding-set=-all", "--inh-caps=-all"]);
        }
        command.arg("--").arg(driver).arg("controller");
        command.args(["--namespace", NAMESPACE, "--kubeconfig"]);
        command.arg(kubeconfig_of(&token));
        command
            .arg("--endpoint")
            .arg(&socket)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut process = command.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        let csi = loop {
            if let Ok(csi) = Csi::connect(&socket) {
                break csi;
            }
            assert!(
                process.try_wait().unwrap().is_none(),
                "the controller has ended"
            );
            assert!(Instant::now() < end, "the controller does not serve");
            thread::sleep(Duration::from_millis(20));
        };
        Self {
            process,
            csi,
            _folder: folder,
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
}

/// A freshly started driver everywhere, and one controller, with the rights of a release of the chart.
pub(super) struct Cluster {
    pub(super) agent: Member<'static>,
    pub(super) controller: Controller,
    pub(super) nodes: HashMap<&'static str, Csi>,
    pub(super) release: Release,
}

impl Cluster {
    pub(super) fn fresh() -> Self {
        let lab = lab();
        let nodes = ["node0", "node1"].map(|name| Member::node(lab, name));
        // Consumers let go first: a target that is torn down under a controller leaves it reconnecting.
        for name in ["node0", "node1", "storage0"] {
            scrub(lab.vm(name)).unwrap();
        }
        let release = alone(Release::install(NAMESPACE));
        alone(forget_all());
        let agent = Member::agent(lab, "storage0", NAMESPACE, KUBECONFIG);
        equip(agent.vm(), &release);
        for member in [&agent, &nodes[0], &nodes[1]] {
            member.start().unwrap();
        }
        let sockets = nodes.map(|node| node.csi().unwrap());
        Self {
            agent,
            controller: Controller::start(&release),
            nodes: ["node0", "node1"].into_iter().zip(sockets).collect(),
            release,
        }
    }

    pub(super) fn vm(&self, name: &str) -> &'static Vm {
        lab().vm(name)
    }

    pub(super) fn create(&self, name: &str) -> Volume<'_> {
        let made = self.controller.csi.create(&Wanted::named(name)).unwrap();
        self.volume(&made.volume_id)
    }

    pub(super) fn volume(&self, id: &str) -> Volume<'_> {
        Volume {
            cluster: self,
            id: id.to_owned(),
        }
    }

    /// Nothing is left of any volume: on no machine, and in the API.
    pub(super) fn assert_clean(&self) {
        assert_clean(lab(), &MACHINES).unwrap();
        for kind in ["volumes", "snapshots"] {
            assert_eq!(alone(names_of(kind)), [""; 0], "{kind}");
        }
    }
}

/// The agent's kubeconfig file, with a token of the pod on its node.
fn equip(vm: &Vm, release: &Release) {
    let token = alone(release.token_on(vm.name()));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig_text(&token, Path::new(CERTIFICATE))).unwrap();
    let files: [(PathBuf, &str); 2] = [(file, KUBECONFIG), (plane().certificate(), CERTIFICATE)];
    for (local, remote) in files {
        vm.put(&local, remote).unwrap();
    }
}

fn objects(kind: &str) -> String {
    format!("{GROUP}/namespaces/{NAMESPACE}/{kind}")
}

/// The names of all objects of a kind.
pub(super) async fn names_of(kind: &str) -> Vec<String> {
    let listed = Api::new().await.get(&objects(kind)).await;
    let items = listed["items"].as_array().unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

/// Removes what an earlier test has left.
async fn forget_all() {
    let api = Api::new().await;
    for kind in ["volumes", "snapshots", "storagenodes"] {
        for name in names_of(kind).await {
            let target = format!("{}/{name}", objects(kind));
            let free = json!({"metadata": {"finalizers": null}});
            api.send("PATCH", &target, &free).await;
            let _ = api.try_send("DELETE", &target, None).await;
        }
    }
}

/// One volume's way.
pub(super) struct Volume<'a> {
    cluster: &'a Cluster,
    pub(super) id: String,
}

impl Volume<'_> {
    fn target(&self) -> String {
        target_path(&self.id, "pod-1")
    }

    /// From nothing to a pod's path on `node`.
    pub(super) fn bring_to(&self, node: &str) {
        let context = self.attach(node).unwrap();
        let (staging, target) = (staging_path(&self.id), self.target());
        let (parent, _) = target.rsplit_once('/').unwrap();
        let vm = self.cluster.vm(node);
        vm.ok(&format!("mkdir -p {staging} {parent}")).unwrap();
        let csi = &self.cluster.nodes[node];
        csi.stage(&self.id, &context, &staging, FS).unwrap();
        csi.publish(&self.id, &context, &staging, &target, FS, false)
            .unwrap();
    }

    pub(super) fn attach(&self, node: &str) -> Result<HashMap<String, String>, Status> {
        let csi = &self.cluster.controller.csi;
        csi.controller_publish(&self.id, node, FS)
    }

    /// From a pod's path to nothing.
    pub(super) fn take_from(&self, node: &str) {
        self.take_down(node);
        self.detach(node);
    }

    pub(super) fn detach(&self, node: &str) {
        let csi = &self.cluster.controller.csi;
        csi.controller_unpublish(&self.id, node).unwrap();
    }

    /// The node's half of that.
    pub(super) fn take_down(&self, node: &str) {
        let csi = &self.cluster.nodes[node];
        csi.unpublish(&self.id, &self.target()).unwrap();
        csi.unstage(&self.id, &staging_path(&self.id)).unwrap();
    }

    pub(super) fn delete(&self) {
        self.cluster.controller.csi.delete(&self.id).unwrap();
    }

    /// Writes 8 MiB through `node`, synced; gives their checksum.
    pub(super) fn write(&self, node: &str) -> String {
        let file = format!("{}/data", self.target());
        let script = format!(
            "dd if=/dev/urandom of={file} bs=1M count=8 conv=fsync status=none && sha256sum < {file}"
        );
        self.cluster.vm(node).ok(&script).unwrap()
    }

    /// The checksum of what [`Volume::write`] wrote, read through `node`.
    pub(super) fn read(&self, node: &str) -> String {
        let script = format!("sha256sum < {}/data", self.target());
        self.cluster.vm(node).ok(&script).unwrap()
    }

    /// Bytes of the filesystem that the pod sees.
    pub(super) fn bytes(&self, node: &str) -> u64 {
        let script = format!(
            "stat -f -c '%b %S' {} | {{ read b s; echo $((b*s)); }}",
            self.target()
        );
        let said = self.cluster.vm(node).ok(&script).unwrap();
        said.trim().parse().unwrap()
    }

    /// NodeExpandVolume.
    pub(super) fn grow_on(&self, node: &str) {
        let csi = &self.cluster.nodes[node];
        let request = zvolt_proto::csi::NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: self.target(),
            staging_target_path: staging_path(&self.id),
            ..Default::default()
        };
        csi.call(csi.node().node_expand_volume(csi.request(request)))
            .unwrap();
    }

    /// A pod on `node` that appends numbers, each synced, until [`Writer::finish`].
    pub(super) fn writer(&self, node: &str) -> Writer<'static> {
        let vm = self.cluster.vm(node);
        let file = format!("{}/log", self.target());
        let notes = format!("/run/writer-{}", self.id);
        let script = format!(
            "rm -rf {notes}; mkdir {notes}; touch {notes}/on; i=0; \
             while [ -e {notes}/on ]; do i=$((i+1)); echo $i >> {file} && sync {file} && echo $i > {notes}/last || exit 1; done; \
             seq 1 $i | cmp - {file}"
        );
        Writer {
            vm,
            process: vm.spawn(&script).unwrap(),
            notes,
        }
    }
}

/// A pod that writes.
pub(super) struct Writer<'a> {
    vm: &'a Vm,
    process: zvolt_lab::Running<'a>,
    notes: String,
}

impl Writer<'_> {
    /// Waits until it has written some more.
    pub(super) fn goes_on(&self) {
        let script = format!(
            "n() {{ cat {0}/last 2>/dev/null || echo 0; }}; a=$(n); \
             for t in $(seq 600); do b=$(n); [ ${{b:-0}} -gt $((${{a:-0}}+3)) ] && exit 0; sleep 0.1; done; exit 1",
            self.notes
        );
        self.vm.ok(&script).expect("the writer goes on");
    }

    /// Ends it: no write has failed, and each number is there once.
    pub(super) fn finish(self) {
        self.vm.ok(&format!("rm {}/on", self.notes)).unwrap();
        let ended = self.process.wait().unwrap();
        assert_eq!(ended.status, 0, "{}{}", ended.stdout, ended.stderr);
    }
}
