//! The steps of the storage side. Their names are stable.

use uuid::Uuid;
use zvolt_kernel::format::Options;
use zvolt_kernel::nvmet::SubsystemSpec;
use zvolt_kernel::zfs::{CloneSpec, Destroy, ZvolSpec};

use crate::model::volume::{Provisioning, VolumeMode, VolumeStatus, WriteProtect};
use crate::ops;

/// One step of a plan for an object with this status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<S = VolumeStatus> {
    /// Something that the kernel does.
    Act(Act),
    /// Write the object's status.
    Status(Box<S>),
    /// Drop our finalizer, so that the object may vanish.
    Finalize,
}

/// A step that the kernel does. Each converges: done twice, it has been done once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Create the zvol with every property, and its parents when they are missing.
    Create {
        /// What is known before ZFS is asked.
        spec: Box<ZvolSpec>,
        /// Whether ZFS is asked what a full one takes, and all of that is reserved.
        provisioning: Provisioning,
    },
    /// Set one property, and read it back.
    Set {
        /// Full dataset name.
        dataset: String,
        /// The dataset's GUID: another of its name is not touched.
        guid: u64,
        /// ZFS's name of it.
        property: &'static str,
        /// ZFS's text; empty inherits.
        value: String,
    },
    /// Tell the target that the zvol has this size now.
    Revalidate {
        /// Subsystem.
        nqn: String,
        /// Its namespace.
        nsid: u32,
        /// Full dataset name.
        dataset: String,
        /// `volsize` in bytes.
        bytes: u64,
    },
    /// Wait for the zvol's device.
    Appear {
        /// Full dataset name.
        dataset: String,
    },
    /// Make the filesystem, on a zvol that is blank or half made by us.
    Format {
        /// Full dataset name.
        dataset: String,
        /// Which filesystem, and how it is made.
        options: Options,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Record that the filesystem has been made.
    RecordFormat {
        /// Full dataset name.
        dataset: String,
        /// The record.
        record: String,
    },
    /// Make the subsystem, with no host allowed.
    Subsystem(SubsystemSpec),
    /// Make and enable a namespace.
    Namespace(Backing),
    /// Disable a namespace, which cuts off whoever has it and waits for the requests that the target has taken, and
    /// remove it. Others of its subsystem are not touched.
    RemoveNamespace {
        /// Subsystem.
        nqn: String,
        /// Namespace.
        nsid: u32,
    },
    /// Link the subsystem to a port.
    Link {
        /// Subsystem.
        nqn: String,
        /// Port.
        port: u16,
    },
    /// Admit a host.
    AllowHost {
        /// Subsystem.
        nqn: String,
        /// Host NQN.
        host: String,
    },
    /// Take a host out of the allowed ones. It is not cut by that.
    DisallowHost {
        /// Subsystem.
        nqn: String,
        /// Host NQN.
        host: String,
    },
    /// Cut every live controller, by unlinking and linking the ports; hosts that are still allowed come back.
    Cut {
        /// Subsystem.
        nqn: String,
        /// The ports that it is linked to.
        ports: Vec<u16>,
        /// When no other host is admitted: re-make the namespace while the ports are unlinked. Disabling
        /// it waits for the requests that the target has taken and not finished, so that none lands
        /// after the fence. Not done when others share the volume: they would lose the namespace.
        drain: Option<Backing>,
    },
    /// Unlink the subsystem from a port: its controllers on it are cut.
    Unlink {
        /// Subsystem.
        nqn: String,
        /// Port.
        port: u16,
    },
    /// Let the agent itself in, through a loop port.
    LoopOpen {
        /// Subsystem.
        nqn: String,
    },
    /// Connect through the loop port, switch Namespace Write Protect of namespace 1, read it back, disconnect.
    WriteProtect {
        /// Subsystem.
        nqn: String,
        /// `On` or `Off`.
        state: WriteProtect,
    },
    /// Take the loop port and the agent away again.
    LoopClose {
        /// Subsystem.
        nqn: String,
    },
    /// Make sure that nobody on this host uses the zvol any more: it is neither mounted nor held, and no process has
    /// the device of a raw volume open.
    Released {
        /// Full dataset name.
        dataset: String,
        /// How it was handed out.
        mode: VolumeMode,
    },
    /// Mend the ext4 of a volume that nobody uses, when it says that it has errors.
    Mend {
        /// Full dataset name.
        dataset: String,
        /// The filesystem that the volume has.
        uuid: Uuid,
    },
    /// Remove the subsystem, and the entries of these hosts that nothing else admits.
    Teardown {
        /// Subsystem.
        nqn: String,
        /// Hosts that it admits or may have admitted.
        hosts: Vec<String>,
    },
    /// Destroy the zvol, never recursively.
    Destroy {
        /// Full dataset name.
        dataset: String,
    },
    /// Take snapshots of several zvols in one transaction group.
    Snapshot {
        /// `dataset@component` each.
        names: Vec<String>,
        /// User properties of each.
        properties: Vec<(String, String)>,
    },
    /// Create a zvol as a clone, with every property.
    Clone {
        /// What is made.
        spec: Box<CloneSpec>,
        /// `volblocksize` in bytes when all of its space is to be reserved (`refreservation`).
        thick: Option<u64>,
    },
    /// Make a clone the owner of its origin and of what is older.
    Promote {
        /// The dataset that the snapshots are taken from.
        from: String,
        /// The clone.
        clone: String,
    },
    /// Destroy a snapshot.
    DestroySnapshot {
        /// `dataset@component`.
        snapshot: String,
        /// Now, or with its last clone.
        when: Destroy,
    },
    /// Give back the space that is reserved for what a zvol may still be written.
    Unreserve {
        /// Full dataset name.
        dataset: String,
    },
    /// Take a zvol that nobody has open back to its newest snapshot.
    Rollback {
        /// `dataset@component`.
        snapshot: String,
    },
    /// Rename a zvol into the place for deleted volumes, which is made when it is missing.
    Bury {
        /// Full dataset name.
        from: String,
        /// The new one.
        to: String,
    },
}

/// A namespace of a subsystem and the zvol behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// Subsystem.
    pub nqn: String,
    /// Its number there.
    pub nsid: u32,
    /// Full dataset name.
    pub dataset: String,
    /// The namespace's UUID.
    pub uuid: Uuid,
    /// The namespace's NGUID.
    pub nguid: [u8; 16],
}

impl<S> ops::Step for Step<S> {
    fn name(&self) -> &'static str {
        match self {
            Self::Act(act) => act.name(),
            Self::Status(_) => "store.status",
            Self::Finalize => "store.finalize",
        }
    }
}

impl Act {
    /// The stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "zfs.create",
            Self::Set { .. } => "zfs.set",
            Self::Revalidate { .. } => "nvmet.revalidate",
            Self::Appear { .. } => "zvol.appear",
            Self::Format { .. } => "zvol.format",
            Self::RecordFormat { .. } => "zfs.record-format",
            Self::Subsystem(_) => "nvmet.subsystem",
            Self::Namespace(_) => "nvmet.namespace",
            Self::RemoveNamespace { .. } => "nvmet.remove-namespace",
            Self::Link { .. } => "nvmet.link",
            Self::AllowHost { .. } => "nvmet.allow-host",
            Self::DisallowHost { .. } => "nvmet.disallow-host",
            Self::Cut { .. } => "nvmet.cut",
            Self::Unlink { .. } => "nvmet.unlink",
            Self::LoopOpen { .. } => "nvmet.loop-open",
            Self::WriteProtect { .. } => "nvme.write-protect",
            Self::LoopClose { .. } => "nvmet.loop-close",
            Self::Released { .. } => "zvol.released",
            Self::Mend { .. } => "zvol.mend",
            Self::Teardown { .. } => "nvmet.teardown",
            Self::Destroy { .. } => "zfs.destroy",
            Self::Snapshot { .. } => "zfs.snapshot",
            Self::Clone { .. } => "zfs.clone",
            Self::Promote { .. } => "zfs.promote",
            Self::DestroySnapshot { .. } => "zfs.destroy-snapshot",
            Self::Unreserve { .. } => "zfs.unreserve",
            Self::Rollback { .. } => "zfs.rollback",
            Self::Bury { .. } => "zfs.bury",
        }
    }
}
