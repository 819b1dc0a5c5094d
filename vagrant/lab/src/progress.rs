//! Says on standard error what is going on and how long each part took.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Runs one part of the work; says when it starts and how long it took.
pub fn part<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {what}");
    let begin = Instant::now();
    let outcome = work();
    let took = seconds(begin.elapsed());
    match &outcome {
        Ok(_) => eprintln!("    done in {took}"),
        Err(_) => eprintln!("    FAILED after {took}"),
    }
    outcome
}

/// Says something below the current part.
pub fn note(what: impl Display) {
    eprintln!("    {what}");
}

/// A duration for people.
pub fn seconds(duration: Duration) -> String {
    let s = duration.as_secs_f64();
    if s < 90.0 {
        format!("{s:.1} s")
    } else {
        format!(
            "{} min {:02} s",
            duration.as_secs() / 60,
            duration.as_secs() % 60
        )
    }
}
