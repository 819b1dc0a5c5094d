//! The machines, the drivers on them, and a volume's way through them.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::thread;

use tonic::{Code, Status};
use zvolt_lab::fleet::{Member, assert_clean, leftovers, scrub, staging_path, target_path};
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
    /// A driver on every machine, and nothing of an earlier test: what a clean test has left running
    /// is taken as it is, anything else is scrubbed and started anew.
    pub(crate) fn fresh() -> Self {
        let lab = lab();
        let storage = Member::storage(lab);
        let nodes = ["node0", "node1"].map(|name| Member::node(lab, name));
        let all = [&storage, &nodes[0], &nodes[1]];
        let is_usable = |member: &Member<'_>| {
            member.is_running_as_told().unwrap() && leftovers(member.vm()).unwrap().is_empty()
        };
        if !all_at_once(&all, is_usable)
            .into_iter()
            .all(|usable| usable)
        {
            // Consumers let go first: a target that is torn down under a controller leaves it reconnecting.
            all_at_once(&all[1..], |member| scrub(member.vm()).unwrap());
            scrub(storage.vm()).unwrap();
            all_at_once(&all, |member| member.start().unwrap());
        }
        let controller = storage.csi().unwrap();
        let sockets = all_at_once(&all[1..], |member| member.csi().unwrap());
        let [node0, _] = nodes;
        Self {
            storage,
            node0,
            controller,
            nodes: ["node0", "node1"].into_iter().zip(sockets).collect(),
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

fn all_at_once<T: Send>(members: &[&Member<'_>], act: impl Fn(&Member<'_>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = members
            .iter()
            .map(|member| scope.spawn(|| act(member)))
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a machine failed"))
            .collect()
    })
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
        let (parent, _) = target.rsplit_once('/').unwrap();
        self.fleet
            .vm(node)
            .ok(&format!("mkdir -p {parent}"))
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

    /// All the way down from a pod's path, by a controller whose process is not the one that the fleet began with.
    pub(crate) fn end_by(&self, controller: &Csi, node: &str) {
        self.unpublish(node).unwrap();
        self.unstage(node).unwrap();
        controller.controller_unpublish(&self.id, node).unwrap();
        controller.delete(&self.id).unwrap();
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
