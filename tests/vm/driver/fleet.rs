//! The machines, the drivers on them, and a volume's way through them.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::thread;

use tonic::{Code, Status};
use zvolt_lab::fleet::{Member, assert_clean, scrub, staging_path, target_path};
use zvolt_lab::orchestrator::{Csi, Wanted};
use zvolt_lab::{Lab, Vm};

static LAB: LazyLock<Lab> = LazyLock::new(|| {
    Lab::attach().expect("these tests need a lab: run them by `cargo lab test vm`")
});

/// All machines of the default lab.
pub(crate) const MACHINES: [&str; 3] = ["storage0", "node0", "node1"];

/// The lab that all tests share.
pub(crate) fn lab() -> &'static Lab {
    &LAB
}

/// A freshly started driver on every machine.
pub(crate) struct Fleet {
    pub(crate) storage: Member<'static>,
    pub(crate) node0: Member<'static>,
    /// The controller's socket.
    pub(crate) controller: Csi,
    /// The sockets of the consumers, by node ID.
    pub(crate) nodes: HashMap<&'static str, Csi>,
}

impl Fleet {
    /// Scrubs every machine and starts a driver on each.
    pub(crate) fn fresh() -> Self {
        Self::fresh_with(&[], &[])
    }

    /// The same, with environment variables for the storage side and for node0.
    pub(crate) fn fresh_with(storage_env: &[(&str, &str)], node0_env: &[(&str, &str)]) -> Self {
        let lab = lab();
        // Consumers let go first: a target that is torn down under a controller leaves it reconnecting.
        thread::scope(|scope| {
            for node in ["node0", "node1"] {
                scope.spawn(move || scrub(lab.vm(node)).unwrap());
            }
        });
        scrub(lab.vm("storage0")).unwrap();
        let storage = Member::storage(lab);
        let node0 = Member::node(lab, "node0");
        let node1 = Member::node(lab, "node1");
        thread::scope(|scope| {
            let all = [
                scope.spawn(|| storage.start_with(storage_env)),
                scope.spawn(|| node0.start_with(node0_env)),
                scope.spawn(|| node1.start()),
            ];
            for one in all {
                one.join().unwrap().unwrap();
            }
        });
        let controller = storage.csi().unwrap();
        let nodes = HashMap::from([
            ("node0", node0.csi().unwrap()),
            ("node1", node1.csi().unwrap()),
        ]);
        Self {
            storage,
            node0,
            controller,
            nodes,
        }
    }

    /// The machine of that name.
    pub(crate) fn vm(&self, name: &str) -> &'static Vm {
        lab().vm(name)
    }

    /// Fails when anything is left of any volume anywhere.
    pub(crate) fn assert_clean(&self) {
        assert_clean(lab(), &MACHINES).unwrap();
    }

    /// CreateVolume.
    pub(crate) fn create(&self, wanted: &Wanted) -> Journey<'_> {
        let volume = self.controller.create(wanted).unwrap();
        Journey {
            fleet: self,
            id: volume.volume_id,
            fs_type: wanted.fs_type.clone(),
        }
    }
}

/// One volume's way.
pub(crate) struct Journey<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) id: String,
    pub(crate) fs_type: String,
}

impl Journey<'_> {
    pub(crate) fn staging(&self) -> String {
        staging_path(&self.id)
    }

    pub(crate) fn target(&self) -> String {
        target_path(&self.id, "pod-1")
    }

    pub(crate) fn attach(&self, node: &str) -> Result<HashMap<String, String>, Status> {
        self.fleet
            .controller
            .controller_publish(&self.id, node, &self.fs_type)
    }

    pub(crate) fn detach(&self, node: &str) -> Result<(), Status> {
        self.fleet.controller.controller_unpublish(&self.id, node)
    }

    /// NodeStageVolume, with the staging path made first, as kubelet does.
    pub(crate) fn stage(
        &self,
        node: &str,
        context: &HashMap<String, String>,
    ) -> Result<(), Status> {
        self.fleet
            .vm(node)
            .ok(&format!("mkdir -p {}", self.staging()))
            .unwrap();
        self.fleet.nodes[node].stage(&self.id, context, &self.staging(), &self.fs_type)
    }

    /// NodePublishVolume, with the directory above the target made first, as kubelet does.
    pub(crate) fn publish(
        &self,
        node: &str,
        context: &HashMap<String, String>,
        readonly: bool,
    ) -> Result<(), Status> {
        let target = self.target();
        self.fleet
            .vm(node)
            .ok(&format!("mkdir -p $(dirname {target})"))
            .unwrap();
        self.fleet.nodes[node].publish(
            &self.id,
            context,
            &self.staging(),
            &target,
            &self.fs_type,
            readonly,
        )
    }

    pub(crate) fn unpublish(&self, node: &str) -> Result<(), Status> {
        self.fleet.nodes[node].unpublish(&self.id, &self.target())
    }

    pub(crate) fn unstage(&self, node: &str) -> Result<(), Status> {
        self.fleet.nodes[node].unstage(&self.id, &self.staging())
    }

    /// From nothing to a pod's path on `node`.
    pub(crate) fn bring_to(&self, node: &str) -> HashMap<String, String> {
        let context = self.attach(node).unwrap();
        self.stage(node, &context).unwrap();
        self.publish(node, &context, false).unwrap();
        context
    }

    /// From a pod's path to nothing.
    pub(crate) fn take_from(&self, node: &str) {
        self.unpublish(node).unwrap();
        self.unstage(node).unwrap();
        self.detach(node).unwrap();
    }

    pub(crate) fn delete(&self) {
        self.fleet.controller.delete(&self.id).unwrap();
    }

    /// Writes 8 MiB through `node`, synced; gives their checksum.
    pub(crate) fn write(&self, node: &str) -> String {
        let target = self.target();
        let out = self.fleet.vm(node).ok(&format!(
            "dd if=/dev/urandom of={target}/data bs=1M count=8 conv=fsync status=none && sha256sum < {target}/data"
        ));
        out.unwrap().trim().to_owned()
    }

    /// The checksum of what [`Journey::write`] wrote, read through `node`.
    pub(crate) fn read(&self, node: &str) -> String {
        let out = self
            .fleet
            .vm(node)
            .ok(&format!("sha256sum < {}/data", self.target()));
        out.unwrap().trim().to_owned()
    }
}

/// Asserts that a call failed with this code and that its message has all of these words in it.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    outcome: Result<T, Status>,
    code: Code,
    words: &[&str],
) {
    let status = outcome.expect_err("the call must be refused");
    assert_eq!(status.code(), code, "{}", status.message());
    for word in words {
        assert!(
            status.message().contains(word),
            "{word:?} is missing in: {}",
            status.message()
        );
    }
}
