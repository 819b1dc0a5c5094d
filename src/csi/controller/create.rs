//! CreateVolume: intent is written, the agent makes it true, the answer is what it made.

use std::time::Instant;

use zvolt_proto::csi;

use super::Controller;
use super::follow::{gone, until, within};
use super::list::{capacity_of, to_csi};
use super::place::Kept;
use super::source::{Origin, Source};
use crate::csi::check;
use crate::csi::status::{Kind, Refusal};
use crate::model::capacity::{self, Range};
use crate::model::names;
use crate::model::object::Object;
use crate::model::parameters::{
    Changes, DEFAULT_BLOCK, Parameters, check_mkfs_options, vol_block_size,
};
use crate::model::placement::Demand;
use crate::model::volume::{
    AttachMode, Claim, DeletionPolicy, FINALIZER, FsType, Metadata, State, Tuning, Volume,
    VolumeMode, VolumeSpec, VolumeStatus, reason,
};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store, Watch};

/// CreateVolume, checked.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    name: String,
    pub(super) handle: String,
    pub(super) volume_mode: VolumeMode,
    /// When the caller says which.
    pub(super) fs_type: Option<FsType>,
    /// In bytes, when the caller says it.
    pub(super) block: Option<u64>,
    pub(super) pools: Vec<String>,
    /// For a filesystem that is made, not copied.
    mkfs_options: Vec<String>,
    attach: AttachMode,
    tuning: Tuning,
    deletion_policy: DeletionPolicy,
    claim: Option<Claim>,
    source: Option<Source>,
    range: Range,
}

/// What the volume will be, once its source is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measures {
    block: u64,
    bytes: u64,
    fs_type: FsType,
}

impl Wanted {
    /// Checks the request.
    pub(super) fn parse(request: &csi::CreateVolumeRequest) -> Result<Self, Refusal> {
        check::name(&request.name)?;
        let capability = check::capabilities(&request.volume_capabilities)?;
        let parameters = Parameters::parse(&request.parameters)?;
        let changes = Changes::parse(&request.mutable_parameters)?;
        nowhere_special(request.accessibility_requirements.as_ref())?;
        let fs_type = match capability.volume_mode {
            VolumeMode::Filesystem => one_fs_type(capability.fs_type, parameters.fs_type)?,
            // A class for both kinds of volumes names one; a raw device has none.
            VolumeMode::Block => None,
        };
        let source = Source::parse(request.volume_content_source.as_ref())?;
        let mut mkfs_options = parameters.mkfs_options;
        if capability.volume_mode == VolumeMode::Block || source.is_some() {
            // A class for all kinds of volumes may have them.
            mkfs_options.clear();
        }
        check_mkfs_options(fs_type.unwrap_or_default(), &mkfs_options)?;
        let asked = request.capacity_range.unwrap_or_default();
        Ok(Self {
            handle: names::handle_of(&request.name),
            name: request.name.clone(),
            volume_mode: capability.volume_mode,
            fs_type,
            mkfs_options,
            block: parameters.block,
            pools: parameters.pools,
            attach: parameters.attach,
            tuning: changes.apply(&parameters.tuning),
            deletion_policy: parameters.deletion_policy,
            claim: parameters.claim,
            source,
            range: Range::new(asked.required_bytes, asked.limit_bytes)?,
        })
    }

    /// Block size, size and filesystem.
    fn measures(&self, origin: Option<&Origin>) -> Result<Measures, Refusal> {
        let made = |fs_type| (self.volume_mode == VolumeMode::Filesystem).then_some(fs_type);
        let (Some(origin), Some(source)) = (origin, &self.source) else {
            let fs_type = self.fs_type.unwrap_or_default();
            let block = self.block.unwrap_or(DEFAULT_BLOCK);
            return Ok(Measures {
                block,
                bytes: capacity::of_zvol(self.range, block, made(fs_type))?,
                fs_type,
            });
        };
        let (block, fs_type) = (origin.fits(self, source)?, origin.fs_type);
        Ok(Measures {
            block,
            bytes: capacity::of_copy(self.range, block, made(fs_type), origin.size)?,
            fs_type,
        })
    }

    fn demand<'a>(&'a self, measures: Measures, origin: Option<&'a Origin>) -> Demand<'a> {
        Demand {
            node: origin.map(|origin| origin.owner_node.as_str()),
            pools: origin.map_or(self.pools.as_slice(), |origin| {
                std::slice::from_ref(&origin.pool)
            }),
            bytes: measures.bytes,
            block: measures.block,
            provisioning: self.tuning.provisioning,
        }
    }

    /// The object as it is written.
    fn intent(&self, measures: Measures, kept: &Kept) -> Volume {
        let (source_snapshot_id, source_volume_id) = match self.source.clone() {
            Some(Source::Snapshot(id)) => (Some(id), None),
            Some(Source::Volume(id)) => (None, Some(id)),
            None => (None, None),
        };
        let spec = VolumeSpec {
            provenance: Default::default(),
            backend_path: String::new(),
            deletion_policy: self.deletion_policy,
            capacity: measures.bytes,
            volume_type: Default::default(),
            fs_type: measures.fs_type,
            vol_block_size: vol_block_size(measures.block),
            volume_mode: self.volume_mode,
            tuning: self.tuning.clone(),
            tuning_before: None,
            mkfs_options: self.mkfs_options.clone(),
            encryption_key_ref: None,
            transport: Default::default(),
            attach: self.attach,
            pool: kept.place.pool.clone(),
            owner_node: kept.place.node.clone(),
            vol_name: self.name.clone(),
            volume_id: self.handle.clone(),
            source_snapshot_id,
            source_volume_id,
            nfs_export_cidrs: Vec::new(),
            nfs_export_access_mode: "rw".into(),
            claim: self.claim.clone(),
        };
        let metadata = Metadata {
            name: self.handle.clone(),
            finalizers: vec![FINALIZER.to_owned()],
            ..Metadata::default()
        };
        Volume {
            metadata,
            spec,
            status: VolumeStatus::default(),
        }
    }

    /// Whether a volume of this name is the one that the caller means.
    fn is_met_by(&self, existing: &Volume) -> Result<(), Refusal> {
        let Some(differs) = self.differs(existing) else {
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

    fn differs(&self, existing: &Volume) -> Option<String> {
        let spec = &existing.spec;
        let bytes = capacity_of(existing);
        // What is not said comes from the source, or else is the default.
        let unsaid = |default| self.source.is_none().then_some(default);
        let block = self.block.or(unsaid(DEFAULT_BLOCK)).map(vol_block_size);
        let fs_type = match self.volume_mode {
            VolumeMode::Filesystem => self.fs_type.or(self.source.is_none().then(FsType::default)),
            VolumeMode::Block => None,
        };
        let source = Source::of(spec);
        if spec.vol_name != self.name {
            Some(format!(
                "it is called {}",
                crate::model::shown(&spec.vol_name)
            ))
        } else if !self.pools.contains(&spec.pool) {
            Some(format!(
                "its pool is {}, not {}",
                spec.pool,
                self.pools.join(" or ")
            ))
        } else if source != self.source {
            let said = |source: Option<&Source>| source.map_or("nothing".into(), Source::shown);
            Some(format!(
                "it was made from {}, not from {}",
                said(source.as_ref()),
                said(self.source.as_ref())
            ))
        } else if spec.mkfs_options != self.mkfs_options {
            Some(format!(
                "its mkfsOptions are {:?}, not {:?}",
                spec.mkfs_options.join(" "),
                self.mkfs_options.join(" ")
            ))
        } else if spec.attach != self.attach {
            Some(format!(
                "its attach is {}, not {}",
                spec.attach.as_str(),
                self.attach.as_str()
            ))
        } else if spec.volume_mode != self.volume_mode {
            Some(format!(
                "its mode is {:?}, not {:?}",
                spec.volume_mode, self.volume_mode
            ))
        } else if let Some(other) = fs_type.filter(|fs_type| *fs_type != spec.fs_type) {
            Some(format!(
                "its filesystem is {}, not {}",
                spec.fs_type.as_str(),
                other.as_str()
            ))
        } else if let Some(other) = block.filter(|block| *block != spec.vol_block_size) {
            Some(format!(
                "its volBlockSize is {}, not {other}",
                spec.vol_block_size
            ))
        } else if spec.tuning != self.tuning && existing.metadata.generation == 1 {
            // Later generations may have been tuned by ControllerModifyVolume, and are the same volume still.
            Some(format!(
                "its properties are {:?}, not {:?}",
                spec.tuning, self.tuning
            ))
        } else if spec.deletion_policy != self.deletion_policy {
            Some(format!(
                "its reclaimPolicy is {:?}, not {:?}",
                spec.deletion_policy, self.deletion_policy
            ))
        } else if !self.range.admits(bytes) {
            Some(format!(
                "it has {bytes} bytes, and required_bytes is {}, limit_bytes {}",
                self.range.required, self.range.limit
            ))
        } else {
            None
        }
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

/// Every consumer reaches every volume: there is no topology to ask for.
pub(super) fn nowhere_special(given: Option<&csi::TopologyRequirement>) -> Result<(), Refusal> {
    match given {
        Some(given) if !given.requisite.is_empty() || !given.preferred.is_empty() => {
            Err(Refusal::invalid(
                "accessibility_requirements are not supported: every node reaches every volume, leave them out",
            ))
        }
        _ => Ok(()),
    }
}

impl<S: Store> Controller<S> {
    /// Makes the volume, or finds it made.
    pub(super) async fn create(
        &self,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<csi::CreateVolumeResponse, Refusal> {
        let handle = &wanted.handle;
        let mut timeline = Timeline::start("CreateVolume", handle, Some(&self.journal));
        // Registered first: what the agent does from now on is seen.
        let mut watch = self.store.volumes().watch(Some(handle));
        let outcome = self
            .created(&mut timeline, &mut watch, &wanted, deadline)
            .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        Ok(csi::CreateVolumeResponse {
            volume: Some(to_csi(&outcome?)?),
        })
    }

    async fn created(
        &self,
        timeline: &mut Timeline,
        watch: &mut Watch<Volume>,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let existing = within(deadline, self.store.volumes().get(&wanted.handle)).await?;
        let written = match existing {
            Some(existing) => existing,
            None => {
                let (measures, kept) = timeline
                    .wait("volume.place", self.placed(wanted, deadline))
                    .await?;
                timeline
                    .wait(
                        "volume.create",
                        self.written(wanted.intent(measures, &kept), deadline),
                    )
                    .await?
            }
        };
        if written.is_deleting() {
            return Err(vanishing(&wanted.handle));
        }
        wanted.is_met_by(&written)?;
        let uid = written.metadata.uid.clone();
        let settled = |volume: Option<&Volume>| match volume {
            Some(volume) if volume.metadata.uid == uid => match volume.status.state {
                State::Ready | State::ReadyToPublish | State::Error => Some(Ok(volume.clone())),
                State::Deleting | State::Destroyed => Some(Err(vanishing(&wanted.handle))),
                State::Pending => None,
            },
            _ => Some(Err(vanishing(&wanted.handle))),
        };
        let ended = timeline
            .wait(
                "volume.await-ready",
                until(watch, Some(written), deadline, "is not ready", settled),
            )
            .await?;
        if ended.status.state != State::Error {
            return Ok(ended);
        }
        let mut refusal = impossible(&ended);
        let ready = ended.condition("Ready");
        if ready.is_some_and(|c| c.reason == reason::POOL_NOT_FOUND) {
            refusal = self.with_known_pools(refusal, deadline).await;
        }
        if ended.status.was_ready {
            return Err(refusal);
        }
        // Nothing is left behind of a volume that never was.
        let still_never_was = |volume: &Volume| match volume.status.was_ready {
            false => Ok(()),
            true => Err(refusal.clone()),
        };
        let removed = timeline
            .wait(
                "volume.take-back",
                gone(
                    self.store.volumes(),
                    watch,
                    ended,
                    still_never_was,
                    deadline,
                ),
            )
            .await;
        Err(refusal.unless_removed(removed))
    }

    /// Finds out what the volume will be and where.
    pub(super) async fn placed(
        &self,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<(Measures, Kept), Refusal> {
        let origin = match &wanted.source {
            Some(source) => Some(self.origin(source, deadline).await?),
            None => None,
        };
        let measures = wanted.measures(origin.as_ref())?;
        let demand = wanted.demand(measures, origin.as_ref());
        let kept = self.place(&wanted.handle, &demand, deadline).await?;
        Ok((measures, kept))
    }

    /// Writes the intent, unless another controller was faster.
    async fn written(&self, intent: Volume, deadline: Instant) -> Result<Volume, Refusal> {
        let create = async {
            match self.store.volumes().create(intent).await {
                Err(store::Error::Exists(_, name)) => {
                    let existing = self.store.volumes().get(&name).await?;
                    existing.ok_or(store::Error::Conflict(Volume::KIND, name))
                }
                made => made,
            }
        };
        within(deadline, create).await
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
    let ready = volume.condition("Ready");
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
