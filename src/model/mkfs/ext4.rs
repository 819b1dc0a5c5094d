//! mke2fs(8).

use super::{Suffixes, number};
use crate::model::shown;

/// Choices for an ext4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ext4 {
    /// Hundredths of a percent of the blocks that only root may use (`-m`).
    pub reserved_hundredths: u16,
    /// How many inodes there are (`-i`, `-N`).
    pub inodes: Inodes,
    /// Bytes of an inode (`-I`).
    pub inode_size: u16,
    /// A journal (`-O ^has_journal`: none).
    pub journal: bool,
    /// `-O large_dir`.
    pub large_dir: bool,
    /// `-O inline_data`.
    pub inline_data: bool,
    /// `-O encrypt`.
    pub encrypt: bool,
    /// `-O verity`.
    pub verity: bool,
    /// `-E stride=`; 0: not told.
    pub stride: u16,
    /// `-E stripe_width=`; 0: not told.
    pub stripe_width: u32,
    /// `-E lazy_itable_init=0`.
    pub eager_tables: bool,
    /// `-E lazy_journal_init=0`.
    pub eager_journal: bool,
}

/// How many inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Inodes {
    /// As the size has it.
    #[default]
    BySize,
    /// One for so many bytes.
    BytesEach(u64),
    /// So many.
    Count(u32),
}

impl Default for Ext4 {
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

/// Features that every ext4 of this driver has.
const ALWAYS: [&str; 14] = [
    "ext_attr",
    "resize_inode",
    "dir_index",
    "filetype",
    "extent",
    "extents",
    "64bit",
    "flex_bg",
    "sparse_super",
    "large_file",
    "huge_file",
    "dir_nlink",
    "extra_isize",
    "metadata_csum",
];

pub(super) fn parse(options: &[(char, &str)]) -> Result<Ext4, String> {
    let mut it = Ext4::default();
    let mut given = Vec::new();
    for &(flag, value) in options {
        let is_list = matches!(flag, 'O' | 'E');
        if !is_list && given.contains(&flag) {
            return Err(format!("-{flag} is given twice"));
        }
        given.push(flag);
        let bad = |what: &str| format!("-{flag} is {}: {what}", shown(value));
        match flag {
            'm' => {
                it.reserved_hundredths = percent(value)
                    .ok_or_else(|| bad("0 to 50 percent, with up to two decimals"))?;
            }
            'i' | 'N' if it.inodes != Inodes::BySize => {
                return Err("-i and -N exclude each other".into());
            }
            'i' => {
                let bytes =
                    number(value, Suffixes::Binary).filter(|n| (1024..=64 << 20).contains(n));
                it.inodes = Inodes::BytesEach(bytes.ok_or_else(|| bad("1024 to 64m bytes"))?);
            }
            'N' => {
                let count = number(value, Suffixes::None)
                    .and_then(|n| u32::try_from(n).ok())
                    .filter(|n| *n > 0);
                it.inodes = Inodes::Count(count.ok_or_else(|| bad("1 to 4294967295 inodes"))?);
            }
            'I' => {
                let size = number(value, Suffixes::None).and_then(|n| u16::try_from(n).ok());
                it.inode_size = size
                    .filter(|n| matches!(n, 256 | 512 | 1024 | 2048 | 4096))
                    .ok_or_else(|| bad("256, 512, 1024, 2048 or 4096 bytes"))?;
            }
            'O' => value
                .split(',')
                .try_for_each(|word| feature(&mut it, word))?,
            'E' => value
                .split(',')
                .try_for_each(|word| extended(&mut it, word))?,
            _ => {
                return Err(format!(
                    "-{flag} is not taken for ext4: -m, -i, -N, -I, -O and -E are"
                ));
            }
        }
    }
    Ok(it)
}

/// Hundredths of a percent.
fn percent(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let fits = |digits: &str, most: usize| {
        (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    if !fits(whole, 2) || !fits(decimals, 2) {
        return None;
    }
    let hundredths: u16 = format!("{decimals:0<2}").parse().ok()?;
    let all = whole.parse::<u16>().ok()? * 100 + hundredths;
    (all <= 5000).then_some(all)
}

fn feature(it: &mut Ext4, word: &str) -> Result<(), String> {
    let (name, wanted) = match word.strip_prefix('^') {
        Some(name) => (name, false),
        None => (word, true),
    };
    let place = match name {
        "has_journal" => &mut it.journal,
        "large_dir" => &mut it.large_dir,
        "inline_data" => &mut it.inline_data,
        "encrypt" => &mut it.encrypt,
        "verity" => &mut it.verity,
        name if wanted && ALWAYS.contains(&name) => return Ok(()),
        _ => {
            return Err(format!(
                "-O {} is not taken: has_journal, large_dir, inline_data, encrypt and verity can be chosen, ^ before \
                 one takes it out; {} are always there",
                shown(word),
                ALWAYS.join(", ")
            ));
        }
    };
    *place = wanted;
    Ok(())
}

fn extended(it: &mut Ext4, word: &str) -> Result<(), String> {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    let bad = |what: &str| format!("-E {}: {what}", shown(word));
    let lazy = || match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(bad("0 or 1")),
    };
    match key {
        // Nothing is ever discarded.
        "nodiscard" if value.is_empty() => {}
        "lazy_itable_init" => it.eager_tables = !lazy()?,
        "lazy_journal_init" => it.eager_journal = !lazy()?,
        "stride" => {
            it.stride = number(value, Suffixes::None)
                .and_then(|n| u16::try_from(n).ok())
                .ok_or_else(|| bad("a number of blocks to 65535"))?;
        }
        "stripe_width" | "stripe-width" => {
            it.stripe_width = number(value, Suffixes::None)
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| bad("a number of blocks to 4294967295"))?;
        }
        _ => {
            return Err(bad(
                "not taken: lazy_itable_init, lazy_journal_init, nodiscard, stride and stripe_width are",
            ));
        }
    }
    Ok(())
}
