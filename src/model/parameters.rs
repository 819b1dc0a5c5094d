//! The parameters of a StorageClass: one table for the parser, the documentation and the messages.

use std::collections::HashMap;

use super::shown;
use super::volume::{Claim, FsType};

/// Bytes of all keys and values together: what CSI allows a map.
pub const MAP_MAX: usize = 4 << 10;
/// Block size when none is given: 16 KiB.
pub const DEFAULT_BLOCK: u64 = 16 << 10;

/// A parameter that the driver knows.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its key.
    pub key: &'static str,
    /// What it may be.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

const POOL: &str = "pool";
const TYPE: &str = "type";
const TRANSPORT: &str = "transport";
const FS_TYPE: &str = "fsType";
const K8S_FS_TYPE: &str = "csi.storage.k8s.io/fstype";
const BLOCK_SIZE: &str = "volBlockSize";
const BLOCK_SIZE_ALIAS: &str = "blocksize";
const COMPRESSION: &str = "compression";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";

/// Every parameter there is.
pub const TABLE: [Known; 11] = [
    Known {
        key: POOL,
        values: "the name of a ZFS pool, 1 to 63 characters; required",
        meaning: "the pool that the volume is made in",
    },
    Known {
        key: TYPE,
        values: "block (the default); filesystem is not supported yet",
        meaning: "zvol or dataset",
    },
    Known {
        key: TRANSPORT,
        values: "nvme-tcp (the default)",
        meaning: "how consumers reach a block volume",
    },
    Known {
        key: FS_TYPE,
        values: "ext4 (the default) or xfs",
        meaning: "the filesystem that is made on a block volume",
    },
    Known {
        key: K8S_FS_TYPE,
        values: "as fsType",
        meaning: "the same, by Kubernetes' name",
    },
    Known {
        key: BLOCK_SIZE,
        values: "a power of two from 512 to 128k; 16k is the default",
        meaning: "the zvol's volblocksize; capacities are rounded up to it",
    },
    Known {
        key: BLOCK_SIZE_ALIAS,
        values: "as volBlockSize",
        meaning: "the same, by another name",
    },
    Known {
        key: COMPRESSION,
        values: "on, off, lz4, gzip, zstd, zstd-1 to zstd-9, zstd-1-fast to zstd-9-fast",
        meaning: "ZFS compression; inherited from the pool when not given",
    },
    Known {
        key: CLAIM_NAME,
        values: "a name",
        meaning: "set by the provisioner (--extra-create-metadata); kept with the volume",
    },
    Known {
        key: CLAIM_NAMESPACE,
        values: "a name",
        meaning: "set by the provisioner; kept with the volume",
    },
    Known {
        key: PV_NAME,
        values: "a name",
        meaning: "set by the provisioner; not used",
    },
];

/// The table as text, at most 80 columns.
pub fn help() -> String {
    let mut text = String::from("StorageClass parameters:\n");
    for Known {
        key,
        values,
        meaning,
    } in TABLE
    {
        text.push_str(&format!("    {key}\n        {meaning}\n        {values}\n"));
    }
    text
}

/// Parameters, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// The pool.
    pub pool: String,
    /// The filesystem, when the parameters say which.
    pub fs_type: Option<FsType>,
    /// `volblocksize` in bytes.
    pub block: u64,
    /// ZFS compression by the Volume API's name; empty inherits.
    pub compression: String,
    /// The claim that the volume is for.
    pub claim: Option<Claim>,
}

/// A parameter that cannot be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("parameter {key}: {problem}")]
pub struct BadParameter {
    /// Its key, fit for a message.
    pub key: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl Parameters {
    /// Checks a request's parameters. What is not in the [`TABLE`] is refused by its name.
    pub fn parse(map: &HashMap<String, String>) -> Result<Self, BadParameter> {
        if map
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum::<usize>()
            > MAP_MAX
        {
            return Err(bad(
                "map",
                format!("all together are longer than {MAP_MAX} bytes"),
            ));
        }
        let mut unknown: Vec<_> = map
            .keys()
            .filter(|key| !TABLE.iter().any(|known| known.key == *key))
            .collect();
        unknown.sort();
        if let Some(key) = unknown.first() {
            let known: Vec<_> = TABLE.iter().map(|known| known.key).collect();
            return Err(BadParameter {
                key: shown(key),
                problem: format!("is not known: known are {}", known.join(", ")),
            });
        }
        let given = Given(map);
        given
            .one(POOL, |text| is_pool(text).then_some(()))?
            .ok_or_else(|| {
                bad(
                    POOL,
                    "is missing: name the ZFS pool that the volume is made in",
                )
            })?;
        if map.get(TYPE).is_some_and(|text| text == "filesystem") {
            return Err(bad(TYPE, "filesystem is not supported yet: block only"));
        }
        given.one(TYPE, |text| (text == "block").then_some(()))?;
        given.one(TRANSPORT, |text| (text == "nvme-tcp").then_some(()))?;
        given.one(PV_NAME, name)?;
        let claim = match (
            given.one(CLAIM_NAMESPACE, name)?,
            given.one(CLAIM_NAME, name)?,
        ) {
            (Some(namespace), Some(name)) => Some(Claim { namespace, name }),
            _ => None,
        };
        Ok(Self {
            pool: map.get(POOL).cloned().unwrap_or_default(),
            fs_type: given.either(FS_TYPE, K8S_FS_TYPE, FsType::parse)?,
            block: given
                .either(BLOCK_SIZE, BLOCK_SIZE_ALIAS, block_size)?
                .unwrap_or(DEFAULT_BLOCK),
            compression: given.one(COMPRESSION, compression)?.unwrap_or_default(),
            claim,
        })
    }

    /// The block size as the Volume API has it.
    pub fn vol_block_size(&self) -> String {
        if self.block < 1024 {
            self.block.to_string()
        } else {
            format!("{}k", self.block >> 10)
        }
    }
}

struct Given<'a>(&'a HashMap<String, String>);

impl Given<'_> {
    fn one<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, BadParameter> {
        let Some(text) = self.0.get(key) else {
            return Ok(None);
        };
        let values = TABLE
            .iter()
            .find(|known| known.key == key)
            .map_or("", |known| known.values);
        match read(text) {
            Some(value) => Ok(Some(value)),
            None => Err(bad(key, format!("is {}: {values}", shown(text)))),
        }
    }

    /// Two names of one parameter: both may be given when they say the same.
    fn either<T: PartialEq>(
        &self,
        key: &'static str,
        alias: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, BadParameter> {
        match (self.one(key, &read)?, self.one(alias, &read)?) {
            (Some(one), Some(other)) if one != other => Err(bad(
                key,
                format!("says something else than {alias}: give one of them"),
            )),
            (one, other) => Ok(one.or(other)),
        }
    }
}

fn bad(key: &str, problem: impl Into<String>) -> BadParameter {
    BadParameter {
        key: key.to_owned(),
        problem: problem.into(),
    }
}

/// A pool name by ZFS's rules (zpoolconcepts(7), zpool-create(8)), and short enough for the Volume API.
fn is_pool(text: &str) -> bool {
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
fn block_size(text: &str) -> Option<u64> {
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

/// A compression by the API's name. ZFS calls the fast levels the other way round (`zstd-fast-3`): both
/// are taken.
fn compression(text: &str) -> Option<String> {
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
fn name(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let fine = (1..=253).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
    fine.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<Parameters, BadParameter> {
        let mut map = HashMap::from([(POOL.to_owned(), "tank".to_owned())]);
        map.extend(
            given
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
        Parameters::parse(&map)
    }

    #[test]
    fn a_pool_is_enough() {
        let parsed = parse(&[]).unwrap();
        assert_eq!((parsed.pool.as_str(), parsed.block), ("tank", 16 << 10));
        assert_eq!((parsed.fs_type, parsed.compression.as_str()), (None, ""));
        assert_eq!(Parameters::parse(&HashMap::new()).unwrap_err().key, POOL);
    }

    #[test]
    fn the_help_names_every_parameter_and_fits_a_terminal() {
        let text = help();
        assert!(TABLE.iter().all(|known| text.contains(known.key)));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn unknown_ones_are_refused_by_name_with_the_known_ones() {
        let error = parse(&[("colour", "blue")]).unwrap_err().to_string();
        assert!(error.contains("colour"), "{error}");
        for known in TABLE {
            assert!(error.contains(known.key), "{error}");
        }
        let hostile = parse(&[("a\nb\0", "x")]).unwrap_err().to_string();
        assert!(
            !hostile.contains('\n') && !hostile.contains('\0'),
            "{hostile}"
        );
    }

    #[test]
    fn hostile_values_are_refused_by_key() {
        for (key, value) in [
            (POOL, ""),
            (POOL, "a/b"),
            (POOL, "../x"),
            (POOL, "1pool"),
            (POOL, "a\0"),
            (POOL, "a b"),
            (POOL, "mirror"),
            (POOL, "raidz2"),
            (POOL, "log"),
            (POOL, &"p".repeat(64)),
            (TYPE, "filesystem"),
            (TYPE, "file"),
            (TRANSPORT, "iscsi"),
            (FS_TYPE, "btrfs"),
            (K8S_FS_TYPE, ""),
            (BLOCK_SIZE, "3k"),
            (BLOCK_SIZE, "256k"),
            (BLOCK_SIZE, "256"),
            (BLOCK_SIZE, "k"),
            (BLOCK_SIZE, ""),
            (BLOCK_SIZE, "+16k"),
            (BLOCK_SIZE, "99999999999999999999g"),
            (BLOCK_SIZE, "18446744073709551615g"),
            (BLOCK_SIZE_ALIAS, "16q"),
            (COMPRESSION, "best"),
            (COMPRESSION, "zstd-10"),
            (COMPRESSION, "zstd-0"),
            (COMPRESSION, "zstd-fast-"),
            (COMPRESSION, "lz4,off"),
            (CLAIM_NAME, "A\n"),
            (PV_NAME, "../x"),
        ] {
            assert_eq!(parse(&[(key, value)]).unwrap_err().key, key, "{value:?}");
        }
        assert!(
            parse(&[(COMPRESSION, &"x".repeat(MAP_MAX))])
                .unwrap_err()
                .problem
                .contains("4096")
        );
    }

    #[test]
    fn block_sizes_have_one_form() {
        for (text, form) in [
            ("16k", "16k"),
            ("16384", "16k"),
            ("16K", "16k"),
            ("512", "512"),
            ("128k", "128k"),
            ("0001k", "1k"),
        ] {
            assert_eq!(parse(&[(BLOCK_SIZE, text)]).unwrap().vol_block_size(), form);
            assert_eq!(
                parse(&[(BLOCK_SIZE_ALIAS, text)]).unwrap().vol_block_size(),
                form
            );
        }
    }

    #[test]
    fn two_names_of_one_parameter_must_agree() {
        let same = parse(&[
            (FS_TYPE, "xfs"),
            (K8S_FS_TYPE, "xfs"),
            (BLOCK_SIZE, "8k"),
            (BLOCK_SIZE_ALIAS, "8192"),
        ])
        .unwrap();
        assert_eq!((same.fs_type, same.block), (Some(FsType::Xfs), 8192));
        assert_eq!(
            parse(&[(FS_TYPE, "xfs"), (K8S_FS_TYPE, "ext4")])
                .unwrap_err()
                .key,
            FS_TYPE
        );
        assert_eq!(
            parse(&[(BLOCK_SIZE, "8k"), (BLOCK_SIZE_ALIAS, "16k")])
                .unwrap_err()
                .key,
            BLOCK_SIZE
        );
    }

    #[test]
    fn compressions_have_the_apis_names() {
        for text in [
            "on",
            "off",
            "lz4",
            "gzip",
            "zstd",
            "zstd-1",
            "zstd-9",
            "zstd-3-fast",
        ] {
            assert_eq!(parse(&[(COMPRESSION, text)]).unwrap().compression, text);
        }
        assert_eq!(
            parse(&[(COMPRESSION, "zstd-fast-3")]).unwrap().compression,
            "zstd-3-fast"
        );
    }

    #[test]
    fn the_claim_needs_both_names() {
        let claim = parse(&[(CLAIM_NAMESPACE, "demo"), (CLAIM_NAME, "data-0")])
            .unwrap()
            .claim
            .unwrap();
        assert_eq!(
            (claim.namespace.as_str(), claim.name.as_str()),
            ("demo", "data-0")
        );
        assert_eq!(parse(&[(CLAIM_NAME, "data-0")]).unwrap().claim, None);
    }
}
