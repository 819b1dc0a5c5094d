//! Whose a namespace is.

use std::fmt;

use zvolt_kernel::nvme;

use crate::model::names::{self, Pooled, Tag};

/// The volume that a device is of, as far as the device says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The volume of this handle: the subsystem, or the zvol, is its own.
    Handle(String),
    /// The pooled volume whose handle has this tag: its subsystem is for many.
    Tag(Tag),
}

impl Owner {
    /// By a namespace and the NQN of its subsystem; `None` for what is no volume of ours.
    pub(super) fn of(namespace: &nvme::Namespace, nqn: &str) -> Option<Self> {
        if let Some(handle) = names::handle_of_nqn(nqn) {
            return Some(Self::Handle(handle.to_owned()));
        }
        Pooled::parse(nqn)?;
        namespace.nguid.as_ref().map(names::tag_of).map(Self::Tag)
    }

    /// All that the devices of a volume may say.
    pub(super) fn all(handle: &str) -> [Self; 2] {
        [
            Self::Handle(handle.to_owned()),
            Self::Tag(names::tag(handle)),
        ]
    }

    /// Whether it is the volume of this handle.
    pub(super) fn is(&self, handle: &str) -> bool {
        match self {
            Self::Handle(own) => own == handle,
            Self::Tag(tag) => *tag == names::tag(handle),
        }
    }
}

/// For messages.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handle(handle) => write!(f, "volume {handle}"),
            Self::Tag(tag) => {
                f.write_str("the pooled volume of tag ")?;
                tag.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_03_a_namespace_is_its_subsystems_volume_or_the_one_of_its_tag() {
        let pooled = Pooled {
            owner: "storage0",
            node: "node0",
            number: 0,
        }
        .nqn();
        let namespace = |nguid| nvme::Namespace {
            block: "nvme0n7".into(),
            uuid: None,
            nguid,
            nsid: 700,
        };
        let tagged = namespace(Some(names::Identity::new(1, 2).tagged("pvc-1").nguid));
        let of_tag = Owner::of(&tagged, &pooled).unwrap();
        let of_nqn = Owner::of(&namespace(None), &names::subsystem_nqn("pvc-1")).unwrap();
        for owner in [&of_tag, &of_nqn] {
            assert!(owner.is("pvc-1") && !owner.is("pvc-2"), "{owner}");
            assert!(Owner::all("pvc-1").contains(owner));
        }
        assert_eq!(Owner::of(&namespace(None), &pooled), None, "nobody's");
        assert_eq!(Owner::of(&tagged, "nqn.2014-08.org.example:x"), None);
    }
}
