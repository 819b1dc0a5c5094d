//! Making the filesystem of a new zvol, and the last look before it (rule 1).
//!
//! The format record says that the zvol is new; the content must agree. It is formatted when it is
//! blank, or when its superblock, or the mark that mkfs leaves while it works, has the UUID that derives
//! from the pool's and the dataset's GUIDs: that is our own mkfs, finished or not, and not recorded
//! yet; nobody can have used it, for it was never exported. Everything else is left alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use uuid::Uuid;
use zvolt_kernel::error::Errno;
use zvolt_kernel::format::Options;
use zvolt_kernel::probe::{self, Content, FsKind};
use zvolt_kernel::{SysError, block, format};

use super::observe::Failure;
use crate::model::volume::reason;

/// What the content of a zvol allows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Format it.
    Format,
    /// It holds this.
    Refuse(String),
}

/// Makes the filesystem on `device`, whose zvol is `dataset`.
pub fn make(device: &Path, dataset: &str, options: &Options, uuid: Uuid) -> Result<(), Failure> {
    let kind = options.kind();
    let file = File::open(device).map_err(|e| Failure::kernel(SysError::io("open", device, &e)))?;
    let owner = block::zvol_name(&file, device).map_err(Failure::kernel)?;
    if owner != dataset {
        return Err(Failure::kernel(format!(
            "{} is the device of zvol {owner}, not of {dataset}: nothing was written",
            device.display()
        )));
    }
    if let Verdict::Refuse(what) = look(&file, device, kind, uuid).map_err(Failure::kernel)? {
        return Err(Failure::lasting(
            reason::DATASET_FOREIGN,
            format!(
                "{dataset} awaits its first format, but holds {what}: it is not formatted; look at it, then delete the \
                 claim if nothing on it is needed"
            ),
        ));
    }
    format::make_with(options, device, uuid).map_err(|error| match &error {
        format::Error::Sys(e) if e.errno == Errno::EBUSY => Failure::passing(
            reason::BUSY,
            format!(
                "{dataset}: {error}: something holds the new device; see /sys/block/*/holders, and exclude zd* in the \
                 configuration of LVM and multipath"
            ),
        ),
        // What was chosen does not go together, or not with this size.
        format::Error::Program { .. } | format::Error::Ext2 { .. }
            if *options != Options::plain(kind) =>
        {
            Failure::lasting(
                reason::BAD_PROPERTY,
                format!("{dataset}: mkfsOptions: {error}"),
            )
        }
        _ => Failure::kernel(format!("{dataset}: {error}")),
    })
}

/// Mends the ext4 with this UUID on `device`, whose zvol is `dataset` and which nobody uses, when its superblock
/// says that it has errors. What e2fsck said; `None` when there is nothing to mend.
pub fn mend(device: &Path, dataset: &str, uuid: Uuid) -> Result<Option<String>, Failure> {
    let file = File::open(device).map_err(|e| Failure::kernel(SysError::io("open", device, &e)))?;
    let owner = block::zvol_name(&file, device).map_err(Failure::kernel)?;
    if owner != dataset {
        return Ok(None);
    }
    // What was read here before other hosts wrote is no longer so, and the target keeps the device open.
    block::flush(&file, device).map_err(Failure::kernel)?;
    match probe::superblock(&file, device).map_err(Failure::kernel)? {
        Content::Filesystem(found)
            if found.kind == FsKind::Ext4 && found.uuid == uuid && found.has_errors => {}
        _ => return Ok(None),
    }
    let said =
        format::repair_ext4(device).map_err(|e| Failure::kernel(format!("{dataset}: {e}")))?;
    block::flush(&file, device).map_err(Failure::kernel)?;
    Ok(Some(said))
}

fn look(file: &File, device: &Path, kind: FsKind, uuid: Uuid) -> Result<Verdict, SysError> {
    let mut head = [0; 4096];
    file.read_exact_at(&mut head, 0)
        .map_err(|e| SysError::io("pread", device, &e))?;
    if probe::unfinished(&head) == Some((kind, uuid)) {
        return Ok(Verdict::Format);
    }
    Ok(match probe::classify(&head) {
        Content::Zeros if probe::is_blank(file, device)? => Verdict::Format,
        Content::Zeros => Verdict::Refuse("data behind a blank start".into()),
        Content::Filesystem(found) if (found.kind, found.uuid) == (kind, uuid) => Verdict::Format,
        Content::Filesystem(found) => {
            let name = found.kind.name();
            Verdict::Refuse(format!("a filesystem ({name}, UUID {})", found.uuid))
        }
        Content::Foreign(what) => Verdict::Refuse(what),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Uuid = Uuid::from_u128(7);

    fn verdict(kind: FsKind, parts: &[(u64, &[u8])]) -> Verdict {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        for (at, bytes) in parts {
            file.write_all_at(bytes, *at).unwrap();
        }
        look(&file, Path::new("zd0"), kind, OURS).unwrap()
    }

    fn xfs(uuid: Uuid, in_progress: u8) -> Vec<u8> {
        let mut head = vec![0; 512];
        head[..4].copy_from_slice(b"XFSB");
        head[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        head[8..16].copy_from_slice(&4096_u64.to_be_bytes());
        head[32..48].copy_from_slice(uuid.as_bytes());
        head[126] = in_progress;
        head
    }

    #[test]
    fn rule_01_blank_and_our_own_mkfs_are_formatted() {
        assert_eq!(verdict(FsKind::Ext4, &[]), Verdict::Format);
        assert_eq!(verdict(FsKind::Xfs, &[(0, &xfs(OURS, 0))]), Verdict::Format);
        assert_eq!(verdict(FsKind::Xfs, &[(0, &xfs(OURS, 1))]), Verdict::Format);
    }

    #[test]
    fn rule_01_only_our_own_killed_mkfs_is_made_again() {
        let killed = |uuid: Uuid| {
            let parts: [(u64, Vec<u8>); 3] = [
                (1080, 0xEF53_u16.to_le_bytes().to_vec()),
                (1120, 0x8000_0000_u32.to_le_bytes().to_vec()),
                (1128, uuid.as_bytes().to_vec()),
            ];
            let parts: Vec<(u64, &[u8])> =
                parts.iter().map(|(at, b)| (*at, b.as_slice())).collect();
            verdict(FsKind::Ext4, &parts)
        };
        assert_eq!(killed(OURS), Verdict::Format);
        assert!(matches!(killed(Uuid::from_u128(8)), Verdict::Refuse(_)));
    }

    #[test]
    fn rule_01_whatever_else_there_is_stays() {
        let refused = |kind, parts: &[(u64, &[u8])]| match verdict(kind, parts) {
            Verdict::Refuse(what) => what,
            Verdict::Format => panic!("{parts:?}"),
        };
        assert!(refused(FsKind::Xfs, &[(0, &xfs(Uuid::from_u128(8), 0))]).contains("xfs"));
        refused(FsKind::Xfs, &[(0, &xfs(Uuid::from_u128(8), 1))]);
        assert!(
            refused(FsKind::Ext4, &[(0, &xfs(OURS, 0))]).contains("xfs"),
            "another kind"
        );
        refused(FsKind::Ext4, &[(0, b"#!/bin/sh")]);
        refused(FsKind::Ext4, &[(65_536, b"_BHRfS_M")]);
        refused(FsKind::Ext4, &[((16 << 20) - 512, b"EFI PART")]);
    }

    #[test]
    fn rule_01_what_cannot_be_read_is_not_blank() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4095).unwrap();
        assert!(look(&file, Path::new("zd0"), FsKind::Ext4, OURS).is_err());
    }
}
