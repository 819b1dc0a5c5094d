//! ControllerExpandVolume and ControllerModifyVolume: the wish is written into `spec`, and ZFS's answer to
//! exactly that generation is waited for.
//!
//! A wish that ZFS refuses is taken back before the refusal is answered (rule 7): the agent is left nothing
//! to try again behind the caller's back, and the next call writes its wish anew and gets an answer of its
//! own. So a stored refusal that nobody took back (its call had given up, or its controller died) is taken
//! back by the next call, before that writes its own wish. `capacity` never goes below what ZFS has.

use std::time::Instant;

use zvolt_proto::csi;

use super::Controller;
use super::follow::{until, within};
use super::holders::{fits, not_ready, unknown};
use super::list::capacity_of;
use super::source::ready;
use crate::csi::status::{Kind, Refusal};
use crate::model::capability::Capability;
use crate::model::capacity::{self, Range};
use crate::model::parameters::{Changes, block_bytes};
use crate::model::volume::{Condition, FsType, State, Volume, VolumeMode, VolumeSpec};
use crate::ops::Timeline;
use crate::store::{self, Objects, Store};

/// What is to become of a volume.
#[derive(Debug, Clone)]
pub(super) enum Wish {
    /// A size in this range.
    Capacity(Range),
    /// Other properties.
    Tuning(Changes),
}

/// The names of its steps, and of what it waits for.
struct Words {
    write: &'static str,
    wait: &'static str,
    late: &'static str,
}

impl Wish {
    fn words(&self) -> Words {
        match self {
            Self::Capacity(_) => Words {
                write: "volume.expand",
                wait: "volume.await-expanded",
                late: "has not been expanded",
            },
            Self::Tuning(_) => Words {
                write: "volume.modify",
                wait: "volume.await-modified",
                late: "has not been modified",
            },
        }
    }

    /// The spec with this wish in it.
    fn written_into(&self, volume: &Volume) -> Result<VolumeSpec, Refusal> {
        let mut spec = volume.spec.clone();
        // A change that has had no answer yet can still be refused.
        let is_unanswered = volume.status.observed_generation < volume.metadata.generation;
        let before = spec.tuning_before.take().filter(|_| is_unanswered);
        match self {
            Self::Capacity(range) => {
                let target = target(*range, volume)?;
                if range.limit != 0 && spec.capacity > range.limit {
                    return Err(Refusal::new(
                        Kind::OutOfRange,
                        format!(
                            "capacity_range: volume {} is being expanded to {} bytes, more than limit_bytes {}",
                            volume.metadata.name, spec.capacity, range.limit
                        ),
                    ));
                }
                spec.capacity = spec.capacity.max(target);
                spec.tuning_before = before;
            }
            Self::Tuning(changes) => {
                let tuning = changes.clone().apply(&spec.tuning);
                if tuning == spec.tuning {
                    return Ok(volume.spec.clone());
                }
                spec.tuning_before = Some(before.unwrap_or(spec.tuning));
                spec.tuning = tuning;
            }
        }
        // What is wanted already is not written again.
        let wants_the_same =
            spec.capacity == volume.spec.capacity && spec.tuning == volume.spec.tuning;
        Ok(match wants_the_same {
            true => volume.spec.clone(),
            false => spec,
        })
    }

    /// Whether what ZFS has is what is wished for.
    fn is_met(&self, volume: &Volume) -> bool {
        match self {
            Self::Capacity(range) => capacity_of(volume) >= range.required,
            Self::Tuning(changes) => changes.hold_for(&volume.spec.tuning),
        }
    }

    /// The code of a refusal by ZFS.
    fn kind_of(&self, reason: &str) -> Kind {
        match (self, Kind::of_reason(reason)) {
            // CSI's word for a size that cannot be had: the caller may ask for less.
            (Self::Capacity(_), Kind::ResourceExhausted) => Kind::OutOfRange,
            (_, kind) => kind,
        }
    }
}

/// The bytes that the volume is to have.
fn target(range: Range, volume: &Volume) -> Result<u64, Refusal> {
    let block = block_bytes(&volume.spec.vol_block_size).ok_or_else(|| {
        Refusal::new(
            Kind::FailedPrecondition,
            format!(
                "no volBlockSize is recorded for volume {}: sizes cannot be rounded to it",
                volume.metadata.name
            ),
        )
    })?;
    let actual = volume.status.actual_capacity;
    let now = actual.unwrap_or(volume.spec.capacity);
    Ok(capacity::grown(range, block, content(volume), now)?)
}

/// The filesystem on the volume, or none when nobody knows what is on it.
fn content(volume: &Volume) -> Option<FsType> {
    (volume.spec.volume_mode == VolumeMode::Filesystem).then_some(volume.spec.fs_type)
}

/// What ZFS refused for good. What failed otherwise is tried again by the agent.
fn refused(volume: &Volume) -> Option<&Condition> {
    volume
        .refusal()
        .filter(|condition| Kind::of_reason(&condition.reason) != Kind::Internal)
}

/// The spec without what ZFS refused; `None` when there is nothing of that kind.
fn without_refused(volume: &Volume) -> Option<VolumeSpec> {
    refused(volume)?;
    let mut spec = volume.spec.clone();
    if let Some(before) = spec.tuning_before.take() {
        spec.tuning = before;
    }
    if let Some(actual) = volume.status.actual_capacity {
        spec.capacity = spec.capacity.min(actual);
    }
    (spec != volume.spec).then_some(spec)
}

/// What the agent says of one generation.
enum Verdict {
    Done(Volume),
    Refused(Volume, Refusal),
}

fn judged(volume: &Volume, generation: i64, wish: &Wish) -> Option<Result<Verdict, Refusal>> {
    if volume.is_deleting() || volume.status.state == State::Error {
        return Some(Err(not_ready(volume)));
    }
    let is_answered =
        volume.metadata.generation >= generation && volume.status.observed_generation >= generation;
    if !is_answered {
        return None;
    }
    if let Some(condition) = refused(volume) {
        let refusal = Refusal::new(
            wish.kind_of(&condition.reason),
            format!(
                "volume {} on {}: {}",
                volume.metadata.name, volume.spec.owner_node, condition.message
            ),
        );
        return Some(Ok(Verdict::Refused(volume.clone(), refusal)));
    }
    // Nobody says that it failed, and somebody says that all is well.
    let is_well = volume.refusal().is_none()
        && ["Applied", "Ready"].iter().any(|kind| {
            volume
                .condition(kind)
                .is_some_and(|c| c.status == "True" && c.observed_generation >= generation)
        });
    (is_well && wish.is_met(volume)).then(|| Ok(Verdict::Done(volume.clone())))
}

impl<S: Store> Controller<S> {
    /// Expands the volume; it is as large as is answered. The device behind it grows on the consumers by
    /// itself; each tells its new size, and grows its filesystem, in NodeExpandVolume.
    pub(super) async fn expand(
        &self,
        handle: &str,
        range: Range,
        capability: Option<Capability>,
        deadline: Instant,
    ) -> Result<csi::ControllerExpandVolumeResponse, Refusal> {
        let mut timeline = Timeline::start("ControllerExpandVolume", handle, Some(&self.journal));
        let outcome = async {
            let volume = self.existing(handle, deadline).await?;
            if let Some(capability) = &capability {
                fits(capability, &volume)?;
            }
            self.can_hold(&volume, range, deadline).await?;
            self.changed(&mut timeline, handle, &Wish::Capacity(range), deadline)
                .await
        }
        .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        let bytes = capacity_of(&outcome?);
        if !range.admits(bytes) {
            return Err(Refusal::new(
                Kind::OutOfRange,
                format!(
                    "capacity_range: volume {handle} has {bytes} bytes, more than limit_bytes {}: it never shrinks",
                    range.limit
                ),
            ));
        }
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: super::list::to_i64(handle, bytes)?,
            node_expansion_required: true,
        })
    }

    /// Changes the volume's properties; they are in ZFS when this returns.
    pub(super) async fn modify(
        &self,
        handle: &str,
        changes: Changes,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let mut timeline = Timeline::start("ControllerModifyVolume", handle, Some(&self.journal));
        let wish = Wish::Tuning(changes);
        let outcome = async {
            let volume = self.changed(&mut timeline, handle, &wish, deadline).await?;
            if volume.spec.tuning_before.is_some() {
                timeline
                    .wait("volume.conclude", self.concluded(volume, deadline))
                    .await?;
            }
            Ok(())
        }
        .await;
        timeline.finish(outcome.as_ref().map(drop).map_err(ToString::to_string));
        outcome
    }

    /// Forgets what the properties were before: what ZFS refuses from now on is no answer to this change. Somebody
    /// else's newer write has its own answer.
    async fn concluded(&self, volume: Volume, deadline: Instant) -> Result<(), Refusal> {
        let spec = VolumeSpec {
            tuning_before: None,
            ..volume.spec.clone()
        };
        self.respecified(volume, spec, deadline).await.map(drop)
    }

    /// Refuses what the pool could not hold were it empty: a mistake that could never be undone.
    async fn can_hold(
        &self,
        volume: &Volume,
        range: Range,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let (name, target) = (&volume.metadata.name, target(range, volume)?);
        let Some(pool) = self.pool_of(volume, deadline).await? else {
            return Ok(());
        };
        let block = block_bytes(&volume.spec.vol_block_size).unwrap_or(1);
        let most = pool.filled_by(pool.whole(), block);
        if target <= most.max(capacity_of(volume)) {
            return Ok(());
        }
        Err(Refusal::new(
            Kind::OutOfRange,
            format!(
                "capacity_range: {target} bytes are more than pool {} of volume {name} could hold, were it empty: \
                 {most} at most",
                pool.name
            ),
        ))
    }

    async fn changed(
        &self,
        timeline: &mut Timeline,
        handle: &str,
        wish: &Wish,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let words = wish.words();
        let mut watch = self.store.volumes().watch(Some(handle));
        let mut volume = timeline
            .wait(words.write, self.wished(handle, wish, deadline))
            .await?;
        let (uid, generation) = (volume.metadata.uid.clone(), volume.metadata.generation);
        loop {
            let judge = |volume: Option<&Volume>| match volume {
                Some(volume) if volume.metadata.uid == uid => judged(volume, generation, wish),
                _ => Some(Err(unknown(handle))),
            };
            let answered = until(&mut watch, Some(volume), deadline, words.late, judge);
            let (refusing, refusal) = match timeline.wait(words.wait, answered).await? {
                Verdict::Done(volume) => return Ok(volume),
                Verdict::Refused(volume, refusal) => (volume, refusal),
            };
            let taken_back = timeline
                .wait("volume.take-back", self.taken_back(refusing, deadline))
                .await;
            match taken_back {
                Ok(None) => return Err(refusal),
                // Meanwhile it was done after all.
                Ok(Some(newer)) => volume = newer,
                Err(late) => return Err(refusal.unless_removed(Err(late))),
            }
        }
    }

    /// Writes the wish, unless it is there; the volume as it is then.
    async fn wished(
        &self,
        handle: &str,
        wish: &Wish,
        deadline: Instant,
    ) -> Result<Volume, Refusal> {
        let mut volume = self.existing(handle, deadline).await?;
        loop {
            ready(&volume)?;
            let stale = without_refused(&volume);
            let is_stale = stale.is_some();
            let spec = match stale {
                Some(spec) => spec,
                None => wish.written_into(&volume)?,
            };
            if spec == volume.spec {
                return Ok(volume);
            }
            volume = match self.respecified(volume, spec, deadline).await? {
                Some(written) if !is_stale => return Ok(written),
                Some(written) => written,
                None => self.existing(handle, deadline).await?,
            };
        }
    }

    /// Takes back what was refused; the volume as it is now when it is not refused any more.
    pub(super) async fn taken_back(
        &self,
        mut volume: Volume,
        deadline: Instant,
    ) -> Result<Option<Volume>, Refusal> {
        loop {
            let Some(spec) = without_refused(&volume) else {
                return Ok(refused(&volume).is_none().then_some(volume));
            };
            let handle = volume.metadata.name.clone();
            match self.respecified(volume, spec, deadline).await? {
                Some(_) => return Ok(None),
                None => volume = self.existing(&handle, deadline).await?,
            }
        }
    }

    /// Writes the spec; `None` when somebody else was faster.
    async fn respecified(
        &self,
        volume: Volume,
        spec: VolumeSpec,
        deadline: Instant,
    ) -> Result<Option<Volume>, Refusal> {
        let write = async {
            match self
                .store
                .volumes()
                .update_spec(Volume { spec, ..volume })
                .await
            {
                Ok(written) => Ok(Some(written)),
                Err(store::Error::Conflict(..)) => Ok(None),
                Err(error) => Err(error),
            }
        };
        within(deadline, write).await
    }
}
