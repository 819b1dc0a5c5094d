//! Repairing an ext4 that says it has errors, by `e2fsck -p`: what the kernel does at a mount is not enough
//! then, and no library does more.

use std::path::Path;

use super::Error;
use super::child::{Ended, Program};

const E2FSCK: Program = Program {
    name: "e2fsck",
    package: "e2fsprogs",
    places: ["/usr/sbin/e2fsck", "/sbin/e2fsck"],
};

/// Repairs the ext4 on `device`, which nobody has mounted: replays its journal and mends what can be
/// mended without a question (`e2fsck -p`, e2fsck(8)). Says what it said. What needs a decision is an
/// error, with the filesystem as safe as it was.
pub fn repair_ext4(device: &Path) -> Result<String, Error> {
    judge(E2FSCK.run(&["-p".to_owned()], device)?, device)
}

/// Exit codes (e2fsck(8)): 0 no errors, 1 and 2 corrected, 4 and more not.
fn judge(ended: Ended, device: &Path) -> Result<String, Error> {
    match ended.status.code() {
        Some(0..=3) => Ok(ended.said),
        _ => Err(Error::Program {
            name: E2FSCK.name,
            device: device.display().to_string(),
            status: ended.status.to_string(),
            said: ended.said,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn what_needs_a_decision_is_an_error() {
        let ended = |status| Ended {
            status,
            said: "x".to_owned(),
        };
        let exit = |code: i32| ended(ExitStatus::from_raw(code << 8));
        for fine in [0, 1, 2, 3] {
            assert!(judge(exit(fine), Path::new("/dev/zd0")).is_ok(), "{fine}");
        }
        for bad in [4, 5, 8, 12, 16, 32, 128] {
            assert!(judge(exit(bad), Path::new("/dev/zd0")).is_err(), "{bad}");
        }
        assert!(judge(ended(ExitStatus::from_raw(9)), Path::new("/dev/zd0")).is_err());
    }
}
