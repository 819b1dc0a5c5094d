use std::io::{Seek, Write};

use super::*;

const UUID: Uuid = Uuid::from_u128(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00);

fn put(head: &mut [u8; 4096], offset: usize, bytes: &[u8]) {
    head[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// ext4 of 2^32 + 3 blocks of 4 KiB, so that both halves of the count matter.
fn ext4_head() -> [u8; 4096] {
    let mut head = [0; 4096];
    put(&mut head, EXT + 4, &3_u32.to_le_bytes());
    put(&mut head, EXT + 24, &2_u32.to_le_bytes());
    put(&mut head, EXT + 56, &0xEF53_u16.to_le_bytes());
    put(&mut head, EXT + 58, &1_u16.to_le_bytes());
    put(&mut head, EXT + 92, &0x3c_u32.to_le_bytes());
    put(&mut head, EXT + 96, &0x2c2_u32.to_le_bytes());
    put(&mut head, EXT + 104, UUID.as_bytes());
    put(&mut head, EXT + 336, &1_u32.to_le_bytes());
    head
}

fn xfs_head() -> [u8; 4096] {
    let mut head = [0; 4096];
    put(&mut head, 0, b"XFSB");
    put(&mut head, 4, &4096_u32.to_be_bytes());
    put(&mut head, 8, &81920_u64.to_be_bytes());
    put(&mut head, 32, UUID.as_bytes());
    head
}

fn foreign_name(head: &[u8; 4096]) -> String {
    match classify(head) {
        Content::Foreign(name) => name,
        other => panic!("{other:?} is not foreign"),
    }
}

#[test]
fn zeros_are_zeros_and_one_bit_is_not() {
    let mut head = [0; 4096];
    assert_eq!(classify(&head), Content::Zeros);
    head[4095] = 1;
    assert_eq!(foreign_name(&head), "unknown data (first at byte 4095)");
}

#[test]
fn ext4_tells_uuid_size_and_state() {
    let mut expected = Superblock {
        kind: FsKind::Ext4,
        uuid: UUID,
        size_bytes: ((1 << 32) + 3) * 4096,
        has_errors: false,
        needs_recovery: false,
    };
    let mut head = ext4_head();
    assert_eq!(classify(&head), Content::Filesystem(expected));
    put(&mut head, EXT + 58, &3_u16.to_le_bytes());
    put(&mut head, EXT + 96, &0x2c6_u32.to_le_bytes());
    expected.has_errors = true;
    expected.needs_recovery = true;
    assert_eq!(classify(&head), Content::Filesystem(expected));
}

#[test]
fn without_64bit_the_high_half_is_not_read() {
    let mut head = ext4_head();
    put(&mut head, EXT + 96, &0x242_u32.to_le_bytes());
    let Content::Filesystem(superblock) = classify(&head) else {
        panic!("not recognised");
    };
    assert_eq!(superblock.size_bytes, 3 * 4096);
}

#[test]
fn older_ext_and_journal_devices_are_foreign() {
    let mut head = ext4_head();
    put(&mut head, EXT + 92, &0x38_u32.to_le_bytes());
    assert_eq!(foreign_name(&head), "ext2, or ext4 without a journal");
    let mut head = ext4_head();
    put(&mut head, EXT + 96, &0x2_u32.to_le_bytes());
    assert_eq!(foreign_name(&head), "ext3");
    put(&mut head, EXT + 96, &0x8_u32.to_le_bytes());
    assert_eq!(foreign_name(&head), "external journal of ext4");
}

#[test]
fn an_impossible_superblock_is_foreign() {
    let mut head = ext4_head();
    put(&mut head, EXT + 24, &7_u32.to_le_bytes());
    assert_eq!(foreign_name(&head), "damaged superblock of ext4");
    let mut head = ext4_head();
    put(&mut head, EXT + 336, &u32::MAX.to_le_bytes());
    assert_eq!(foreign_name(&head), "damaged superblock of ext4");
    let mut head = xfs_head();
    put(&mut head, 4, &5000_u32.to_be_bytes());
    assert_eq!(foreign_name(&head), "damaged superblock of XFS");
    let mut head = xfs_head();
    put(&mut head, 8, &0_u64.to_be_bytes());
    assert_eq!(foreign_name(&head), "damaged superblock of XFS");
}

#[test]
fn xfs_tells_uuid_and_size_unless_mkfs_did_not_finish() {
    let mut head = xfs_head();
    assert_eq!(
        classify(&head),
        Content::Filesystem(Superblock {
            kind: FsKind::Xfs,
            uuid: UUID,
            size_bytes: 81920 * 4096,
            has_errors: false,
            needs_recovery: false,
        })
    );
    head[126] = 1;
    assert_eq!(foreign_name(&head), "XFS of a mkfs that did not finish");
}

#[test]
fn rule_01_an_unfinished_mkfs_is_known_by_its_uuid_and_is_no_filesystem() {
    for kind in [FsKind::Ext4, FsKind::Xfs] {
        let head = unfinished_head(kind, UUID);
        assert_eq!(unfinished(&head), Some((kind, UUID)));
        assert!(foreign_name(&head).ends_with("of a mkfs that did not finish"));
    }
    for head in [ext4_head(), xfs_head(), [0; 4096]] {
        assert_eq!(unfinished(&head), None);
    }
}

#[test]
fn others_are_named() {
    for (offset, magic, name) in [
        (0, b"LUKS\xba\xbe\0\x02".as_slice(), "LUKS"),
        (512, b"EFI PART", "partition table (GPT)"),
        (4086, b"SWAPSPACE2", "swap space"),
        (0, &[0xfc, 0x4e, 0x2b, 0xa9], "member of an MD RAID"),
        (3, b"NTFS    ", "NTFS"),
        (3, b"EXFAT   ", "exFAT"),
        (54, b"FAT16   ", "FAT"),
        (82, b"FAT32   ", "FAT"),
    ] {
        let mut head = [0; 4096];
        put(&mut head, offset, magic);
        assert_eq!(foreign_name(&head), name);
    }
    let mut head = [0; 4096];
    put(&mut head, 512, b"LABELONE");
    put(&mut head, 512 + 24, b"LVM2 001");
    assert_eq!(foreign_name(&head), "LVM2 physical volume");
}

#[test]
fn a_partition_table_has_a_partition() {
    let mut head = [0; 4096];
    put(&mut head, 510, &[0x55, 0xaa]);
    assert_eq!(foreign_name(&head), "unknown data (first at byte 510)");
    head[446 + 4] = 0x83;
    assert_eq!(foreign_name(&head), "partition table (MBR)");
}

#[test]
fn rule_03_two_signatures_are_no_filesystem() {
    let mut head = ext4_head();
    put(&mut head, 0, b"XFSB");
    put(&mut head, 4, &4096_u32.to_be_bytes());
    put(&mut head, 8, &81920_u64.to_be_bytes());
    assert_eq!(foreign_name(&head), "more than one signature (xfs, ext4)");
    let mut head = ext4_head();
    put(&mut head, 0, b"LUKS\xba\xbe\0\x02");
    assert_eq!(foreign_name(&head), "more than one signature (ext4, LUKS)");
    // Boot code before an ext4 changes nothing.
    let mut head = ext4_head();
    put(&mut head, 510, &[0x55, 0xaa]);
    assert!(matches!(classify(&head), Content::Filesystem(_)));
}

fn image(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

#[test]
fn superblock_reads_the_head_and_refuses_a_short_one() {
    let mut file = image(1 << 20);
    file.write_all(&ext4_head()).unwrap();
    let content = superblock(file.as_file(), file.path()).unwrap();
    assert!(matches!(content, Content::Filesystem(s) if s.uuid == UUID));
    let file = image(4095);
    assert_eq!(
        superblock(file.as_file(), file.path()).unwrap_err().errno,
        Errno::EIO
    );
}

#[test]
fn bug_c_17_blank_is_proven_at_both_ends() {
    for size in [4096, 1 << 20, 3 << 20, (64 << 20) + 512] {
        let mut file = image(size);
        assert!(is_blank(file.as_file(), file.path()).unwrap(), "{size}");
        for offset in [0, size - 1, (64 << 10).min(size - 1)] {
            file.seek(std::io::SeekFrom::Start(offset)).unwrap();
            file.write_all(&[1]).unwrap();
            assert!(
                !is_blank(file.as_file(), file.path()).unwrap(),
                "{size} at {offset}"
            );
            file.seek(std::io::SeekFrom::Start(offset)).unwrap();
            file.write_all(&[0]).unwrap();
        }
    }
}

#[test]
fn bug_c_17_what_cannot_be_read_is_never_blank() {
    let file = image(0);
    assert_eq!(
        is_blank(file.as_file(), file.path()).unwrap_err().errno,
        Errno::ENODATA
    );
    let file = image(1 << 20);
    let write_only = File::options().write(true).open(file.path()).unwrap();
    assert_eq!(
        is_blank(&write_only, file.path()).unwrap_err().errno,
        Errno::EBADF
    );
}
