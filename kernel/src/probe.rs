//! What is on a block device, by its superblocks.
//!
//! ext4: `fs/ext4/ext4.h` `struct ext4_super_block` at byte 1024. XFS: `fs/xfs/libxfs/xfs_format.h`
//! `struct xfs_dsb` at byte 0.

use std::fs::File;
use std::path::Path;

use uuid::Uuid;

use crate::error::SysError;

/// The filesystems that zvolt makes and mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FsKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FsKind {
    /// The kernel's name of it, as `fsopen` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// A recognised superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Which filesystem.
    pub kind: FsKind,
    /// Its UUID.
    pub uuid: Uuid,
    /// The size that the filesystem believes it has, in bytes.
    pub size_bytes: u64,
    /// ext4 `s_state` has `EXT4_ERROR_FS` set; always false on XFS.
    pub has_errors: bool,
    /// The journal needs replay (ext4 `EXT4_FEATURE_INCOMPAT_RECOVER`); always false on XFS,
    /// whose superblock does not tell.
    pub needs_recovery: bool,
}

/// What the first 4 KiB say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// All zeros.
    Zeros,
    /// A filesystem that zvolt knows.
    Filesystem(Superblock),
    /// Something else; the text names it when it is recognised ("partition table (MBR)").
    Foreign(String),
}

/// Classifies the first 4,096 bytes of a device. Pure.
pub fn classify(head: &[u8; 4096]) -> Content {
    let _ = head;
    unimplemented!()
}

/// Reads 4 KiB at offset 0 in one `pread` and classifies it. For the publish path.
pub fn superblock(device: &File, path: &Path) -> Result<Content, SysError> {
    let _ = (device, path);
    unimplemented!()
}

/// Whether the device is provably blank: first and last MiB read and all zero. What cannot be
/// read is an error, never "blank" (C-17). For the agent, before it formats.
pub fn is_blank(device: &File, path: &Path) -> Result<bool, SysError> {
    let _ = (device, path);
    unimplemented!()
}
