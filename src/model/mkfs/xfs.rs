//! mkfs.xfs(8).

use super::{Suffixes, number};
use crate::model::shown;

/// Choices for an XFS, in the order given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Xfs(pub Vec<Setting>);

/// `-<flag> <key>=<value>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The option.
    pub flag: char,
    /// Its suboption.
    pub key: &'static str,
    /// Its value; sizes are bytes.
    pub value: u64,
}

/// What a value may be.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// 0 or 1.
    Switch,
    /// Only 1: what 0 makes, kernels of today mount no more, or the driver could not identify.
    On,
    /// A power of two of bytes.
    Power(u64, u64),
    /// Bytes.
    Bytes(u64, u64),
    /// A plain number.
    Count(u64, u64),
}

const TIB: u64 = 1 << 40;

/// Every suboption that is taken.
const TABLE: [(char, &str, Values); 18] = [
    ('m', "bigtime", Values::Switch),
    ('m', "crc", Values::On),
    ('m', "finobt", Values::Switch),
    ('m', "inobtcount", Values::Switch),
    ('m', "reflink", Values::Switch),
    ('m', "rmapbt", Values::Switch),
    ('i', "size", Values::Power(512, 2048)),
    ('i', "maxpct", Values::Count(0, 100)),
    ('i', "sparse", Values::Switch),
    ('i', "nrext64", Values::Switch),
    ('n', "size", Values::Power(4096, 65_536)),
    ('s', "size", Values::Power(512, 4096)),
    ('d', "agcount", Values::Count(1, 1 << 20)),
    ('d', "su", Values::Bytes(512, 1 << 30)),
    ('d', "sw", Values::Count(1, 1 << 16)),
    ('l', "size", Values::Bytes(2 << 20, TIB)),
    ('l', "su", Values::Bytes(512, 1 << 30)),
    ('l', "lazy-count", Values::On),
];

pub(super) fn parse(options: &[(char, &str)]) -> Result<Xfs, String> {
    let mut settings: Vec<Setting> = Vec::new();
    for &(flag, value) in options {
        for word in value.split(',') {
            let setting = setting(flag, word)?;
            let twice = settings
                .iter()
                .any(|s| (s.flag, s.key) == (setting.flag, setting.key));
            if twice {
                return Err(format!("-{flag} {}= is given twice", setting.key));
            }
            settings.push(setting);
        }
    }
    let has = |key| settings.iter().any(|s| (s.flag, s.key) == ('d', key));
    if has("su") != has("sw") {
        return Err("-d su= and sw= are given together".into());
    }
    Ok(Xfs(settings))
}

fn setting(flag: char, word: &str) -> Result<Setting, String> {
    let (key, text) = word.split_once('=').unwrap_or((word, ""));
    let found = TABLE.iter().find(|(f, k, _)| (*f, *k) == (flag, key));
    let Some(&(flag, key, values)) = found else {
        let taken: Vec<_> = TABLE.iter().map(|(f, k, _)| format!("-{f} {k}=")).collect();
        return Err(format!(
            "-{flag} {} is not taken for xfs: {} are",
            shown(word),
            taken.join(", ")
        ));
    };
    let bad = |what: String| format!("-{flag} {}: {what}", shown(word));
    let value = match values {
        Values::Switch => number(text, Suffixes::None)
            .filter(|n| *n <= 1)
            .ok_or_else(|| bad("0 or 1".into())),
        Values::On => number(text, Suffixes::None)
            .filter(|n| *n == 1)
            .ok_or_else(|| bad("only 1".into())),
        Values::Power(least, most) => number(text, Suffixes::Binary)
            .filter(|n| n.is_power_of_two() && (least..=most).contains(n))
            .ok_or_else(|| bad(format!("a power of two of bytes from {least} to {most}"))),
        Values::Bytes(least, most) => number(text, Suffixes::Binary)
            .filter(|n| n.is_multiple_of(512) && (least..=most).contains(n))
            .ok_or_else(|| bad(format!("a multiple of 512 bytes from {least} to {most}"))),
        Values::Count(least, most) => number(text, Suffixes::None)
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| bad(format!("{least} to {most}"))),
    }?;
    Ok(Setting { flag, key, value })
}
