//! Kill points for the crash tests. Without the feature `fault-points` there is nothing here.
//!
//! `ZVOLT_KILL_AT=<step>:before` or `<step>:after` makes the process die by SIGKILL there, once
//! that step of any operation is reached.

/// Which side of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before it does anything.
    Before,
    /// After it has succeeded.
    After,
}

/// Dies here when the environment says so.
#[cfg(feature = "fault-points")]
pub fn point(step: &str, side: Side) {
    use std::sync::LazyLock;
    static KILL_AT: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("ZVOLT_KILL_AT").ok());
    let Some(kill_at) = KILL_AT.as_deref() else {
        return;
    };
    let side = match side {
        Side::Before => "before",
        Side::After => "after",
    };
    if kill_at.split_once(':') == Some((step, side)) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing.
#[cfg(not(feature = "fault-points"))]
pub fn point(_step: &str, _side: Side) {}
