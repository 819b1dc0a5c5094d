//! What a volume is made from: a snapshot, or another volume.

use std::time::Instant;

use zvolt_proto::csi;
use zvolt_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::Controller;
use super::create::Wanted;
use super::follow::within;
use super::holders::not_ready;
use crate::csi::check;
use crate::csi::status::{Kind, Refusal};
use crate::model::names::is_handle;
use crate::model::parameters::{block_bytes, vol_block_size};
use crate::model::shown;
use crate::model::snapshot::{self, SnapshotState};
use crate::model::volume::{FsType, State, Volume, VolumeMode, VolumeSpec};
use crate::store::{Objects, Store};

/// What the caller wants the volume to be made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A snapshot, by its ID.
    Snapshot(String),
    /// A volume, by its ID.
    Volume(String),
}

impl Source {
    pub(super) fn parse(given: Option<&csi::VolumeContentSource>) -> Result<Option<Self>, Refusal> {
        let Some(given) = given else {
            return Ok(None);
        };
        let source = match &given.r#type {
            Some(Type::Snapshot(SnapshotSource { snapshot_id })) => {
                check::string("volume_content_source.snapshot_id", snapshot_id)?;
                Self::Snapshot(snapshot_id.clone())
            }
            Some(Type::Volume(VolumeSource { volume_id })) => {
                check::string("volume_content_source.volume_id", volume_id)?;
                Self::Volume(volume_id.clone())
            }
            None => {
                return Err(Refusal::invalid(
                    "volume_content_source is empty: name a snapshot or a volume",
                ));
            }
        };
        Ok(Some(source))
    }

    /// What a volume was made from.
    pub(super) fn of(spec: &VolumeSpec) -> Option<Self> {
        let snapshot = spec.source_snapshot_id.clone().map(Self::Snapshot);
        snapshot.or(spec.source_volume_id.clone().map(Self::Volume))
    }

    /// As CSI has it.
    pub(super) fn to_csi(self) -> csi::VolumeContentSource {
        let source = match self {
            Self::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
            Self::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
        };
        csi::VolumeContentSource {
            r#type: Some(source),
        }
    }

    /// For messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Snapshot(id) => format!("snapshot {}", shown(id)),
            Self::Volume(id) => format!("volume {}", shown(id)),
        }
    }

    fn missing(&self) -> Refusal {
        Refusal::new(
            Kind::NotFound,
            format!("volume_content_source: {} does not exist", self.shown()),
        )
    }
}

/// What a copy inherits from its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) owner_node: String,
    pub(super) pool: String,
    /// As the Volume API has it; empty when the source does not say.
    vol_block_size: String,
    volume_mode: VolumeMode,
    pub(super) fs_type: FsType,
    /// In bytes.
    pub(super) size: u64,
}

impl Origin {
    /// The block size of the copy, in bytes, when such a copy can be made.
    pub(super) fn fits(&self, wanted: &Wanted, source: &Source) -> Result<u64, Refusal> {
        let source = source.shown();
        let refuse = |why: String| Err(Refusal::invalid(format!("volume_content_source: {why}")));
        if !wanted.pools.contains(&self.pool) {
            return refuse(format!(
                "{source} is in pool {}, and a copy stays there: parameter pool is {}",
                self.pool,
                wanted.pools.join(",")
            ));
        }
        if wanted.volume_mode == VolumeMode::Filesystem {
            if self.volume_mode == VolumeMode::Block {
                return refuse(format!(
                    "{source} is raw: nobody knows what is on it, and it is not formatted; ask for a raw device"
                ));
            }
            if let Some(asked) = wanted.fs_type.filter(|asked| *asked != self.fs_type) {
                return refuse(format!(
                    "{source} has {}, and so has a copy: fsType is {}",
                    self.fs_type.as_str(),
                    asked.as_str()
                ));
            }
        }
        let recorded = Some(self.vol_block_size.as_str()).filter(|text| !text.is_empty());
        let Some(block) = recorded.and_then(block_bytes) else {
            return Err(Refusal::new(
                Kind::FailedPrecondition,
                format!(
                    "volume_content_source: no volBlockSize is recorded for {source}, and a copy inherits it: record it \
                     there first"
                ),
            ));
        };
        match wanted.block.filter(|asked| *asked != block) {
            Some(asked) => refuse(format!(
                "{source} has volBlockSize {}, and a copy inherits it: {} cannot be had",
                self.vol_block_size,
                vol_block_size(asked)
            )),
            None => Ok(block),
        }
    }
}

impl<S: Store> Controller<S> {
    /// Looks the source up: it must be there and ready.
    pub(super) async fn origin(
        &self,
        source: &Source,
        deadline: Instant,
    ) -> Result<Origin, Refusal> {
        match source {
            Source::Snapshot(id) => self.snapshot_origin(source, id, deadline).await,
            Source::Volume(id) => self.volume_origin(source, id, deadline).await,
        }
    }

    async fn snapshot_origin(
        &self,
        source: &Source,
        id: &str,
        deadline: Instant,
    ) -> Result<Origin, Refusal> {
        let (volume, object) = snapshot::parse_id(id).ok_or_else(|| source.missing())?;
        let snapshot = within(deadline, self.store.snapshots().get(object)).await?;
        let snapshot = snapshot
            .filter(|snapshot| snapshot.metadata.deletion_timestamp.is_none())
            .ok_or_else(|| source.missing())?;
        let (member, taken) = snapshot.member(volume).ok_or_else(|| source.missing())?;
        let taken = match (snapshot.status.state, taken) {
            (SnapshotState::Ready, Some(taken)) => taken,
            (state, _) => {
                let (_, why) = snapshot
                    .trouble()
                    .unwrap_or(("", "its agent is still taking it: try again"));
                let kind = match state {
                    SnapshotState::Error => Kind::FailedPrecondition,
                    _ => Kind::Unavailable,
                };
                return Err(Refusal::new(
                    kind,
                    format!(
                        "volume_content_source: {} is not ready: {why}",
                        source.shown()
                    ),
                ));
            }
        };
        Ok(Origin {
            owner_node: snapshot.spec.owner_node.clone(),
            pool: snapshot.spec.pool.clone(),
            vol_block_size: member.vol_block_size.clone(),
            volume_mode: member.volume_mode,
            fs_type: member.fs_type,
            size: taken.size,
        })
    }

    async fn volume_origin(
        &self,
        source: &Source,
        id: &str,
        deadline: Instant,
    ) -> Result<Origin, Refusal> {
        if !is_handle(id) {
            return Err(source.missing());
        }
        let volume = within(deadline, self.store.volumes().get(id)).await?;
        let volume = volume
            .filter(|volume| !volume.is_deleting())
            .ok_or_else(|| source.missing())?;
        ready(&volume)?;
        let spec = &volume.spec;
        Ok(Origin {
            owner_node: spec.owner_node.clone(),
            pool: spec.pool.clone(),
            vol_block_size: spec.vol_block_size.clone(),
            volume_mode: spec.volume_mode,
            fs_type: spec.fs_type,
            // It may be growing: the copy is made of what it is then.
            size: spec
                .capacity
                .max(volume.status.actual_capacity.unwrap_or(0)),
        })
    }
}

/// Refuses a volume that is not ready, with what keeps it from that.
pub(super) fn ready(volume: &Volume) -> Result<(), Refusal> {
    let is_ready = matches!(volume.status.state, State::Ready | State::ReadyToPublish);
    match is_ready && !volume.is_deleting() {
        true => Ok(()),
        false => Err(not_ready(volume)),
    }
}
