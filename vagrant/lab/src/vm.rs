//! One running machine, as tests and the demo see it.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::control::{self, MachineState, Request};
use crate::keeper;
use crate::shell::Shell;
use crate::ssh;

/// No command of a test takes this long; one that does hangs.
const COMMAND_SECONDS: u64 = 900;
/// Bytes of a command that a shell reads faster, one by one, than another is started.
const SHORT: usize = 4096;
/// What ssh itself ends with when there is no connection.
const NO_CONNECTION: i32 = 255;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a command did.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit status; 128 plus the number of the signal that ended it, as in a shell.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command that is running on a machine. Dropped, it is left to itself.
#[derive(Debug)]
pub struct Running<'a> {
    vm: &'a Vm,
    command: String,
    mark: String,
    child: Child,
}

/// A machine of a running lab. Several threads may use it at once.
pub struct Vm {
    run_dir: PathBuf,
    name: String,
    ipv4: String,
    ipv6: String,
    /// Forwarded sockets by their path on the machine: the local path, and the connection (by the
    /// process that holds it) for which that was done.
    forwards: Mutex<HashMap<String, (PathBuf, String)>>,
    /// Those that have nothing to do.
    shells: Mutex<Vec<Shell>>,
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Vm {
    pub(crate) fn new(run_dir: &Path, machine: &MachineState) -> Self {
        Self {
            run_dir: run_dir.to_owned(),
            name: machine.spec.name.clone(),
            ipv4: machine.ipv4.clone(),
            ipv6: machine.ipv6.clone(),
            forwards: Mutex::default(),
            shells: Mutex::default(),
        }
    }

    /// Its host name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its IPv4 address on the private network.
    pub fn ipv4(&self) -> &str {
        &self.ipv4
    }

    /// Its IPv6 address on the private network, without brackets.
    pub fn ipv6(&self) -> &str {
        &self.ipv6
    }

    /// The file with everything that it ever wrote to its serial console, over all its boots.
    pub fn console_log_path(&self) -> PathBuf {
        keeper::console_log(&self.run_dir, &self.name)
    }

    /// Runs a shell text (bash, as root) to its end. An error means that it could not be run or its end
    /// not be learnt; a status other than 0 is not an error.
    pub fn run(&self, command: &str) -> Result<Output> {
        if command.len() > SHORT {
            let child = self.start_client(command, Stdio::null())?;
            return self.finish(child, command);
        }
        let begin = Instant::now();
        let mut shell = self.shell()?;
        match shell.run(command, Duration::from_secs(COMMAND_SECONDS)) {
            Ok(output) => {
                self.shells().push(shell);
                Ok(output)
            }
            Err(lost) => Err(self.end_unknown(command, begin, &lost.said)),
        }
    }

    /// A shell that has nothing to do.
    fn shell(&self) -> Result<Shell> {
        loop {
            let Some(mut shell) = self.shells().pop() else {
                let mut ssh = ssh::client(&self.socket());
                ssh.arg(ssh::HOST);
                return Shell::start(ssh);
            };
            // After a boot those of before are gone.
            if shell.is_alive() {
                return Ok(shell);
            }
        }
    }

    fn shells(&self) -> MutexGuard<'_, Vec<Shell>> {
        self.shells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, and a status other than 0 is an error. Gives standard output.
    pub fn ok(&self, command: &str) -> Result<String> {
        let output = self.run(command)?;
        if output.status != 0 {
            bail!(
                "on {}: {command}\nended with status {}: {}{}",
                self.name,
                output.status,
                output.stdout,
                output.stderr
            );
        }
        Ok(output.stdout)
    }

    /// Starts a shell text and goes on.
    pub fn spawn(&self, command: &str) -> Result<Running<'_>> {
        let mark = format!(
            "/run/zvolt-lab-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // A session of its own, so that all of it can be told to stop.
        let text = format!(
            "exec setsid --wait bash -c {}",
            quote(&format!("echo $$ > {mark}; {command}"))
        );
        let child = self.start_client(&text, Stdio::null())?;
        Ok(Running {
            vm: self,
            command: command.to_owned(),
            mark,
            child,
        })
    }

    /// Copies a file to the machine, with its mode. What is at `remote` is replaced in one move, also
    /// when it is a program that runs.
    pub fn put(&self, local: &Path, remote: &str) -> Result<()> {
        let file = File::open(local).with_context(|| format!("open {}", local.display()))?;
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        let (remote, partial) = (quote(remote), quote(&format!("{remote}.partial")));
        let command =
            format!("cat > {partial} && chmod {mode:o} {partial} && mv -f {partial} {remote}");
        let child = self.start_client(&command, Stdio::from(file))?;
        let output = self.finish(child, &command)?;
        ensure!(
            output.status == 0,
            "copy {} to {}:{remote}: {}",
            local.display(),
            self.name,
            output.stderr
        );
        Ok(())
    }

    /// Copies a file from the machine.
    pub fn get(&self, remote: &str, local: &Path) -> Result<()> {
        let file = File::create(local).with_context(|| format!("make {}", local.display()))?;
        let command = format!("cat {}", quote(remote));
        let child = self
            .client(&command)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(Stdio::piped())
            .spawn()
            .context("start ssh")?;
        let output = self.finish(child, &command)?;
        ensure!(
            output.status == 0,
            "copy {}:{remote}: {}",
            self.name,
            output.stderr
        );
        Ok(())
    }

    /// A socket on this host that leads to a Unix socket of the machine, which need not exist yet. Each
    /// connection is made anew, so it outlives the program behind it; after a boot, ask again.
    pub fn forward(&self, remote: &str) -> Result<PathBuf> {
        let mut forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = self.connection()?;
        if let Some((local, since)) = forwards.get(remote)
            && *since == connection
        {
            return Ok(local.clone());
        }
        let local = self.run_dir.join(format!(
            "{}.{}.{}",
            self.name,
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        self.multiplex("forward", &["-L", &format!("{}:{remote}", local.display())])
            .with_context(|| format!("forward {remote} of {}", self.name))?;
        forwards.insert(remote.to_owned(), (local.clone(), connection));
        Ok(local)
    }

    /// Takes a forwarded socket away.
    pub fn unforward(&self, remote: &str) -> Result<()> {
        let mut forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((local, since)) = forwards.remove(remote) else {
            return Ok(());
        };
        // The socket went with the connection that held it.
        if self.connection().is_ok_and(|now| now == since) {
            self.multiplex("cancel", &["-L", &format!("{}:{remote}", local.display())])?;
        }
        let _ = fs::remove_file(local);
        Ok(())
    }

    /// A port of this host's loopback, at the same number on the machine's. It lasts as long as the connection does: after
    /// a boot, ask again.
    pub fn lend(&self, port: u16) -> Result<()> {
        let way = format!("127.0.0.1:{port}:127.0.0.1:{port}");
        self.multiplex("forward", &["-R", &way])
            .with_context(|| format!("lend port {port} to {}", self.name))
            .map(drop)
    }

    /// Ends it as a power cut would.
    pub fn kill(&self) -> Result<()> {
        self.ask(Request::Kill)
    }

    /// Starts it again after [`Vm::kill`], with the disks as they are. Does not wait.
    pub fn start(&self) -> Result<()> {
        self.ask(Request::Start)
    }

    /// A power cut and a start. Does not wait.
    pub fn reboot_hard(&self) -> Result<()> {
        self.kill()?;
        self.start()
    }

    /// Asks its init system for a reboot, and waits until the connection is gone; not for the boot.
    pub fn reboot(&self) -> Result<()> {
        let connection = self.connection()?;
        // The connection may break before the status comes.
        let _ = self.run("systemctl reboot");
        let end = Instant::now() + Duration::from_secs(120);
        while self.connection().is_ok_and(|now| now == connection) {
            ensure!(Instant::now() < end, "{} did not shut down", self.name);
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits until commands can be run. When that is not so within `deadline`, the error has the end of
    /// the console.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        let end = Instant::now() + deadline;
        let mut asked = Instant::now();
        loop {
            if self.socket().exists() && self.connection().is_ok() {
                return Ok(());
            }
            if asked.elapsed() > Duration::from_secs(1) {
                asked = Instant::now();
                let state = control::ask(&self.run_dir, &Request::State)?;
                let here = state.machines.iter().find(|m| m.spec.name == self.name);
                if here.is_none_or(|m| m.pid.is_none()) {
                    let said = fs::read_to_string(self.run_dir.join(format!("{}.qemu", self.name)));
                    bail!(
                        "{} is off; QEMU said: {}",
                        self.name,
                        said.unwrap_or_default().trim()
                    );
                }
            }
            if Instant::now() > end {
                bail!(
                    "{} was not ready within {} s; the end of its console ({}):\n{}",
                    self.name,
                    deadline.as_secs(),
                    self.console_log_path().display(),
                    self.console_tail(30)
                );
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// From now on everything that it sends and is sent on the private network is lost. Its card keeps
    /// its carrier, and commands still reach it.
    pub fn cut_network(&self) -> Result<()> {
        self.ask(Request::Cut)
    }

    /// The opposite of [`Vm::cut_network`].
    pub fn restore_network(&self) -> Result<()> {
        self.ask(Request::Restore)
    }

    /// Stops its processors and its clock. Commands hang meanwhile.
    pub fn pause(&self) -> Result<()> {
        self.ask(Request::Pause)
    }

    /// The opposite of [`Vm::pause`].
    pub fn resume(&self) -> Result<()> {
        self.ask(Request::Resume)
    }

    /// The kernel log since boot.
    pub fn kernel_log(&self) -> Result<String> {
        self.ok("dmesg")
    }

    /// The last lines of the console.
    pub fn console_tail(&self, lines: usize) -> String {
        let bytes = fs::read(self.console_log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The command that gives a person a shell, or runs `words`, on the terminal of this process.
    pub fn interactive(&self, words: &[String]) -> Command {
        let mut command = ssh::client(&self.socket());
        if words.is_empty() {
            command.arg("-t");
        }
        command.arg(ssh::HOST).args(words);
        command
    }

    fn ask(&self, request: impl FnOnce(String) -> Request) -> Result<()> {
        control::ask(&self.run_dir, &request(self.name.clone())).map(drop)
    }

    fn socket(&self) -> PathBuf {
        ssh::master_socket(&self.run_dir, &self.name)
    }

    /// What tells the present connection from an earlier one; an error when there is none.
    fn connection(&self) -> Result<String> {
        self.multiplex("check", &[])
            .with_context(|| format!("{} cannot be reached", self.name))
    }

    fn multiplex(&self, what: &str, about: &[&str]) -> Result<String> {
        let mut command = ssh::client(&self.socket());
        let output = command
            .args(["-O", what])
            .args(about)
            .arg(ssh::HOST)
            .stdin(Stdio::null())
            .output()
            .context("run ssh")?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "ssh -O {what}: {said}");
        Ok(said)
    }

    fn client(&self, command: &str) -> Command {
        let ssh = ssh::client(&self.socket());
        let mut client = Command::new("timeout");
        client.args(["--foreground", "--preserve-status"]);
        client.arg(COMMAND_SECONDS.to_string());
        client.arg(ssh.get_program()).args(ssh.get_args());
        client.args([ssh::HOST, command]);
        client
    }

    fn start_client(&self, command: &str, stdin: Stdio) -> Result<Child> {
        self.client(command)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start ssh")
    }

    fn finish(&self, child: Child, command: &str) -> Result<Output> {
        let begin = Instant::now();
        let output = child.wait_with_output()?;
        let status = output.status.code().unwrap_or(NO_CONNECTION);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        // A command may end so by itself; then the connection is there.
        if status == NO_CONNECTION && self.connection().is_err() {
            return Err(self.end_unknown(command, begin, &stderr));
        }
        Ok(Output {
            status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        })
    }
}

impl Vm {
    fn end_unknown(&self, command: &str, begin: Instant, said: &str) -> anyhow::Error {
        anyhow!(
            "on {}: {command}\nits end is not known: connection lost after {:.1} s: {}",
            self.name,
            begin.elapsed().as_secs_f64(),
            said.trim()
        )
    }
}

impl Running<'_> {
    /// Waits for its end.
    pub fn wait(self) -> Result<Output> {
        let output = self.vm.finish(self.child, &self.command)?;
        self.vm.run(&format!("rm -f {}", self.mark))?;
        Ok(output)
    }

    /// Whether it has ended.
    pub fn is_done(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sends it, and all that it started, SIGTERM, and waits for its end.
    pub fn stop(self) -> Result<Output> {
        self.vm.ok(&format!(
            "until [ -s {0} ]; do :; done; kill -TERM -- -$(cat {0}) 2>/dev/null; true",
            self.mark
        ))?;
        self.wait()
    }
}

/// One word for a shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_one_word_to_a_shell() {
        for word in ["plain", "with space", "it's", "$(reboot)", "a\nb", ""] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(word))])
                .output()
                .unwrap();
            assert_eq!(output.stdout, word.as_bytes());
        }
    }
}
