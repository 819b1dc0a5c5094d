//! XFS by `mkfs.xfs`: no library makes one.

use std::path::Path;

use uuid::Uuid;

use super::Error;
use super::child::Program;
use super::options::{XfsSetting, xfs_words};

const MKFS: Program = Program {
    name: "mkfs.xfs",
    package: "xfsprogs",
    places: ["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"],
};

pub(super) fn make(settings: &[(XfsSetting, u64)], device: &Path, uuid: Uuid) -> Result<(), Error> {
    let ended = MKFS.run(&arguments(settings, uuid), device)?;
    if ended.status.success() {
        return Ok(());
    }
    Err(Error::Program {
        name: MKFS.name,
        device: device.display().to_string(),
        status: ended.status.to_string(),
        said: ended.said,
    })
}

/// `-f`: a crash in the middle of the last run may have left a superblock. `-K`: no discard (C-28).
fn arguments(settings: &[(XfsSetting, u64)], uuid: Uuid) -> Vec<String> {
    let mut words: Vec<String> = ["-q", "-f", "-K"].map(str::to_owned).into();
    words.extend(xfs_words(settings, format!("uuid={uuid}")));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_28_nothing_is_discarded() {
        assert_eq!(
            arguments(&[], Uuid::from_u128(1)).join(" "),
            "-q -f -K -m uuid=00000000-0000-0000-0000-000000000001"
        );
    }
}
