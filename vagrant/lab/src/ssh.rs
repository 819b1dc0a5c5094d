//! The way into a machine: OpenSSH over a forwarded port on loopback. The keeper holds one connection
//! a machine; every command and every forwarded socket is a session inside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::image::Image;

/// The socket of the connection that the keeper holds. Short: a Unix socket's path has 107 bytes, of
/// which ssh itself takes 17 for a while.
pub(crate) fn master_socket(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.ssh"))
}

/// The command that holds a connection.
pub(crate) fn master(image: &Image, socket: &Path, port: u16) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "--",
        "ssh",
        "-F",
        "/dev/null",
        "-N",
        "-M",
        "-S",
    ]);
    command.arg(socket);
    command.arg("-i").arg(image.key());
    command.arg("-o").arg(format!(
        "UserKnownHostsFile={}",
        image.known_hosts().display()
    ));
    for option in [
        "GlobalKnownHostsFile=/dev/null",
        "HostKeyAlias=zvolt-lab",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "BatchMode=yes",
        "ControlPersist=no",
        "StreamLocalBindUnlink=yes",
        "ConnectTimeout=20",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
        "LogLevel=ERROR",
    ] {
        command.args(["-o", option]);
    }
    command.args(["-p", &port.to_string(), "root@127.0.0.1"]);
    command.stdin(Stdio::null());
    command
}

/// A command that uses the keeper's connection, and fails at once when there is none.
pub(crate) fn client(socket: &Path) -> Command {
    let mut command = Command::new("ssh");
    command.args([
        "-F",
        "/dev/null",
        "-o",
        "ControlMaster=no",
        "-o",
        "ProxyCommand=false",
    ]);
    command.args(["-o", "LogLevel=ERROR", "-S"]).arg(socket);
    command
}

/// The name by which ssh wants to hear of the machine at the other end; only the socket decides.
pub(crate) const HOST: &str = "root@lab";
