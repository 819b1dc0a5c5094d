//! What travels from ControllerPublishVolume to the node: the publish context.

use std::collections::HashMap;
use std::net::SocketAddr;

use uuid::Uuid;

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
    /// The filesystem on it.
    pub fs_type: FsType,
    /// That filesystem's UUID.
    pub filesystem_uuid: Uuid,
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

impl Target {
    /// As a publish context.
    pub fn to_context(&self) -> HashMap<String, String> {
        HashMap::from([
            (NQN.into(), self.nqn.clone()),
            (PORTAL.into(), self.portal.to_string()),
            (NAMESPACE_UUID.into(), self.namespace_uuid.to_string()),
            (
                NGUID.into(),
                Uuid::from_bytes(self.nguid).simple().to_string(),
            ),
            (SIZE_BYTES.into(), self.size_bytes.to_string()),
            (FS_TYPE.into(), self.fs_type.as_str().into()),
            (FILESYSTEM_UUID.into(), self.filesystem_uuid.to_string()),
        ])
    }

    /// Out of a publish context. Every value is hostile until parsed.
    pub fn from_context(context: &HashMap<String, String>) -> Result<Self, BadContext> {
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
            fs_type: parse(context, FS_TYPE, "ext4 or xfs", FsType::parse)?,
            filesystem_uuid: parse(context, FILESYSTEM_UUID, "a UUID", |v| v.parse().ok())?,
        })
    }
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
            fs_type: FsType::Xfs,
            filesystem_uuid: Uuid::from_u128(2),
        }
    }

    #[test]
    fn a_context_comes_back_as_it_went() {
        assert_eq!(Target::from_context(&target().to_context()), Ok(target()));
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
