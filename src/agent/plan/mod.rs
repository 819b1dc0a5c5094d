//! The rules of the storage side: from what is wanted and what is there to steps. Pure.
//!
//! A plan may end before all is done (a fence ends with its status): the caller looks again and
//! plans again until nothing is left.

mod access;
mod create;
pub(super) mod delete;
mod export;
pub(super) mod judge;
pub mod source;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use super::observe::{Failure, Format, Seen};
use super::status;
use super::steps::{Act, Step};
use crate::model::names::{self, Identity};
use crate::model::volume::{FsType, Volume, VolumeStatus, reason};
use access::Access;
pub use export::NSID;
use judge::Found;

/// What of the agent's place a plan needs.
#[derive(Debug, Clone)]
pub struct Site {
    /// The node, for messages.
    pub node: String,
    /// The target's ports, by number.
    pub ports: Vec<u16>,
    /// The portal that the status tells.
    pub portal: String,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// All is as it should be.
    Nothing,
    /// The export does not answer the question: look at pool and dataset, and plan again.
    LookAtStorage,
    /// It is made from something: look at that, and plan again.
    LookAtSource,
    /// Something may hang on the dataset: look at its snapshots, and plan again.
    LookAtSnapshots,
    /// Run these.
    Run(&'static str, Vec<Step>),
}

/// The operations that plans belong to.
pub mod operation {
    /// A volume comes into being.
    pub const CREATE: &str = "agent.create";
    /// Hosts are admitted.
    pub const PUBLISH: &str = "agent.publish";
    /// Hosts are cut off.
    pub const FENCE: &str = "agent.fence";
    /// A volume goes.
    pub const DELETE: &str = "agent.delete";
    /// An export is brought back to what it should be.
    pub const CONVERGE: &str = "agent.converge";
    /// A snapshot, or a group of them, is taken.
    pub const SNAPSHOT: &str = "agent.snapshot";
    /// A snapshot, or a group of them, goes.
    pub const DELETE_SNAPSHOT: &str = "agent.delete-snapshot";
    /// A snapshot is found where it is now.
    pub const FOLLOW_SNAPSHOT: &str = "agent.follow-snapshot";
    /// What was kept for snapshots goes after them.
    pub const COLLECT: &str = "agent.collect";
}

/// The operation that a volume's next step most likely belongs to, for failures before any step.
pub fn likely_operation(volume: &Volume) -> &'static str {
    if volume.is_deleting() {
        operation::DELETE
    } else if volume.status.was_ready {
        operation::CONVERGE
    } else {
        operation::CREATE
    }
}

/// What to do for a volume now.
pub fn plan(volume: &Volume, seen: &Seen, site: &Site) -> Result<Plan, Failure> {
    if volume.is_deleting() {
        return delete::plan(volume, seen, site);
    }
    let access = Access::of(volume, seen.export.as_ref());
    // First, and without a look at the storage: a node is fenced also when the pool is in trouble.
    if let Some(steps) = access.fence(volume, seen.export.as_ref()) {
        return Ok(Plan::Run(operation::FENCE, steps));
    }
    judge::supported(volume)?;
    if status::is_ready(volume)
        && export::is_as_status_says(volume, seen.export.as_ref(), &site.ports)
    {
        return Ok(admit(volume, &access));
    }
    let Some(storage) = &seen.storage else {
        return Ok(Plan::LookAtStorage);
    };
    let found = judge::storage(volume, storage, site)?;
    let Some((pool, dataset)) = found.dataset else {
        let step = match (source::has_any(volume), &seen.source) {
            (false, _) => create::step(volume)?,
            (true, None) => return Ok(Plan::LookAtSource),
            (true, Some(source)) => source::step(volume, found.pool, source, site)?,
        };
        return Ok(Plan::Run(operation::CREATE, vec![step.into()]));
    };
    let identity = Identity::new(pool.guid, dataset.guid);
    let (mut steps, filesystem) = match judge::format(volume, dataset, seen.export.as_ref())? {
        Some(uuid) => (Vec::new(), uuid),
        None => (format(volume, &identity), identity.filesystem_uuid),
    };
    if source::has_snapshot_of_its_own(volume) {
        let Some(source) = &seen.source else {
            return Ok(Plan::LookAtSource);
        };
        steps.extend(source::let_go(source).map(Step::from));
    }
    steps.extend(export::rebuild(
        volume,
        &identity,
        seen.export.as_ref(),
        storage,
    ));
    steps.extend(access.readmit().map(Step::from));
    steps.extend(export::links(volume, seen.export.as_ref(), &site.ports).map(Step::from));
    let rebuilt = !steps.is_empty();
    steps.extend(access.admit().map(Step::from));
    let wanted = status::ready(
        volume,
        (pool, dataset),
        filesystem,
        access.mapped(),
        site,
        &seen.now,
    );
    let only_hosts = VolumeStatus {
        published_initiators: wanted.published_initiators.clone(),
        ..volume.status.clone()
    } == wanted;
    if wanted != volume.status {
        steps.push(Step::Status(Box::new(wanted)));
    }
    Ok(match (steps.is_empty(), volume.status.was_ready) {
        (true, _) => Plan::Nothing,
        (false, false) => Plan::Run(operation::CREATE, steps),
        (false, true) if rebuilt || !only_hosts => Plan::Run(operation::CONVERGE, steps),
        (false, true) => Plan::Run(operation::PUBLISH, steps),
    })
}

/// What start-up does for a volume before it links any: the export with the hosts that it had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    /// What to build.
    pub build: Vec<Step>,
    /// What to link once every volume has been built.
    pub links: Vec<Act>,
}

/// Start-up's part of a plan. A host that reconnects while the port listens and its subsystem is not
/// linked yet, or does not admit it yet, is refused for good and drops its controller: so all exports
/// are built first, with the hosts that were admitted before, and are then linked in one go.
///
/// `None`: look at the storage and ask again.
pub fn prepare(volume: &Volume, seen: &Seen, site: &Site) -> Result<Option<Prepared>, Failure> {
    if volume.is_deleting() || !volume.status.was_ready {
        return Ok(Some(Prepared::default()));
    }
    judge::supported(volume)?;
    let export = seen.export.as_ref();
    let mut build = Vec::new();
    if !export::is_as_status_says(volume, export, &[]) {
        let Some(storage) = &seen.storage else {
            return Ok(None);
        };
        let Found {
            dataset: Some((pool, dataset)),
            ..
        } = judge::storage(volume, storage, site)?
        else {
            return Ok(Some(Prepared::default()));
        };
        if judge::format(volume, dataset, export)?.is_some() {
            let identity = Identity::new(pool.guid, dataset.guid);
            build = export::rebuild(volume, &identity, export, storage);
        }
    }
    build.extend(Access::of(volume, export).readmit().map(Step::from));
    Ok(Some(Prepared {
        build,
        links: export::links(volume, export, &site.ports).collect(),
    }))
}

/// The publish path: no look at the storage.
fn admit(volume: &Volume, access: &Access) -> Plan {
    let mut steps: Vec<Step> = access
        .readmit()
        .chain(access.admit())
        .map(Step::from)
        .collect();
    let rebuilt = access.readmit().next().is_some();
    if !access.is_published() {
        steps.push(published(volume, access.mapped()));
    }
    match steps.is_empty() {
        true => Plan::Nothing,
        false if rebuilt => Plan::Run(operation::CONVERGE, steps),
        false => Plan::Run(operation::PUBLISH, steps),
    }
}

/// Formatting and its record, on a zvol that is pending.
fn format(volume: &Volume, identity: &Identity) -> Vec<Step> {
    use zvolt_kernel::probe::FsKind;
    let dataset = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let uuid = identity.filesystem_uuid;
    let kind = match volume.spec.fs_type {
        FsType::Ext4 => FsKind::Ext4,
        FsType::Xfs => FsKind::Xfs,
    };
    vec![
        Act::Appear {
            dataset: dataset.clone(),
        }
        .into(),
        Act::Format {
            dataset: dataset.clone(),
            kind,
            uuid,
        }
        .into(),
        Act::RecordFormat {
            dataset,
            record: Format::record(volume.spec.fs_type, uuid),
        }
        .into(),
    ]
}

/// The status with other published hosts.
fn published(volume: &Volume, initiators: Vec<String>) -> Step {
    Step::Status(Box::new(VolumeStatus {
        published_initiators: initiators,
        ..volume.status.clone()
    }))
}

impl<S> From<Act> for Step<S> {
    fn from(act: Act) -> Self {
        Self::Act(act)
    }
}

/// What no plan can be made for.
fn unsupported(what: &str) -> Failure {
    Failure::lasting(
        reason::BAD_PROPERTY,
        format!(
            "{what} is not supported by this version: delete the claim and make one without it"
        ),
    )
}
