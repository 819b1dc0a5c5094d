//! Words of unknown origin.

use super::*;

fn chosen(fs_type: FsType, text: &str) -> Result<Choices, String> {
    choices(fs_type, &words(text).expect("words"))
}

fn refused(fs_type: FsType, text: &str) -> String {
    chosen(fs_type, text).expect_err(text)
}

#[test]
fn ext4_takes_what_it_can_honour() {
    let expected = Ext4 {
        reserved_hundredths: 150,
        inodes: Inodes::BytesEach(64 << 10),
        inode_size: 512,
        journal: false,
        large_dir: true,
        stride: 4,
        stripe_width: 16,
        eager_tables: true,
        ..Ext4::default()
    };
    let text = "-m 1.5 -i 64k -I512 -O ^has_journal,large_dir -O extents \
                -E stride=4,stripe_width=16 -E lazy_itable_init=0,nodiscard,lazy_journal_init=1";
    assert_eq!(chosen(FsType::Ext4, text), Ok(Choices::Ext4(expected)));
    let count = Ext4 {
        inodes: Inodes::Count(1000),
        ..Ext4::default()
    };
    assert_eq!(chosen(FsType::Ext4, "-N 1000"), Ok(Choices::Ext4(count)));
}

#[test]
fn xfs_takes_what_names_no_device() {
    let text = "-m reflink=0,bigtime=1 -i size=1k,maxpct=5 -d agcount=4,su=64k,sw=2 -l size=64m";
    let Ok(Choices::Xfs(Xfs(settings))) = chosen(FsType::Xfs, text) else {
        panic!("{:?}", chosen(FsType::Xfs, text));
    };
    let shown: Vec<_> = settings
        .iter()
        .map(|s| format!("-{} {}={}", s.flag, s.key, s.value))
        .collect();
    assert_eq!(
        shown,
        [
            "-m reflink=0",
            "-m bigtime=1",
            "-i size=1024",
            "-i maxpct=5",
            "-d agcount=4",
            "-d su=65536",
            "-d sw=2",
            "-l size=67108864",
        ]
    );
}

#[test]
fn rule_12_nothing_can_name_a_file_a_device_or_another_command() {
    for text in [
        "",
        " ",
        "-m 1;rm",
        "-d name=/dev/sda",
        "$(id)",
        "-m\n1",
        "-l 'x'",
        "-L \"x\"",
        "é",
        "-m 1\0",
        &"-m 1 ".repeat(20),
    ] {
        assert_eq!(words(text), None, "{text:?}");
    }
    for text in [
        "-l logdev=sdb",
        "-d file=1",
        "-d name=image",
        "-r rtdev=sdb",
        "-p proto",
        "-c options=x",
        "-m uuid=00000000-0000-0000-0000-000000000001",
        "-L label=x",
        "-f",
        "sdb",
        "--help",
        "-",
    ] {
        let why = refused(FsType::Xfs, text);
        assert!(!why.is_empty() && why.len() < 500, "{why}");
    }
    for text in [
        "-J device=sdb",
        "-d root",
        "-z undo",
        "-T huge",
        "-U random",
        "-L name",
        "-F -F",
        "-E offset=512",
        "-E resize=4g",
        "-E root_owner=0",
        "-O journal_dev",
        "-O ^extent",
        "-O ^resize_inode",
        "-O bigalloc",
        "-O quota",
        "-O",
        "sdb",
    ] {
        refused(FsType::Ext4, text);
    }
}

#[test]
fn values_out_of_range_are_refused_by_their_option() {
    for (text, flag) in [
        ("-m 51", "-m"),
        ("-m 1.234", "-m"),
        ("-m .5", "-m"),
        ("-m -1", "-m"),
        ("-m 1 -m 2", "-m"),
        ("-i 512", "-i"),
        ("-i 65m", "-i"),
        ("-i 99999999999999999999", "-i"),
        ("-N 0", "-N"),
        ("-N 4294967296", "-N"),
        ("-N 1k", "-N"),
        ("-i 16k -N 5", "-N"),
        ("-I 128", "-I"),
        ("-I 300", "-I"),
        ("-I", "-I"),
        ("-E stride=-1", "-E"),
        ("-E stride=65536", "-E"),
        ("-E lazy_itable_init=2", "-E"),
        ("-E lazy_itable_init", "-E"),
        ("-E ,", "-E"),
        ("-O ,", "-O"),
    ] {
        let why = refused(FsType::Ext4, text);
        assert!(why.contains(flag), "{text:?}: {why}");
    }
    for (text, flag) in [
        ("-m crc=0", "-m"),
        ("-m reflink=2", "-m"),
        ("-m reflink", "-m"),
        ("-m reflink=1 -m reflink=0", "-m"),
        ("-i size=256", "-i"),
        ("-i size=1000", "-i"),
        ("-i maxpct=101", "-i"),
        ("-n size=128k", "-n"),
        ("-s size=8192", "-s"),
        ("-d agcount=0", "-d"),
        ("-d su=64k", "-d"),
        ("-d su=1000,sw=2", "-d"),
        ("-l size=1m", "-l"),
        ("-b size=4096", "-b"),
    ] {
        let why = refused(FsType::Xfs, text);
        assert!(why.contains(flag), "{text:?}: {why}");
    }
}
