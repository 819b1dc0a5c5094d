//! What is to be measured.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// No filesystem: the block device itself.
pub const RAW: &str = "raw";

/// One job for one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The driver's socket.
    pub socket: PathBuf,
    /// How often each side does it. One more comes first and is not told of.
    pub rounds: u32,
    /// What.
    pub work: Work,
}

/// The kinds of work.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Stage and publish a volume that this node is admitted to, over NVMe/TCP, and take it down again.
    Remote {
        /// The volume that all sides have in turn.
        volume: Volume,
        /// A pooled one, for the driver alone, to which the connection stays.
        warm: Option<Volume>,
    },
    /// The same by the driver alone.
    Driver(Volume),
    /// Stage and publish so many of them at once, for each number, by the driver and by bare system calls.
    AtOnce {
        /// The volumes.
        volumes: Vec<Volume>,
        /// The numbers.
        numbers: Vec<usize>,
    },
    /// Export these zvols in one subsystem, by bare configfs writes alone, and take the exports away.
    Export {
        /// Their names.
        zvols: Vec<String>,
    },
    /// Stage and publish on the storage host itself, without a network.
    Local(Volume),
    /// Admit a node to a volume and take it out again, on the storage host.
    Admit {
        /// The volume.
        volume: Volume,
        /// The node's CSI ID.
        node: String,
        /// The host NQN that the driver gives that node.
        host_nqn: String,
    },
    /// Make a volume and delete it, on the storage host.
    Create {
        /// Pool.
        pool: String,
        /// Bytes.
        size: u64,
        /// `ext4`, `xfs`, or [`RAW`].
        fs_type: String,
        /// The target's port, by number.
        port: u16,
    },
}

/// A volume, as the orchestrator and the kernel know it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Volume {
    /// CSI volume ID.
    pub id: String,
    /// `ext4`, `xfs`, or [`RAW`].
    pub fs_type: String,
    /// The publish context of this node.
    pub context: HashMap<String, String>,
    /// Kubelet's directory: staging and target paths lie below it.
    pub kubelet_dir: PathBuf,
    /// Subsystem NQN.
    pub nqn: String,
    /// Portal.
    pub portal: SocketAddr,
    /// The namespace's UUID.
    pub uuid: Uuid,
    /// The zvol's device; only on its own host.
    pub device: Option<PathBuf>,
}

impl Volume {
    /// Where it is staged.
    pub fn staging(&self) -> PathBuf {
        let below = format!("plugins/kubernetes.io/csi/bench/{}/globalmount", self.id);
        self.kubelet_dir.join(below)
    }

    /// Whether it is published as a block device.
    pub fn is_raw(&self) -> bool {
        self.fs_type == RAW
    }

    /// Where a pod has it.
    pub fn target(&self) -> PathBuf {
        let below = format!("pods/bench/volumes/kubernetes.io~csi/{}/mount", self.id);
        self.kubelet_dir.join(below)
    }
}
