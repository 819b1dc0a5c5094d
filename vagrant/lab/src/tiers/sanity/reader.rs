//! What the program tells: a line of JSON when a check begins, one when it has ended, one at the end.

use serde::Deserialize;

use super::optional;
use crate::tiers::Counts;

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Begin {
        check: String,
    },
    End {
        check: String,
        state: String,
        #[serde(default)]
        seconds: f64,
        #[serde(default)]
        detail: String,
    },
    Done,
}

/// One run of one variant.
#[derive(Debug)]
pub(super) struct Reader {
    name: String,
    run: usize,
    counts: Counts,
    /// The check that has begun and not ended.
    current: Option<String>,
    is_done: bool,
}

impl Reader {
    pub(super) fn new(variant: &str, run: usize) -> Self {
        Self {
            name: variant.to_owned(),
            run,
            counts: Counts::default(),
            current: None,
            is_done: false,
        }
    }

    /// Takes a line; gives what to print.
    pub(super) fn line(&mut self, text: &str) -> Option<String> {
        match serde_json::from_str(text) {
            Ok(Line::Begin { check }) => {
                self.current = Some(check);
                None
            }
            Ok(Line::End {
                check,
                state,
                seconds,
                detail,
            }) => {
                self.current = None;
                Some(self.ended(&check, &state, seconds, &detail))
            }
            Ok(Line::Done) => {
                self.is_done = true;
                None
            }
            Err(_) => Some(format!("    {text}")),
        }
    }

    fn ended(&mut self, check: &str, state: &str, seconds: f64, detail: &str) -> String {
        let name = format!("{} {check} (run {}, {seconds:.1} s)", self.name, self.run);
        let was_skipped = matches!(state, "skipped" | "pending");
        match optional::reason(check) {
            _ if state == "passed" => {
                self.counts.passed += 1;
                format!("ok      {name}")
            }
            Some(why) if was_skipped => {
                self.counts.skipped += 1;
                format!(
                    "skipped {name}: {}",
                    [detail, why].join("; ").trim_start_matches("; ")
                )
            }
            _ if was_skipped => {
                self.counts.failed += 1;
                format!(
                    "FAILED  {name}\n    skipped, but CSI or this project requires it: {detail}"
                )
            }
            _ => {
                self.counts.failed += 1;
                format!(
                    "FAILED  {name}: {state}\n    {}",
                    detail.replace('\n', "\n    ")
                )
            }
        }
    }

    /// The program has ended, of whose checks so many were awaited. What it did not tell about has not
    /// run; the check that it was in has failed.
    pub(super) fn finish(mut self, awaited: usize) -> (Counts, Option<String>) {
        let died_in = self.current.take();
        self.counts.failed += usize::from(died_in.is_some());
        self.counts.not_run += awaited.saturating_sub(self.counts.total());
        let said = match died_in {
            Some(check) => Some(format!(
                "FAILED  {} {check} (run {}): the program ended in it",
                self.name, self.run
            )),
            None if !self.is_done => Some(format!(
                "FAILED  {} (run {}): the program ended before its time",
                self.name, self.run
            )),
            None => None,
        };
        (self.counts, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[String], awaited: usize) -> (Counts, Vec<String>) {
        let mut reader = Reader::new("ext4", 1);
        let mut said: Vec<String> = lines.iter().filter_map(|line| reader.line(line)).collect();
        let (counts, last) = reader.finish(awaited);
        said.extend(last);
        (counts, said)
    }

    fn end(check: &str, state: &str) -> String {
        format!(r#"{{"event":"end","check":"{check}","state":"{state}","detail":"a\nb"}}"#)
    }

    fn done() -> String {
        r#"{"event":"done"}"#.to_owned()
    }

    #[test]
    fn counts_each_outcome() {
        let lines = [
            r#"{"event":"begin","check":"one"}"#.to_owned(),
            end("one", "passed"),
            end("two", "failed"),
            end("three", "panicked"),
            done(),
        ];
        let (counts, said) = read(&lines, 3);
        assert_eq!((counts.passed, counts.failed, counts.not_run), (1, 2, 0));
        assert!(said[0].starts_with("ok      ext4 one (run 1"));
        assert!(said[1].ends_with("failed\n    a\n    b"), "{}", said[1]);
    }

    #[test]
    fn only_what_may_be_skipped_is_skipped() {
        for check in optional::all() {
            for state in ["skipped", "pending"] {
                let (counts, said) = read(&[end(check, state), done()], 1);
                assert_eq!((counts.skipped, counts.failed), (1, 0), "{said:?}");
            }
            let (counts, _) = read(&[end(check, "failed"), done()], 1);
            assert_eq!((counts.skipped, counts.failed), (0, 1), "{check}");
        }
        let (counts, said) = read(&[end("another", "skipped"), done()], 1);
        assert_eq!((counts.skipped, counts.failed), (0, 1), "{said:?}");
    }

    #[test]
    fn a_program_that_dies_fails_its_check_and_loses_the_rest() {
        let lines = [
            end("one", "passed"),
            r#"{"event":"begin","check":"two"}"#.to_owned(),
        ];
        let (counts, said) = read(&lines, 5);
        assert_eq!((counts.passed, counts.failed, counts.not_run), (1, 1, 3));
        assert!(said.last().unwrap().contains("two"));
    }

    #[test]
    fn a_program_that_ends_between_checks_is_noticed() {
        let (counts, said) = read(&[end("one", "passed")], 2);
        assert_eq!((counts.passed, counts.not_run), (1, 1));
        assert!(said.last().unwrap().starts_with("FAILED"));
    }

    #[test]
    fn lines_of_another_kind_are_shown() {
        let (_, said) = read(&["panic: no".to_owned(), done()], 0);
        assert_eq!(said, ["    panic: no"]);
    }
}
