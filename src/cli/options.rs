//! The options of the modes that serve.

use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::agent::{self, AgentConfig};
use crate::csi::socket::Endpoint;
use crate::model::names;
use crate::node::{NodeConfig, RULES_DIR};

/// Controller, agent and node.
#[derive(Debug, Args)]
pub(super) struct Standalone {
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR", default_value = "/var/lib/zvolt", env = "ZVOLT_STORE", value_parser = directory)]
    pub(super) store: PathBuf,
    #[command(flatten)]
    pub(super) consumers: Consumers,
    #[command(flatten)]
    pub(super) storage: Storage,
    #[command(flatten)]
    pub(super) node: Node,
}

/// The controller alone.
#[derive(Debug, Args)]
pub(super) struct Controller {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    #[command(flatten)]
    pub(super) consumers: Consumers,
    /// Socket that the orchestrator connects to
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "unix:///run/zvolt/controller.sock",
        env = "ZVOLT_ENDPOINT"
    )]
    pub(super) endpoint: Endpoint,
    #[command(flatten)]
    pub(super) patience: Patience,
}

/// The agent alone.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// Name of this host among the nodes of the cluster: volumes with this `ownerNode` are served; the host name when not
    /// given
    #[arg(long, value_name = "ID", env = "ZVOLT_NODE_ID", value_parser = node_id, default_value_t = host_name())]
    pub(super) node_id: String,
    #[command(flatten)]
    pub(super) cluster: Cluster,
    #[command(flatten)]
    pub(super) storage: Storage,
    #[command(flatten)]
    pub(super) priority: Priority,
    /// Socket that `zvolt trace` asks
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "unix:///run/zvolt/agent.sock",
        env = "ZVOLT_ENDPOINT"
    )]
    pub(super) endpoint: Endpoint,
    #[command(flatten)]
    pub(super) patience: Patience,
}

/// The cluster that keeps the volumes.
#[derive(Debug, Args)]
pub(super) struct Cluster {
    /// Namespace of the Volume, Snapshot and StorageNode objects
    #[arg(long, value_name = "NAMESPACE", env = "ZVOLT_NAMESPACE", value_parser = namespace)]
    pub(super) namespace: String,
    /// The way to the API server; the cluster that this pod runs in, or that kubectl would take, when not given
    #[arg(long, value_name = "FILE", env = "ZVOLT_KUBECONFIG", value_parser = file)]
    pub(super) kubeconfig: Option<PathBuf>,
}

/// Who may have volumes.
#[derive(Debug, Args)]
pub(super) struct Consumers {
    /// Node ID of a consumer; may be given several times. When one is given, no other node gets a volume but
    /// these and, with an embedded store, this host
    #[arg(
        long = "consumer",
        value_name = "NODE_ID",
        env = "ZVOLT_CONSUMERS",
        value_delimiter = ',',
        value_parser = node_id
    )]
    pub(super) consumers: Vec<String>,
}

/// How long calls may take.
#[derive(Debug, Args)]
pub(super) struct Patience {
    /// Deadline in seconds of a call whose client names none
    #[arg(long, value_name = "SECONDS", default_value_t = 60, env = "ZVOLT_RPC_TIMEOUT", value_parser = clap::value_parser!(u32).range(1..=3600))]
    rpc_timeout: u32,
    /// How many seconds a stop waits for the calls that run
    #[arg(long, value_name = "SECONDS", default_value_t = 25, env = "ZVOLT_STOP_TIMEOUT", value_parser = clap::value_parser!(u32).range(0..=3600))]
    stop_timeout: u32,
}

impl Patience {
    pub(super) fn deadline(&self) -> Duration {
        Duration::from_secs(self.rpc_timeout.into())
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::from_secs(self.stop_timeout.into())
    }
}

/// Who goes first on a busy machine.
#[derive(Debug, Args)]
pub(super) struct Priority {
    /// Scheduling priority of all threads, -20 (first) to 19 (setpriority(2)): a pod waits for what they do, and udev works
    /// on the same devices at the same time
    #[arg(long, value_name = "N", default_value_t = -10, env = "ZVOLT_NICE", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(super) nice: i32,
}

/// The storage side.
#[derive(Debug, Args)]
pub(super) struct Storage {
    /// Where the NVMe/TCP target listens; may be given several times, consumers are told the first
    #[arg(
        long = "portal",
        value_name = "ADDR:PORT",
        required = true,
        env = "ZVOLT_PORTAL",
        value_delimiter = ',',
        value_parser = portal
    )]
    pub(super) portals: Vec<SocketAddr>,
    /// Number of the first portal's port below /sys/kernel/config/nvmet/ports; the others follow
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        env = "ZVOLT_PORT_ID_BASE"
    )]
    pub(super) port_id_base: u16,
    /// How many volumes the agent works on at a time
    #[arg(long, value_name = "N", default_value_t = 8, env = "ZVOLT_PARALLEL", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) parallel: u16,
    /// How many seconds the portals answer nobody after a boot, while the pool of a volume that a node has attached is
    /// not imported yet: that node would be refused for good
    #[arg(long, value_name = "SECONDS", default_value_t = 60, env = "ZVOLT_AWAIT_POOLS", value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(super) await_pools: u32,
    /// How many pooled volumes a node has in one subsystem; more of them have another
    #[arg(long, value_name = "N", default_value_t = 1024, env = "ZVOLT_NAMESPACES", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) namespaces: u32,
}

impl Storage {
    /// As the agent's room wants it.
    pub(super) fn config(self, node_id: &str) -> AgentConfig {
        AgentConfig {
            node_name: node_id.to_owned(),
            portals: self.portals,
            port_id_base: self.port_id_base,
            roots: agent::Roots::default(),
            parallel: self.parallel.into(),
            await_pools: Duration::from_secs(self.await_pools.into()),
            namespaces: self.namespaces,
        }
    }
}

/// The consumer side.
#[derive(Debug, Args)]
pub(super) struct Node {
    /// CSI node ID: 1 to 63 letters, digits, '.', '-' and '_'; the host name when not given
    #[arg(long, value_name = "ID", env = "ZVOLT_NODE_ID", value_parser = node_id, default_value_t = host_name())]
    pub(super) node_id: String,
    /// Socket that the orchestrator connects to
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "unix:///run/zvolt/csi.sock",
        env = "ZVOLT_ENDPOINT"
    )]
    pub(super) endpoint: Endpoint,
    /// All staging and target paths lie below this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", env = "ZVOLT_KUBELET_DIR", value_parser = directory)]
    pub(super) kubelet_dir: PathBuf,
    /// I/O queues of a controller, never more than CPUs; 0 leaves it to the kernel
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        env = "ZVOLT_NR_IO_QUEUES"
    )]
    pub(super) nr_io_queues: u32,
    /// Seconds until I/O queued for a lost target fails; -1: never, it waits for the target
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        env = "ZVOLT_FAST_IO_FAIL_TMO",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1..)
    )]
    pub(super) fast_io_fail_tmo: i32,
    /// Keep-alive time-out in seconds: how soon a dead target is noticed
    #[arg(long, value_name = "SECONDS", default_value_t = 5, env = "ZVOLT_KEEP_ALIVE_TMO", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) keep_alive_tmo: u32,
    /// Seconds between tries to reconnect to a lost target
    #[arg(long, value_name = "SECONDS", default_value_t = 2, env = "ZVOLT_RECONNECT_DELAY", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) reconnect_delay: u32,
    /// Local address of connections to storage hosts; the routes say when not given
    #[arg(long, value_name = "ADDR", env = "ZVOLT_HOST_TRADDR")]
    pub(super) host_traddr: Option<IpAddr>,
    /// Local interface of connections to storage hosts; needed where their portals are link-local
    #[arg(long, value_name = "IFNAME", env = "ZVOLT_HOST_IFACE")]
    pub(super) host_iface: Option<String>,
    /// How many volumes may be on this node at a time; derived from its local ports when not given
    #[arg(long, value_name = "N", env = "ZVOLT_MAX_VOLUMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_volumes: Option<u32>,
    #[command(flatten)]
    pub(super) priority: Priority,
    /// Leave udevd as it is. Else it is told, until the next boot, neither to read nor to watch namespaces of zvolt: no
    /// links below /dev/disk are made for them, and LVM activates nothing of theirs
    #[arg(long, env = "ZVOLT_STOCK_UDEV")]
    pub(super) stock_udev: bool,
    #[command(flatten)]
    pub(super) patience: Patience,
}

impl Node {
    /// As the node's room wants it.
    pub(super) fn config(&self) -> NodeConfig {
        NodeConfig {
            node_id: self.node_id.clone(),
            kubelet_dir: self.kubelet_dir.clone(),
            nr_io_queues: Some(self.nr_io_queues).filter(|queues| *queues != 0),
            fast_io_fail_tmo: self.fast_io_fail_tmo,
            keep_alive_tmo: self.keep_alive_tmo,
            reconnect_delay: self.reconnect_delay,
            host_traddr: self.host_traddr,
            host_iface: self.host_iface.clone(),
            max_volumes: self.max_volumes,
            udev_rules: (!self.stock_udev).then(|| RULES_DIR.into()),
            roots: Default::default(),
        }
    }
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn node_id(text: &str) -> Result<String, &'static str> {
    if names::is_node_id(text) {
        return Ok(text.to_owned());
    }
    Err("1 to 63 letters, digits, '.', '-' and '_' are needed, with a letter or digit at both ends")
}

fn namespace(text: &str) -> Result<String, &'static str> {
    if names::is_handle(text) {
        return Ok(text.to_owned());
    }
    Err("a namespace's name is needed: 1 to 63 of a-z, 0-9 and '-'")
}

fn portal(text: &str) -> Result<SocketAddr, &'static str> {
    let portal: SocketAddr = text
        .parse()
        .map_err(|_| "an address and a port are needed: 10.0.0.1:4420 or [fd00::1]:4420")?;
    if portal.ip().is_unspecified() || portal.port() == 0 {
        return Err("consumers connect to it: an address of this host is needed, and a port");
    }
    Ok(portal)
}

fn file(text: &str) -> Result<PathBuf, &'static str> {
    match text.ends_with('/') {
        true => Err("a file is needed"),
        false => directory(text),
    }
}

fn directory(text: &str) -> Result<PathBuf, &'static str> {
    let path = Path::new(text);
    let is_plain = path
        .components()
        .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && is_plain && !text.contains(char::is_control) {
        return Ok(path.to_owned());
    }
    Err("an absolute path without '..' is needed")
}
