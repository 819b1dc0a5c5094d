//! The consumer on this very host, which uses the zvol itself: whether it has let go (rule 4).

use std::path::Path;

use zvolt_kernel::block;

use super::observe::Failure;
use super::zvols::Zvols;
use crate::model::volume::{VolumeMode, reason};

/// Where processes are seen; in a container, only with the host's PID namespace all of them.
const PROC: &str = "/proc";

/// Whether nobody on this host uses a zvol any more.
pub(super) fn released(zvols: &Zvols, dataset: &str, mode: VolumeMode) -> Result<(), Failure> {
    // Without a device there is nothing to use.
    let Some(device) = zvols.device(dataset) else {
        return Ok(());
    };
    let busy = |why: String| {
        Failure::passing(
            reason::BUSY,
            format!("{dataset} is still used on this host, its owner: {why}"),
        )
    };
    let shown = device.display();
    if block::is_held(&device).map_err(Failure::kernel)? {
        return Err(busy(format!(
            "{shown} is mounted or held: unpublish and unstage it, or unmount it (findmnt {shown}; ls \
             /sys/block/*/holders)"
        )));
    }
    if mode == VolumeMode::Filesystem {
        return Ok(());
    }
    let id = block::dev_id(&device).map_err(Failure::kernel)?;
    let openers = block::openers(Path::new(PROC), id).map_err(Failure::kernel)?;
    match openers.first() {
        None => Ok(()),
        Some(first) => Err(busy(format!(
            "process {first} has {shown} open, one of {}: stop the pod, and unpublish it (fuser -v {shown})",
            openers.len()
        ))),
    }
}
