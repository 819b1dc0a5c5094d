//! What can be chosen about a new filesystem. Numbers and switches only: nothing here can name a file or a device.

use crate::probe::FsKind;

/// How a filesystem is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Options {
    /// ext4.
    Ext4(Ext4Options),
    /// XFS.
    Xfs(Vec<(XfsSetting, u64)>),
}

impl Options {
    /// A filesystem with nothing chosen.
    pub fn plain(kind: FsKind) -> Self {
        match kind {
            FsKind::Ext4 => Self::Ext4(Ext4Options::default()),
            FsKind::Xfs => Self::Xfs(Vec::new()),
        }
    }

    /// Which filesystem.
    pub fn kind(&self) -> FsKind {
        match self {
            Self::Ext4(_) => FsKind::Ext4,
            Self::Xfs(_) => FsKind::Xfs,
        }
    }
}

/// Choices for ext4, as mke2fs(8) has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ext4Options {
    /// Hundredths of a percent of the blocks that only root may use (`-m`), to 5,000.
    pub reserved_hundredths: u16,
    /// How many inodes there are.
    pub inodes: Inodes,
    /// Bytes of an inode (`-I`): a power of two from 256 to 4,096.
    pub inode_size: u16,
    /// A journal (`-O has_journal`).
    pub journal: bool,
    /// Directories of more than two levels of index (`-O large_dir`).
    pub large_dir: bool,
    /// Small files within the inode (`-O inline_data`).
    pub inline_data: bool,
    /// Encryption by directory (`-O encrypt`).
    pub encrypt: bool,
    /// Files with a Merkle tree (`-O verity`).
    pub verity: bool,
    /// Blocks that a RAID puts on one disk (`-E stride`); 0: not told.
    pub stride: u16,
    /// Blocks of a RAID's stripe (`-E stripe_width`); 0: not told.
    pub stripe_width: u32,
    /// Inode tables are zeroed before the first mount (`-E lazy_itable_init=0`), not after it.
    pub eager_tables: bool,
    /// The journal is zeroed (`-E lazy_journal_init=0`).
    pub eager_journal: bool,
}

impl Default for Ext4Options {
    fn default() -> Self {
        Self {
            reserved_hundredths: 0,
            inodes: Inodes::BySize,
            inode_size: 256,
            journal: true,
            large_dir: false,
            inline_data: false,
            encrypt: false,
            verity: false,
            stride: 0,
            stripe_width: 0,
            eager_tables: false,
            eager_journal: false,
        }
    }
}

/// How many inodes an ext4 has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inodes {
    /// As mke2fs.conf(5) has it for the size.
    BySize,
    /// One for so many bytes (`-i`), from 1,024.
    BytesEach(u64),
    /// So many (`-N`).
    Count(u32),
}

/// A setting of `mkfs.xfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XfsSetting {
    flag: char,
    key: &'static str,
}

/// What may be set, by option and suboption (mkfs.xfs(8)).
const XFS: [(char, &str); 18] = [
    ('m', "bigtime"),
    ('m', "crc"),
    ('m', "finobt"),
    ('m', "inobtcount"),
    ('m', "reflink"),
    ('m', "rmapbt"),
    ('i', "size"),
    ('i', "maxpct"),
    ('i', "sparse"),
    ('i', "nrext64"),
    ('n', "size"),
    ('s', "size"),
    ('d', "agcount"),
    ('d', "su"),
    ('d', "sw"),
    ('l', "size"),
    ('l', "su"),
    ('l', "lazy-count"),
];

impl XfsSetting {
    /// The setting of `mkfs.xfs -<flag> <key>=…`; `None` for one that is not taken.
    pub fn named(flag: char, key: &str) -> Option<Self> {
        XFS.iter()
            .find(|(f, k)| (*f, *k) == (flag, key))
            .map(|&(flag, key)| Self { flag, key })
    }
}

/// The words of `mkfs.xfs` for these settings, one option each; `first` goes before those of `-m`.
pub(super) fn xfs_words(settings: &[(XfsSetting, u64)], first: String) -> Vec<String> {
    let mut words = vec!["-m".to_owned(), first];
    for (XfsSetting { flag, key }, value) in settings {
        let option = format!("-{flag}");
        let setting = format!("{key}={value}");
        match words.iter().position(|word| *word == option) {
            Some(at) => {
                words[at + 1].push(',');
                words[at + 1].push_str(&setting);
            }
            None => words.extend([option, setting]),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_given_once_with_all_its_settings() {
        let set = |flag, key, value| (XfsSetting::named(flag, key).unwrap(), value);
        let settings = [
            set('m', "reflink", 0),
            set('i', "size", 1024),
            set('m', "bigtime", 1),
            set('i', "maxpct", 5),
        ];
        assert_eq!(
            xfs_words(&settings, "uuid=1".into()).join(" "),
            "-m uuid=1,reflink=0,bigtime=1 -i size=1024,maxpct=5"
        );
    }

    #[test]
    fn nothing_that_names_a_device_or_file_is_a_setting() {
        for (flag, key) in [
            ('l', "logdev"),
            ('l', "name"),
            ('d', "name"),
            ('d', "file"),
            ('r', "rtdev"),
            ('m', "uuid"),
            ('c', "options"),
            ('p', "file"),
        ] {
            assert_eq!(XfsSetting::named(flag, key), None, "-{flag} {key}");
        }
    }
}
