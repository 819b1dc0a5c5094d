//! What a plan is made from: the export, the storage, and why something failed.

use std::time::Instant;

use uuid::Uuid;
use zvolt_kernel::nvmet::ObservedSubsystem;
use zvolt_kernel::zfs::{Pool, Properties};

use super::plan::source::Source;
use super::snapshots::observe::{Family, Snapshots};
use super::steps::Act;
use crate::model::names::PROPERTY_PREFIX;
use crate::model::volume::{FsType, reason};

/// Whether trying again can help without somebody doing something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A person must act: the volume's state is Error.
    Final,
    /// The next try may succeed.
    Retry,
}

/// Why a volume is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// One of [`reason`].
    pub reason: &'static str,
    /// For people, with what to do.
    pub message: String,
    /// Whether trying again can help.
    pub class: Class,
}

impl Failure {
    /// A failure that a person must mend.
    pub fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            class: Class::Final,
        }
    }

    /// A failure that may pass.
    pub fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            class: Class::Retry,
        }
    }

    /// A system call that failed.
    pub fn kernel(error: impl std::fmt::Display) -> Self {
        Self::passing(reason::KERNEL, error.to_string())
    }
}

/// All that a plan looks at besides the Volume.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The volume's subsystem; `None` when there is none.
    pub export: Option<ObservedSubsystem>,
    /// Pool and dataset; `None` when nobody has looked (a publish needs no look).
    pub storage: Option<Storage>,
    /// What it is made from; `None` when nobody has looked.
    pub source: Option<Source>,
    /// Its zvol's snapshots; `None` when nobody has looked (only a deletion does).
    pub family: Option<Family>,
    /// The moment, RFC 3339.
    pub now: String,
}

/// Pool and dataset of a volume.
#[derive(Debug, Clone, Default)]
pub struct Storage {
    /// The pool; `None` when none of that name is imported.
    pub pool: Option<Pool>,
    /// The dataset; `None` when it is not there. Not looked for in a pool that is suspended.
    pub dataset: Option<Dataset>,
    /// The zvol behind namespace 1 of the export, by `BLKZNAME`; `None` when there is no such device.
    pub backing: Option<String>,
}

/// What a zvol's format record says (user property `…:format`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// No record: somebody else's, and never formatted.
    Absent,
    /// Created by us, not yet formatted.
    Pending,
    /// Formatted, or brought along with its filesystem.
    Made(FsType, Uuid),
    /// Nothing that this version writes.
    Unknown(String),
}

impl Format {
    /// The record of a zvol that has just been created.
    pub const PENDING: &'static str = "pending";
    /// The record of a zvol that is handed out as it is.
    pub const RAW: &'static str = "none";

    /// The record of a filesystem.
    pub fn record(kind: FsType, uuid: Uuid) -> String {
        format!("{}:{uuid}", kind.as_str())
    }

    fn parse(record: Option<&str>) -> Self {
        let Some(text) = record else {
            return Self::Absent;
        };
        if text == Self::PENDING {
            return Self::Pending;
        }
        text.split_once(':')
            .and_then(|(kind, uuid)| Some(Self::Made(FsType::parse(kind)?, uuid.parse().ok()?)))
            .unwrap_or_else(|| Self::Unknown(text.to_owned()))
    }
}

/// A dataset, by its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// `guid`.
    pub guid: u64,
    /// `volsize` in bytes; `None` for what is no zvol.
    pub volsize: Option<u64>,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
    /// The handle that was written at its creation.
    pub handle: Option<String>,
    /// The Volume's uid that was written at its creation.
    pub uid: Option<String>,
    /// Its format record.
    pub format: Format,
}

impl Dataset {
    /// Out of the properties of `name`.
    pub fn from_properties(name: &str, properties: &Properties) -> Result<Self, Failure> {
        let number = |property: &str| match properties.get(property) {
            None => Ok(None),
            Some(text) => text.parse::<u64>().map(Some).map_err(|_| {
                Failure::kernel(format!(
                    "{name}: property {property} is {text:?}, not a number"
                ))
            }),
        };
        let ours = |key: &str| properties.get(&property(key)).cloned();
        Ok(Self {
            guid: number("guid")?
                .ok_or_else(|| Failure::kernel(format!("{name}: ZFS gives no guid")))?,
            volsize: number("volsize")?,
            origin: properties
                .get("origin")
                .filter(|o| !o.is_empty() && *o != "-")
                .cloned(),
            handle: ours("handle"),
            uid: ours("uid"),
            format: Format::parse(ours("format").as_deref()),
        })
    }
}

/// The user property of ours called `key`.
pub fn property(key: &str) -> String {
    format!("{PROPERTY_PREFIX}:{key}")
}

/// The storage host's kernel. All calls block.
pub trait Host: Snapshots {
    /// Makes the target's ports.
    fn converge_ports(&self) -> Result<(), Failure>;
    /// The subsystem called `nqn`.
    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure>;
    /// Pool and dataset, and what is behind the export.
    fn storage(
        &self,
        pool: &str,
        dataset: &str,
        export: Option<&ObservedSubsystem>,
    ) -> Result<Storage, Failure>;
    /// Does one step; every wait inside it ends by `deadline`.
    fn act(&self, act: &Act, deadline: Instant) -> Result<(), Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(pairs: &[(&str, &str)]) -> Properties {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn a_dataset_is_read_from_its_properties() {
        let uuid = Uuid::from_u128(5);
        let dataset = Dataset::from_properties(
            "tank/csi/block/v",
            &properties(&[
                ("guid", "18446744073709551615"),
                ("volsize", "1073741824"),
                ("origin", "-"),
                (&property("handle"), "v"),
                (&property("format"), &Format::record(FsType::Xfs, uuid)),
            ]),
        )
        .unwrap();
        assert_eq!(dataset.guid, u64::MAX);
        assert_eq!(dataset.volsize, Some(1 << 30));
        assert_eq!(
            (dataset.origin, dataset.handle.as_deref()),
            (None, Some("v"))
        );
        assert_eq!(dataset.format, Format::Made(FsType::Xfs, uuid));
    }

    #[test]
    fn rule_01_a_record_that_cannot_be_read_is_not_pending() {
        assert_eq!(Format::parse(None), Format::Absent);
        assert_eq!(Format::parse(Some("pending")), Format::Pending);
        for strange in [
            "",
            "Pending",
            "pending ",
            "btrfs:1",
            "ext4:",
            "ext4:nonsense",
        ] {
            assert_eq!(
                Format::parse(Some(strange)),
                Format::Unknown(strange.into()),
                "{strange:?}"
            );
        }
    }

    #[test]
    fn numbers_that_are_none_are_errors() {
        assert!(Dataset::from_properties("v", &properties(&[])).is_err());
        assert!(Dataset::from_properties("v", &properties(&[("guid", "x")])).is_err());
        assert!(
            Dataset::from_properties("v", &properties(&[("guid", "1"), ("volsize", "1G")]))
                .is_err()
        );
    }
}
