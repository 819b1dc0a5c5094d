//! Programs of the cluster on this machine. Each ends with its handle.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// How much of a log is shown when a test fails.
const SHOWN: usize = 40;

/// One that runs.
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A program that ends with this thread, however that ends, and has no capability.
pub(super) fn leashed(program: &Path) -> Command {
    leashed_by(Command::new("setpriv"), program)
}

/// The same on a host of its own name: leaders are told apart by it.
pub(super) fn on_host(name: &str, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--uts", "--", "sh", "-c"]);
    command.arg("echo \"$0\" > /proc/sys/kernel/hostname && exec \"$@\"");
    command.args([name, "setpriv"]);
    leashed_by(command, program)
}

fn leashed_by(mut command: Command, program: &Path) -> Command {
    command.args(["--pdeathsig", "KILL", "--no-new-privs"]);
    if is_root() {
        command.args(["--bounding-set=-all", "--inh-caps=-all"]);
    }
    command.arg("--").arg(program);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
}

impl Process {
    /// Starts it, with its log in `folder`.
    pub(super) fn start(name: &str, mut command: Command, folder: &Path) -> Self {
        let log = folder.join(format!("{name}.log"));
        let said = File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said);
        Self {
            name: name.into(),
            child: command.spawn().unwrap(),
            log,
        }
    }

    pub(super) fn assert_runs(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{} has ended: {ended:?}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(SHOWN)..];
            eprintln!("the end of what {} said:\n{}", self.name, end.join("\n"));
        }
    }
}
