//! The export as it should be, against the one that is there.

use zvolt_kernel::nvmet::{ObservedSubsystem, SubsystemSpec};

use super::super::observe::{Dataset, Storage};
use super::super::steps::{Act, Backing, Step};
use crate::model::names::{self, Identity};
use crate::model::volume::Volume;

/// A volume is namespace 1 of the subsystem of its own.
pub const NSID: u32 = 1;

/// Whether anybody reaches the volume by a subsystem of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Somebody does, or may.
    Somebody,
    /// Nobody does: there is none.
    Nobody,
}

/// Whether the export is what the status tells, linked to all `ports`, whoever is admitted.
pub(super) fn is_as_status_says(
    volume: &Volume,
    export: Option<&ObservedSubsystem>,
    ports: &[u16],
    need: Need,
) -> bool {
    let status = &volume.status;
    let (Some(uuid), Some(guid)) = (status.device_uuid, &status.device_guid) else {
        return false;
    };
    let Some(export) = export else {
        return need == Need::Nobody;
    };
    if need == Need::Nobody {
        return false;
    }
    let [namespace] = export.namespaces.as_slice() else {
        return false;
    };
    status.target_nqn.as_ref() == Some(&export.nqn)
        && namespace.nsid == NSID
        && namespace.enabled
        && namespace.uuid == uuid
        && uuid::Uuid::from_bytes(namespace.nguid).simple().to_string() == *guid
        && ports.iter().all(|port| export.ports.contains(port))
}

/// The steps that build what is missing of subsystem and namespace.
pub(super) fn rebuild(
    volume: &Volume,
    identity: &Identity,
    export: Option<&ObservedSubsystem>,
    storage: &Storage,
) -> Vec<Step> {
    let nqn = names::subsystem_nqn(&volume.metadata.name);
    let dataset = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let mut steps = Vec::new();
    if export.is_none_or(|e| e.serial != identity.serial()) {
        steps.push(
            Act::Subsystem(SubsystemSpec {
                nqn: nqn.clone(),
                serial: identity.serial(),
                model: "zvolt".into(),
            })
            .into(),
        );
    }
    let is_right = export
        .and_then(|e| e.namespaces.iter().find(|n| n.nsid == NSID))
        .is_some_and(|n| {
            n.enabled
                && n.uuid == identity.namespace_uuid
                && n.nguid == identity.nguid
                && storage.backing.as_deref() == Some(dataset.as_str())
        });
    if !is_right {
        steps.push(
            Act::Appear {
                dataset: dataset.clone(),
            }
            .into(),
        );
        steps.push(
            Act::Namespace(Backing {
                nqn,
                nsid: NSID,
                dataset,
                uuid: identity.namespace_uuid,
                nguid: identity.nguid,
            })
            .into(),
        );
    }
    steps
}

/// The step that tells the target of a size that the status does not tell yet. (A namespace that has just been
/// made has it already.)
pub(super) fn revalidate(volume: &Volume, dataset: &Dataset) -> Option<Step> {
    let bytes = dataset.volsize?;
    let status = &volume.status;
    let is_news = status.was_ready && status.actual_capacity != Some(bytes);
    is_news.then(|| {
        Step::Act(Act::Revalidate {
            nqn: names::subsystem_nqn(&volume.metadata.name),
            nsid: NSID,
            dataset: names::zvol(&volume.spec.pool, &volume.metadata.name),
            bytes,
        })
    })
}

/// The links that are missing.
pub(super) fn links(
    volume: &Volume,
    export: Option<&ObservedSubsystem>,
    ports: &[u16],
) -> impl Iterator<Item = Act> {
    let linked = export.map_or(&[] as &[u16], |e| &e.ports);
    ports
        .iter()
        .filter(|port| !linked.contains(port))
        .map(|port| Act::Link {
            nqn: names::subsystem_nqn(&volume.metadata.name),
            port: *port,
        })
}
