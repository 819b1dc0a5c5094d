//! The NVMe target's configfs tree (`drivers/nvme/target/configfs.c`), below
//! `/sys/kernel/config/nvmet`.
//!
//! Order rules: a namespace's attributes are writable only while it is disabled; a port's only
//! while no subsystem is linked to it; teardown is port link, allowed hosts, namespaces (disable,
//! rmdir), subsystem (design rule 8). Every call converges: it looks first, writes what differs, reads
//! back what it wrote. What a crash leaves is what the next call finds and finishes. No subsystem is
//! ever opened to any host.

mod apply;
mod names;
mod observe;
#[cfg(test)]
mod tests;
mod types;

pub use apply::Target;
pub use types::{
    Error, NamespaceSpec, ObservedNamespace, ObservedSubsystem, Outcome, PortSpec, SubsystemSpec,
};
