//! How full a volume is: nothing is changed, and nothing is waited for longer than the call allows.

use std::path::Path;
use std::time::Instant;

use zvolt_kernel::block;
use zvolt_kernel::mount::{self, Usage};

use super::bounded::bounded;
use super::observe::{At, Source};
use super::paths::Place;
use super::{Error, ErrorKind, Node, not_there};

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stats {
    /// Its filesystem.
    Filesystem(Usage),
    /// It is a raw device: only its size is known, in bytes.
    Device(u64),
}

impl Node {
    /// How full the volume at `path` is (staged or published); `staging_path` is where a raw one is staged.
    ///
    /// `NotFound` when it is not there. `Unavailable` when its device does not answer: the numbers would be old ones,
    /// and a look at them may never end; the caller comes again.
    pub fn stats(
        &self,
        volume: &str,
        path: &Path,
        staging_path: Option<&Path>,
        deadline: Instant,
    ) -> Result<Stats, Error> {
        let place = self.present(volume, path)?;
        let is_staging = staging_path.is_none_or(|staging| staging == path);
        let observed = self.observer().expand(volume, &place, is_staging)?;
        let Some(found) = observed.volume else {
            return Err(match observed.at {
                At::Mount(mounted) | At::Device(mounted) if mounted.source == Source::Gone => {
                    unavailable(volume, "its device is gone")
                }
                _ => not_there(volume, path),
            });
        };
        if !found.is_live() {
            return Err(unavailable(volume, "no controller of it is live"));
        }
        match observed.at {
            At::Mount(_) => self.usage(volume, place, deadline).map(Stats::Filesystem),
            _ => match block::extent(&self.config.roots.sys, &found.block)? {
                Some(extent) => Ok(Stats::Device(extent.bytes)),
                None => Err(unavailable(volume, "its device is gone")),
            },
        }
    }

    /// The target may die between the look at its controllers and the question: then the thread that asks is left
    /// behind, one for each volume at most.
    fn usage(&self, volume: &str, place: Place, deadline: Instant) -> Result<Usage, Error> {
        let Some(asked) = self.asked.take(volume) else {
            return Err(unavailable(
                volume,
                "its filesystem has not answered the question before",
            ));
        };
        let answer = bounded("usage", deadline, move || {
            let _asked = asked;
            use std::os::fd::AsFd;
            mount::open_at(place.parent.as_fd(), &place.name).and_then(mount::usage_of)
        })?;
        match answer {
            Some(usage) => Ok(usage?),
            None => Err(unavailable(volume, "its filesystem does not answer")),
        }
    }
}

fn unavailable(volume: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "volume {volume}: {why}; is its storage host up and reachable? NodeGetVolumeHealth has more"
        ),
    )
}
