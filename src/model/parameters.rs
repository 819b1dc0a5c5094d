//! The parameters of a StorageClass: one table for the parser, the documentation and the messages.

use std::collections::HashMap;

use super::values::{block_size, compression, name, one_of, pools};
use super::volume::{AttachMode, Claim, DeletionPolicy, FsType, Provisioning, Tuning};
use super::{mkfs, shown};

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
    /// When it can be given.
    pub given: Given,
}

/// When a parameter can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// In a StorageClass only.
    AtCreation,
    /// In a StorageClass and, to change it later, in a VolumeAttributesClass.
    AnyTime,
    /// In a VolumeAttributesClass only.
    Later,
}

const POOL: &str = "pool";
const TYPE: &str = "type";
const TRANSPORT: &str = "transport";
const ATTACH: &str = "attach";
const FS_TYPE: &str = "fsType";
const K8S_FS_TYPE: &str = "csi.storage.k8s.io/fstype";
const BLOCK_SIZE: &str = "volBlockSize";
const BLOCK_SIZE_ALIAS: &str = "blocksize";
const MKFS_OPTIONS: &str = "mkfsOptions";
const COMPRESSION: &str = "compression";
const PROVISIONING: &str = "provisioning";
const RECLAIM_POLICY: &str = "reclaimPolicy";
const SYNC: &str = "sync";
const LOGBIAS: &str = "logbias";
const PRIMARYCACHE: &str = "primarycache";
const REFRESERVATION: &str = "refreservation";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";

/// Every parameter there is.
pub const TABLE: [Known; 19] = [
    Known {
        key: POOL,
        values: "names of ZFS pools, 1 to 63 characters each, with commas; required",
        meaning: "the pool that the volume is made in, or several to choose from",
        given: Given::AtCreation,
    },
    Known {
        key: TYPE,
        values: "block (the default); filesystem is not supported yet",
        meaning: "zvol or dataset",
        given: Given::AtCreation,
    },
    Known {
        key: TRANSPORT,
        values: "nvme-tcp (the default)",
        meaning: "how consumers reach a block volume",
        given: Given::AtCreation,
    },
    Known {
        key: ATTACH,
        values: "per-volume (the default) or pooled",
        meaning: "a connection for each volume, or one for all of a storage host",
        given: Given::AtCreation,
    },
    Known {
        key: FS_TYPE,
        values: "ext4 (the default) or xfs",
        meaning: "the filesystem that is made on a block volume",
        given: Given::AtCreation,
    },
    Known {
        key: K8S_FS_TYPE,
        values: "as fsType",
        meaning: "the same, by Kubernetes' name",
        given: Given::AtCreation,
    },
    Known {
        key: BLOCK_SIZE,
        values: "a power of two from 512 to 128k; 16k is the default",
        meaning: "the zvol's volblocksize; capacities are rounded up to it",
        given: Given::AtCreation,
    },
    Known {
        key: BLOCK_SIZE_ALIAS,
        values: "as volBlockSize",
        meaning: "the same, by another name",
        given: Given::AtCreation,
    },
    Known {
        key: MKFS_OPTIONS,
        values: "ext4: -m -i -I -N -O -E; xfs: -m -i -n -s -d -l, as mkfs has them",
        meaning: "how the filesystem is made; of a copy or a raw volume, nothing",
        given: Given::AtCreation,
    },
    Known {
        key: COMPRESSION,
        values: "on, off, lz4, gzip, zstd, zstd-1 to zstd-9, zstd-1-fast to zstd-9-fast",
        meaning: "ZFS compression; inherited from the pool when not given",
        given: Given::AnyTime,
    },
    Known {
        key: PROVISIONING,
        values: "thin (the default) or thick",
        meaning: "whether all of its space is reserved (refreservation)",
        given: Given::AtCreation,
    },
    Known {
        key: RECLAIM_POLICY,
        values: "Delete (the default) or Retain",
        meaning: "whether DeleteVolume destroys the zvol or leaves it",
        given: Given::AtCreation,
    },
    Known {
        key: SYNC,
        values: "standard, always or disabled",
        meaning: "ZFS sync; inherited from the pool when not given",
        given: Given::AnyTime,
    },
    Known {
        key: LOGBIAS,
        values: "latency or throughput",
        meaning: "ZFS logbias; inherited from the pool when not given",
        given: Given::AnyTime,
    },
    Known {
        key: PRIMARYCACHE,
        values: "all, metadata or none",
        meaning: "ZFS primarycache; inherited from the pool when not given",
        given: Given::AnyTime,
    },
    Known {
        key: REFRESERVATION,
        values: "auto (thick) or none (thin)",
        meaning: "reserves all of the volume's space, or gives it back",
        given: Given::Later,
    },
    Known {
        key: CLAIM_NAME,
        values: "a name",
        meaning: "set by the provisioner (--extra-create-metadata); kept with the volume",
        given: Given::AtCreation,
    },
    Known {
        key: CLAIM_NAMESPACE,
        values: "a name",
        meaning: "set by the provisioner; kept with the volume",
        given: Given::AtCreation,
    },
    Known {
        key: PV_NAME,
        values: "a name",
        meaning: "set by the provisioner; not used",
        given: Given::AtCreation,
    },
];

/// The table as text, at most 80 columns.
pub fn help() -> String {
    let mut text = String::from("StorageClass parameters:\n");
    for Known {
        key,
        values,
        meaning,
        ..
    } in TABLE
    {
        text.push_str(&format!("    {key}\n        {meaning}\n        {values}\n"));
    }
    text
}

/// Parameters, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// The pools to choose from, in the order given; at least one.
    pub pools: Vec<String>,
    /// How nodes come to the volume.
    pub attach: AttachMode,
    /// The filesystem, when the parameters say which.
    pub fs_type: Option<FsType>,
    /// `volblocksize` in bytes, when the parameters say it.
    pub block: Option<u64>,
    /// Options of mkfs, one word each; [`mkfs::choices`] knows what they mean for a filesystem.
    pub mkfs_options: Vec<String>,
    /// What can be changed later.
    pub tuning: Tuning,
    /// Which of that the parameters say.
    pub said: Changes,
    /// What DeleteVolume does.
    pub deletion_policy: DeletionPolicy,
    /// The claim that the volume is for.
    pub claim: Option<Claim>,
}

/// Mutable parameters, checked: only what is given is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    compression: Option<String>,
    sync: Option<String>,
    logbias: Option<String>,
    primarycache: Option<String>,
    provisioning: Option<Provisioning>,
}

impl Changes {
    /// Checks a request's mutable parameters.
    pub fn parse(map: &HashMap<String, String>) -> Result<Self, BadParameter> {
        check_map(map, |known| known.given != Given::AtCreation)?;
        let values = Values(map);
        Ok(Self {
            provisioning: values.one(REFRESERVATION, |text| match text {
                "auto" => Some(Provisioning::Thick),
                "none" => Some(Provisioning::Thin),
                _ => None,
            })?,
            ..Self::any_time(&values)?
        })
    }

    /// What can be given at any time.
    fn any_time(values: &Values<'_>) -> Result<Self, BadParameter> {
        Ok(Self {
            compression: values.one(COMPRESSION, compression)?,
            sync: values.one(SYNC, one_of(&["standard", "always", "disabled"]))?,
            logbias: values.one(LOGBIAS, one_of(&["latency", "throughput"]))?,
            primarycache: values.one(PRIMARYCACHE, one_of(&["all", "metadata", "none"]))?,
            provisioning: None,
        })
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a volume with this tuning needs no change.
    pub fn hold_for(&self, tuning: &Tuning) -> bool {
        self.clone().apply(tuning) == *tuning
    }

    /// The tuning with these changes.
    #[must_use]
    pub fn apply(self, to: &Tuning) -> Tuning {
        let now = to.clone();
        Tuning {
            compression: self.compression.unwrap_or(now.compression),
            sync: self.sync.unwrap_or(now.sync),
            logbias: self.logbias.unwrap_or(now.logbias),
            primarycache: self.primarycache.unwrap_or(now.primarycache),
            provisioning: self.provisioning.unwrap_or(now.provisioning),
        }
    }
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

/// Not too long, and nothing in it that is not in the [`TABLE`].
fn check_map(
    map: &HashMap<String, String>,
    fits: impl Fn(&Known) -> bool,
) -> Result<(), BadParameter> {
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAP_MAX {
        return Err(bad(
            "map",
            format!("all together are longer than {MAP_MAX} bytes"),
        ));
    }
    let known: Vec<_> = TABLE
        .iter()
        .filter(|known| fits(known))
        .map(|known| known.key)
        .collect();
    let unknown = map.keys().filter(|key| !known.contains(&key.as_str()));
    let Some(key) = unknown.min() else {
        return Ok(());
    };
    let problem = match TABLE.iter().find(|known| known.key == *key) {
        Some(known) if known.given == Given::AtCreation => "cannot be changed",
        Some(_) => "can only be changed later, in mutable_parameters",
        None => "is not known",
    };
    Err(BadParameter {
        key: shown(key),
        problem: format!("{problem}: known here are {}", known.join(", ")),
    })
}

/// What is wrong with `mkfsOptions` for a filesystem, when something is.
pub fn check_mkfs_options(fs_type: FsType, words: &[String]) -> Result<(), BadParameter> {
    match mkfs::choices(fs_type, words) {
        Ok(_) => Ok(()),
        Err(problem) => Err(bad(MKFS_OPTIONS, problem)),
    }
}

impl Parameters {
    /// Checks a request's parameters. What is not in the [`TABLE`] is refused by its name.
    pub fn parse(map: &HashMap<String, String>) -> Result<Self, BadParameter> {
        check_map(map, |known| known.given != Given::Later)?;
        let given = Values(map);
        let pools = given.one(POOL, pools)?.ok_or_else(|| {
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
        let provisioning = given.one(PROVISIONING, |text| match text {
            "thin" => Some(Provisioning::Thin),
            "thick" => Some(Provisioning::Thick),
            _ => None,
        })?;
        let said = Changes {
            provisioning,
            ..Changes::any_time(&given)?
        };
        Ok(Self {
            pools,
            attach: given.one(ATTACH, AttachMode::parse)?.unwrap_or_default(),
            fs_type: given.either(FS_TYPE, K8S_FS_TYPE, FsType::parse)?,
            block: given.either(BLOCK_SIZE, BLOCK_SIZE_ALIAS, block_size)?,
            mkfs_options: given.one(MKFS_OPTIONS, mkfs::words)?.unwrap_or_default(),
            tuning: said.clone().apply(&Tuning::default()),
            said,
            deletion_policy: given
                .one(RECLAIM_POLICY, |text| match text {
                    "Delete" => Some(DeletionPolicy::Delete),
                    "Retain" => Some(DeletionPolicy::Retain),
                    _ => None,
                })?
                .unwrap_or_default(),
            claim,
        })
    }
}

/// A block size in bytes as the Volume API has it.
pub fn vol_block_size(block: u64) -> String {
    if block < 1024 {
        block.to_string()
    } else {
        format!("{}k", block >> 10)
    }
}

/// A block size of the Volume API in bytes; empty is the default, `None` what is no block size.
pub fn block_bytes(text: &str) -> Option<u64> {
    match text {
        "" => Some(DEFAULT_BLOCK),
        text => block_size(text),
    }
}

struct Values<'a>(&'a HashMap<String, String>);

impl Values<'_> {
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

#[cfg(test)]
mod tests;
