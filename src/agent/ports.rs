//! The target's ports: which of them can be listened on, and word of addresses that come late.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use zvolt_kernel::SysError;
use zvolt_kernel::error::Errno;
use zvolt_kernel::net::{self, AddressSocket, Heard};
use zvolt_kernel::nvmet::{self, Outcome, PortSpec, Target};

use super::observe::{Failure, News, Teller};

/// The ports of the portals.
#[derive(Debug)]
pub(super) struct Ports {
    target: Target,
    specs: Vec<PortSpec>,
    /// By number, those whose address is there. One that has been linked goes on listening without it.
    there: Mutex<BTreeSet<u16>>,
    teller: Arc<Teller>,
}

impl Ports {
    /// The ports of `target` for these portals, numbered from `base`. Listens for their addresses from now on.
    pub(super) fn start(
        target: Target,
        portals: &[SocketAddr],
        base: u16,
        teller: Arc<Teller>,
    ) -> Result<Arc<Self>, SysError> {
        let socket = AddressSocket::open()?;
        let ports = Arc::new(Self {
            target,
            specs: (base..)
                .zip(portals)
                .map(|(id, address)| PortSpec {
                    id,
                    address: Some(*address),
                })
                .collect(),
            there: Mutex::default(),
            teller,
        });
        for port in ports.come() {
            ports.there().insert(port.id);
        }
        let listener = Arc::downgrade(&ports);
        std::thread::Builder::new()
            .name("addresses".into())
            .spawn(move || listen(&socket, &listener))
            .map_err(|e| SysError::io("clone", "addresses".as_ref(), &e))?;
        Ok(ports)
    }

    /// Makes the ports in the target, whether or not their addresses are there.
    pub(super) fn converge(&self) -> Result<(), Failure> {
        for port in &self.specs {
            self.target.converge_port(port).map_err(Failure::kernel)?;
        }
        for port in self
            .specs
            .iter()
            .filter(|port| !self.there().contains(&port.id))
        {
            if let Some(address) = port.address {
                tracing::warn!(
                    portal = %address,
                    "no interface has the address of this portal: it is served as soon as one has (ip address)"
                );
            }
        }
        Ok(())
    }

    /// Drops the answers of every port that does not listen yet, until [`Ports::open`]; whether one is held now, be it
    /// by an agent that was killed.
    ///
    /// A port listens with its first link, and a host that then asks for a subsystem that is linked a moment later is
    /// refused for good (`NVME_SC_CONNECT_INVALID_PARAM` with DNR, `nvmet_alloc_ctrl`): its mounts are lost. A host
    /// that is not answered tries again.
    pub(super) fn hold(&self) -> Result<bool, Failure> {
        let mut holds = false;
        for port in &self.specs {
            holds |= self.hold_port(port).map_err(Failure::kernel)?;
        }
        Ok(holds)
    }

    fn hold_port(&self, port: &PortSpec) -> Result<bool, nvmet::Error> {
        let Some(address) = port.address else {
            return Ok(false);
        };
        let held = match net::is_blackholed(address) {
            Ok(false) if self.target.is_listening(port.id)? => return Ok(false),
            Ok(false) => net::blackhole(address).map(|_| true),
            outcome => outcome,
        };
        Ok(held.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "the portal answers before all exports are linked: hosts that reconnect in that moment may give up"
            );
            false
        }))
    }

    /// Lets every port answer, whoever held it.
    pub(super) fn open(&self) -> Result<(), Failure> {
        for address in self.specs.iter().filter_map(|port| port.address) {
            match net::unblackhole(address) {
                Ok(_) => {}
                // Without CAP_NET_ADMIN this process has held nothing; another may have.
                Err(error) if error.errno == Errno::EPERM && !is_held(address)? => {}
                Err(error) => {
                    return Err(Failure::kernel(format!(
                        "{error}: portal {address} answers nobody while its rule is there (ip rule, priority 1)"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The ports that hosts can be given now, by number.
    pub(super) fn usable(&self) -> Vec<u16> {
        self.there().iter().copied().collect()
    }

    /// Links a subsystem. A port whose address has gone is left out until it is back.
    pub(super) fn link(&self, nqn: &str, port: u16) -> Result<(), Failure> {
        match self.target.link_port(nqn, port) {
            Ok(Outcome::Changed | Outcome::Unchanged) => Ok(()),
            Err(nvmet::Error::Sys(error)) if error.errno == Errno::EADDRNOTAVAIL => {
                tracing::warn!(nqn, %error, "the port's address has gone: it is linked when it is back");
                self.there().remove(&port);
                Ok(())
            }
            Err(error) => Err(Failure::kernel(error)),
        }
    }

    /// The ports whose address has come since the last look.
    fn come(&self) -> Vec<&PortSpec> {
        let is_there = |address| match net::can_listen(address) {
            Ok(is_there) => is_there,
            Err(error) => {
                tracing::warn!(%error, "whether a portal's address is there could not be asked");
                true // the link itself will tell
            }
        };
        let mut away: Vec<_> = self.specs.iter().collect();
        away.retain(|port| !self.there().contains(&port.id));
        away.retain(|port| port.address.is_some_and(is_there));
        away
    }

    /// Holds ports that have come late, and only then lets volumes be linked to them; whether there are such.
    fn admit(&self) -> bool {
        let come = self.come();
        for port in &come {
            if let Err(error) = self.hold_port(port) {
                tracing::warn!(%error, "a port could not be held while all exports are linked to it");
            }
            self.there().insert(port.id);
        }
        !come.is_empty()
    }

    fn there(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether news of this address can be of a port that is not there.
    fn concerns(&self, heard: Heard) -> bool {
        match heard {
            Heard::Appeared(ip) => self
                .specs
                .iter()
                .any(|port| port.address.is_some_and(|address| address.ip() == ip)),
            Heard::Overrun => true,
            Heard::TimedOut => false,
        }
    }
}

fn is_held(address: SocketAddr) -> Result<bool, Failure> {
    net::is_blackholed(address).map_err(Failure::kernel)
}

fn listen(socket: &AddressSocket, ports: &Weak<Ports>) {
    loop {
        let heard = socket.recv(None);
        let Some(ports) = ports.upgrade() else { return };
        match heard {
            Ok(heard) if ports.concerns(heard) && ports.admit() => ports.teller.tell(News::Ports),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "addresses that appear are not heard of any more: start the agent again after one");
                return;
            }
        }
    }
}
