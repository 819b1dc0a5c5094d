//! The agent as a host of its own target: through a loop port, to switch Namespace Write Protect (rule 5).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use zvolt_kernel::module;
use zvolt_kernel::nvme::{self, ConnectOptions, HostIdentity, Transport};
use zvolt_kernel::nvmet::{PortSpec, Target};

use super::observe::Failure;
use super::plan::NSID;
use crate::model::names;
use crate::model::volume::{WriteProtect, reason};

/// The longest that a switch may take: the target flushes what it has taken.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the agent reaches its own target.
#[derive(Debug)]
pub(super) struct Loopback {
    sys: PathBuf,
    dev: PathBuf,
    port: PortSpec,
    host: HostIdentity,
}

impl Loopback {
    /// For the agent of `node`, with the target's port number `port` for itself.
    pub(super) fn new(sys: &Path, dev: &Path, node: &str, port: u16) -> Self {
        let nqn = names::agent_nqn(node);
        Self {
            sys: sys.to_owned(),
            dev: dev.to_owned(),
            port: PortSpec {
                id: port,
                address: None,
            },
            host: HostIdentity {
                id: names::host_id(&nqn),
                nqn,
            },
        }
    }

    /// The agent's host NQN.
    pub(super) fn nqn(&self) -> &str {
        &self.host.nqn
    }

    /// Lets the agent in. The caller holds the lock of the hosts, and of the port: several volumes share both.
    pub(super) fn open(&self, target: &Target, nqn: &str) -> Result<(), Failure> {
        target.converge_port(&self.port).map_err(Failure::kernel)?;
        target
            .allow_host(nqn, self.nqn())
            .map_err(Failure::kernel)?;
        // The first link loads the module, where there is one.
        target
            .link_port(nqn, self.port.id)
            .map(drop)
            .map_err(|error| self.explained(error))
    }

    /// Connects, switches, reads back, disconnects.
    pub(super) fn protect(
        &self,
        nqn: &str,
        state: WriteProtect,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let state = match state {
            WriteProtect::On => nvme::WriteProtect::On,
            WriteProtect::Off => nvme::WriteProtect::Off,
            WriteProtect::Changing => {
                return Err(Failure::kernel("write protection is switched on or off"));
            }
        };
        let options = ConnectOptions {
            transport: Transport::Loop { port: self.port.id },
            subsystem_nqn: nqn.to_owned(),
            host: self.host.clone(),
            nr_io_queues: Some(1),
            queue_size: None,
            ctrl_loss_tmo: None,
            reconnect_delay: None,
            fast_io_fail_tmo: None,
            keep_alive_tmo: None,
        };
        let connected =
            nvme::connect(&self.dev, &options).map_err(|error| self.explained(error))?;
        let controller = format!("nvme{}", connected.instance);
        let switched = self.switch(&controller, state, deadline);
        let deleted = nvme::delete(&self.sys, &controller).map_err(Failure::kernel);
        switched.and(deleted)
    }

    fn switch(
        &self,
        controller: &str,
        state: nvme::WriteProtect,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let left = || {
            deadline
                .saturating_duration_since(Instant::now())
                .min(PATIENCE)
        };
        nvme::set_write_protect(&self.dev, controller, NSID, state, left())
            .map_err(Failure::kernel)?;
        let found =
            nvme::write_protect(&self.dev, controller, NSID, left()).map_err(Failure::kernel)?;
        match found == state {
            true => Ok(()),
            false => Err(Failure::kernel(format!(
                "write protection was switched {state:?}, and the target says {found:?}: see its kernel log"
            ))),
        }
    }

    /// Takes the port and the agent away again; its controllers go with the port. Fine when they are gone.
    /// The caller holds the lock of the hosts.
    pub(super) fn close(&self, target: &Target, nqn: &str) -> Result<(), Failure> {
        target
            .unlink_port(nqn, self.port.id)
            .map_err(Failure::kernel)?;
        target
            .disallow_host(nqn, self.nqn())
            .map_err(Failure::kernel)?;
        target
            .remove_host(self.nqn())
            .map(drop)
            .map_err(Failure::kernel)
    }

    fn explained(&self, error: impl std::fmt::Display) -> Failure {
        if module::is_present(&self.sys, "nvme_loop") {
            return Failure::kernel(error);
        }
        Failure::passing(
            reason::KERNEL,
            format!(
                "{error}: the kernel module nvme-loop, by which a volume is made read-only at the target, is not loaded: \
                 run modprobe nvme-loop; to have it at every boot: echo nvme-loop > /etc/modules-load.d/nvme-loop.conf"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nvme_loop_says_what_to_run() {
        let root = tempfile::tempdir().unwrap();
        let loopback = Loopback::new(root.path(), root.path(), "storage0", 9);
        let failure = loopback
            .protect("nqn.2026-11.t:v", WriteProtect::On, Instant::now())
            .unwrap_err();
        assert!(failure.message.contains("modprobe nvme-loop"), "{failure}");
        assert!(
            failure.message.contains("nvme-fabrics: ENOENT"),
            "{failure}"
        );
        std::fs::create_dir_all(root.path().join("module/nvme_loop")).unwrap();
        let failure = loopback
            .protect("nqn.2026-11.t:v", WriteProtect::On, Instant::now())
            .unwrap_err();
        assert!(!failure.message.contains("modprobe"), "{failure}");
    }
}
