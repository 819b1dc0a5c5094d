//! Volumes: what their reconcile looks at, and the two halves of start-up.

use std::sync::Arc;
use std::time::Instant;

use zvolt_kernel::zfs;

use super::observe::{Failure, Host, Placed, Seen};
use super::places;
use super::plan::source::Source;
use super::plan::{self, Plan};
use super::reconcile::{DEADLINE, Pass, Planned, Reconciled, Reconciler, Stop};
use super::running::Running;
use super::snapshots::observe::{Family, is_for};
use super::status;
use super::steps::Act;
use crate::model::snapshot::{self, Snapshot};
use crate::model::volume::{FINALIZER, Volume, VolumeStatus, reason};
use crate::model::{names, object::Object};
use crate::ops::Timeline;
use crate::store::{Objects, Store, time};

/// The looks that one plan can ask for, and one to spare.
const LOOKS: usize = 5;

impl Reconciled for Volume {
    type Status = VolumeStatus;
    const FINALIZER: &'static str = FINALIZER;

    fn objects<S: Store>(store: &S) -> &impl Objects<Self> {
        store.volumes()
    }

    fn owner(&self) -> &str {
        &self.spec.owner_node
    }

    fn status_mut(&mut self) -> &mut VolumeStatus {
        &mut self.status
    }

    fn was_ready(&self) -> bool {
        self.status.was_ready
    }

    fn failed(&self, failure: &Failure, now: &str) -> VolumeStatus {
        status::failed(self, failure, now)
    }

    fn refused(&self, failure: &Failure, now: &str) -> VolumeStatus {
        status::refused(self, failure, now)
    }

    fn is_change(operation: &str) -> bool {
        operation == plan::operation::MODIFY
    }

    fn likely_operation(&self) -> &'static str {
        plan::likely_operation(self)
    }

    fn plan<S: Store, H: Host>(&self, pass: &mut Pass<'_, S, H>) -> Result<Planned<Self>, Stop> {
        let all = pass.all;
        let mut seen = all.look(self, &mut pass.running.timeline)?;
        for _ in 0..LOOKS {
            match plan::plan(self, &seen, &all.site)? {
                Plan::Nothing => return Ok(None),
                Plan::Run(operation, steps) => return Ok(Some((operation, steps))),
                Plan::Refuse(failure) => {
                    pass.running.enter(plan::operation::MODIFY, &all.journal);
                    return Err(Stop::Refused(failure));
                }
                Plan::LookAtStorage => {
                    seen = all.look_at_storage(self, seen, &mut pass.running.timeline)?;
                }
                Plan::LookAtSource => seen.source = Some(pass.look_at_source(self, &seen)?),
                Plan::LookAtSnapshots => {
                    seen = pass.look_at_snapshots(self, seen)?;
                }
            }
        }
        Err(Failure::kernel("the plan asks for ever more looks").into())
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    fn look(&self, volume: &Volume, timeline: &mut Timeline) -> Result<Seen, Failure> {
        let nqn = names::subsystem_nqn(&volume.metadata.name);
        let (export, placed) = timeline.step("nvmet.observe", || {
            let placed = self.places.look(&self.host, volume, &self.site)?;
            Ok::<_, Failure>((self.host.export(&nqn)?, placed))
        })?;
        Ok(Seen {
            ports: self.host.ports(),
            export,
            placed,
            storage: None,
            source: None,
            family: None,
            now: time::now(),
        })
    }

    fn look_at_storage(
        &self,
        volume: &Volume,
        mut seen: Seen,
        timeline: &mut Timeline,
    ) -> Result<Seen, Failure> {
        let pool = &volume.spec.pool;
        let dataset = names::zvol(pool, &volume.metadata.name);
        let storage = timeline.step("zfs.observe", || {
            look_behind(&self.host, &mut seen.placed)?;
            self.host.storage(pool, &dataset, seen.export.as_ref())
        })?;
        Ok(Seen {
            storage: Some(storage),
            ..seen
        })
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Start-up: where pooled volumes are, and the end of what nobody needs in the subsystems that nodes have.
    pub(super) fn begin_places(&self, volumes: &[Arc<Volume>]) -> Result<(), Failure> {
        let found = self.host.pooled()?;
        let volumes = || volumes.iter().map(|volume| &**volume);
        self.places.begin(volumes(), &found);
        let deadline = Instant::now() + DEADLINE;
        for act in places::left_over(volumes(), &found) {
            if let Err(error) = self.host.act(&act, deadline) {
                tracing::warn!(?act, %error, "what nobody needs stays until the next start");
            }
        }
        Ok(())
    }
}

/// What zvols are behind the namespaces.
pub(super) fn look_behind(host: &impl Host, placed: &mut [Placed]) -> Result<(), Failure> {
    for placed in placed {
        placed.backing = match placed.namespace().filter(|n| n.enabled) {
            Some(namespace) => host.backing(namespace)?,
            None => None,
        };
    }
    Ok(())
}

impl<S: Store, H: Host> Pass<'_, S, H> {
    /// The zvol's snapshots. Where there are any, nobody else may move them meanwhile.
    fn look_at_snapshots(&mut self, volume: &Volume, mut seen: Seen) -> Result<Seen, Failure> {
        let (all, pool) = (self.all, &volume.spec.pool);
        let dataset = names::zvol(pool, &volume.metadata.name);
        let mut family = self.family(&dataset)?;
        if !family.snapshots.is_empty() && !self.has_turn() {
            self.take_turn(pool)?;
            seen = all.look_at_storage(volume, seen, &mut self.running.timeline)?;
            family = self.family(&dataset)?;
        }
        Ok(Seen {
            family: Some(family),
            ..seen
        })
    }

    fn family(&mut self, dataset: &str) -> Result<Family, Failure> {
        let host = &self.all.host;
        let timeline = &mut self.running.timeline;
        timeline.step("zfs.observe", || Family::look(host, dataset))
    }

    /// What the volume is made from.
    fn look_at_source(&mut self, volume: &Volume, seen: &Seen) -> Result<Source, Stop> {
        match (
            &volume.spec.source_snapshot_id,
            &volume.spec.source_volume_id,
        ) {
            (Some(id), _) => self.look_at_source_snapshot(volume, id),
            (None, Some(id)) => self.look_at_source_volume(volume, id, seen),
            (None, None) => Err(Failure::kernel("the plan asks for a source").into()),
        }
    }

    fn look_at_source_snapshot(&mut self, volume: &Volume, id: &str) -> Result<Source, Stop> {
        let mut object: Option<Snapshot> = None;
        let mut taken = None;
        if let Some((handle, name)) = snapshot::parse_id(id) {
            let get = self.all.store.snapshots().get(name);
            object = self.all.runtime.block_on(get)?;
            taken = object.as_ref().and_then(|o| o.member(handle)?.1.cloned());
        }
        let is_here = |o: &Snapshot| o.spec.pool == volume.spec.pool;
        let found = match taken.filter(|_| object.as_ref().is_some_and(is_here)) {
            Some(taken) => self.locate(&volume.spec.pool, &taken.snapshot_path, |found| {
                found.guid.to_string() == taken.guid
            })?,
            None => None,
        };
        Ok(Source::Snapshot {
            object: object.map(Box::new),
            found,
        })
    }

    fn look_at_source_volume(
        &mut self,
        volume: &Volume,
        id: &str,
        seen: &Seen,
    ) -> Result<Source, Stop> {
        if !names::is_handle(id) {
            return Ok(Source::Volume {
                object: None,
                dataset: None,
                internal: None,
            });
        }
        let get = self.all.store.volumes().get(id);
        let object = self.all.runtime.block_on(get)?;
        let (host, pool) = (&self.all.host, &volume.spec.pool);
        let (zvol, uid) = (names::zvol(pool, id), &volume.metadata.uid);
        let component = names::clone_component(uid);
        let own = seen.storage.iter().flat_map(|s| &s.dataset);
        let origin = own
            .flat_map(|d| &d.origin)
            .find(|origin| names::snapshot_halves(origin).1 == component);
        let path = origin
            .cloned()
            .unwrap_or_else(|| format!("{zvol}@{component}"));
        let timeline = &mut self.running.timeline;
        let (dataset, mut internal) = timeline.step("zfs.observe", || {
            let internal = match host.dataset(&zvol)? {
                None if origin.is_none() => return Ok((None, None)),
                dataset => (dataset, host.snapshot(&path)?.filter(|s| is_for(s, uid))),
            };
            Ok::<_, Failure>(internal)
        })?;
        let is_steady = object.as_ref().is_some_and(|o| !o.is_deleting());
        if internal.is_none() && (Object::is_deleting(volume) || !is_steady) {
            internal = self.locate(pool, &path, |found| is_for(found, uid))?;
        }
        Ok(Source::Volume {
            object: object.map(Box::new),
            dataset,
            internal,
        })
    }

    /// A snapshot by where it was last seen, else wherever a promotion or a renaming has taken it.
    pub(super) fn locate(
        &mut self,
        pool: &str,
        path: &str,
        is_it: impl Fn(&zfs::Snapshot) -> bool,
    ) -> Result<Option<zfs::Snapshot>, Failure> {
        let all = self.all;
        let at = |path: &str| Ok::<_, Failure>(all.host.snapshot(path)?.filter(&is_it));
        if let Some(found) = self.running.timeline.step("zfs.observe", || at(path))? {
            return Ok(Some(found));
        }
        // Nobody may move it while it is looked for.
        self.take_turn(pool)?;
        let (dataset, component) = names::snapshot_halves(path);
        self.running.timeline.step("zfs.observe", || {
            let mut datasets = vec![dataset.to_owned()];
            datasets.extend(all.moves.from(dataset));
            for dataset in datasets {
                if let Some(found) = at(&format!("{dataset}@{component}"))? {
                    return Ok(Some(found));
                }
            }
            let everywhere = all.host.called(pool, component)?;
            Ok(everywhere.into_iter().find(&is_it))
        })
    }
}

/// A volume as start-up's first half leaves it.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its newest state.
    pub(super) volume: Arc<Volume>,
    /// Its resource versions, oldest first: the watch may bring them too.
    pub(super) versions: Vec<String>,
    /// What is to be linked.
    pub(super) built: Option<Built>,
    /// Its pool is missing, and nodes have it attached.
    pub(super) awaits_pool: bool,
}

/// What start-up has built and not linked yet.
#[derive(Debug)]
pub(super) struct Built {
    links: Vec<Act>,
    running: Running,
}

impl<S: Store, H: Host> Pass<'_, S, H> {
    /// Start-up's build. Gives the links that are left to do; `None` when there is nothing to link. What is wrong, the
    /// reconcile that follows tells.
    fn build(&mut self, volume: &mut Arc<Volume>) -> Result<Option<Vec<Act>>, Stop> {
        let all = self.all;
        let mut seen = all.look(volume, &mut self.running.timeline)?;
        let prepared = loop {
            match plan::prepare(volume, &seen, &all.site)? {
                Some(prepared) => break prepared,
                None if seen.storage.is_none() => {
                    let timeline = &mut self.running.timeline;
                    seen = all.look_at_storage(volume, seen, timeline)?;
                }
                None => return Ok(None),
            }
        };
        if prepared.build.is_empty() && prepared.links.is_empty() {
            return Ok(None);
        }
        self.running.enter(plan::operation::CONVERGE, &all.journal);
        match self.run(volume, &prepared.build) {
            Ok(()) => Ok(Some(prepared.links)),
            Err(stop) => {
                let next = Running::start(&volume.metadata.name);
                std::mem::replace(&mut self.running, next)
                    .finish(Err(stop.to_string()), &all.journal);
                Err(stop)
            }
        }
    }
}

impl<S: Store, H: Host> Reconciler<S, H> {
    /// Start-up, first half: builds a volume's export without linking it.
    pub(super) fn prepare(&self, mut volume: Arc<Volume>) -> Prepared {
        let mut pass = Pass::start(self, &volume.metadata.name);
        pass.versions.push(volume.metadata.resource_version.clone());
        let outcome = pass.build(&mut volume);
        let lacks_pool =
            matches!(&outcome, Err(Stop::Failure(f)) if f.reason == reason::POOL_NOT_FOUND);
        Prepared {
            awaits_pool: lacks_pool && !volume.status.published_initiators.is_empty(),
            volume,
            versions: pass.versions,
            built: outcome.ok().flatten().map(|links| Built {
                links,
                running: pass.running,
            }),
        }
    }

    /// Start-up, second half: links all that was built, with nothing in between. No port answers before, nor after
    /// when it `awaits` more to link; whether that is so.
    pub(super) fn link(&self, all: Vec<Built>, awaits: bool) -> Result<bool, Failure> {
        let mut opening = Running::start("");
        let mut holds = false;
        if awaits || !all.is_empty() {
            opening.enter(plan::operation::OPEN, &self.journal);
            holds = opening
                .timeline
                .step("ports.hold", || self.host.hold_ports())?;
        }
        self.link_each(all);
        let waits = awaits && holds;
        // Also when there was nothing to link: an agent that was killed may have left them held.
        if !waits {
            opening
                .timeline
                .step("ports.open", || self.host.open_ports())?;
        }
        opening.finish(Ok(()), &self.journal);
        Ok(waits)
    }

    fn link_each(&self, all: Vec<Built>) {
        let deadline = Instant::now() + DEADLINE;
        let linked: Vec<_> = all
            .into_iter()
            .map(|mut built| {
                let timeline = &mut built.running.timeline;
                let outcome = built.links.iter().try_for_each(|link| {
                    timeline.step(link.name(), || self.host.act(link, deadline))
                });
                (built.running, outcome)
            })
            .collect();
        for (running, outcome) in linked {
            running.finish(outcome.map_err(|e| e.to_string()), &self.journal);
        }
    }
}
