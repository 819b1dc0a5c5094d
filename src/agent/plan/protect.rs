//! Read-only at the target (rule 5): Namespace Write Protect, switched before a host is let in.
//!
//! The kernel's target has no attribute for it: a host must send Set Features. So the agent connects to its own
//! subsystem through a loop port, as a host of its own, for that moment only; what a crash leaves of that (the
//! link, the agent among the allowed hosts) is seen in the export and taken away.
//!
//! What the target does is the status's word: `On` and `Off` are trusted, `Changing` is not. `Changing` is written
//! before a switch, and before a namespace that was protected is made anew: protection ends with the namespace.
//! Hosts that may only read come in after the switch, and are kept out by unlinked ports while a namespace that
//! they were allowed on is made anew.

use zvolt_kernel::nvmet::ObservedSubsystem;

use super::super::steps::{Act, Step};
use super::{Site, links_of, pooled};
use crate::model::names;
use crate::model::volume::{Volume, VolumeStatus, WriteProtect};

/// What the volume's own subsystem must do with writes; `None` when nobody who is mapped reaches it, so that either
/// will do.
pub(super) fn wanted(volume: &Volume, site: &Site) -> Option<WriteProtect> {
    let own = site.host();
    let mut remote = volume
        .status
        .mapped_initiators
        .iter()
        .filter(|initiator| initiator.initiator_id != own)
        .filter(|initiator| !pooled::is_pooled(volume, initiator, site))
        .peekable();
    remote.peek()?;
    Some(match remote.all(|initiator| initiator.read_only) {
        true => WriteProtect::On,
        false => WriteProtect::Off,
    })
}

/// A switch, decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switch {
    /// What the target is to do; `None` when it does so already.
    pub(super) to: Option<WriteProtect>,
    /// What it does afterwards.
    pub(super) after: WriteProtect,
}

impl Switch {
    /// For a volume whose namespace stays as it is, or is made anew.
    pub(super) fn of(volume: &Volume, site: &Site, namespace: Namespace) -> Self {
        let now = match (namespace, volume.status.write_protect) {
            // Whether the kernel still had the old one, nobody knows.
            (Namespace::Remade, WriteProtect::On) => WriteProtect::Changing,
            (_, now) => now,
        };
        let to = wanted(volume, site).filter(|wanted| *wanted != now);
        Self {
            to,
            after: to.unwrap_or(now),
        }
    }

    /// What must be done before anything else: the status says that nothing holds any more.
    pub(super) fn announce(self, volume: &Volume) -> Option<Step> {
        let is_news = self.after != volume.status.write_protect || self.to.is_some();
        (is_news && volume.status.write_protect != WriteProtect::Changing)
            .then(|| status(volume, WriteProtect::Changing))
    }

    /// The switch itself. Without one, what an earlier one has left is taken away.
    pub(super) fn steps(
        self,
        volume: &Volume,
        export: Option<&ObservedSubsystem>,
        site: &Site,
    ) -> Vec<Step> {
        let nqn = names::subsystem_nqn(&volume.metadata.name);
        let close = Act::LoopClose { nqn: nqn.clone() };
        match self.to {
            Some(state) => vec![
                Act::LoopOpen { nqn: nqn.clone() }.into(),
                Act::WriteProtect { nqn, state }.into(),
                close.into(),
            ],
            None if is_left_open(export, site) => vec![close.into()],
            None => Vec::new(),
        }
    }

    /// The unlinked ports while a namespace is made anew below hosts that may only read.
    pub(super) fn hide(self, export: Option<&ObservedSubsystem>, site: &Site) -> Vec<Step> {
        match (self.to, export) {
            (Some(WriteProtect::On), Some(export)) => links_of(export, site)
                .map(|port| {
                    Act::Unlink {
                        nqn: export.nqn.clone(),
                        port,
                    }
                    .into()
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Whether a plan makes the namespace anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespace {
    /// It does.
    Remade,
    /// It leaves it alone.
    Kept,
}

/// The status with another word on writes.
pub(super) fn status(volume: &Volume, write_protect: WriteProtect) -> Step {
    Step::Status(Box::new(VolumeStatus {
        write_protect,
        ..volume.status.clone()
    }))
}

fn is_left_open(export: Option<&ObservedSubsystem>, site: &Site) -> bool {
    export.is_some_and(|export| {
        export.ports.contains(&site.loop_port) || export.allowed_hosts.contains(&site.agent())
    })
}
