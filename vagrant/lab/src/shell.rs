//! A shell on a machine that stays for the next command. Where instructions are emulated, a session of its own costs more
//! than most commands do.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::vm::Output;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A shell, between two commands.
#[derive(Debug)]
pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    output: Receiver<Part>,
    errors: Receiver<Part>,
}

/// What a stream said.
#[derive(Debug)]
enum Part {
    /// During one command; and what came with its mark.
    Whole(Vec<u8>, String),
    /// Before it ended.
    Last(Vec<u8>),
}

/// Why a command's end is not known.
#[derive(Debug)]
pub(crate) struct Lost {
    /// What came on standard error.
    pub(crate) said: String,
}

impl Shell {
    /// Starts one by `command`, which is given the shell text that is to be run.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mark = format!(
            "end-of-command-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // Commands come one by one, each with a NUL behind it, and have a subshell of their own.
        command.arg(format!(
            "while IFS= read -r -d '' c; do (eval \"$c\") </dev/null; s=$?; echo {mark} $s; echo {mark} >&2; done"
        ));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start a shell")?;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = streams else {
            unreachable!("all three are piped");
        };
        Ok(Self {
            child,
            input,
            output: listen(output, &mark),
            errors: listen(errors, &mark),
        })
    }

    /// Whether it is there for a command.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Runs a command to its end, unless that does not come within `patience`.
    pub(crate) fn run(&mut self, command: &str, patience: Duration) -> Result<Output, Lost> {
        let asked = self
            .input
            .write_all(&[command.as_bytes(), b"\0"].concat())
            .and_then(|()| self.input.flush());
        if asked.is_err() {
            return Err(self.lost());
        }
        let (stdout, status) = match self.output.recv_timeout(patience) {
            Ok(Part::Whole(text, status)) => (text, status),
            Ok(Part::Last(_)) | Err(_) => return Err(self.lost()),
        };
        // It has been written already.
        let (Ok(Part::Whole(stderr, _)), Ok(status)) =
            (self.errors.recv_timeout(patience), status.trim().parse())
        else {
            return Err(self.lost());
        };
        Ok(Output {
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }

    fn lost(&mut self) -> Lost {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Whatever a command has left running may keep the stream open.
        let said = match self.errors.recv_timeout(Duration::from_secs(1)) {
            Ok(Part::Whole(text, _) | Part::Last(text)) => text,
            Err(_) => Vec::new(),
        };
        Lost {
            said: String::from_utf8_lossy(&said).into_owned(),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes a stream apart at its marks, on a thread of its own: whoever writes to both streams must not wait for a reader.
fn listen(stream: impl Read + Send + 'static, mark: &str) -> Receiver<Part> {
    let (tell, told) = channel();
    let mark = mark.as_bytes().to_vec();
    thread::spawn(move || take_apart(stream, &mark, &tell));
    told
}

fn take_apart(mut stream: impl Read, mark: &[u8], tell: &Sender<Part>) {
    let (mut text, mut piece) = (Vec::new(), [0; 1 << 16]);
    loop {
        let count = stream.read(&mut piece).unwrap_or(0);
        if count == 0 {
            drop(tell.send(Part::Last(text)));
            return;
        }
        // A mark may have begun in what is there already.
        let from = text.len().saturating_sub(mark.len() + 8);
        text.extend_from_slice(&piece[..count]);
        let found = text[from..].windows(mark.len()).position(|w| w == mark);
        let Some(at) = found.map(|at| from + at) else {
            continue;
        };
        let behind = &text[at + mark.len()..];
        if !behind.ends_with(b"\n") {
            continue;
        }
        let behind = String::from_utf8_lossy(behind).into_owned();
        text.truncate(at);
        if tell
            .send(Part::Whole(std::mem::take(&mut text), behind))
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell() -> Shell {
        let mut bash = Command::new("bash");
        bash.arg("-c");
        Shell::start(bash).unwrap()
    }

    #[test]
    fn commands_say_what_they_say_and_do_not_meet() {
        let mut shell = shell();
        for _ in 0..3 {
            let said = shell
                .run("echo out; echo error >&2; cd /; x=1; exit 3", PATIENCE)
                .unwrap();
            assert_eq!(
                (said.status, &*said.stdout, &*said.stderr),
                (3, "out\n", "error\n")
            );
            let none = shell
                .run("printf %s \"${x-unset}\"; cat", PATIENCE)
                .unwrap();
            assert_eq!(
                (none.status, &*none.stdout, &*none.stderr),
                (0, "unset", "")
            );
        }
        let killed = shell.run("kill -KILL $BASHPID", PATIENCE).unwrap();
        assert_eq!(killed.status, 137);
        assert!(shell.is_alive());
    }

    #[test]
    fn text_of_any_kind_and_length_arrives() {
        let mut shell = shell();
        let long = shell
            .run("seq 200000; seq 200000 >&2; printf '\\n\\nend'", PATIENCE)
            .unwrap();
        assert_eq!(long.stdout.lines().count(), 200_003);
        assert_eq!(long.stderr.lines().count(), 200_000);
        assert!(long.stdout.ends_with("200000\n\n\nend"));
        let quoted = shell.run("printf %s \"it's $(echo \\\"fine\\\")\nhere\"", PATIENCE);
        assert_eq!(quoted.unwrap().stdout, "it's \"fine\"\nhere");
    }

    #[test]
    fn a_shell_that_ends_or_never_answers_is_lost() {
        let mut ended = shell();
        let lost = ended
            .run("echo why >&2; kill -KILL $$", PATIENCE)
            .unwrap_err();
        assert_eq!(lost.said, "why\n");
        assert!(!ended.is_alive() && ended.run("true", PATIENCE).is_err());
        let late = shell().run("exec sleep 60", Duration::from_millis(100));
        assert!(late.is_err());
    }
}
