//! How a program talks to the process that keeps the lab: one JSON request and one JSON reply a
//! connection, on a Unix socket in the lab's run folder.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::machine::{Accelerator, Spec};

/// What the keeper can be asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// How things are.
    State,
    /// Start a machine that is off.
    Start(String),
    /// End a machine as a power cut would.
    Kill(String),
    /// Lose what a machine sends and is sent on the private network.
    Cut(String),
    /// The opposite of `Cut`.
    Restore(String),
    /// Stop a machine's processors, and with them its clock.
    Pause(String),
    /// The opposite of `Pause`.
    Resume(String),
    /// Outlive the program that started the lab.
    Keep,
    /// End everything and remove every trace. The reply comes when it is done.
    Down,
}

/// The keeper's reply.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done; here is how things are.
    State(State),
    /// Not done; here is why.
    Refused(String),
}

/// A lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The folder of its sockets and logs.
    pub run_dir: PathBuf,
    /// The folder of the image.
    pub image: PathBuf,
    /// What runs the machines.
    pub accelerator: Accelerator,
    /// The machines.
    pub machines: Vec<MachineState>,
}

/// A machine of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineState {
    /// What it is made of.
    #[serde(flatten)]
    pub spec: Spec,
    /// IPv4 address on the private network.
    pub ipv4: String,
    /// IPv6 address on the private network.
    pub ipv6: String,
    /// Port on 127.0.0.1 that leads to its SSH server.
    pub ssh_port: u16,
    /// Process that emulates it; none when it is off.
    pub pid: Option<u32>,
}

/// The keeper's socket.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control")
}

/// Sends one request to the keeper of a lab.
pub fn ask(run_dir: &Path, request: &Request) -> Result<State> {
    let path = socket(run_dir);
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!(
            "no lab runs at {} (connect {})",
            run_dir.display(),
            path.display()
        )
    })?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match serde_json::from_str(&answer)
        .with_context(|| format!("the lab at {} ended", run_dir.display()))?
    {
        Reply::State(state) => Ok(state),
        Reply::Refused(why) => bail!("{why}"),
    }
}
