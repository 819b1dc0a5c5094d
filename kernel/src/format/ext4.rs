//! ext4, in the order of e2fsprogs' `misc/mke2fs.c`: the calls that every field depends on.
//!
//! Lazy: the kernel zeroes the inode tables after the first mount (`ext4lazyinit`), and the journal
//! is not zeroed at all. Both are safe here: the device is a zvol that has only ever seen a mkfs,
//! and the descriptors' checksums say which inodes were never used.

use std::path::Path;

use uuid::Uuid;

use super::Error;
use super::ffi::{Filesystem, Super};
use super::options::{Ext4Options, Inodes};
use crate::error::{Errno, SysError};

/// Offsets in `struct ext2_super_block` (`ext2fs/ext2_fs.h`, the same as the kernel's ext4.h).
mod field {
    pub(super) const INODES_COUNT: usize = 0;
    pub(super) const BLOCKS_COUNT: usize = 4;
    pub(super) const RESERVED_COUNT: usize = 8;
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
    pub(super) const RESERVED_COUNT_HI: usize = 340;
    pub(super) const RAID_STRIDE: usize = 356;
    pub(super) const RAID_STRIPE_WIDTH: usize = 368;
    pub(super) const LOG_GROUPS_PER_FLEX: usize = 372;
    pub(super) const CHECKSUM_TYPE: usize = 373;
    pub(super) const KBYTES_WRITTEN: usize = 376;
    pub(super) const OVERHEAD_CLUSTERS: usize = 584;
    pub(super) const ENCRYPT_ALGOS: usize = 596;
}

/// has_journal, ext_attr, resize_inode, dir_index. (`orphan_file` is left out: before Linux 5.15 and
/// e2fsprogs 1.47 nothing knows it, and a volume outlives the node that made it.)
const COMPAT: u32 = 0x4 | 0x8 | 0x10 | 0x20;
const HAS_JOURNAL: u32 = 0x4;
/// filetype, extent, 64bit, flex_bg. (`metadata_csum_seed` is left out: the UUID never changes.)
const INCOMPAT: u32 = 0x2 | 0x40 | 0x80 | 0x200;
/// sparse_super, large_file, huge_file, dir_nlink, extra_isize, metadata_csum.
const RO_COMPAT: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400;

const LARGE_DIR: u32 = 0x4000;
const INLINE_DATA: u32 = 0x8000;
const ENCRYPT: u32 = 0x1_0000;
const VERITY: u32 = 0x8000;
/// `EXT4_ENCRYPTION_MODE_AES_256_XTS`, `EXT4_ENCRYPTION_MODE_AES_256_CTS`.
const ENCRYPT_ALGOS: [u8; 4] = [1, 4, 0, 0];

const LOG_BLOCK_SIZE: u32 = 2;
const BLOCK_SIZE: u64 = 1024 << LOG_BLOCK_SIZE;
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// `EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL`.
const MOUNT_OPTIONS: u32 = 0xc;
const HASH_HALF_MD4: u8 = 1;
const CRC32C: u8 = 1;

/// `EXT2_BAD_INO`, `EXT2_ROOT_INO`.
const BAD_BLOCKS_INODE: u32 = 1;
const ROOT_INODE: u32 = 2;

/// What the library would make nonsense of, or take for something else.
pub(super) fn check(options: &Ext4Options, device: &Path) -> Result<(), SysError> {
    let size = options.inode_size;
    let bad = |what: &str| {
        Err(SysError::new("ext2fs_initialize", device.display(), Errno::EINVAL).with_detail(what))
    };
    if !size.is_power_of_two() || !(256..=4096).contains(&size) {
        return bad("an inode has a power of two of bytes, from 256 to 4096");
    }
    if options.reserved_hundredths > 5000 {
        return bad("at most 50 percent of the blocks can be reserved");
    }
    match options.inodes {
        Inodes::BytesEach(bytes) if bytes < 1024 => {
            bad("there are at least 1024 bytes for an inode")
        }
        Inodes::Count(0) => bad("there is at least one inode"),
        _ => Ok(()),
    }
}

pub(super) fn make(
    options: &Ext4Options,
    device: &Path,
    bytes: u64,
    uuid: Uuid,
) -> Result<(), Error> {
    let mut parameters = parameters(options, bytes);
    let mut fs = Filesystem::initialize(device, &mut parameters)?;
    describe(&mut fs, options, uuid, Uuid::new_v4());
    // The library may have dropped a last group that is too small to use.
    let blocks = u64::from(fs.superblock().get_u32(field::BLOCKS_COUNT))
        | u64::from(fs.superblock().get_u32(field::BLOCKS_COUNT_HI)) << 32;
    fs.allocate_tables()?;
    let first = u64::from(fs.superblock().get_u32(field::FIRST_DATA_BLOCK));
    let used = fs.used_blocks(first, blocks - 1)?;
    write_inode_tables(&mut fs, options)?;
    make_directories(&mut fs)?;
    reserve_inodes(&mut fs)?;
    fs.create_resize_inode()?;
    let mut journal = 0;
    if options.journal {
        // Too small for one is an error of the library, in its own words.
        journal = fs.default_journal_blocks(blocks).unwrap_or(0);
        fs.add_journal(journal, options.eager_journal)?;
    }
    // The kernel would count the same at every mount, reading every group.
    let overhead = used + u64::from(journal) + first;
    let overhead = u32::try_from(overhead).unwrap_or(0);
    fs.superblock()
        .set(field::OVERHEAD_CLUSTERS, overhead.to_ne_bytes());
    fs.finish()
}

fn parameters(options: &Ext4Options, bytes: u64) -> Super {
    let blocks = bytes / BLOCK_SIZE;
    let [low, high] = halves(blocks);
    let reserved = u128::from(blocks) * u128::from(options.reserved_hundredths) / 10_000;
    let [reserved_low, reserved_high] = halves(u64::try_from(reserved).unwrap_or(0));
    let when = |chosen: bool, feature: u32| if chosen { feature } else { 0 };
    let compat = COMPAT & !when(!options.journal, HAS_JOURNAL);
    let incompat = INCOMPAT
        | when(options.large_dir, LARGE_DIR)
        | when(options.inline_data, INLINE_DATA)
        | when(options.encrypt, ENCRYPT);
    let ro_compat = RO_COMPAT | when(options.verity, VERITY);
    let mut parameters = Super::zeroed();
    parameters.set(field::INODES_COUNT, inodes(options, bytes).to_ne_bytes());
    parameters.set(field::BLOCKS_COUNT, low.to_ne_bytes());
    parameters.set(field::BLOCKS_COUNT_HI, high.to_ne_bytes());
    parameters.set(field::RESERVED_COUNT, reserved_low.to_ne_bytes());
    parameters.set(field::RESERVED_COUNT_HI, reserved_high.to_ne_bytes());
    parameters.set(field::LOG_BLOCK_SIZE, LOG_BLOCK_SIZE.to_ne_bytes());
    parameters.set(field::LOG_CLUSTER_SIZE, LOG_BLOCK_SIZE.to_ne_bytes());
    parameters.set(field::REV_LEVEL, 1_u32.to_ne_bytes());
    parameters.set(field::INODE_SIZE, options.inode_size.to_ne_bytes());
    parameters.set(field::FEATURE_COMPAT, compat.to_ne_bytes());
    parameters.set(field::FEATURE_INCOMPAT, incompat.to_ne_bytes());
    parameters.set(field::FEATURE_RO_COMPAT, ro_compat.to_ne_bytes());
    parameters.set(field::DEFAULT_MOUNT_OPTS, MOUNT_OPTIONS.to_ne_bytes());
    parameters.set(field::LOG_GROUPS_PER_FLEX, [LOG_GROUPS_PER_FLEX]);
    // Checksums of descriptors are taken while the library initialises, so it must know the kind.
    parameters.set(field::CHECKSUM_TYPE, [CRC32C]);
    parameters
}

fn inodes(options: &Ext4Options, bytes: u64) -> u32 {
    let each = match options.inodes {
        Inodes::Count(count) => return count,
        Inodes::BytesEach(each) => each.max(1),
        Inodes::BySize => inode_ratio(bytes),
    };
    u32::try_from(bytes / each).unwrap_or(u32::MAX)
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
fn describe(fs: &mut Filesystem, options: &Ext4Options, uuid: Uuid, hash_seed: Uuid) {
    let superblock = fs.superblock();
    superblock.set(field::UUID, uuid.into_bytes());
    superblock.set(field::HASH_SEED, hash_seed.into_bytes());
    superblock.set(field::DEF_HASH_VERSION, [HASH_HALF_MD4]);
    superblock.set(field::DEFAULT_MOUNT_OPTS, MOUNT_OPTIONS.to_ne_bytes());
    superblock.set(field::CHECKSUM_TYPE, [CRC32C]);
    superblock.set(field::KBYTES_WRITTEN, 1_u64.to_ne_bytes());
    // The library takes neither from its parameters.
    superblock.set(field::RAID_STRIDE, options.stride.to_ne_bytes());
    superblock.set(field::RAID_STRIPE_WIDTH, options.stripe_width.to_ne_bytes());
    if options.encrypt {
        superblock.set(field::ENCRYPT_ALGOS, ENCRYPT_ALGOS);
    }
    // -1: no check by count of mounts.
    superblock.set(field::MAX_MNT_COUNT, u16::MAX.to_ne_bytes());
    fs.init_checksum_seed();
}

/// Zeroes the blocks of the inode tables that are in use, or all of them, and writes the reserved inodes, whose
/// checksums are always looked at.
fn write_inode_tables(fs: &mut Filesystem, options: &Ext4Options) -> Result<(), Error> {
    let inodes_per_group = fs.superblock().get_u32(field::INODES_PER_GROUP);
    for group in 0..fs.groups() {
        let unused = match options.eager_tables {
            true => 0,
            false => fs.unused_inodes(group),
        };
        let used = inodes_per_group.saturating_sub(unused);
        let bytes = u64::from(used) * u64::from(options.inode_size);
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_SIZE)).unwrap_or(u32::MAX);
        if blocks > 0 {
            let first = fs.inode_table(group);
            fs.zero_blocks(first, blocks)?;
        }
        if options.eager_tables {
            fs.mark_table_zeroed(group);
        }
    }
    for inode in 1..fs.superblock().get_u32(field::FIRST_INO) {
        fs.clear_inode(inode, options.inode_size)?;
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
            let parameters = parameters(&Ext4Options::default(), bytes);
            let found = u64::from(parameters.get_u32(field::BLOCKS_COUNT))
                | u64::from(parameters.get_u32(field::BLOCKS_COUNT_HI)) << 32;
            assert_eq!(
                (found, parameters.get_u32(field::INODES_COUNT)),
                (blocks, inodes),
                "{bytes}"
            );
        }
        let huge = parameters(&Ext4Options::default(), 1 << 60);
        assert_eq!(huge.get_u32(field::INODES_COUNT), u32::MAX);
    }

    #[test]
    fn choices_reach_their_fields() {
        let chosen = Ext4Options {
            reserved_hundredths: 250,
            inodes: Inodes::BytesEach(8192),
            inode_size: 512,
            journal: false,
            large_dir: true,
            ..Ext4Options::default()
        };
        let parameters = parameters(&chosen, 1 << 30);
        let field = |offset| parameters.get_u32(offset);
        assert_eq!(field(field::RESERVED_COUNT), 262_144 / 40);
        assert_eq!(field(field::INODES_COUNT), 131_072);
        assert_eq!(parameters.get_u16(field::INODE_SIZE), 512);
        assert_eq!(field(field::FEATURE_COMPAT) & HAS_JOURNAL, 0);
        assert_eq!(field(field::FEATURE_INCOMPAT), INCOMPAT | LARGE_DIR);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_written() {
        let fine = Ext4Options::default;
        let bad = [
            Ext4Options {
                inode_size: 128,
                ..fine()
            },
            Ext4Options {
                inode_size: 300,
                ..fine()
            },
            Ext4Options {
                reserved_hundredths: 5001,
                ..fine()
            },
            Ext4Options {
                inodes: Inodes::BytesEach(0),
                ..fine()
            },
            Ext4Options {
                inodes: Inodes::Count(0),
                ..fine()
            },
        ];
        for options in bad {
            let refused = check(&options, Path::new("/dev/zd0")).unwrap_err();
            assert_eq!(refused.errno, Errno::EINVAL, "{options:?}");
        }
        check(&fine(), Path::new("/dev/zd0")).unwrap();
    }
}
