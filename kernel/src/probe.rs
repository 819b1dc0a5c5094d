//! What is on a block device, by its superblocks.
//!
//! ext4: `fs/ext4/ext4.h` `struct ext4_super_block` at byte 1024. XFS: `fs/xfs/libxfs/xfs_format.h`
//! `struct xfs_dsb` at byte 0. Never the udev database, never a tool's exit code (C-12, C-17).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
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
    /// All zeros: no proof that the rest of the device is (btrfs, ZFS and others start later; see [`is_blank`]).
    Zeros,
    /// A filesystem that zvolt knows.
    Filesystem(Superblock),
    /// Something else; the text names it when it is recognised ("partition table (MBR)").
    Foreign(String),
}

/// Classifies the first 4,096 bytes of a device. Pure.
///
/// What carries two signatures, or one that contradicts itself, is [`Content::Foreign`].
pub fn classify(head: &[u8; 4096]) -> Content {
    if head.iter().all(|&byte| byte == 0) {
        return Content::Zeros;
    }
    let mut found = Vec::new();
    if at(head, 0, b"XFSB") {
        found.push(xfs(head));
    }
    if le16(head, EXT + 56) == 0xEF53 {
        found.push(ext(head));
    }
    if let Some(name) = foreign(head) {
        found.push(Content::Foreign(name.to_owned()));
    }
    match found.len() {
        0 => {
            let first = head.iter().position(|&byte| byte != 0).unwrap_or(0);
            Content::Foreign(format!("unknown data (first at byte {first})"))
        }
        1 => found.remove(0),
        _ => {
            let names: Vec<_> = found.iter().map(name).collect();
            Content::Foreign(format!("more than one signature ({})", names.join(", ")))
        }
    }
}

fn name(content: &Content) -> &str {
    match content {
        Content::Zeros => "zeros",
        Content::Filesystem(superblock) => superblock.kind.name(),
        Content::Foreign(name) => name,
    }
}

/// Where `struct ext4_super_block` starts.
const EXT: usize = 1024;

/// `s_feature_compat`.
const COMPAT_HAS_JOURNAL: u32 = 0x4;
/// `s_feature_incompat`.
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const INCOMPAT_EXTENTS: u32 = 0x40;
const INCOMPAT_64BIT: u32 = 0x80;
/// No feature of ext4: set while [`crate::format`] works, so that no kernel mounts what it is making.
const INCOMPAT_UNFINISHED: u32 = 0x8000_0000;
/// `s_state`.
const ERROR_FS: u16 = 0x2;

fn ext(head: &[u8; 4096]) -> Content {
    let compat = le32(head, EXT + 92);
    let incompat = le32(head, EXT + 96);
    if incompat & INCOMPAT_UNFINISHED != 0 {
        return Content::Foreign("ext4 of a mkfs that did not finish".to_owned());
    }
    if incompat & INCOMPAT_JOURNAL_DEV != 0 {
        return Content::Foreign("external journal of ext4".to_owned());
    }
    if compat & COMPAT_HAS_JOURNAL == 0 {
        return Content::Foreign("ext2, or ext4 without a journal".to_owned());
    }
    if incompat & INCOMPAT_EXTENTS == 0 {
        return Content::Foreign("ext3".to_owned());
    }
    let mut blocks = u64::from(le32(head, EXT + 4));
    if incompat & INCOMPAT_64BIT != 0 {
        blocks |= u64::from(le32(head, EXT + 336)) << 32;
    }
    let log_block_size = le32(head, EXT + 24);
    // EXT4_MAX_BLOCK_LOG_SIZE is 16: 64 KiB.
    let size = match log_block_size {
        0..=6 => blocks.checked_mul(1024 << log_block_size),
        _ => None,
    };
    let Some(size_bytes) = size.filter(|&size| size > 0) else {
        return Content::Foreign("damaged superblock of ext4".to_owned());
    };
    Content::Filesystem(Superblock {
        kind: FsKind::Ext4,
        uuid: uuid_at(head, EXT + 104),
        size_bytes,
        has_errors: le16(head, EXT + 58) & ERROR_FS != 0,
        needs_recovery: incompat & INCOMPAT_RECOVER != 0,
    })
}

/// Where `sb_inprogress` is.
const XFS_IN_PROGRESS: usize = 126;

fn xfs(head: &[u8; 4096]) -> Content {
    // mkfs.xfs sets it while it writes, and clears it last.
    if head[XFS_IN_PROGRESS] != 0 {
        return Content::Foreign("XFS of a mkfs that did not finish".to_owned());
    }
    let block_size = be32(head, 4);
    let size = match block_size {
        512..=65536 if block_size.is_power_of_two() => {
            be64(head, 8).checked_mul(u64::from(block_size))
        }
        _ => None,
    };
    let Some(size_bytes) = size.filter(|&size| size > 0) else {
        return Content::Foreign("damaged superblock of XFS".to_owned());
    };
    Content::Filesystem(Superblock {
        kind: FsKind::Xfs,
        uuid: uuid_at(head, 32),
        size_bytes,
        has_errors: false,
        needs_recovery: false,
    })
}

/// The filesystem that a mkfs of [`crate::format::make`] was making when it was killed, and the UUID
/// that it was given. To [`classify`] it is foreign, and no kernel mounts it. Pure.
pub fn unfinished(head: &[u8; 4096]) -> Option<(FsKind, Uuid)> {
    if at(head, 0, b"XFSB") && head[XFS_IN_PROGRESS] != 0 {
        return Some((FsKind::Xfs, uuid_at(head, 32)));
    }
    let is_ext = le16(head, EXT + 56) == 0xEF53;
    if is_ext && le32(head, EXT + 96) & INCOMPAT_UNFINISHED != 0 {
        return Some((FsKind::Ext4, uuid_at(head, EXT + 104)));
    }
    None
}

/// What stands at the start of a device from before the first write of a mkfs to its last.
pub(crate) fn unfinished_head(kind: FsKind, uuid: Uuid) -> [u8; 4096] {
    let mut head = [0; 4096];
    let mut put =
        |offset: usize, bytes: &[u8]| head[offset..offset + bytes.len()].copy_from_slice(bytes);
    match kind {
        FsKind::Ext4 => {
            put(EXT + 56, &0xEF53_u16.to_le_bytes());
            put(EXT + 96, &INCOMPAT_UNFINISHED.to_le_bytes());
            put(EXT + 104, uuid.as_bytes());
        }
        FsKind::Xfs => {
            put(0, b"XFSB");
            put(32, uuid.as_bytes());
            put(XFS_IN_PROGRESS, &[1]);
        }
    }
    head
}

/// Signatures that are nobody's business here, by where their formats put them.
fn foreign(head: &[u8; 4096]) -> Option<&'static str> {
    if at(head, 0, b"LUKS\xba\xbe") {
        return Some("LUKS");
    }
    // lib/format_text/layout.h of LVM2: the label is in one of the first four sectors.
    if (0..4).any(|sector| {
        at(head, sector * 512, b"LABELONE") && at(head, sector * 512 + 24, b"LVM2 001")
    }) {
        return Some("LVM2 physical volume");
    }
    if at(head, 512, b"EFI PART") {
        return Some("partition table (GPT)");
    }
    if at(head, 4086, b"SWAPSPACE2") || at(head, 4086, b"SWAP-SPACE") {
        return Some("swap space");
    }
    // drivers/md: superblock version 1.1 is at the start.
    if le32(head, 0) == 0xa92b_4efc {
        return Some("member of an MD RAID");
    }
    if at(head, 3, b"NTFS    ") {
        return Some("NTFS");
    }
    if at(head, 3, b"EXFAT   ") {
        return Some("exFAT");
    }
    if at(head, 54, b"FAT1") || at(head, 82, b"FAT32   ") {
        return Some("FAT");
    }
    // Boot code alone is no partition table: one entry must have a type.
    if le16(head, 510) == 0xAA55 && (0..4).any(|entry| head[446 + 16 * entry + 4] != 0) {
        return Some("partition table (MBR)");
    }
    None
}

/// Reads 4 KiB at offset 0 in one `pread` and classifies it. For the publish path.
pub fn superblock(device: &File, path: &Path) -> Result<Content, SysError> {
    let mut head = [0_u8; 4096];
    let read = device
        .read_at(&mut head, 0)
        .map_err(|e| SysError::io("pread", path, &e))?;
    if read != head.len() {
        return Err(SysError::new("pread", path.display(), Errno::EIO)
            .with_detail(format!("{read} bytes came of the first {}", head.len())));
    }
    Ok(classify(&head))
}

/// How much of each end of a device must be zero: LVM2, MD, btrfs, ZFS and bcachefs all have a
/// superblock or label in the first or the last MiB.
const EDGE: u64 = 1 << 20;

/// Whether the device is provably blank: first and last MiB read and all zero. What cannot be
/// read is an error, never "blank" (C-17), and so is a device without a size. For the agent,
/// before it formats. Takes a plain file too.
pub fn is_blank(device: &File, path: &Path) -> Result<bool, SysError> {
    // lseek tells the size of a block device too (block/fops.c, blkdev_llseek).
    let size = rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))
        .map_err(|e| SysError::new("lseek", path.display(), Errno::from_raw(e.raw_os_error())))?;
    if size == 0 {
        return Err(SysError::new("lseek", path.display(), Errno::ENODATA)
            .with_detail("the device has no size"));
    }
    let edge = EDGE.min(size);
    let mut buffer = vec![0_u8; usize::try_from(edge).unwrap_or(usize::MAX)];
    for offset in [0, size - edge] {
        device.read_exact_at(&mut buffer, offset).map_err(|e| {
            SysError::io("pread", path, &e).with_detail(format!("{edge} bytes at {offset}: {e}"))
        })?;
        if buffer.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn at(head: &[u8; 4096], offset: usize, bytes: &[u8]) -> bool {
    head[offset..].starts_with(bytes)
}

fn bytes<const N: usize>(head: &[u8; 4096], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[offset..offset + N]);
    out
}

fn le16(head: &[u8; 4096], offset: usize) -> u16 {
    u16::from_le_bytes(bytes(head, offset))
}

fn le32(head: &[u8; 4096], offset: usize) -> u32 {
    u32::from_le_bytes(bytes(head, offset))
}

fn be32(head: &[u8; 4096], offset: usize) -> u32 {
    u32::from_be_bytes(bytes(head, offset))
}

fn be64(head: &[u8; 4096], offset: usize) -> u64 {
    u64::from_be_bytes(bytes(head, offset))
}

fn uuid_at(head: &[u8; 4096], offset: usize) -> Uuid {
    Uuid::from_bytes(bytes(head, offset))
}

#[cfg(test)]
mod tests;
