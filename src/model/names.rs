//! Names: the handle, and everything that derives from it.
//!
//! A handle is a DNS label. It has no pool in it: pools get renamed and move.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Longest handle: a DNS label (RFC 1123).
pub const HANDLE_MAX: usize = 63;
/// Longest CSI string (CSI spec, "Size Limits").
pub const CSI_STRING_MAX: usize = 128;
/// Prefix of every NQN of ours; at most 223 bytes with what follows (NVMe base spec 4.5).
pub const NQN_PREFIX: &str = "nqn.2026-11.uk.co.randomvariable.csi.zfs";
/// Prefix of every ZFS user property of ours.
pub const PROPERTY_PREFIX: &str = "zfs.csi.randomvariable.co.uk";
/// How much of a name that is no label stays readable before the hash.
const READABLE: usize = 44;

/// Whether `text` is a DNS label: 1 to 63 of `a-z`, `0-9` and `-`, no `-` at the ends.
pub fn is_handle(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= HANDLE_MAX
        && bytes
            .iter()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && bytes[0] != b'-'
        && bytes[bytes.len() - 1] != b'-'
}

/// The handle of a CSI name: the name itself when it is a DNS label, else a readable prefix and
/// 18 hex digits of the whole name's SHA-256. The full name is stored and compared, so two names
/// never meet in one volume.
pub fn handle_of(csi_name: &str) -> String {
    if is_handle(csi_name) {
        return csi_name.to_owned();
    }
    let mut readable: String = csi_name
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .take(READABLE)
        .collect();
    readable = readable.trim_matches('-').to_owned();
    if readable.is_empty() {
        readable.push('v');
    }
    let digest = Sha256::digest(csi_name.as_bytes());
    readable.push('-');
    for byte in &digest[..9] {
        let _ = write!(readable, "{byte:02x}");
    }
    readable
}

/// The dataset that holds the block volumes of a pool.
pub fn block_parent(pool: &str) -> String {
    format!("{pool}/csi/block")
}

/// The zvol of a block volume.
pub fn zvol(pool: &str, handle: &str) -> String {
    format!("{pool}/csi/block/{handle}")
}

/// The handle of the zvol of one of our block volumes; `None` for anybody else's dataset.
pub fn handle_of_zvol(dataset: &str) -> Option<&str> {
    let (pool, handle) = dataset.split_once("/csi/block/")?;
    (!pool.is_empty() && !pool.contains('/') && is_handle(handle)).then_some(handle)
}

/// The dataset that holds the zvols of deleted volumes whose snapshots are still wanted.
pub fn deleted_parent(pool: &str) -> String {
    format!("{pool}/csi/deleted")
}

/// Where the zvol of a deleted volume is kept while its snapshots are wanted. With a part of the Volume's uid:
/// the handle may be used again.
pub fn buried(pool: &str, handle: &str, uid: &str) -> String {
    let uid: String = uid.chars().take(8).collect();
    format!("{pool}/csi/deleted/{handle}.{uid}")
}

/// Whether `dataset` is directly below `parent`.
pub fn is_below(dataset: &str, parent: &str) -> bool {
    dataset
        .strip_prefix(parent)
        .and_then(|rest| rest.strip_prefix('/'))
        .is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// The component after the `@` of the snapshot that the volume with this uid is cloned from, when it is made
/// from another volume.
pub fn clone_component(uid: &str) -> String {
    format!("clone.{uid}")
}

/// The dataset and the component of `dataset@component`.
pub fn snapshot_halves(path: &str) -> (&str, &str) {
    path.split_once('@').unwrap_or((path, ""))
}

/// The subsystem of a volume.
pub fn subsystem_nqn(handle: &str) -> String {
    format!("{NQN_PREFIX}:{handle}")
}

/// The handle of one of our subsystems; `None` for anybody else's.
pub fn handle_of_nqn(nqn: &str) -> Option<&str> {
    nqn.strip_prefix(NQN_PREFIX)?
        .strip_prefix(':')
        .filter(|handle| is_handle(handle))
}

/// What the NGUID of a pooled volume's namespace begins with. Its subsystem says nothing of the volume, and a node
/// keeps no files: by this it knows whose a namespace is.
pub type Tag = [u8; 8];

/// The tag of a handle.
pub fn tag(handle: &str) -> Tag {
    let mut tag = Tag::default();
    let digest = Uuid::new_v5(&ours(), format!("handle:{handle}").as_bytes());
    tag.copy_from_slice(&digest.as_bytes()[..8]);
    tag
}

/// The tag of a pooled volume's namespace.
pub fn tag_of(nguid: &[u8; 16]) -> Tag {
    let mut tag = Tag::default();
    tag.copy_from_slice(&nguid[..8]);
    tag
}

/// A subsystem that has the pooled volumes of one storage host for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooled<'a> {
    /// The storage host.
    pub owner: &'a str,
    /// The node.
    pub node: &'a str,
    /// From 0: a subsystem has so many namespaces, and then there is another.
    pub number: u32,
}

impl<'a> Pooled<'a> {
    /// Its NQN: at most 186 bytes.
    pub fn nqn(&self) -> String {
        let Self {
            owner,
            node,
            number,
        } = self;
        format!("{NQN_PREFIX}.pooled:{owner}:{node}:{number}")
    }

    /// The subsystem of this NQN; `None` for any that is not one of these.
    pub fn parse(nqn: &'a str) -> Option<Self> {
        let rest = nqn.strip_prefix(NQN_PREFIX)?.strip_prefix(".pooled:")?;
        let mut parts = rest.split(':');
        let (owner, node, number) = (parts.next()?, parts.next()?, parts.next()?);
        let pooled = Self {
            owner: Some(owner).filter(|owner| is_node_id(owner))?,
            node: Some(node).filter(|node| is_node_id(node))?,
            number: number.parse().ok()?,
        };
        // One subsystem, one name.
        (pooled.nqn() == nqn).then_some(pooled)
    }

    /// Its serial number: 20 hex digits.
    pub fn serial(&self) -> String {
        let mut digits = Uuid::new_v5(&ours(), self.nqn().as_bytes())
            .simple()
            .to_string();
        digits.truncate(20);
        digits
    }
}

/// The host NQN of a node: one for each node ID, never the host's own default (C-40).
pub fn host_nqn(node_id: &str) -> String {
    format!("{NQN_PREFIX}.node:{node_id}")
}

/// The host NQN by which a storage host's agent connects to its own target.
pub fn agent_nqn(node_id: &str) -> String {
    format!("{NQN_PREFIX}.agent:{node_id}")
}

/// The host ID that goes with a host NQN: the kernel refuses one without the other.
pub fn host_id(host_nqn: &str) -> Uuid {
    Uuid::new_v5(&ours(), format!("host:{host_nqn}").as_bytes())
}

/// Whether `text` can be a node ID: 1 to 63 of letters, digits, `.`, `-`, `_`, beginning and ending
/// with a letter or digit (a Kubernetes node name is one).
pub fn is_node_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= 63
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && bytes[0].is_ascii_alphanumeric()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
}

/// What identifies one volume for good: it stays when a target is rebuilt or the pool is imported
/// elsewhere, and differs when a name is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The namespace's UUID.
    pub namespace_uuid: Uuid,
    /// The namespace's NGUID.
    pub nguid: [u8; 16],
    /// The UUID of the filesystem that the agent makes.
    pub filesystem_uuid: Uuid,
}

impl Identity {
    /// Derived from the pool's GUID and the dataset's GUID.
    pub fn new(pool_guid: u64, dataset_guid: u64) -> Self {
        let derive = |what: &str| {
            Uuid::new_v5(
                &ours(),
                format!("{what}:{pool_guid}:{dataset_guid}").as_bytes(),
            )
        };
        Self {
            namespace_uuid: derive("namespace"),
            nguid: *derive("nguid").as_bytes(),
            filesystem_uuid: derive("filesystem"),
        }
    }

    /// As a pooled volume's namespace has it: the handle's [`Tag`] in place of the NGUID's first half.
    #[must_use]
    pub fn tagged(mut self, handle: &str) -> Self {
        let tag = tag(handle);
        self.nguid[..tag.len()].copy_from_slice(&tag);
        self
    }

    /// The NGUID as 32 lower-case hex digits.
    pub fn nguid_hex(&self) -> String {
        Uuid::from_bytes(self.nguid).simple().to_string()
    }

    /// The subsystem's serial number: 20 hex digits.
    pub fn serial(&self) -> String {
        let mut digits = self.namespace_uuid.simple().to_string();
        digits.truncate(20);
        digits
    }
}

/// The name space of all UUIDs that zvolt derives.
fn ours() -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_DNS, PROPERTY_PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_its_own_handle() {
        let name = "pvc-9f4e8c1a-3c75-4d1b-8a57-0d2f6b1f7f10";
        assert_eq!(handle_of(name), name);
    }

    #[test]
    fn any_other_name_keeps_a_readable_part_and_a_hash() {
        let handle = handle_of("My Volume/..");
        assert!(handle.starts_with("my-volume-"), "{handle}");
        assert!(is_handle(&handle));
        assert!(is_handle(&handle_of("///")));
        assert!(is_handle(&handle_of(&"x".repeat(128))));
        assert_eq!(handle_of(&"x".repeat(128)).len(), HANDLE_MAX);
    }

    #[test]
    fn names_that_look_alike_do_not_meet() {
        assert_ne!(handle_of("a.b"), handle_of("a-b"));
        assert_ne!(handle_of("A"), handle_of("a"));
    }

    #[test]
    fn hostile_handles_are_none() {
        for bad in ["", "a/b", "..", "a\0", "a\n", "-a", "a-", "A", "a,b", "a b"] {
            assert!(!is_handle(bad), "{bad:?}");
        }
        assert!(!is_handle(&"a".repeat(64)));
    }

    #[test]
    fn a_deleted_volume_has_a_place_of_its_own() {
        let buried = buried("tank", "pvc-1", "0f9d2c1e-7a52-4e0c");
        assert_eq!(buried, "tank/csi/deleted/pvc-1.0f9d2c1e");
        assert!(is_below(&buried, &deleted_parent("tank")));
        assert!(!is_below(&buried, &block_parent("tank")));
        for other in [
            "tank/csi/deleted",
            "tank/csi/deleted/",
            "tank/csi/deleted/a/b",
            "tank/csi/deleted-a",
        ] {
            assert!(!is_below(other, &deleted_parent("tank")), "{other}");
        }
    }

    #[test]
    fn only_our_own_subsystems_have_a_handle() {
        assert_eq!(handle_of_nqn(&subsystem_nqn("pvc-1")), Some("pvc-1"));
        assert_eq!(handle_of_nqn("nqn.2014-08.org.example:pvc-1"), None);
        assert_eq!(handle_of_nqn(&host_nqn("node0")), None);
    }

    #[test]
    fn only_our_own_zvols_have_a_handle() {
        assert_eq!(handle_of_zvol(&zvol("tank", "pvc-1")), Some("pvc-1"));
        for other in [
            "tank/pvc-1",
            "tank/csi/fs/pvc-1",
            "tank/csi/block",
            "tank/csi/block/",
            "tank/csi/block/pvc-1@snap",
            "tank/csi/block/a/b",
            "tank/backup/csi/block/pvc-1",
            "/csi/block/pvc-1",
        ] {
            assert_eq!(handle_of_zvol(other), None, "{other}");
        }
    }

    /// Images are cloned with their machine-wide host NQN in them; ours comes from the node's ID alone.
    #[test]
    fn bug_c_41_two_nodes_never_have_one_host_nqn_and_a_node_never_has_two() {
        let pair = |node: &str| (host_nqn(node), host_id(&host_nqn(node)));
        assert_eq!(pair("node0"), pair("node0"));
        let mut seen = std::collections::HashSet::new();
        for node in ["node0", "node1", "node-1", "node.1", "Node1", "node11"] {
            let (nqn, id) = pair(node);
            assert!(nqn.len() <= 223 && nqn.ends_with(node), "{nqn}");
            assert!(seen.insert(nqn) && seen.insert(id.to_string()), "{node}");
        }
        assert!(host_nqn(&"n".repeat(63)).len() <= 222);
    }

    #[test]
    fn rule_12_a_pooled_subsystem_is_known_by_its_nqn_and_nothing_else_is_one() {
        let pooled = Pooled {
            owner: "storage0",
            node: "node-1.example",
            number: 12,
        };
        let nqn = pooled.nqn();
        assert_eq!(Pooled::parse(&nqn), Some(pooled));
        assert_eq!(handle_of_nqn(&nqn), None, "it is no volume's");
        assert_eq!(pooled.serial().len(), 20);
        let name = "n".repeat(63);
        let longest = Pooled {
            owner: &name,
            node: &name,
            number: u32::MAX,
        };
        assert_eq!(longest.nqn().len(), 186);
        for bad in [
            subsystem_nqn("pvc-1"),
            host_nqn("node0"),
            format!("{NQN_PREFIX}.pooled:a:b"),
            format!("{NQN_PREFIX}.pooled:a:b:01"),
            format!("{NQN_PREFIX}.pooled:a:b:+1"),
            format!("{NQN_PREFIX}.pooled:a:b:1:2"),
            format!("{NQN_PREFIX}.pooled:../a:b:1"),
            format!("{NQN_PREFIX}.pooled:a::1"),
            format!("x{nqn}"),
        ] {
            assert_eq!(Pooled::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_pooled_namespace_says_whose_it_is() {
        let (plain, tagged) = (Identity::new(1, 2), Identity::new(1, 2).tagged("pvc-1"));
        assert_eq!(tag_of(&tagged.nguid), tag("pvc-1"));
        assert_ne!(tag("pvc-1"), tag("pvc-2"));
        assert_eq!(tagged.namespace_uuid, plain.namespace_uuid);
        assert_eq!(tagged.nguid[8..], plain.nguid[8..], "and which it is");
        assert_ne!(
            tagged.nguid,
            Identity::new(1, 3).tagged("pvc-1").nguid,
            "a name that is used again is another volume"
        );
    }

    #[test]
    fn identities_stay_and_differ() {
        assert_eq!(Identity::new(1, 2), Identity::new(1, 2));
        assert_ne!(
            Identity::new(1, 2).namespace_uuid,
            Identity::new(1, 3).namespace_uuid
        );
        assert_ne!(
            Identity::new(1, 2).namespace_uuid,
            Identity::new(2, 2).namespace_uuid
        );
        assert_eq!(Identity::new(1, 2).serial().len(), 20);
    }
}
