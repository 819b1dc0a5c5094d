//! ext4, in the order of e2fsprogs' `misc/mke2fs.c`: the calls that every field depends on.
//!
//! Lazy: the kernel zeroes the inode tables after the first mount (`ext4lazyinit`), and the journal
//! is not zeroed at all. Both are safe here: the device is a zvol that has only ever seen a mkfs,
//! and the descriptors' checksums say which inodes were never used.

use std::path::Path;

use uuid::Uuid;

use super::Error;
use super::ffi::{Filesystem, Super};

/// Offsets in `struct ext2_super_block` (`ext2fs/ext2_fs.h`, the same as the kernel's ext4.h).
mod field {
    pub(super) const INODES_COUNT: usize = 0;
    pub(super) const BLOCKS_COUNT: usize = 4;
    pub(super) const FIRST_DATA_BLOCK: usize = 20;
    pub(super) const LOG_BLOCK_SIZE: usize = 24;
    pub(super) const LOG_CLUSTER_SIZE: usize = 28;
    pub(super) const INODES_PER_GROUP: usize = 40;
    pub(super) const MAX_MNT_COUNT: usize = 54;
    pub(super) const REV_LEVEL: usize = 76;
    pub(super) const FIRST_INO: usize = 84;
    pub(super) const INODE_SIZE: usize = 88;
    pub(super) const FEATURE_COMPAT: usize = 92;
    pub(super) const FEATURE_INCOMPAT: usize = 96;
    pub(super) const FEATURE_RO_COMPAT: usize = 100;
    pub(super) const UUID: usize = 104;
    pub(super) const HASH_SEED: usize = 236;
    pub(super) const DEF_HASH_VERSION: usize = 252;
    pub(super) const DEFAULT_MOUNT_OPTS: usize = 256;
    pub(super) const BLOCKS_COUNT_HI: usize = 336;
    pub(super) const LOG_GROUPS_PER_FLEX: usize = 372;
    pub(super) const CHECKSUM_TYPE: usize = 373;
    pub(super) const KBYTES_WRITTEN: usize = 376;
    pub(super) const OVERHEAD_CLUSTERS: usize = 584;
}

/// has_journal, ext_attr, resize_inode, dir_index. (`orphan_file` is left out: before Linux 5.15 and
/// e2fsprogs 1.47 nothing knows it, and a volume outlives the node that made it.)
const COMPAT: u32 = 0x4 | 0x8 | 0x10 | 0x20;
/// filetype, extent, 64bit, flex_bg. (`metadata_csum_seed` is left out: the UUID never changes.)
const INCOMPAT: u32 = 0x2 | 0x40 | 0x80 | 0x200;
/// sparse_super, large_file, huge_file, dir_nlink, extra_isize, metadata_csum.
const RO_COMPAT: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400;

const LOG_BLOCK_SIZE: u32 = 2;
const BLOCK_SIZE: u64 = 1024 << LOG_BLOCK_SIZE;
const INODE_SIZE: u16 = 256;
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// `EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL`.
const MOUNT_OPTIONS: u32 = 0xc;
const HASH_HALF_MD4: u8 = 1;
const CRC32C: u8 = 1;

/// `EXT2_BAD_INO`, `EXT2_ROOT_INO`.
const BAD_BLOCKS_INODE: u32 = 1;
const ROOT_INODE: u32 = 2;

pub(super) fn make(device: &Path, bytes: u64, uuid: Uuid) -> Result<(), Error> {
    let mut parameters = parameters(bytes);
    let mut fs = Filesystem::initialize(device, &mut parameters)?;
    describe(&mut fs, uuid, Uuid::new_v4());
    // The library may have dropped a last group that is too small to use.
    let blocks = u64::from(fs.superblock().get_u32(field::BLOCKS_COUNT))
        | u64::from(fs.superblock().get_u32(field::BLOCKS_COUNT_HI)) << 32;
    fs.allocate_tables()?;
    let first = u64::from(fs.superblock().get_u32(field::FIRST_DATA_BLOCK));
    let used = fs.used_blocks(first, blocks - 1)?;
    write_inode_tables(&mut fs)?;
    make_directories(&mut fs)?;
    reserve_inodes(&mut fs)?;
    fs.create_resize_inode()?;
    let journal = fs.default_journal_blocks(blocks);
    // Too small for one is an error of the library, in its own words.
    fs.add_journal(journal.unwrap_or(0))?;
    // The kernel would count the same at every mount, reading every group.
    let overhead = used + u64::from(journal.unwrap_or(0)) + first;
    let overhead = u32::try_from(overhead).unwrap_or(0);
    fs.superblock()
        .set(field::OVERHEAD_CLUSTERS, overhead.to_ne_bytes());
    fs.finish()
}

fn parameters(bytes: u64) -> Super {
    let blocks = bytes / BLOCK_SIZE;
    let inodes = u32::try_from(bytes / inode_ratio(bytes)).unwrap_or(u32::MAX);
    let [low, high] = halves(blocks);
    let mut parameters = Super::zeroed();
    parameters.set(field::INODES_COUNT, inodes.to_ne_bytes());
    parameters.set(field::BLOCKS_COUNT, low.to_ne_bytes());
    parameters.set(field::BLOCKS_COUNT_HI, high.to_ne_bytes());
    parameters.set(field::LOG_BLOCK_SIZE, LOG_BLOCK_SIZE.to_ne_bytes());
    parameters.set(field::LOG_CLUSTER_SIZE, LOG_BLOCK_SIZE.to_ne_bytes());
    parameters.set(field::REV_LEVEL, 1_u32.to_ne_bytes());
    parameters.set(field::INODE_SIZE, INODE_SIZE.to_ne_bytes());
    parameters.set(field::FEATURE_COMPAT, COMPAT.to_ne_bytes());
    parameters.set(field::FEATURE_INCOMPAT, INCOMPAT.to_ne_bytes());
    parameters.set(field::FEATURE_RO_COMPAT, RO_COMPAT.to_ne_bytes());
    parameters.set(field::DEFAULT_MOUNT_OPTS, MOUNT_OPTIONS.to_ne_bytes());
    parameters.set(field::LOG_GROUPS_PER_FLEX, [LOG_GROUPS_PER_FLEX]);
    // Checksums of descriptors are taken while the library initialises, so it must know the kind.
    parameters.set(field::CHECKSUM_TYPE, [CRC32C]);
    parameters
}

/// Bytes for each inode, as in mke2fs.conf(5)'s sizes `small`, default, `big` and `huge`.
fn inode_ratio(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 40;
    if bytes < 512 * MIB {
        4 << 10
    } else if bytes < 4 * TIB {
        16 << 10
    } else if bytes < 16 * TIB {
        32 << 10
    } else {
        64 << 10
    }
}

fn halves(value: u64) -> [u32; 2] {
    let bytes = value.to_le_bytes();
    let half = |from: usize| {
        u32::from_le_bytes([
            bytes[from],
            bytes[from + 1],
            bytes[from + 2],
            bytes[from + 3],
        ])
    };
    [half(0), half(4)]
}

/// What the library leaves to mke2fs.
fn describe(fs: &mut Filesystem, uuid: Uuid, hash_seed: Uuid) {
    let superblock = fs.superblock();
    superblock.set(field::UUID, uuid.into_bytes());
    superblock.set(field::HASH_SEED, hash_seed.into_bytes());
    superblock.set(field::DEF_HASH_VERSION, [HASH_HALF_MD4]);
    superblock.set(field::DEFAULT_MOUNT_OPTS, MOUNT_OPTIONS.to_ne_bytes());
    superblock.set(field::CHECKSUM_TYPE, [CRC32C]);
    superblock.set(field::KBYTES_WRITTEN, 1_u64.to_ne_bytes());
    // -1: no check by count of mounts.
    superblock.set(field::MAX_MNT_COUNT, u16::MAX.to_ne_bytes());
    fs.init_checksum_seed();
}

/// Zeroes the blocks of the inode tables that are in use, and writes the reserved inodes, whose
/// checksums are always looked at.
fn write_inode_tables(fs: &mut Filesystem) -> Result<(), Error> {
    let inodes_per_group = fs.superblock().get_u32(field::INODES_PER_GROUP);
    for group in 0..fs.groups() {
        let used = inodes_per_group.saturating_sub(fs.unused_inodes(group));
        let bytes = u64::from(used) * u64::from(INODE_SIZE);
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_SIZE)).unwrap_or(u32::MAX);
        if blocks > 0 {
            let first = fs.inode_table(group);
            fs.zero_blocks(first, blocks)?;
        }
    }
    for inode in 1..fs.superblock().get_u32(field::FIRST_INO) {
        fs.clear_inode(inode, INODE_SIZE)?;
    }
    Ok(())
}

/// The root directory, and lost+found with the 16 KiB that e2fsck wants to find in it.
fn make_directories(fs: &mut Filesystem) -> Result<(), Error> {
    fs.make_root(ROOT_INODE)?;
    let lost_and_found = fs.make_directory(ROOT_INODE, c"lost+found")?;
    fs.set_mode(lost_and_found, 0o40_700)?;
    for _ in 1..16 * 1024 / BLOCK_SIZE {
        fs.expand_directory(lost_and_found)?;
    }
    Ok(())
}

fn reserve_inodes(fs: &mut Filesystem) -> Result<(), Error> {
    for inode in ROOT_INODE + 1..fs.superblock().get_u32(field::FIRST_INO) {
        fs.take_inode(inode);
    }
    fs.take_inode(BAD_BLOCKS_INODE);
    fs.write_no_bad_blocks()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_size() {
        for (bytes, blocks, inodes) in [
            (64 << 20, 16384, 16384),
            (512 << 20, 131_072, 32768),
            (1 << 30, 262_144, 65536),
            (4 << 40, 1 << 30, 134_217_728),
            (16 << 40, 1 << 32, 268_435_456),
            // Rounded down to whole blocks.
            ((64 << 20) + 4095, 16384, 16384),
        ] {
            let parameters = parameters(bytes);
            let found = u64::from(parameters.get_u32(field::BLOCKS_COUNT))
                | u64::from(parameters.get_u32(field::BLOCKS_COUNT_HI)) << 32;
            assert_eq!(
                (found, parameters.get_u32(field::INODES_COUNT)),
                (blocks, inodes),
                "{bytes}"
            );
        }
        assert_eq!(parameters(1 << 60).get_u32(field::INODES_COUNT), u32::MAX);
    }
}
