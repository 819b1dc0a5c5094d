//! A Kubernetes control plane on this machine's loopback: etcd and kube-apiserver, which end with the program that has
//! started them.

use std::env;
use std::fs::{self, OpenOptions};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::keeper::free_port;

/// etcd's file.
pub const ETCD: &str = "etcd";
/// The API server's file.
pub const API_SERVER: &str = "kube-apiserver";
/// The controller manager's file.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The scheduler's file.
pub const SCHEDULER: &str = "kube-scheduler";
/// The snapshot controller's file.
pub const SNAPSHOT_CONTROLLER: &str = "snapshot-controller";
/// The variable that names the folder of etcd and the API server.
pub const PROGRAMS_IN: &str = "ZVOLT_K8S_PROGRAMS";
/// The variable that names the folder of the controller manager and the scheduler.
pub const CONTROLLERS_IN: &str = "ZVOLT_K8S_CONTROLLERS";
/// The variable that names the folder of the sidecars and the snapshot controller.
pub const SIDECARS_IN: &str = "ZVOLT_K8S_SIDECARS";
/// The variable that names a folder for the data of etcd and the API server; it exists.
pub const DATA: &str = "ZVOLT_K8S_DATA";
/// How long each may take to be ready.
const READY: Duration = Duration::from_secs(180);
/// Requests of tests themselves, and those of the store under test: told apart in the audit log.
const USERS: [&str; 2] = ["tests", "store"];

/// The control plane.
#[derive(Debug)]
pub struct ControlPlane {
    data: PathBuf,
    api_port: u16,
    to_keeper: Mutex<Sender<Order>>,
}

/// What the keeper of the servers is asked for, and where its answer goes.
#[derive(Debug)]
struct Order(Wish, Sender<Result<()>>);

#[derive(Debug, Clone, Copy)]
enum Wish {
    Start,
    Kill,
}

/// Whether the API server that a kubeconfig file names says that it is ready (`/readyz`).
type IsReady = Box<dyn Fn(&Path) -> bool + Send>;

struct Servers {
    is_ready: IsReady,
    programs: PathBuf,
    data: PathBuf,
    etcd_port: u16,
    peer_port: u16,
    api_port: u16,
    etcd: Option<Child>,
    api: Option<Child>,
}

impl ControlPlane {
    /// Starts both, and waits until the API server is ready: `is_ready` asks it, with a kubeconfig file.
    pub fn start(is_ready: impl Fn(&Path) -> bool + Send + 'static) -> Result<Self> {
        let folder = |key: &str| {
            env::var_os(key).map(PathBuf::from).with_context(|| {
                format!("{key} is not set: run these tests by `cargo lab test k8s`")
            })
        };
        let servers = Servers {
            is_ready: Box::new(is_ready),
            programs: folder(PROGRAMS_IN)?,
            data: folder(DATA)?,
            etcd_port: free_port()?,
            peer_port: free_port()?,
            api_port: free_port()?,
            etcd: None,
            api: None,
        };
        servers.write_files()?;
        let (to_keeper, orders) = mpsc::channel();
        let plane = Self {
            data: servers.data.clone(),
            api_port: servers.api_port,
            to_keeper: Mutex::new(to_keeper),
        };
        // A leash (PR_SET_PDEATHSIG) is held by the thread that starts a process, and a test's thread ends with it.
        thread::Builder::new()
            .name("control-plane".into())
            .spawn(move || servers.keep(&orders))?;
        plane.start_api_server()?;
        Ok(plane)
    }

    /// Kills the API server; etcd stays.
    pub fn kill_api_server(&self) -> Result<()> {
        self.order(Wish::Kill)
    }

    /// Starts it again at the same address, and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        self.order(Wish::Start)
    }

    fn order(&self, wish: Wish) -> Result<()> {
        let (answer, answered) = mpsc::channel();
        let to_keeper = self
            .to_keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        to_keeper
            .send(Order(wish, answer))
            .ok()
            .context("the servers' keeper has ended")?;
        drop(to_keeper);
        answered.recv()?
    }

    /// A kubeconfig file of a user who may do all, `tests` or `store`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        kubeconfig(&self.data, user)
    }

    /// The API server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.api_port
    }

    /// The file with the certificate by which it is known.
    pub fn certificate(&self) -> PathBuf {
        certificate(&self.data)
    }

    /// What a kubeconfig file says of somebody with a token, on a machine that has the certificate at `certificate`.
    pub fn kubeconfig_of(&self, token: &str, certificate: &Path) -> String {
        kubeconfig_text(self.api_port, certificate, token)
    }

    /// The audit events (audit.k8s.io/v1) of what a user has asked for so far. A watch has one at its beginning and one at
    /// its end, other requests only that.
    pub fn audited(&self, user: &str) -> Result<Vec<serde_json::Value>> {
        let text = fs::read_to_string(self.data.join("audit.log"))?;
        let events = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let mut all = events.collect::<Result<Vec<_>, _>>()?;
        all.retain(|event| event["user"]["username"] == user);
        Ok(all)
    }
}

fn kubeconfig(data: &Path, user: &str) -> PathBuf {
    data.join(format!("{user}.kubeconfig"))
}

/// The server makes it itself, with the certificate that has signed it.
fn certificate(data: &Path) -> PathBuf {
    data.join("certs/apiserver.crt")
}

fn kubeconfig_text(port: u16, certificate: &Path, token: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": certificate,
        }}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
    .to_string()
}

fn token(user: &str) -> String {
    // It opens a server on loopback that lives for the tests.
    format!("token-of-{user}")
}

impl Servers {
    fn write_files(&self) -> Result<()> {
        let tokens: String = USERS
            .iter()
            .map(|user| format!("{},{user},{user},system:masters\n", token(user)))
            .collect();
        fs::write(self.data.join("tokens.csv"), tokens)?;
        let policy = serde_json::json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}],
        });
        fs::write(self.data.join("audit.json"), policy.to_string())?;
        for user in USERS {
            let text = kubeconfig_text(self.api_port, &certificate(&self.data), &token(user));
            fs::write(kubeconfig(&self.data, user), text)?;
        }
        Ok(())
    }

    fn keep(mut self, orders: &Receiver<Order>) {
        while let Ok(Order(wish, answer)) = orders.recv() {
            let outcome = match wish {
                Wish::Start => self.start(),
                Wish::Kill => self.kill(),
            };
            let _ = answer.send(outcome);
        }
        for mut child in self.api.into_iter().chain(self.etcd) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn start(&mut self) -> Result<()> {
        if self.etcd.is_none() {
            let client = format!("http://127.0.0.1:{}", self.etcd_port);
            let peer = format!("http://127.0.0.1:{}", self.peer_port);
            let mut command = self.leashed(ETCD);
            command
                .arg("--data-dir")
                .arg(self.data.join("etcd"))
                .args(["--listen-client-urls", &client])
                .args(["--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer])
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("default={peer}")])
                // Its data ends with the tests.
                .arg("--unsafe-no-fsync");
            let mut child = self.spawned(command, ETCD)?;
            self.wait(&mut child, ETCD, || {
                TcpStream::connect(("127.0.0.1", self.etcd_port)).is_ok()
            })?;
            self.etcd = Some(child);
        }
        ensure!(self.api.is_none(), "the API server runs already");
        let certs = self.data.join("certs");
        let key = certs.join("apiserver.key");
        let mut command = self.leashed(API_SERVER);
        command
            .arg(format!(
                "--etcd-servers=http://127.0.0.1:{}",
                self.etcd_port
            ))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={}", self.api_port))
            .arg(arg("--cert-dir", &certs))
            .arg(arg("--token-auth-file", &self.data.join("tokens.csv")))
            .arg("--authorization-mode=RBAC")
            // Of a cluster that has no such rule of its own, as kubeadm makes them.
            .arg("--allow-privileged=true")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            // The key that the server has made for itself signs the tokens of accounts as well.
            .arg(arg("--service-account-key-file", &key))
            .arg(arg("--service-account-signing-key-file", &key))
            .arg("--service-cluster-ip-range=10.0.0.0/24")
            .arg(arg("--audit-policy-file", &self.data.join("audit.json")))
            .arg(arg("--audit-log-path", &self.data.join("audit.log")));
        let mut child = self.spawned(command, API_SERVER)?;
        let config = kubeconfig(&self.data, USERS[0]);
        self.wait(&mut child, API_SERVER, || (self.is_ready)(&config))?;
        self.api = Some(child);
        Ok(())
    }

    /// Waits until a server is ready, or has ended.
    fn wait(&self, child: &mut Child, name: &str, is_ready: impl Fn() -> bool) -> Result<()> {
        let end = Instant::now() + READY;
        while !is_ready() {
            let ended = child.try_wait()?;
            if ended.is_none() && Instant::now() < end {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            let _ = child.kill();
            let log = fs::read_to_string(self.log(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            bail!(
                "{name} is not ready ({}); the end of what it said:\n{}",
                ended.map_or_else(
                    || format!("after {} s", READY.as_secs()),
                    |status| status.to_string()
                ),
                lines[lines.len().saturating_sub(20)..].join("\n")
            );
        }
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.data.join(format!("{name}.log"))
    }

    fn kill(&mut self) -> Result<()> {
        let mut child = self.api.take().context("the API server does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn leashed(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(self.programs.join(program));
        command
    }

    fn spawned(&self, mut command: Command, name: &str) -> Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(name))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {name}"))
    }
}

fn arg(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
