//! The rules of the storage side: from what is wanted and what is there to steps. Pure.
//!
//! A plan may end before all is done (a fence ends with its status): the caller looks again and
//! plans again until nothing is left.

mod access;
mod changes;
mod create;
pub(super) mod delete;
mod export;
pub(super) mod judge;
mod mkfs;
pub(super) mod pooled;
mod protect;
pub mod source;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use zvolt_kernel::nvmet::ObservedSubsystem;

use super::observe::{Failure, Seen};
use super::status::{self, Changes, Exported};
use super::steps::{Act, Step};
use crate::model::names;
use crate::model::volume::{Volume, VolumeStatus, reason};
use access::{Access, mend};
pub use export::NSID;
use export::Need;
use judge::{Content, Found};
use pooled::{Places, Who};
use protect::{Namespace, Switch};

/// What of the agent's place a plan needs.
#[derive(Debug, Clone)]
pub struct Site {
    /// The node, for messages.
    pub node: String,
    /// The portal that the status tells.
    pub portal: String,
    /// The port, by number, through which the agent itself connects (nvme-loop).
    pub loop_port: u16,
}

impl Site {
    /// The host NQN of the consumer on this very host.
    fn host(&self) -> String {
        names::host_nqn(&self.node)
    }

    /// The host NQN of the agent itself.
    fn agent(&self) -> String {
        names::agent_nqn(&self.node)
    }
}

/// The ports by which hosts reach an export.
fn links_of(export: &ObservedSubsystem, site: &Site) -> impl Iterator<Item = u16> {
    let own = site.loop_port;
    export
        .ports
        .iter()
        .copied()
        .filter(move |port| *port != own)
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
    /// What was changed in the spec cannot be: the volume goes on as it is.
    Refuse(Failure),
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
    /// The ports begin to answer, with every export linked.
    pub const OPEN: &str = "agent.open";
    /// A volume that is Ready gets other properties or another size.
    pub const MODIFY: &str = "agent.modify";
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
    let export = seen.export.as_ref();
    let (access, places) = (
        Access::of(volume, export, site),
        Places::of(volume, seen, site),
    );
    // First, and without a look at the storage: a node is fenced also when the pool is in trouble.
    if let Some(mut steps) = places.fence() {
        if volume.status.mapped_initiators.is_empty() && access.is_empty() {
            steps.extend(mend(volume));
        }
        return Ok(Plan::Run(operation::FENCE, steps));
    }
    if let Some(steps) = access.fence(volume, export, site) {
        return Ok(Plan::Run(operation::FENCE, steps));
    }
    judge::supported(volume)?;
    let need = access.need(volume);
    if status::serves(volume)
        && export::is_as_status_says(volume, export, &seen.ports, need)
        && places.are_as_status_says()
    {
        // A change of the spec never holds up a publish.
        let plan = admit(volume, &access, export, site);
        if plan != Plan::Nothing || status::is_current(volume) {
            return Ok(plan);
        }
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
    let changes = changes::steps(volume, dataset);
    if !volume.status.was_ready {
        // Nobody is told of a volume that is not yet what was asked for.
        let steps = changes.clone()?;
        if !steps.is_empty() {
            return Ok(Plan::Run(operation::CREATE, steps));
        }
    }
    let identity = volume.identity(pool.guid, dataset.guid);
    let (mut steps, filesystem) = match judge::format(volume, dataset, judge::Exported::of(seen))? {
        Content::Raw => (Vec::new(), None),
        Content::Made(uuid) => (Vec::new(), Some(uuid)),
        Content::ToBeMade => (
            mkfs::steps(volume, &identity)?,
            Some(identity.filesystem_uuid),
        ),
    };
    if source::has_snapshot_of_its_own(volume) {
        let Some(source) = &seen.source else {
            return Ok(Plan::LookAtSource);
        };
        steps.extend(source::let_go(source).map(Step::from));
    }
    let build = build(
        volume,
        seen,
        site,
        match need {
            Need::Somebody => export::rebuild(volume, &identity, export, storage),
            Need::Nobody => Vec::new(),
        },
        need,
    );
    let switch = build.switch;
    steps.extend(build.steps);
    steps.extend(access.readmit().map(Step::from));
    steps.extend(places.build(Who::Admitted, &identity));
    steps.extend(build.links.into_iter().map(Step::from));
    steps.extend(places.link(Who::Admitted).into_iter().map(Step::from));
    let rebuilt = !steps.is_empty();
    steps.extend(access.admit().map(Step::from));
    steps.extend(places.build(Who::Coming, &identity));
    steps.extend(places.link(Who::Coming).into_iter().map(Step::from));
    let exported = Exported {
        pool,
        dataset,
        filesystem,
        published: mapped(volume),
        placements: places.placements(),
        write_protect: switch.after,
        changes: match &changes {
            Ok(steps) if steps.is_empty() => Changes::Applied,
            _ => Changes::Pending,
        },
    };
    let wanted = status::ready(volume, exported, site, &seen.now);
    let only_hosts = VolumeStatus {
        published_initiators: wanted.published_initiators.clone(),
        placements: wanted.placements.clone(),
        write_protect: wanted.write_protect,
        ..volume.status.clone()
    } == wanted;
    if build.namespace == Namespace::Kept && need == Need::Somebody {
        steps.extend(export::revalidate(volume, dataset));
    }
    if let Some(bytes) = dataset.volsize {
        steps.extend(places.revalidate(bytes, &identity));
    }
    if wanted != volume.status || switch.to.is_some() {
        steps.push(Step::Status(Box::new(wanted)));
    }
    let operation = match volume.status.was_ready {
        false => operation::CREATE,
        true if !rebuilt && only_hosts => operation::PUBLISH,
        true if !rebuilt && status::serves(volume) => operation::MODIFY,
        true => operation::CONVERGE,
    };
    Ok(match (steps.is_empty(), changes) {
        (false, _) => Plan::Run(operation, steps),
        (true, Err(failure)) => Plan::Refuse(failure),
        (true, Ok(changes)) if changes.is_empty() => Plan::Nothing,
        (true, Ok(changes)) => Plan::Run(operation::MODIFY, changes),
    })
}

/// How an export comes to stand, but for its hosts.
struct Build {
    steps: Vec<Step>,
    namespace: Namespace,
    switch: Switch,
    /// Once hosts are let in.
    links: Vec<Act>,
}

/// Around the steps that build what is missing: what the target must do with writes before anybody reaches it.
fn build(volume: &Volume, seen: &Seen, site: &Site, rebuild: Vec<Step>, need: Need) -> Build {
    let export = seen.export.as_ref();
    if need == Need::Nobody {
        return nothing_to_build(volume, export, site);
    }
    let makes = |step: &Step| matches!(step, Step::Act(Act::Namespace(_)));
    let namespace = match rebuild.iter().any(makes) {
        true => Namespace::Remade,
        false => Namespace::Kept,
    };
    let switch = Switch::of(volume, site, namespace);
    let hidden = match namespace {
        Namespace::Remade => switch.hide(export, site),
        Namespace::Kept => Vec::new(),
    };
    let linked = export.filter(|_| hidden.is_empty());
    let links = export::links(volume, linked, &seen.ports).collect();
    let mut steps: Vec<Step> = switch.announce(volume).into_iter().collect();
    steps.extend(hidden);
    steps.extend(rebuild);
    steps.extend(switch.steps(volume, export, site));
    Build {
        steps,
        namespace,
        switch,
        links,
    }
}

/// A pooled volume whose last reader has gone needs no subsystem of its own.
fn nothing_to_build(volume: &Volume, export: Option<&ObservedSubsystem>, site: &Site) -> Build {
    let teardown = export.map(|export| {
        Step::Act(Act::Teardown {
            nqn: export.nqn.clone(),
            hosts: export.allowed_hosts.clone(),
        })
    });
    Build {
        steps: teardown.into_iter().collect(),
        namespace: Namespace::Kept,
        switch: Switch::of(volume, site, Namespace::Kept),
        links: Vec::new(),
    }
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
    let (access, places) = (
        Access::of(volume, export, site),
        Places::of(volume, seen, site),
    );
    let need = access.need(volume);
    let (mut rebuild, mut in_places) = (Vec::new(), Vec::new());
    if !(export::is_as_status_says(volume, export, &[], need) && places.are_as_status_says()) {
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
        if judge::format(volume, dataset, judge::Exported::of(seen))? == Content::ToBeMade {
            return Ok(Some(Prepared::default()));
        }
        let identity = volume.identity(pool.guid, dataset.guid);
        if need == Need::Somebody {
            rebuild = export::rebuild(volume, &identity, export, storage);
        }
        in_places = places.build(Who::Admitted, &identity);
    }
    let mut build = build(volume, seen, site, rebuild, need);
    if let Some(state) = build.switch.to {
        // So that the reconcile that follows need not switch again.
        build.steps.push(protect::status(volume, state));
    }
    build.steps.extend(access.readmit().map(Step::from));
    build.steps.extend(in_places);
    build.links.extend(places.link(Who::Admitted));
    Ok(Some(Prepared {
        build: build.steps,
        links: build.links,
    }))
}

/// The publish path: no look at the storage.
fn admit(
    volume: &Volume,
    access: &Access,
    export: Option<&ObservedSubsystem>,
    site: &Site,
) -> Plan {
    let switch = Switch::of(volume, site, Namespace::Kept);
    let mut steps: Vec<Step> = switch.announce(volume).into_iter().collect();
    steps.extend(switch.steps(volume, export, site));
    let rebuilt = access.readmit().next().is_some() || (switch.to.is_none() && !steps.is_empty());
    steps.extend(access.readmit().chain(access.admit()).map(Step::from));
    if !access.is_published() || switch.to.is_some() {
        steps.push(Step::Status(Box::new(VolumeStatus {
            published_initiators: mapped(volume),
            write_protect: switch.after,
            ..volume.status.clone()
        })));
    }
    match steps.is_empty() {
        true => Plan::Nothing,
        false if rebuilt => Plan::Run(operation::CONVERGE, steps),
        false => Plan::Run(operation::PUBLISH, steps),
    }
}

/// The hosts that are mapped, sorted.
fn mapped(volume: &Volume) -> Vec<String> {
    let mapped = volume.status.mapped_initiators.iter();
    let hosts: BTreeSet<_> = mapped.map(|m| m.initiator_id.clone()).collect();
    hosts.into_iter().collect()
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
