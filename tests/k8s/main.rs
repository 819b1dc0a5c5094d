//! Tier `k8s`: the store that is the Kubernetes API, and what runs on it, against a real API server.
//!
//! Tests share one control plane and run one at a time; each has a namespace of its own, but for those of `cluster`, which
//! have the lab's machines and the namespace of the plain manifests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test waits for what must not happen"
)]

mod chart;
mod claims;
mod cluster;
mod definitions;
mod outage;
mod plane;
mod release;
mod store;
mod workloads;
