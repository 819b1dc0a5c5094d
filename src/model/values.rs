//! The grammar of parameters' values: text of unknown origin in, a value or nothing out.

use std::collections::BTreeSet;

/// A pool name by ZFS's rules (zpoolconcepts(7), zpool-create(8)), and short enough for the Volume API.
pub(super) fn is_pool(text: &str) -> bool {
    let is_vdev = ["mirror", "raidz", "draid", "spare"]
        .iter()
        .any(|word| text.starts_with(word));
    (1..=63).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphabetic()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':'))
        && !is_vdev
        && text != "log"
}

/// A `volblocksize` in bytes: digits with an optional `k`, `m` or `g`, base 1024.
pub(super) fn block_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes.is_power_of_two() && (512..=128 << 10).contains(&bytes)).then_some(bytes)
}

/// One of ZFS's words for a property.
pub(super) fn one_of(words: &'static [&'static str]) -> impl Fn(&str) -> Option<String> {
    move |text| words.contains(&text).then(|| text.to_owned())
}

/// Pools to choose from, each once, in the order given.
pub(super) fn pools(text: &str) -> Option<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    (names.iter().all(|name| is_pool(name)) && distinct.len() == names.len()).then_some(names)
}

/// A compression by the API's name. ZFS calls the fast levels the other way round (`zstd-fast-3`): both
/// are taken.
pub(super) fn compression(text: &str) -> Option<String> {
    if matches!(text, "on" | "off" | "lz4" | "gzip" | "zstd") {
        return Some(text.to_owned());
    }
    let is_level = |level: &str| matches!(level.as_bytes(), [b'1'..=b'9']);
    let rest = text.strip_prefix("zstd-")?;
    if let Some(level) = rest
        .strip_prefix("fast-")
        .or_else(|| rest.strip_suffix("-fast"))
    {
        return is_level(level).then(|| format!("zstd-{level}-fast"));
    }
    is_level(rest).then(|| text.to_owned())
}

/// A Kubernetes object's name: a DNS subdomain (RFC 1123).
pub(super) fn name(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let fine = (1..=253).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
    fine.then(|| text.to_owned())
}
