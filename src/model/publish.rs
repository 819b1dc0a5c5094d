//! What travels from ControllerPublishVolume to the node: the publish context.

use std::collections::HashMap;
use std::net::SocketAddr;

use uuid::Uuid;

use super::access::ReadOnly;
use super::names::is_node_id;
use super::volume::FsType;

/// Where a volume is and what must be found there. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Subsystem NQN.
    pub nqn: String,
    /// Portal.
    pub portal: SocketAddr,
    /// The namespace's UUID.
    pub namespace_uuid: Uuid,
    /// The namespace's NGUID.
    pub nguid: [u8; 16],
    /// The least size that the device must have, in bytes.
    pub size_bytes: u64,
    /// What is on it.
    pub content: Content,
    /// Whether this node may write.
    pub read_only: ReadOnly,
    /// The storage node that has the zvol: on it, the zvol itself is used.
    pub owner_node: String,
    /// The zvol's full dataset name.
    pub dataset: String,
}

/// What is on a volume's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A filesystem, which is mounted.
    Filesystem {
        /// Its type.
        fs_type: FsType,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Whatever the workload puts there: the device itself is handed out.
    Raw,
}

/// What is wrong with a publish context.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("publish_context {key:?} {problem}: ControllerPublishVolume of this driver sets it")]
pub struct BadContext {
    /// The key.
    pub key: &'static str,
    /// `is missing` or what its value is not.
    pub problem: String,
}

const NQN: &str = "nqn";
const PORTAL: &str = "portal";
const NAMESPACE_UUID: &str = "namespaceUUID";
const NGUID: &str = "nguid";
const SIZE_BYTES: &str = "sizeBytes";
const FS_TYPE: &str = "fsType";
const FILESYSTEM_UUID: &str = "filesystemUUID";
const VOLUME_MODE: &str = "volumeMode";
const READ_ONLY: &str = "readOnly";
const OWNER_NODE: &str = "ownerNode";
const DATASET: &str = "dataset";

impl Target {
    /// As a publish context.
    pub fn to_context(&self) -> HashMap<String, String> {
        let mut context = HashMap::from([
            (NQN.into(), self.nqn.clone()),
            (PORTAL.into(), self.portal.to_string()),
            (NAMESPACE_UUID.into(), self.namespace_uuid.to_string()),
            (
                NGUID.into(),
                Uuid::from_bytes(self.nguid).simple().to_string(),
            ),
            (SIZE_BYTES.into(), self.size_bytes.to_string()),
            (READ_ONLY.into(), self.read_only.is_set().to_string()),
            (OWNER_NODE.into(), self.owner_node.clone()),
            (DATASET.into(), self.dataset.clone()),
        ]);
        let mode = match self.content {
            Content::Filesystem { fs_type, uuid } => {
                context.insert(FS_TYPE.into(), fs_type.as_str().into());
                context.insert(FILESYSTEM_UUID.into(), uuid.to_string());
                "Filesystem"
            }
            Content::Raw => "Block",
        };
        context.insert(VOLUME_MODE.into(), mode.into());
        context
    }

    /// Out of a publish context. Every value is hostile until parsed.
    pub fn from_context(context: &HashMap<String, String>) -> Result<Self, BadContext> {
        let is_block = parse(
            context,
            VOLUME_MODE,
            "Filesystem or Block",
            |mode| match mode {
                "Filesystem" => Some(false),
                "Block" => Some(true),
                _ => None,
            },
        )?;
        let content = if is_block {
            Content::Raw
        } else {
            Content::Filesystem {
                fs_type: parse(context, FS_TYPE, "ext4 or xfs", FsType::parse)?,
                uuid: parse(context, FILESYSTEM_UUID, "a UUID", |v| v.parse().ok())?,
            }
        };
        Ok(Self {
            nqn: parse(context, NQN, "an NQN of at most 223 bytes", |v| {
                (v.starts_with("nqn.")
                    && v.len() <= 223
                    && v.bytes()
                        .all(|b| b.is_ascii_graphic() && b != b',' && b != b'/'))
                .then(|| v.to_owned())
            })?,
            portal: parse(context, PORTAL, "address:port", |v| v.parse().ok())?,
            namespace_uuid: parse(context, NAMESPACE_UUID, "a UUID", |v| v.parse().ok())?,
            nguid: parse(context, NGUID, "32 hex digits", |v| {
                Uuid::try_parse(v).ok().map(Uuid::into_bytes)
            })?,
            size_bytes: parse(context, SIZE_BYTES, "a number of bytes", |v| v.parse().ok())?,
            content,
            read_only: parse(context, READ_ONLY, "true or false", |v| match v {
                "true" => Some(ReadOnly::Yes),
                "false" => Some(ReadOnly::No),
                _ => None,
            })?,
            owner_node: parse(context, OWNER_NODE, "a node ID", |v| {
                is_node_id(v).then(|| v.to_owned())
            })?,
            dataset: parse(context, DATASET, "a dataset", |v| {
                is_dataset(v).then(|| v.to_owned())
            })?,
        })
    }
}

/// A zvol's full name, as this driver makes them: it is compared with what the kernel says, never
/// made into a path.
fn is_dataset(text: &str) -> bool {
    text.len() < 256
        && text.contains('/')
        && text.split('/').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
        })
}

fn parse<T>(
    context: &HashMap<String, String>,
    key: &'static str,
    form: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, BadContext> {
    let Some(value) = context.get(key) else {
        return Err(BadContext {
            key,
            problem: "is missing".into(),
        });
    };
    read(value).ok_or_else(|| BadContext {
        key,
        problem: format!("is {value:?}, not {form}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            nqn: super::super::names::subsystem_nqn("pvc-1"),
            portal: "[fd00::1]:4420".parse().unwrap(),
            namespace_uuid: Uuid::from_u128(1),
            nguid: [7; 16],
            size_bytes: 1 << 30,
            content: Content::Filesystem {
                fs_type: FsType::Xfs,
                uuid: Uuid::from_u128(2),
            },
            read_only: ReadOnly::No,
            owner_node: "storage0".into(),
            dataset: "tank/csi/block/pvc-1".into(),
        }
    }

    #[test]
    fn a_context_comes_back_as_it_went() {
        let raw = Target {
            content: Content::Raw,
            read_only: ReadOnly::Yes,
            ..target()
        };
        for target in [target(), raw] {
            assert_eq!(Target::from_context(&target.to_context()), Ok(target));
        }
    }

    #[test]
    fn hostile_values_are_named() {
        for (key, value) in [
            (NQN, "nqn.x,hostnqn=other"),
            (NQN, "nqn.x\n"),
            (PORTAL, "10.0.0.1"),
            (NGUID, "77"),
            (SIZE_BYTES, "-1"),
            (FS_TYPE, "btrfs"),
            (VOLUME_MODE, "Raw"),
            (READ_ONLY, "yes"),
            (OWNER_NODE, "../x"),
            (DATASET, "tank"),
            (DATASET, "tank//x"),
            (DATASET, "tank/a b"),
        ] {
            let mut context = target().to_context();
            context.insert(key.into(), value.into());
            assert_eq!(
                Target::from_context(&context).unwrap_err().key,
                key,
                "{value}"
            );
        }
        let mut context = target().to_context();
        context.remove(PORTAL);
        assert_eq!(
            Target::from_context(&context).unwrap_err().problem,
            "is missing"
        );
    }
}
