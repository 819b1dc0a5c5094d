//! Making the filesystem of a new zvol, and the last look before it (rule 1).
//!
//! The format record says that the zvol is new; the content must agree. Before mkfs a mark with the
//! filesystem's UUID is written over the first sector and synced. That UUID derives from the pool's
//! and the dataset's GUIDs, so whoever finds the mark, or a superblock with that UUID, on a zvol
//! whose record is still pending knows that what is there is our own mkfs, cut short: nobody can have
//! used it, for it was never exported. Everything else is left alone, also what may be ours.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use uuid::Uuid;
use zvolt_kernel::probe::{self, Content, FsKind};
use zvolt_kernel::{SysError, block, format};

use super::observe::Failure;
use crate::model::volume::reason;

/// Where ext4 and XFS keep what they do not put there themselves, and no partition table fits its signature.
const SECTOR: usize = 512;
const MARK: &[u8] = b"zvolt: mkfs has begun, UUID ";

/// What the content of a zvol allows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Nothing on it.
    Blank,
    /// Our own mkfs, cut short or not recorded.
    Ours,
    /// Something else.
    Refuse(String),
}

/// Makes the filesystem on `device`, whose zvol is `dataset`.
pub fn make(device: &Path, dataset: &str, kind: FsKind, uuid: Uuid) -> Result<(), Failure> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(device)
        .map_err(|e| Failure::kernel(SysError::io("open", device, &e)))?;
    let owner = block::zvol_name(&file, device).map_err(Failure::kernel)?;
    if owner != dataset {
        return Err(Failure::kernel(format!(
            "{} is the device of zvol {owner}, not of {dataset}: nothing was written",
            device.display()
        )));
    }
    if block::is_held(device).map_err(Failure::kernel)? {
        return Err(Failure::passing(
            reason::BUSY,
            format!(
                "{} ({dataset}) is mounted or held by something (see /sys/block/*/holders; exclude zd* in LVM's and \
                 multipath's configuration): it is not formatted",
                device.display()
            ),
        ));
    }
    match look(&file, device, kind, uuid).map_err(Failure::kernel)? {
        Verdict::Refuse(what) => {
            return Err(Failure::lasting(
                reason::DATASET_FOREIGN,
                format!(
                    "{dataset} awaits its first format, but holds {what}: it is not formatted; look at it, then delete \
                     the claim if nothing on it is needed"
                ),
            ));
        }
        Verdict::Blank => {
            write_mark(&file, uuid)
                .map_err(|e| Failure::kernel(SysError::io("pwrite", device, &e)))?;
        }
        Verdict::Ours => tracing::info!(
            dataset,
            "mkfs was cut short or not recorded: it is made again"
        ),
    }
    format::make(kind, device, uuid).map_err(|e| match e {
        // Nothing changes by itself until somebody installs it, but then all is well.
        format::Error::Missing { .. } => Failure::passing(reason::KERNEL, e.to_string()),
        e => Failure::kernel(e),
    })?;
    erase_mark(&file).map_err(|e| Failure::kernel(SysError::io("fsync", device, &e)))
}

fn look(file: &File, device: &Path, kind: FsKind, uuid: Uuid) -> Result<Verdict, SysError> {
    let mut head = [0; 4096];
    file.read_exact_at(&mut head, 0)
        .map_err(|e| SysError::io("pread", device, &e))?;
    if head[..SECTOR] == mark(uuid) {
        return Ok(Verdict::Ours);
    }
    Ok(match probe::classify(&head) {
        Content::Zeros if probe::is_blank(file, device)? => Verdict::Blank,
        Content::Zeros => Verdict::Refuse("data behind a blank first sector".into()),
        Content::Filesystem(found) if (found.kind, found.uuid) == (kind, uuid) => Verdict::Ours,
        Content::Filesystem(found) => Verdict::Refuse(format!(
            "an {} filesystem with UUID {}",
            found.kind.name(),
            found.uuid
        )),
        Content::Foreign(what) => Verdict::Refuse(what),
    })
}

fn mark(uuid: Uuid) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..MARK.len()].copy_from_slice(MARK);
    let text = uuid.hyphenated().to_string();
    sector[MARK.len()..MARK.len() + text.len()].copy_from_slice(text.as_bytes());
    sector
}

fn write_mark(file: &File, uuid: Uuid) -> std::io::Result<()> {
    file.write_all_at(&mark(uuid), 0)?;
    file.sync_data()
}

/// XFS has written over the mark, ext4 leaves the first sector alone. The sync puts the filesystem on
/// the disk before its record says that it is there.
fn erase_mark(file: &File) -> std::io::Result<()> {
    let mut sector = [0; SECTOR];
    file.read_exact_at(&mut sector, 0)?;
    if sector.starts_with(MARK) {
        file.write_all_at(&[0; SECTOR], 0)?;
    }
    file.sync_all()
}
