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
    specs: Vec<PortSpec>,
    /// By number, those whose address is there. One that has been linked goes on listening without it.
    there: Mutex<BTreeSet<u16>>,
    teller: Arc<Teller>,
}

impl Ports {
    /// The ports for these portals, numbered from `base`. Listens for their addresses from now on.
    pub(super) fn start(
        portals: &[SocketAddr],
        base: u16,
        teller: Arc<Teller>,
    ) -> Result<Arc<Self>, SysError> {
        let socket = AddressSocket::open()?;
        let ports = Arc::new(Self {
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
        ports.look();
        let listener = Arc::downgrade(&ports);
        std::thread::Builder::new()
            .name("addresses".into())
            .spawn(move || listen(&socket, &listener))
            .map_err(|e| SysError::io("clone", "addresses".as_ref(), &e))?;
        Ok(ports)
    }

    /// Makes the ports in the target, whether or not their addresses are there.
    pub(super) fn converge(&self, target: &Target) -> Result<(), Failure> {
        for port in &self.specs {
            target.converge_port(port).map_err(Failure::kernel)?;
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

    /// Drops the answers of every port that does not listen yet, until [`Ports::open`]; whether there is one.
    ///
    /// A port listens with its first link, and a host that then asks for a subsystem that is linked a moment later is
    /// refused for good (`NVME_SC_CONNECT_INVALID_PARAM` with DNR, `nvmet_alloc_ctrl`): its mounts are lost. A host
    /// that is not answered tries again.
    pub(super) fn hold(&self, target: &Target) -> Result<bool, Failure> {
        let mut holds = false;
        for port in &self.specs {
            let Some(address) = port.address else {
                continue;
            };
            if target.is_listening(port.id).map_err(Failure::kernel)? {
                continue;
            }
            match net::blackhole(address) {
                Ok(_) => holds = true,
                Err(error) => tracing::warn!(
                    %error,
                    "the portal answers before all exports are linked: hosts that reconnect in that moment may give up"
                ),
            }
        }
        Ok(holds)
    }

    /// Lets every port answer, whoever held it.
    pub(super) fn open(&self) -> Result<(), Failure> {
        self.specs
            .iter()
            .filter_map(|port| port.address)
            .try_for_each(|address| net::unblackhole(address).map(drop))
            .map_err(Failure::kernel)
    }

    /// The ports that hosts can be given now, by number.
    pub(super) fn usable(&self) -> Vec<u16> {
        self.there().iter().copied().collect()
    }

    /// Links a subsystem. A port whose address has gone is left out until it is back.
    pub(super) fn link(&self, target: &Target, nqn: &str, port: u16) -> Result<(), Failure> {
        match target.link_port(nqn, port) {
            Ok(Outcome::Changed | Outcome::Unchanged) => Ok(()),
            Err(nvmet::Error::Sys(error)) if error.errno == Errno::EADDRNOTAVAIL => {
                tracing::warn!(nqn, %error, "the port's address has gone: it is linked when it is back");
                self.there().remove(&port);
                Ok(())
            }
            Err(error) => Err(Failure::kernel(error)),
        }
    }

    /// Asks for every port that is not there yet; whether one has come.
    fn look(&self) -> bool {
        let mut came = false;
        for port in &self.specs {
            let Some(address) = port.address.filter(|_| !self.there().contains(&port.id)) else {
                continue;
            };
            match net::can_listen(address) {
                Ok(false) => {}
                Ok(true) => {
                    self.there().insert(port.id);
                    came = true;
                }
                // The link itself will tell.
                Err(error) => {
                    tracing::warn!(%error, "whether a portal's address is there could not be asked");
                    self.there().insert(port.id);
                    came = true;
                }
            }
        }
        came
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

fn listen(socket: &AddressSocket, ports: &Weak<Ports>) {
    loop {
        let heard = socket.recv(None);
        let Some(ports) = ports.upgrade() else { return };
        match heard {
            Ok(heard) if ports.concerns(heard) && ports.look() => ports.teller.tell(News::Ports),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "addresses that appear are not heard of any more: start the agent again after one");
                return;
            }
        }
    }
}
