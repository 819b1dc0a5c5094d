//! CreateSnapshot and CreateVolumeGroupSnapshot: intent is written, the agent takes it, the answer is what it
//! took. The volumes' other calls go on meanwhile.

use std::time::Instant;

use zvolt_proto::csi;

use super::super::Controller;
use super::super::create::nowhere_special;
use super::super::follow::{gone, until, within};
use super::super::source::ready;
use super::{group_to_csi, is_ready, members_to_csi};
use crate::csi::check::{self, VolumeId};
use crate::csi::status::{Kind, Refusal};
use crate::model::names::{self, is_handle};
use crate::model::object::{Metadata, Object};
use crate::model::shown;
use crate::model::snapshot::{
    FINALIZER, Snapshot, SnapshotKind, SnapshotSpec, SnapshotState, SnapshotStatus, Source,
    check_parameters,
};
use crate::model::volume::{Volume, VolumeMode};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch};

/// CreateSnapshot or CreateVolumeGroupSnapshot, checked.
#[derive(Debug, Clone)]
pub(in crate::csi) struct SnapshotWanted {
    name: String,
    /// Its object's name.
    pub(in crate::csi) object: String,
    kind: SnapshotKind,
    /// IDs of the volumes, each once, in order.
    volumes: Vec<String>,
}

impl SnapshotWanted {
    /// Checks CreateSnapshot.
    pub(in crate::csi) fn single(request: &csi::CreateSnapshotRequest) -> Result<Self, Refusal> {
        check::name(&request.name)?;
        let volume = known(check::id("source_volume_id", &request.source_volume_id)?);
        check_parameters(&request.parameters)?;
        nowhere_special(request.accessibility_requirements.as_ref())?;
        Ok(Self {
            object: names::handle_of(&request.name),
            name: request.name.clone(),
            kind: SnapshotKind::Single,
            volumes: vec![volume],
        })
    }

    /// Checks CreateVolumeGroupSnapshot.
    pub(in crate::csi) fn group(
        request: &csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<Self, Refusal> {
        check::name(&request.name)?;
        if request.source_volume_ids.is_empty() {
            return Err(Refusal::invalid(
                "source_volume_ids is missing: name the volumes of the group",
            ));
        }
        let ids = request.source_volume_ids.iter();
        let mut volumes = ids
            .map(|id| Ok(known(check::id("source_volume_ids", id)?)))
            .collect::<Result<Vec<_>, Refusal>>()?;
        volumes.sort();
        if let Some(twice) = volumes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Refusal::invalid(format!(
                "source_volume_ids has {} twice: name each volume once",
                shown(&twice[0])
            )));
        }
        check_parameters(&request.parameters)?;
        Ok(Self {
            // Never the name of a single snapshot's object that is called the same.
            object: names::handle_of(&format!("group/{}", request.name)),
            name: request.name.clone(),
            kind: SnapshotKind::Group,
            volumes,
        })
    }

    /// Whether a snapshot of this name is the one that the caller means.
    fn is_met_by(&self, existing: &Snapshot) -> Result<(), Refusal> {
        let spec = &existing.spec;
        let has: Vec<_> = spec.members.iter().map(|m| m.volume_id.as_str()).collect();
        let differs = if spec.kind != self.kind || spec.snap_name != self.name {
            format!("it is a {:?}, called {}", spec.kind, shown(&spec.snap_name))
        } else if has != self.volumes {
            format!(
                "it is of volume {}, not of {}",
                has.join(", "),
                shown(&self.volumes.join(", "))
            )
        } else {
            return Ok(());
        };
        Err(Refusal::new(
            Kind::AlreadyExists,
            format!(
                "snapshot {} exists and is another than the one asked for: {differs}; use another name",
                existing.metadata.name
            ),
        ))
    }

    /// The object as it is written: all volumes are ready, on one host and in one pool.
    fn intent(&self, volumes: &[Volume]) -> Result<Snapshot, Refusal> {
        let members = volumes.iter().map(source).collect::<Result<_, _>>()?;
        let (Some(first), Some(pool_guid)) = (
            volumes.first(),
            volumes.first().and_then(|v| v.status.pool_guid.clone()),
        ) else {
            return Err(incomplete(&self.object));
        };
        if let Some(other) = volumes.iter().find(|v| home(v) != home(first)) {
            return Err(Refusal::new(
                Kind::FailedPrecondition,
                format!(
                    "a group has one moment only within one pool of one host: {}, and {}",
                    place(first),
                    place(other)
                ),
            ));
        }
        Ok(Snapshot {
            metadata: Metadata {
                name: self.object.clone(),
                finalizers: vec![FINALIZER.to_owned()],
                ..Metadata::default()
            },
            spec: SnapshotSpec {
                snap_name: self.name.clone(),
                kind: self.kind,
                owner_node: first.spec.owner_node.clone(),
                pool: first.spec.pool.clone(),
                pool_guid,
                members,
            },
            status: SnapshotStatus::default(),
        })
    }
}

fn known(id: VolumeId) -> String {
    match id {
        // Looked up like any other, and not found.
        VolumeId::Handle(id) | VolumeId::Foreign(id) => id,
    }
}

fn home(volume: &Volume) -> (&str, &str, Option<&str>) {
    let spec = &volume.spec;
    let guid = volume.status.pool_guid.as_deref();
    (&spec.owner_node, &spec.pool, guid)
}

fn place(volume: &Volume) -> String {
    let (node, pool, _) = home(volume);
    format!(
        "volume {} is in pool {pool} on {node}",
        volume.metadata.name
    )
}

/// All that a restore needs when the volume is gone.
fn source(volume: &Volume) -> Result<Source, Refusal> {
    let (spec, status) = (&volume.spec, &volume.status);
    let has_its_filesystem =
        spec.volume_mode == VolumeMode::Block || status.filesystem_uuid.is_some();
    match &status.dataset_path {
        Some(path) if has_its_filesystem && status.pool_guid.is_some() => Ok(Source {
            volume_id: volume.metadata.name.clone(),
            volume_uid: volume.metadata.uid.clone(),
            dataset_path: path.clone(),
            volume_mode: spec.volume_mode,
            fs_type: spec.fs_type,
            filesystem_uuid: status.filesystem_uuid,
            vol_block_size: spec.vol_block_size.clone(),
        }),
        _ => Err(incomplete(&volume.metadata.name)),
    }
}

fn incomplete(name: &str) -> Refusal {
    Refusal::new(
        Kind::Internal,
        format!(
            "the status of {name} lacks datasetPath, poolGUID or filesystemUUID: look at its agent's log"
        ),
    )
}

impl<S: Store> Controller<S> {
    /// Takes a snapshot, or finds it taken.
    pub(in crate::csi) async fn create_snapshot(
        &self,
        wanted: SnapshotWanted,
        deadline: Instant,
    ) -> Result<csi::CreateSnapshotResponse, Refusal> {
        let volume = wanted.volumes.first().cloned().unwrap_or_default();
        let snapshot = self
            .taken("CreateSnapshot", &volume, &wanted, deadline)
            .await?;
        Ok(csi::CreateSnapshotResponse {
            snapshot: members_to_csi(&snapshot)?.into_iter().next(),
        })
    }

    /// Takes snapshots of several volumes at one moment, or finds them taken.
    pub(in crate::csi) async fn create_group(
        &self,
        wanted: SnapshotWanted,
        deadline: Instant,
    ) -> Result<csi::CreateVolumeGroupSnapshotResponse, Refusal> {
        let snapshot = self
            .taken(
                "CreateVolumeGroupSnapshot",
                &wanted.object,
                &wanted,
                deadline,
            )
            .await?;
        Ok(csi::CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(group_to_csi(&snapshot)?),
        })
    }

    async fn taken(
        &self,
        call: &'static str,
        about: &str,
        wanted: &SnapshotWanted,
        deadline: Instant,
    ) -> Result<Snapshot, Refusal> {
        let mut timeline = Timeline::start(call, about, Some(&self.journal));
        let mut watch = self.store.snapshots().watch(Some(&wanted.object));
        let outcome = self
            .taken_in(&mut timeline, &mut watch, wanted, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    async fn taken_in(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Snapshot>,
        wanted: &SnapshotWanted,
        deadline: Instant,
    ) -> Result<Snapshot, Refusal> {
        let written = timeline
            .wait("snapshot.create", self.snapshot_written(wanted, deadline))
            .await?;
        let uid = written.metadata.uid.clone();
        let settled = |snapshot: Option<&Snapshot>| match snapshot {
            Some(snapshot) if snapshot.metadata.uid == uid && !snapshot.is_deleting() => {
                match snapshot.status.state {
                    SnapshotState::Ready | SnapshotState::Error => Some(Ok(snapshot.clone())),
                    SnapshotState::Pending => None,
                    SnapshotState::Deleting => Some(Err(vanishing(&wanted.object))),
                }
            }
            _ => Some(Err(vanishing(&wanted.object))),
        };
        let ended = timeline
            .wait(
                "snapshot.await-ready",
                until(watch, Some(written), deadline, "is not taken", settled),
            )
            .await?;
        if is_ready(&ended) {
            return Ok(ended);
        }
        let refusal = impossible(&ended);
        if ended.status.was_ready {
            return Err(refusal);
        }
        // Nothing is left behind of a snapshot that never was.
        let still_never_was = |snapshot: &Snapshot| match snapshot.status.was_ready {
            false => Ok(()),
            true => Err(refusal.clone()),
        };
        let removed = timeline
            .wait(
                "snapshot.take-back",
                gone(
                    self.store.snapshots(),
                    watch,
                    ended,
                    still_never_was,
                    deadline,
                ),
            )
            .await;
        Err(refusal.unless_removed(removed))
    }

    /// Writes the intent, unless it is there.
    async fn snapshot_written(
        &self,
        wanted: &SnapshotWanted,
        deadline: Instant,
    ) -> Result<Snapshot, Refusal> {
        let snapshots = self.store.snapshots();
        if let Some(existing) = within(deadline, snapshots.get(&wanted.object)).await? {
            return self.same(wanted, existing, deadline).await;
        }
        let mut volumes = Vec::with_capacity(wanted.volumes.len());
        for id in &wanted.volumes {
            let volume = self.source_volume(id, deadline).await?;
            ready(&volume)?;
            volumes.push(volume);
        }
        let intent = wanted.intent(&volumes)?;
        let create = async {
            match snapshots.create(intent).await {
                // Another controller was faster.
                Err(store::Error::Exists(_, name)) => {
                    let existing = snapshots.get(&name).await?;
                    existing.ok_or(store::Error::Conflict(Snapshot::KIND, name))
                }
                made => made,
            }
        };
        let written = within(deadline, create).await?;
        wanted.is_met_by(&written)?;
        Ok(written)
    }

    /// The snapshot that is there, when it is the one that is wanted.
    async fn same(
        &self,
        wanted: &SnapshotWanted,
        existing: Snapshot,
        deadline: Instant,
    ) -> Result<Snapshot, Refusal> {
        if existing.is_deleting() {
            return Err(vanishing(&wanted.object));
        }
        wanted.is_met_by(&existing)?;
        for member in &existing.spec.members {
            // A volume that is gone meanwhile leaves its snapshots; one that has its name is another.
            let volume = within(deadline, self.store.volumes().get(&member.volume_id)).await?;
            if volume.is_some_and(|volume| volume.metadata.uid != member.volume_uid) {
                return Err(Refusal::new(
                    Kind::AlreadyExists,
                    format!(
                        "snapshot {} exists and is of an earlier volume {}: use another name",
                        wanted.object, member.volume_id
                    ),
                ));
            }
        }
        Ok(existing)
    }

    async fn source_volume(&self, id: &str, deadline: Instant) -> Result<Volume, Refusal> {
        let volume = match is_handle(id) {
            true => within(deadline, self.store.volumes().get(id)).await?,
            false => None,
        };
        volume.ok_or_else(|| {
            Refusal::new(
                Kind::NotFound,
                format!("volume {} does not exist", shown(id)),
            )
        })
    }
}

fn vanishing(object: &str) -> Refusal {
    Refusal::new(
        Kind::Aborted,
        format!("snapshot {object} is being deleted: try again when it is gone"),
    )
}

/// The answer for a snapshot in state Error.
fn impossible(snapshot: &Snapshot) -> Refusal {
    let (reason, message) = snapshot.trouble().unwrap_or(("", "no reason was given"));
    Refusal::new(
        Kind::of_reason(reason),
        format!(
            "snapshot {} on {}: {message}",
            snapshot.metadata.name, snapshot.spec.owner_node
        ),
    )
}
