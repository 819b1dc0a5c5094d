//! Expand.

use zvolt_kernel::mount::Access;

use super::super::observe::{At, ExpandState, Source};
use super::super::{Error, ErrorKind, ExpandRequest};
use super::{Step, precondition};

/// The device's new size is waited for in any case; a filesystem that allows no writes is as large as it will be,
/// until it is staged for writing: stage grows it then.
pub(in super::super) fn expand(
    request: &ExpandRequest,
    observed: &ExpandState,
) -> Result<Vec<Step>, Error> {
    let Some(found) = &observed.volume else {
        return Err(match &observed.at {
            At::Mount(mounted) | At::Device(mounted) if mounted.source == Source::Gone => {
                precondition(format!(
                    "the device of volume {} is gone: it cannot be expanded before it is staged again",
                    request.volume
                ))
            }
            _ => Error::new(
                ErrorKind::NotFound,
                format!(
                    "volume {} is not at {}",
                    request.volume,
                    request.path.display()
                ),
            ),
        });
    };
    if !found.is_live() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "no controller of volume {} is live: is its storage host up and reachable? Its growth waits for that",
                request.volume
            ),
        ));
    }
    let mut plan = vec![Step::AwaitSize];
    let is_filesystem = matches!(observed.at, At::Mount(_));
    if is_filesystem && observed.access == Access::ReadWrite {
        plan.push(Step::Grow);
    }
    Ok(plan)
}
