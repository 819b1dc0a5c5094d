//! Rust's test programs: runs them, reads what they print, and prints every test with its outcome.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Counts;
use crate::{cleanup, progress};

/// What test programs have printed so far.
#[derive(Debug, Default)]
struct Reader {
    counts: Counts,
    /// Tests that the present program has announced and not yet told about.
    announced: usize,
    /// The test that has begun and not ended, when the program runs one at a time.
    current: Option<String>,
    in_failures: bool,
}

impl Reader {
    /// Takes a line; gives what to print.
    fn line(&mut self, line: &str) -> Option<String> {
        if let Some(count) = announced(line) {
            self.abandon();
            self.announced = count;
            self.in_failures = false;
            return None;
        }
        if line.starts_with("test result:") {
            self.in_failures = false;
            self.current = None;
            return None;
        }
        if line == "failures:" {
            self.in_failures = true;
        }
        if self.in_failures {
            return Some(format!("    {line}"));
        }
        if let Some(name) = self.current.take() {
            // The outcome of a test that prints around the capture comes on a line of its own.
            if let Some(said) = self.outcome(&name, line) {
                return Some(said);
            }
            self.current = Some(name);
        }
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let said = self.outcome(name, rest);
        if said.is_none() {
            self.current = Some(name.to_owned());
        }
        said
    }

    fn outcome(&mut self, name: &str, word: &str) -> Option<String> {
        let (count, said) = if word == "ok" {
            (&mut self.counts.passed, "ok".to_owned())
        } else if word == "FAILED" || word.starts_with("FAILED ") {
            (&mut self.counts.failed, "FAILED".to_owned())
        } else if word.starts_with("ignored") {
            (&mut self.counts.not_run, word.to_owned())
        } else {
            return None;
        };
        *count += 1;
        self.announced = self.announced.saturating_sub(1);
        Some(format!("{said:<7} {name}"))
    }

    /// A program has ended. What it announced and did not tell about has not run, but the test that it
    /// was in has failed.
    fn abandon(&mut self) -> Option<String> {
        let current = self.current.take();
        if current.is_some() {
            self.counts.failed += 1;
            self.announced = self.announced.saturating_sub(1);
        }
        self.counts.not_run += std::mem::take(&mut self.announced);
        current.map(|name| format!("FAILED  {name} (its program ended in it)"))
    }
}

fn announced(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    let (count, word) = rest.split_once(' ')?;
    matches!(word, "test" | "tests").then(|| count.parse().ok())?
}

/// Runs a command that runs test programs.
pub(super) fn run(command: Command, counts: &mut Counts) -> Result<()> {
    run_and_say(command, counts, |said| println!("{said}"))
}

/// The same for programs that run one test at a time: says how long each took. What failed tests have printed
/// comes at the end and at once, so that another program's outcomes do not get into it.
pub(super) fn run_in_turn(command: Command, counts: &mut Counts) -> Result<()> {
    let mut begin = Instant::now();
    let mut details = String::new();
    let outcome = run_and_say(command, counts, |said| {
        if said.starts_with(' ') {
            details.push_str(said);
            details.push('\n');
        } else {
            println!("{said} ({})", progress::seconds(begin.elapsed()));
            begin = Instant::now();
        }
    });
    print!("{details}");
    outcome
}

fn run_and_say(command: Command, counts: &mut Counts, mut say: impl FnMut(&str)) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut reader = Reader::default();
    let status = follow(command, |line| {
        if let Some(said) = reader.line(line) {
            say(&said);
        }
    })?;
    if let Some(said) = reader.abandon() {
        say(&said);
    }
    counts.add(reader.counts);
    let told = reader.counts.failed > 0 || reader.counts.not_run > 0;
    ensure!(
        status.success() || told,
        "{program} ended with {status}, and no test told why"
    );
    Ok(())
}

/// Runs a command to its end, and gives each line that it prints as it comes. It does not outlive this
/// program.
pub(super) fn follow(mut command: Command, mut each: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    let guard = cleanup::on_end(move || {
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    });
    let output = child.stdout.take().context("the command has no output")?;
    for line in BufReader::new(output).split(b'\n') {
        each(String::from_utf8_lossy(&line?).trim_end());
    }
    let status = child.wait()?;
    guard.disarm();
    Ok(status)
}

/// The names of the tests of a command that lists them tersely.
pub(super) fn list(mut command: Command) -> Result<Vec<String>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(
        output.status.success(),
        "listing the tests failed ({})",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test").map(str::to_owned))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Counts, Vec<String>) {
        let mut reader = Reader::default();
        let mut said: Vec<String> = text.lines().filter_map(|line| reader.line(line)).collect();
        said.extend(reader.abandon());
        (reader.counts, said)
    }

    #[test]
    fn counts_each_outcome() {
        let (counts, said) = read(
            "\nrunning 3 tests\ntest a::one ... ok\ntest two ... FAILED\ntest three ... ignored, needs x\n\n\
             failures:\n\n---- two stdout ----\ntest fake ... ok\n\ntest result: FAILED. 1 passed; 1 failed\n",
        );
        assert_eq!((counts.passed, counts.failed, counts.not_run), (1, 1, 1));
        assert!(
            said.contains(&"ok      a::one".to_owned()) && said.contains(&"FAILED  two".to_owned())
        );
    }

    #[test]
    fn a_program_that_dies_fails_its_test_and_loses_the_rest() {
        let (counts, said) = read("running 4 tests\ntest one ... ok\ntest two ... ");
        assert_eq!((counts.passed, counts.failed, counts.not_run), (1, 1, 2));
        assert!(said.last().unwrap().contains("two"));
    }

    #[test]
    fn several_programs_add_up() {
        let (counts, _) = read(
            "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed\nrunning 2 tests\ntest b ... ok\n\
             test c ... ok\ntest result: ok. 2 passed",
        );
        assert_eq!((counts.passed, counts.failed, counts.not_run), (3, 0, 0));
    }

    #[test]
    fn an_outcome_after_noise_is_found() {
        let (counts, _) = read("running 1 test\ntest a ... noise of a child\nok\ntest result: ok.");
        assert_eq!(counts.passed, 1);
    }
}
