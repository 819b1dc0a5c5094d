//! What a plan is made from: the export, the storage, and why something failed.

use std::sync::OnceLock;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::{Pool, Properties};

use super::plan::source::Source;
use super::snapshots::observe::{Family, Snapshots};
use super::steps::Act;
use crate::model::names::PROPERTY_PREFIX;
use crate::model::volume::{FsType, Placement, reason};

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

/// What the storage host has to tell by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// This zvol has a device now, after a look that found its pool away.
    Zvol(String),
    /// A port can be listened on that could not be before.
    Ports,
    /// A pool came or went, or is in another state.
    Pools,
    /// Somebody has changed datasets of a pool.
    Datasets,
}

/// Where news go, once somebody listens.
#[derive(Debug, Default)]
pub struct Teller(OnceLock<UnboundedSender<News>>);

impl Teller {
    /// From now on news go to `listener`; the first one stays.
    pub fn listen(&self, listener: UnboundedSender<News>) {
        // A second agent on one host is no case.
        drop(self.0.set(listener));
    }

    /// Tells.
    pub fn tell(&self, news: News) {
        if let Some(listener) = self.0.get() {
            // An agent that has ended needs no news.
            drop(listener.send(news));
        }
    }
}

/// All that a plan looks at besides the Volume.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The ports of the target that hosts can be given now, by number.
    pub ports: Vec<u16>,
    /// The volume's subsystem; `None` when there is none.
    pub export: Option<ObservedSubsystem>,
    /// Where hosts find it among others, or are to.
    pub placed: Vec<Placed>,
    /// Pool and dataset; `None` when nobody has looked (a publish needs no look).
    pub storage: Option<Storage>,
    /// What it is made from; `None` when nobody has looked.
    pub source: Option<Source>,
    /// Its zvol's snapshots; `None` when nobody has looked (only a deletion does).
    pub family: Option<Family>,
    /// The moment, RFC 3339.
    pub now: String,
}

/// A place in a subsystem that a node has of this host.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Where, and for whom.
    pub placement: Placement,
    /// The subsystem, with what is at that place and nothing else; `None` when there is none.
    pub export: Option<ObservedSubsystem>,
    /// The zvol behind it, by `BLKZNAME`; `None` when there is no such device, or nobody has looked at the storage.
    pub backing: Option<String>,
    /// Whether no other volume has the place.
    pub is_free: bool,
}

impl Placed {
    /// What is at the place.
    pub fn namespace(&self) -> Option<&ObservedNamespace> {
        self.export.as_ref()?.namespaces.first()
    }
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
    /// Created by us for a raw volume: never formatted.
    Raw,
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
        match text {
            Self::PENDING => Self::Pending,
            Self::RAW => Self::Raw,
            _ => text
                .split_once(':')
                .and_then(|(kind, uuid)| Some(Self::Made(FsType::parse(kind)?, uuid.parse().ok()?)))
                .unwrap_or_else(|| Self::Unknown(text.to_owned())),
        }
    }
}

/// How much of a zvol's space is reserved (`refreservation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// None: thin.
    Nothing,
    /// Less than a full zvol of its size takes.
    Part,
    /// All that a full zvol of its size takes: thick.
    All,
}

/// A dataset, by its properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// `guid`.
    pub guid: u64,
    /// `volsize` in bytes; `None` for what is no zvol.
    pub volsize: Option<u64>,
    /// `volblocksize` in bytes; `None` for what is no zvol.
    pub volblocksize: Option<u64>,
    /// How much of its space is reserved.
    pub reserved: Reserved,
    /// The properties that are set on it, neither inherited nor received.
    pub own: Properties,
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
    /// Out of the properties of `name` and those of them that are its `own`. `full` gives the
    /// `refreservation` of a thick zvol of this size and block size, in bytes.
    pub fn from_properties(
        name: &str,
        properties: &Properties,
        own: Properties,
        full: impl FnOnce(u64, u64) -> Result<u64, Failure>,
    ) -> Result<Self, Failure> {
        let number = |property: &str| match properties.get(property) {
            None => Ok(None),
            Some(text) => text.parse::<u64>().map(Some).map_err(|_| {
                Failure::kernel(format!(
                    "{name}: property {property} is {text:?}, not a number"
                ))
            }),
        };
        let ours = |key: &str| properties.get(&property(key)).cloned();
        let (volsize, volblocksize) = (number("volsize")?, number("volblocksize")?);
        let reserved = match (
            number("refreservation")?.unwrap_or(0),
            volsize,
            volblocksize,
        ) {
            (0, ..) => Reserved::Nothing,
            (bytes, Some(size), Some(block)) if bytes >= full(size, block)? => Reserved::All,
            _ => Reserved::Part,
        };
        Ok(Self {
            guid: number("guid")?
                .ok_or_else(|| Failure::kernel(format!("{name}: ZFS gives no guid")))?,
            volsize,
            volblocksize,
            reserved,
            own,
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
    /// From now on, what the host has to tell goes to `listener`.
    fn listen(&self, listener: UnboundedSender<News>);
    /// The ports of the target that hosts can be given now, by number.
    fn ports(&self) -> Vec<u16>;
    /// Makes the target's ports.
    fn converge_ports(&self) -> Result<(), Failure>;
    /// Keeps the ports that do not listen yet from answering; whether one is kept so now.
    fn hold_ports(&self) -> Result<bool, Failure>;
    /// Lets all ports answer.
    fn open_ports(&self) -> Result<(), Failure>;
    /// The subsystem called `nqn`.
    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure>;
    /// The same with this one namespace alone, however many there are.
    fn export_one(&self, nqn: &str, nsid: u32) -> Result<Option<ObservedSubsystem>, Failure>;
    /// The subsystems that nodes have of this host, with all that is in them. Start-up only.
    fn pooled(&self) -> Result<Vec<ObservedSubsystem>, Failure>;
    /// The zvol behind a namespace, by `BLKZNAME`; `None` when there is no such device.
    fn backing(&self, namespace: &ObservedNamespace) -> Result<Option<String>, Failure>;
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

    /// Metadata takes a tenth.
    fn read(properties: &Properties) -> Result<Dataset, Failure> {
        let full = |size: u64, _| Ok(size + size / 10);
        Dataset::from_properties("tank/csi/block/v", properties, Properties::new(), full)
    }

    #[test]
    fn a_dataset_is_read_from_its_properties() {
        let uuid = Uuid::from_u128(5);
        let dataset = read(&properties(&[
            ("guid", "18446744073709551615"),
            ("volsize", "1073741824"),
            ("origin", "-"),
            (&property("handle"), "v"),
            (&property("format"), &Format::record(FsType::Xfs, uuid)),
        ]))
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
        assert_eq!(Format::parse(Some("none")), Format::Raw);
        for strange in [
            "",
            "Pending",
            "pending ",
            "None",
            "none:",
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
        assert!(read(&properties(&[])).is_err());
        assert!(read(&properties(&[("guid", "x")])).is_err());
        assert!(read(&properties(&[("guid", "1"), ("volsize", "1G")])).is_err());
    }

    #[test]
    fn bug_c_81_thick_is_what_a_full_zvol_takes_not_its_size() {
        let reserved = |bytes: &str| {
            let pairs = [
                ("guid", "1"),
                ("volsize", "1000"),
                ("volblocksize", "10"),
                ("refreservation", bytes),
            ];
            read(&properties(&pairs)).unwrap().reserved
        };
        assert_eq!(reserved("0"), Reserved::Nothing);
        assert_eq!(reserved("1000"), Reserved::Part, "its size is not enough");
        assert_eq!(reserved("1100"), Reserved::All);
        assert_eq!(reserved("2000"), Reserved::All);
    }
}
