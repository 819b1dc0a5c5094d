//! CreateVolume: intent is written, the agent makes it true, the answer is what it made.

use std::time::Instant;

use zvolt_proto::csi;

use super::Controller;
use super::follow::{until, within};
use crate::csi::check;
use crate::csi::status::{Kind, Refusal};
use crate::model::capacity::{self, Range};
use crate::model::names;
use crate::model::object::Object;
use crate::model::parameters::{DEFAULT_BLOCK, Parameters, vol_block_size};
use crate::model::volume::{FINALIZER, FsType, Metadata, State, Volume, VolumeSpec, VolumeStatus};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch};

/// CreateVolume, checked.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The volume as it would be made.
    pub(super) volume: Volume,
    /// What the caller accepts.
    range: Range,
}

impl Wanted {
    /// Checks the request; the volume will live on `owner`.
    pub(super) fn parse(request: &csi::CreateVolumeRequest, owner: &str) -> Result<Self, Refusal> {
        check::name(&request.name)?;
        let capability = check::capabilities(&request.volume_capabilities)?;
        let parameters = Parameters::parse(&request.parameters)?;
        if !request.mutable_parameters.is_empty() {
            return Err(Refusal::invalid(
                "mutable_parameters are not supported yet: leave them out",
            ));
        }
        if request.volume_content_source.is_some() {
            return Err(Refusal::invalid(
                "volume_content_source: snapshots and clones are not supported yet: leave it out",
            ));
        }
        let fs_type = one_fs_type(capability.fs_type, parameters.fs_type)?.unwrap_or_default();
        let asked = request.capacity_range.unwrap_or_default();
        let range = Range::new(asked.required_bytes, asked.limit_bytes)?;
        let block = parameters.block.unwrap_or(DEFAULT_BLOCK);
        let capacity = capacity::of_zvol(range, block, Some(fs_type))?;
        let handle = names::handle_of(&request.name);
        let spec = VolumeSpec {
            provenance: Default::default(),
            backend_path: String::new(),
            deletion_policy: parameters.deletion_policy,
            capacity,
            volume_type: Default::default(),
            fs_type,
            vol_block_size: vol_block_size(block),
            volume_mode: capability.volume_mode,
            tuning: parameters.tuning,
            mkfs_options: Vec::new(),
            encryption_key_ref: None,
            transport: Default::default(),
            pool: parameters.pools.into_iter().next().unwrap_or_default(),
            owner_node: owner.to_owned(),
            vol_name: request.name.clone(),
            volume_id: handle.clone(),
            source_snapshot_id: None,
            source_volume_id: None,
            nfs_export_cidrs: Vec::new(),
            nfs_export_access_mode: "rw".into(),
            claim: parameters.claim,
        };
        let metadata = Metadata {
            name: handle,
            finalizers: vec![FINALIZER.to_owned()],
            ..Metadata::default()
        };
        Ok(Self {
            volume: Volume {
                metadata,
                spec,
                status: VolumeStatus::default(),
            },
            range,
        })
    }

    /// Whether a volume of this name is the one that the caller means.
    fn is_met_by(&self, existing: &Volume) -> Result<(), Refusal> {
        let (spec, wanted) = (&existing.spec, &self.volume.spec);
        let bytes = capacity_of(existing);
        let differs = if spec.vol_name != wanted.vol_name {
            format!("it is called {}", crate::model::shown(&spec.vol_name))
        } else if spec.pool != wanted.pool {
            format!("its pool is {}, not {}", spec.pool, wanted.pool)
        } else if spec.fs_type != wanted.fs_type {
            format!(
                "its filesystem is {}, not {}",
                spec.fs_type.as_str(),
                wanted.fs_type.as_str()
            )
        } else if spec.vol_block_size != wanted.vol_block_size {
            format!(
                "its volBlockSize is {}, not {}",
                spec.vol_block_size, wanted.vol_block_size
            )
        } else if spec.tuning != wanted.tuning {
            format!(
                "its properties are {:?}, not {:?}",
                spec.tuning, wanted.tuning
            )
        } else if spec.volume_type != wanted.volume_type || spec.transport != wanted.transport {
            "its type or transport is another".to_owned()
        } else if !self.range.admits(bytes) {
            format!(
                "it has {bytes} bytes, and required_bytes is {}, limit_bytes {}",
                self.range.required, self.range.limit
            )
        } else {
            return Ok(());
        };
        Err(Refusal::new(
            Kind::AlreadyExists,
            format!(
                "volume {} exists and is another than the one asked for: {differs}; use another name, or the same parameters",
                existing.metadata.name
            ),
        ))
    }
}

/// The filesystem that the capability and the parameters agree on.
pub(super) fn one_fs_type(
    capability: Option<FsType>,
    parameter: Option<FsType>,
) -> Result<Option<FsType>, Refusal> {
    match (capability, parameter) {
        (Some(one), Some(other)) if one != other => Err(Refusal::invalid(format!(
            "volume_capability asks for {}, parameter fsType for {}: they must agree",
            one.as_str(),
            other.as_str()
        ))),
        (one, other) => Ok(one.or(other)),
    }
}

/// The bytes that a volume has, or will have.
fn capacity_of(volume: &Volume) -> u64 {
    volume
        .status
        .actual_capacity
        .unwrap_or(volume.spec.capacity)
}

impl<S: Store> Controller<S> {
    /// Makes the volume, or finds it made.
    pub(super) async fn create(
        &self,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<csi::CreateVolumeResponse, Refusal> {
        let handle = wanted.volume.metadata.name.clone();
        let mut timeline = Timeline::start("CreateVolume", &handle, Some(&self.journal));
        // Registered first: what the agent does from now on is seen.
        let mut watch = self.store.volumes().watch(Some(&handle));
        let outcome = self
            .created(&mut timeline, &mut watch, &wanted, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        let volume = outcome?;
        let bytes = capacity_of(&volume);
        let volume = csi::Volume {
            capacity_bytes: i64::try_from(bytes).map_err(|_| {
                Refusal::new(
                    Kind::Internal,
                    format!("volume {handle} has {bytes} bytes, more than CSI can say"),
                )
            })?,
            volume_id: handle,
            ..csi::Volume::default()
        };
        Ok(csi::CreateVolumeResponse {
            volume: Some(volume),
        })
    }

    async fn created(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Volume>,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let written = timeline
            .wait("volume.create", self.written(wanted, deadline))
            .await?;
        let uid = written.metadata.uid.clone();
        let ended = timeline
            .wait(
                "volume.await-ready",
                until(
                    watch,
                    Some(written),
                    deadline,
                    "is not ready",
                    |volume| match volume {
                        Some(volume) if volume.metadata.uid == uid => match volume.status.state {
                            State::Ready | State::ReadyToPublish | State::Error => {
                                Some(Ok(volume.clone()))
                            }
                            State::Deleting | State::Destroyed => {
                                Some(Err(vanishing(&volume.metadata.name)))
                            }
                            State::Pending => None,
                        },
                        _ => Some(Err(vanishing(&wanted.volume.metadata.name))),
                    },
                ),
            )
            .await?;
        if ended.status.state != State::Error {
            return Ok(ended);
        }
        let refusal = impossible(&ended);
        if ended.status.was_ready {
            return Err(refusal);
        }
        // Nothing is left behind of a volume that never was.
        let removed = timeline
            .wait("volume.take-back", self.gone(watch, ended, deadline))
            .await;
        Err(match removed {
            Ok(()) => refusal,
            Err(late) => Refusal::new(
                refusal.kind,
                format!("{refusal}; what was begun is not removed yet: {late}"),
            ),
        })
    }

    /// Writes the intent, unless it is there.
    async fn written(&self, wanted: &Wanted, deadline: Instant) -> Result<Volume, Refusal> {
        let handle = &wanted.volume.metadata.name;
        let existing = match within(deadline, self.store.volumes().get(handle)).await? {
            Some(existing) => existing,
            None => {
                let create = async {
                    match self.store.volumes().create(wanted.volume.clone()).await {
                        // Another controller was faster.
                        Err(store::Error::Exists(_, name)) => {
                            let existing = self.store.volumes().get(&name).await?;
                            existing.ok_or(store::Error::Conflict(Volume::KIND, name))
                        }
                        made => made,
                    }
                };
                within(deadline, create).await?
            }
        };
        if existing.is_deleting() {
            return Err(vanishing(handle));
        }
        wanted.is_met_by(&existing)?;
        Ok(existing)
    }
}

fn vanishing(handle: &str) -> Refusal {
    Refusal::new(
        Kind::Aborted,
        format!("volume {handle} is being deleted: try again when it is gone"),
    )
}

/// The answer for a volume in state Error.
fn impossible(volume: &Volume) -> Refusal {
    let ready = volume.status.conditions.iter().find(|c| c.kind == "Ready");
    let (reason, message) = ready.map_or(("", "no reason was given"), |c| {
        (c.reason.as_str(), c.message.as_str())
    });
    Refusal::new(
        Kind::of_reason(reason),
        format!(
            "volume {} on {}: {message}",
            volume.metadata.name, volume.spec.owner_node
        ),
    )
}
