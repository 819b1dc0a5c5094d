//! What may block for as long as a device does, with an end to the waiting (rule 10).

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use zvolt_kernel::SysError;

use super::{Error, ErrorKind};

/// Runs `work` on a thread of its own; `None` when the deadline came first. The thread then goes on alone, and lets go
/// of what it holds when the kernel lets go of it.
pub(super) fn bounded<T: Send + 'static>(
    name: &str,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Error> {
    let (answer, answered) = channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // The receiver is gone when the deadline was faster.
            let _ = answer.send(work());
        })
        .map_err(|e| SysError::io("clone3", Path::new(name), &e))?;
    match answered.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(done) => Ok(Some(done)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Error::new(
            ErrorKind::Internal,
            format!("the thread {name} ended without an answer; see the log"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rule_10_a_wait_ends_and_what_is_held_is_let_go_later() {
        let soon = Instant::now() + Duration::from_secs(20);
        assert_eq!(bounded("test", soon, || 7).unwrap(), Some(7));
        let (free, stuck) = channel::<()>();
        let (held, is_free) = channel::<()>();
        let begin = Instant::now();
        let outcome = bounded("test", begin + Duration::from_millis(30), move || {
            let _held = held;
            let _ = stuck.recv();
        });
        assert_eq!(outcome.unwrap(), None);
        assert!(begin.elapsed() < Duration::from_secs(10));
        free.send(()).unwrap();
        assert!(is_free.recv_timeout(Duration::from_secs(20)).is_err());
    }
}
