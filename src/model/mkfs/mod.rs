//! Options of mkfs (parameter `mkfsOptions`): words of unknown origin in, choices or a reason out.
//!
//! The words are those of mke2fs(8) and mkfs.xfs(8), and only the ones that zvolt can honour, none of which names a
//! file or another device. They are never handed on as words: what comes out are numbers and switches.

mod ext4;
#[cfg(test)]
mod tests;
mod xfs;

pub use ext4::{Ext4, Inodes};
pub use xfs::Xfs;

use super::shown;
use super::volume::FsType;

/// The most words.
const WORDS_MAX: usize = 32;

/// Choices for a new filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choices {
    /// For ext4.
    Ext4(Ext4),
    /// For XFS.
    Xfs(Xfs),
}

/// The words of a parameter: separated by blanks, each of printable ASCII without quotes.
pub fn words(text: &str) -> Option<Vec<String>> {
    let is_fine = |word: &&str| {
        word.bytes().all(|b| {
            b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'=' | b',' | b'^' | b'.')
        })
    };
    let words: Vec<&str> = text
        .split([' ', '\t'])
        .filter(|word| !word.is_empty())
        .collect();
    let fits = (1..=WORDS_MAX).contains(&words.len()) && words.iter().all(is_fine);
    fits.then(|| words.into_iter().map(str::to_owned).collect())
}

/// What the words choose for this filesystem; what is wrong with them otherwise, for a message.
pub fn choices(fs_type: FsType, words: &[String]) -> Result<Choices, String> {
    let options = options(words)?;
    match fs_type {
        FsType::Ext4 => ext4::parse(&options).map(Choices::Ext4),
        FsType::Xfs => xfs::parse(&options).map(Choices::Xfs),
    }
}

/// Options and their values: `-m 1` or `-m1`.
fn options(words: &[String]) -> Result<Vec<(char, &str)>, String> {
    let mut options = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let rest = word.strip_prefix('-').unwrap_or_default();
        let Some(flag) = rest.chars().next().filter(char::is_ascii_alphabetic) else {
            return Err(format!(
                "{} is no option: one is a dash and a letter, and then its value",
                shown(word)
            ));
        };
        let value = match &rest[1..] {
            "" => words.next().map(String::as_str).unwrap_or_default(),
            joined => joined,
        };
        if value.is_empty() || value.starts_with('-') {
            return Err(format!("-{flag} lacks its value"));
        }
        options.push((flag, value));
    }
    Ok(options)
}

/// A number in decimal, with a binary suffix where `suffixes` allow one.
fn number(text: &str, suffixes: Suffixes) -> Option<u64> {
    let shift = match text.bytes().last()? {
        b'k' | b'K' => 10,
        b'm' | b'M' => 20,
        b'g' | b'G' => 30,
        b't' | b'T' => 40,
        _ => 0,
    };
    let digits = match shift {
        0 => text,
        _ if suffixes == Suffixes::None => return None,
        _ => &text[..text.len() - 1],
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Whether a number may have a suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suffixes {
    /// `k`, `m`, `g` or `t`, base 1024.
    Binary,
    /// It may not.
    None,
}
