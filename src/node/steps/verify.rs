//! Rule 3: the right device or none. What can't be read is a refusal.

use std::fs::File;
use std::path::Path;

use zvolt_kernel::block::{self, Access, DevId, Extent};
use zvolt_kernel::nvme;
use zvolt_kernel::probe::{self, FsKind, Superblock};

use crate::model::publish::{self, Target};
use crate::model::volume::FsType;

use super::super::observe::Attach;
use super::super::{Error, ErrorKind, Node};

/// Rule 5: what is there without the journal may be older than what was acknowledged, or torn.
pub(super) const AWAITS_REPLAY: &str = "its journal awaits a replay, which is a write: it was copied while it was \
    mounted, or its last node died; publish it once for writing, then read-only";

/// Which device it must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) volume: &'a str,
    pub(super) target: &'a Target,
    pub(super) attach: Attach,
}

/// The device that it is, held by its node.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) id: DevId,
    pub(super) node: block::Node,
    extent: Extent,
    /// What it holds; none when it is to be handed out raw.
    pub(super) superblock: Option<Superblock>,
}

impl Wanted<'_> {
    /// The device itself, whatever its name is by now.
    pub(super) fn verify(&self, node: &Node, id: DevId) -> Result<Verified, Error> {
        let roots = &node.config.roots;
        let found = block::node(&roots.sys, &roots.dev, id)?;
        let file = found.open()?;
        let extent = extent(node, id)?;
        match self.attach {
            Attach::Fabric => {
                self.is_the_namespace(node, &found.path, id)?;
                self.is_fit(&found.path, self.wrong_access(extent))?;
            }
            // Whether it takes writes, a later step sets.
            Attach::Local => self.is_the_zvol(&found.path, &file)?,
        }
        self.is_fit(&found.path, self.too_small(extent))?;
        let superblock = match self.target.content {
            publish::Content::Filesystem { .. } => Some(self.filesystem(&found.path, &file)?),
            publish::Content::Raw => None,
        };
        Ok(Verified {
            id,
            node: found,
            extent,
            superblock,
        })
    }

    fn is_the_namespace(&self, node: &Node, path: &Path, id: DevId) -> Result<(), Error> {
        let (sys, target) = (&node.config.roots.sys, self.target);
        let block = block::kernel_name(sys, id)?;
        let namespace = nvme::namespace(sys, &block)?;
        let subsystem = nvme::subsystem_of(sys, &block)?;
        let (Some(namespace), Some(subsystem)) = (namespace, subsystem) else {
            return Err(self.refuse(path, "it is gone again"));
        };
        if subsystem.nqn != target.nqn {
            return Err(self.refuse(path, &format!("it belongs to subsystem {}", subsystem.nqn)));
        }
        if namespace.uuid != Some(target.namespace_uuid) || namespace.nguid != Some(target.nguid) {
            return Err(self.refuse(
                path,
                &format!(
                    "its UUID is {:?} and its NGUID {:?}; expected {} and {:?}",
                    namespace.uuid, namespace.nguid, target.namespace_uuid, target.nguid
                ),
            ));
        }
        let controllers = node
            .devices
            .read_controllers(subsystem.controllers, &target.nqn)?;
        if controllers.iter().any(|c| c.state == "live") {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{}: no controller of {} is live",
                path.display(),
                target.nqn
            ),
        ))
    }

    fn is_the_zvol(&self, path: &Path, file: &File) -> Result<(), Error> {
        let dataset = block::zvol_name(file, path)?;
        if dataset == self.target.dataset {
            return Ok(());
        }
        Err(self.refuse(path, &format!("it is the zvol {dataset}")))
    }

    fn is_fit(&self, path: &Path, problem: Option<String>) -> Result<(), Error> {
        problem.map_or(Ok(()), |problem| Err(self.refuse(path, &problem)))
    }

    fn too_small(&self, found: Extent) -> Option<String> {
        let (bytes, wanted) = (found.bytes, self.target.size_bytes);
        (bytes < wanted).then(|| format!("it has {bytes} bytes; expected {wanted}"))
    }

    /// Rule 5: what may only be read refuses writes by itself, not only by the mount above it.
    fn wrong_access(&self, found: Extent) -> Option<String> {
        match (found.access, self.target.read_only.is_set()) {
            (Access::ReadOnly, true) | (Access::ReadWrite, false) => None,
            (Access::ReadWrite, true) => Some(match self.attach {
                Attach::Fabric => format!(
                    "it takes writes, though this node may only read it: the target has not set Namespace Write \
                     Protect; on {}, see the agent's log",
                    self.target.owner_node
                ),
                Attach::Local => "it takes writes, though this node may only read it: unstage the volume, then stage \
                                  it again"
                    .into(),
            }),
            (Access::ReadOnly, false) => Some(match self.attach {
                Attach::Fabric => format!(
                    "it refuses writes, though this node may write: the target still has Namespace Write Protect set; \
                     on {}, see the agent's log",
                    self.target.owner_node
                ),
                Attach::Local => format!(
                    "it refuses writes, though this node may write: see zfs get readonly {}",
                    self.target.dataset
                ),
            }),
        }
    }

    /// What keeps an attached device from being what it must be, and may still change: its size, its access.
    pub(super) fn unsettled(&self, node: &Node, id: DevId) -> Result<Option<String>, Error> {
        let found = extent(node, id)?;
        Ok(self.too_small(found).or_else(|| self.wrong_access(found)))
    }

    /// Rule 5 for a device that is to be handed out itself, also where a step of this machine has set its access.
    pub(super) fn has_its_access(&self, verified: &Verified) -> Result<(), Error> {
        self.is_fit(&verified.node.path, self.wrong_access(verified.extent))
    }

    fn filesystem(&self, path: &Path, file: &File) -> Result<Superblock, Error> {
        let (fs_type, uuid) = self.expected_filesystem()?;
        let found = match probe::superblock(file, path)? {
            probe::Content::Filesystem(superblock) => superblock,
            probe::Content::Zeros => {
                return Err(self.refuse(
                    path,
                    "it has no filesystem (all zeros), and a node never makes one",
                ));
            }
            probe::Content::Foreign(what) => {
                return Err(self.refuse(path, &format!("it holds {what}")));
            }
        };
        if found.kind != kind_of(fs_type) || found.uuid != uuid {
            return Err(self.refuse(
                path,
                &format!(
                    "it holds {} {}; expected {} {}",
                    found.kind.name(),
                    found.uuid,
                    fs_type.as_str(),
                    uuid
                ),
            ));
        }
        if found.has_errors {
            return Err(self.refuse(
                path,
                "its superblock says that the filesystem has errors: unpublish the volume everywhere, then run \
                 e2fsck -p on its zvol on the storage host",
            ));
        }
        Ok(found)
    }

    pub(super) fn expected_filesystem(&self) -> Result<(FsType, uuid::Uuid), Error> {
        match self.target.content {
            publish::Content::Filesystem { fs_type, uuid } => Ok((fs_type, uuid)),
            publish::Content::Raw => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a raw device has no filesystem to mount",
            )),
        }
    }

    pub(super) fn refuse(&self, path: &Path, why: &str) -> Error {
        Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "{} is not used as volume {}: {why}",
                path.display(),
                self.volume
            ),
        )
    }
}

fn extent(node: &Node, id: DevId) -> Result<Extent, Error> {
    let sys = &node.config.roots.sys;
    let name = block::kernel_name(sys, id)?;
    block::extent(sys, &name)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            format!("/dev/{name} is gone again: call again"),
        )
    })
}

fn kind_of(fs_type: FsType) -> FsKind {
    match fs_type {
        FsType::Ext4 => FsKind::Ext4,
        FsType::Xfs => FsKind::Xfs,
    }
}
