//! Who may use a volume at the same time, and whether they may write (rules 4 and 5).

use serde::{Deserialize, Serialize};

/// CSI's access modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// One node writes; on it, any number of publishes. Its older name of SINGLE_NODE_MULTI_WRITER.
    #[default]
    SingleNodeWriter,
    /// One node reads.
    SingleNodeReaderOnly,
    /// Many nodes read.
    MultiNodeReaderOnly,
    /// One node writes, others read.
    MultiNodeSingleWriter,
    /// Many nodes write.
    MultiNodeMultiWriter,
    /// One node writes, with one publish.
    SingleNodeSingleWriter,
    /// One node writes, with any number of publishes.
    SingleNodeMultiWriter,
}

const NAMES: [(AccessMode, &str); 7] = [
    (AccessMode::SingleNodeWriter, "SINGLE_NODE_WRITER"),
    (AccessMode::SingleNodeReaderOnly, "SINGLE_NODE_READER_ONLY"),
    (AccessMode::MultiNodeReaderOnly, "MULTI_NODE_READER_ONLY"),
    (
        AccessMode::MultiNodeSingleWriter,
        "MULTI_NODE_SINGLE_WRITER",
    ),
    (AccessMode::MultiNodeMultiWriter, "MULTI_NODE_MULTI_WRITER"),
    (
        AccessMode::SingleNodeSingleWriter,
        "SINGLE_NODE_SINGLE_WRITER",
    ),
    (
        AccessMode::SingleNodeMultiWriter,
        "SINGLE_NODE_MULTI_WRITER",
    ),
];

impl AccessMode {
    /// CSI's name of it.
    pub fn as_str(self) -> &'static str {
        NAMES
            .iter()
            .find(|(mode, _)| *mode == self)
            .map_or("UNKNOWN", |(_, name)| name)
    }

    /// The mode that CSI calls `name`.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(mode, _)| *mode)
    }

    /// The same mode by its newest name: SINGLE_NODE_WRITER was what SINGLE_NODE_MULTI_WRITER is.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::SingleNodeWriter => Self::SingleNodeMultiWriter,
            other => other,
        }
    }

    /// Whether nobody may write.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether several nodes may have the volume.
    pub fn is_shared(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
    }
}

/// Whether a node may have the volume as `wanted` while another has it as `held`.
pub fn may_share(held: (AccessMode, ReadOnly), wanted: (AccessMode, ReadOnly)) -> bool {
    let both = [held, wanted];
    both.iter().all(|(mode, _)| mode.is_shared())
        && (both
            .iter()
            .all(|(_, read_only)| *read_only == ReadOnly::Yes)
            || both
                .iter()
                .all(|(mode, _)| *mode == AccessMode::MultiNodeMultiWriter))
}

/// Whether a node may write, from the access mode and the caller's `readonly`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// It may not.
    Yes,
    /// It may.
    No,
}

impl ReadOnly {
    /// From the access mode and the caller's flag.
    pub fn of(mode: AccessMode, readonly: bool) -> Self {
        match readonly || mode.is_read_only() {
            true => Self::Yes,
            false => Self::No,
        }
    }

    /// As a flag.
    pub fn is_set(self) -> bool {
        self == Self::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        for (mode, name) in NAMES {
            assert_eq!((AccessMode::parse(name), mode.as_str()), (Some(mode), name));
        }
        assert_eq!(AccessMode::parse("UNKNOWN"), None);
    }

    #[test]
    fn rule_04_nobody_shares_a_volume_with_a_single_writer() {
        for (mode, _) in NAMES {
            for read_only in [ReadOnly::Yes, ReadOnly::No] {
                let single = (AccessMode::SingleNodeWriter, ReadOnly::No);
                assert!(!may_share(single, (mode, read_only)), "{mode:?}");
                assert!(!may_share((mode, read_only), single), "{mode:?}");
            }
        }
        let reader = (AccessMode::MultiNodeReaderOnly, ReadOnly::Yes);
        let writer = (AccessMode::MultiNodeMultiWriter, ReadOnly::No);
        assert!(may_share(reader, reader) && may_share(writer, writer));
        assert!(!may_share(reader, writer) && !may_share(writer, reader));
    }
}
