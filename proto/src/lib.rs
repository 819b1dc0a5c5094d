//! The messages and services of CSI 1.13.0, and the trace service of zvolt itself.

#[cfg(test)]
mod tests;

/// A moment, as the messages have it.
pub use prost_types::Timestamp;

/// Package `csi.v1`. A message that holds a secret does not show it by `{:?}`.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod csi {
    tonic::include_proto!("csi.v1");
    include!(concat!(env!("OUT_DIR"), "/redacted.rs"));
}

/// Package `zvolt.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod trace {
    tonic::include_proto!("zvolt.v1");
}
