//! What the kernel says now: the first move of every node call.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use zvolt_kernel::block::{self, DevId};
use zvolt_kernel::mount::{self, Access, Kind, Shown};
use zvolt_kernel::nvme;

use crate::model::access::AccessMode;
use crate::model::names::{self, Pooled};
use crate::model::publish::{Content, Target};

use super::devices::Devices;
use super::owner::Owner;
use super::paths::Place;
use super::zvols::Zvol;
use super::{Error, PublishRequest, StageRequest};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum At {
    /// There is no such entry.
    Nothing,
    /// A directory with nothing mounted on it.
    Directory,
    /// A plain file without a byte, with nothing mounted on it.
    EmptyFile,
    /// Something else with nothing mounted on it.
    File,
    /// A mounted filesystem.
    Mount(Mounted),
    /// The node of a block device, bound.
    Device(Mounted),
}

/// What is mounted, or bound, at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The device.
    pub(super) dev: DevId,
    /// What that device is.
    pub(super) source: Source,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// One of our volumes.
    Volume(Volume),
    /// A block device that is gone, or that nothing leads to any more: the mount has outlived it.
    Gone,
    /// Anything else.
    Foreign,
}

/// One of our volumes on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    /// Whose it is.
    pub(super) owner: Owner,
    /// Kernel name of the block device.
    pub(super) block: String,
    /// How it got here.
    pub(super) link: Link,
}

/// How a volume is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// As a namespace of its subsystem.
    Fabric {
        /// The namespace.
        namespace: nvme::Namespace,
        /// Our controllers of the subsystem.
        controllers: Vec<nvme::Controller>,
    },
    /// As the zvol itself, which is on this machine.
    Local {
        /// The zvol's dataset.
        dataset: String,
    },
}

impl Volume {
    /// Whether this is the very volume that a publish context means, attached the way that it says.
    pub(super) fn is(&self, handle: &str, target: &Target, attach: Attach) -> bool {
        self.owner.is(handle)
            && match &self.link {
                Link::Fabric { namespace, .. } => {
                    attach == Attach::Fabric && namespace.uuid == Some(target.namespace_uuid)
                }
                Link::Local { dataset } => attach == Attach::Local && *dataset == target.dataset,
            }
    }

    /// Whether its controllers have other volumes besides: they outlive it.
    fn is_pooled(&self) -> bool {
        matches!(self.owner, Owner::Tag(_))
    }

    /// Whether its device answers: a controller is live, or there is no network in between.
    pub(super) fn is_live(&self) -> bool {
        match &self.link {
            Link::Fabric { controllers, .. } => controllers.iter().any(|c| c.state == "live"),
            Link::Local { .. } => true,
        }
    }
}

/// How a volume is to be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attach {
    /// By NVMe/TCP.
    Fabric,
    /// This node has the zvol.
    Local,
}

/// For stage.
#[derive(Debug)]
pub(super) struct StageState {
    pub(super) attach: Attach,
    pub(super) staging: At,
    /// Whether the staged mount allows writes; meaningless where nothing is mounted.
    pub(super) staging_access: Access,
    pub(super) controllers: Vec<nvme::Controller>,
    /// Where else the staged filesystem is mounted. Only looked for when its device is gone.
    pub(super) users: Vec<PathBuf>,
}

/// For unstage.
#[derive(Debug)]
pub(super) struct UnstageState {
    pub(super) staging: At,
    /// Those that have nothing but the volume.
    pub(super) controllers: Vec<nvme::Controller>,
    /// Whether a controller that stays has the volume.
    pub(super) pooled: bool,
    /// Our namespaces that something still holds open exclusively, though nothing is mounted on the staging path.
    pub(super) held: Vec<String>,
    /// The volume's zvol, when it is on this machine, and whether it takes writes.
    pub(super) zvol: Option<(Zvol, Access)>,
}

/// For publish.
#[derive(Debug)]
pub(super) struct PublishState {
    pub(super) attach: Attach,
    pub(super) staging: At,
    /// Whether the staged mount allows writes; meaningless where nothing is mounted.
    pub(super) staging_access: Access,
    pub(super) target: At,
    /// Whether the target's mount allows writes; meaningless where nothing is mounted.
    pub(super) target_access: Access,
    /// The device, when it is to be published itself.
    pub(super) device: Option<DevId>,
    /// Where the volume is published already. Only looked for when that may be one place.
    pub(super) users: Vec<PathBuf>,
}

/// For expand.
#[derive(Debug)]
pub(super) struct ExpandState {
    pub(super) at: At,
    /// Whether the mount allows writes; meaningless where nothing is mounted.
    pub(super) access: Access,
    /// The volume, when it is there.
    pub(super) volume: Option<Volume>,
}

pub(super) struct Observer<'a> {
    pub(super) node_id: &'a str,
    pub(super) sys: &'a Path,
    pub(super) dev: &'a Path,
    pub(super) proc: &'a Path,
    pub(super) devices: &'a Devices,
}

impl Observer<'_> {
    pub(super) fn stage(
        &self,
        request: &StageRequest,
        staging: &Place,
    ) -> Result<StageState, Error> {
        let at = self.at(staging)?;
        let users = match &at {
            At::Mount(mounted) if mounted.source == Source::Gone => {
                self.other_mounts(Shown::Filesystem(mounted.dev), Some(staging))?
            }
            _ => Vec::new(),
        };
        Ok(StageState {
            attach: self.attach(&request.target),
            staging_access: access_of(&at, staging)?,
            staging: at,
            controllers: self.devices.controllers(&request.target.nqn)?,
            users,
        })
    }

    pub(super) fn unstage(
        &self,
        volume: &str,
        staging: Option<&Place>,
    ) -> Result<UnstageState, Error> {
        let staging = match staging {
            Some(place) => self.at(place)?,
            None => At::Nothing,
        };
        let mut controllers = self.devices.controllers(&names::subsystem_nqn(volume))?;
        if let At::Mount(Mounted {
            source: Source::Volume(found),
            ..
        }) = &staging
            && !found.is_pooled()
            && let Link::Fabric {
                controllers: of_mount,
                ..
            } = &found.link
        {
            let known = |c: &nvme::Controller| controllers.iter().any(|k| k.name == c.name);
            let missed: Vec<_> = of_mount.iter().filter(|c| !known(c)).cloned().collect();
            controllers.extend(missed);
        }
        let mut held = Vec::new();
        if !matches!(staging, At::Mount(_)) {
            for name in self.devices.blocks(volume) {
                if block::is_held(&self.dev.join(&name))? {
                    held.push(name);
                }
            }
        }
        Ok(UnstageState {
            staging,
            controllers,
            pooled: !self.devices.pooled_blocks(volume).is_empty(),
            held,
            zvol: self.zvol(volume)?,
        })
    }

    pub(super) fn publish(
        &self,
        request: &PublishRequest,
        staging: &Place,
        target: &Place,
    ) -> Result<PublishState, Error> {
        let at_staging = self.at(staging)?;
        let at_target = self.at(target)?;
        let is_raw = request.target.content == Content::Raw;
        let device = match is_raw {
            true => self.device(&request.target)?,
            false => None,
        };
        let users = match request.mode {
            AccessMode::SingleNodeSingleWriter => match (&at_staging, device) {
                (_, Some(device)) => self.bound_nodes(device)?,
                (At::Mount(staged), None) => {
                    self.other_mounts(Shown::Filesystem(staged.dev), Some(staging))?
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        Ok(PublishState {
            attach: self.attach(&request.target),
            staging_access: access_of(&at_staging, staging)?,
            staging: at_staging,
            target_access: access_of(&at_target, target)?,
            target: at_target,
            device,
            users,
        })
    }

    /// The volume at `place`; a raw one is also found by its staging path, on which there is nothing of it.
    pub(super) fn expand(
        &self,
        volume: &str,
        place: &Place,
        is_staging_path: bool,
    ) -> Result<ExpandState, Error> {
        let at = self.at(place)?;
        let found = match &at {
            At::Mount(mounted) | At::Device(mounted) => match &mounted.source {
                Source::Volume(found) if found.owner.is(volume) => Some(found.clone()),
                _ => None,
            },
            At::Directory if is_staging_path => self.attached(volume)?,
            _ => None,
        };
        Ok(ExpandState {
            access: access_of(&at, place)?,
            at,
            volume: found,
        })
    }

    /// The volume as it is attached, by its handle alone.
    pub(super) fn attached(&self, volume: &str) -> Result<Option<Volume>, Error> {
        let mut devices = Vec::new();
        for block in self.devices.blocks(volume) {
            devices.extend(block::number(self.sys, &block)?);
        }
        devices.extend(self.devices.zvols().of_handle(volume)?.map(|zvol| zvol.id));
        for device in devices {
            match self.source(device)? {
                Source::Volume(found) if found.owner.is(volume) => return Ok(Some(found)),
                _ => {}
            }
        }
        Ok(None)
    }

    pub(super) fn attach(&self, target: &Target) -> Attach {
        if target.owner_node == self.node_id {
            Attach::Local
        } else {
            Attach::Fabric
        }
    }

    pub(super) fn at(&self, place: &Place) -> Result<At, Error> {
        let Some(state) = mount::state_at(place.parent.as_fd(), &place.name)? else {
            return Ok(At::Nothing);
        };
        if !state.is_mount_root {
            return Ok(match state.kind {
                Kind::Directory => At::Directory,
                Kind::EmptyFile => At::EmptyFile,
                Kind::Device { .. } | Kind::Other => At::File,
            });
        }
        Ok(match state.kind {
            Kind::Device { id, is_deleted } => At::Device(Mounted {
                dev: id,
                source: match is_deleted {
                    true => Source::Gone,
                    false => self.source(id)?,
                },
            }),
            _ => At::Mount(Mounted {
                dev: state.dev,
                source: self.source(state.dev)?,
            }),
        })
    }

    /// What a device is. One that cannot be read is foreign, never ours.
    pub(super) fn source(&self, dev: DevId) -> Result<Source, Error> {
        if dev.major == 0 {
            return Ok(Source::Foreign); // no block device: tmpfs, proc, overlay, …
        }
        let Ok(block) = block::kernel_name(self.sys, dev) else {
            return Ok(Source::Gone);
        };
        if let Some(zvol) = self.devices.zvols().by_number(dev)? {
            return Ok(match names::handle_of_zvol(&zvol.dataset) {
                Some(handle) => Source::Volume(Volume {
                    owner: Owner::Handle(handle.to_owned()),
                    block,
                    link: Link::Local {
                        dataset: zvol.dataset,
                    },
                }),
                None => Source::Foreign,
            });
        }
        self.namespace(block)
    }

    fn namespace(&self, block: String) -> Result<Source, Error> {
        let Some(subsystem) = nvme::subsystem_of(self.sys, &block)? else {
            return Ok(Source::Foreign);
        };
        if names::handle_of_nqn(&subsystem.nqn).is_none() && Pooled::parse(&subsystem.nqn).is_none()
        {
            return Ok(Source::Foreign);
        }
        // C-54: a head that no controller leads to will never answer again.
        if subsystem.controllers.is_empty() {
            return Ok(Source::Gone);
        }
        let Some(namespace) = nvme::namespace(self.sys, &block)? else {
            return Ok(Source::Gone);
        };
        let Some(owner) = Owner::of(&namespace, &subsystem.nqn) else {
            return Ok(Source::Foreign);
        };
        let controllers = self
            .devices
            .read_controllers(subsystem.controllers, &subsystem.nqn)?;
        Ok(Source::Volume(Volume {
            owner,
            block,
            link: Link::Fabric {
                namespace,
                controllers,
            },
        }))
    }

    /// The device that a publish context means; `None` when it is not attached.
    fn device(&self, target: &Target) -> Result<Option<DevId>, Error> {
        match self.attach(target) {
            Attach::Local => {
                let zvol = self.devices.zvols().find(&target.dataset)?;
                Ok(zvol.map(|zvol| zvol.id))
            }
            Attach::Fabric => match self.devices.namespace(target.namespace_uuid)? {
                Some(namespace) => Ok(block::number(self.sys, &namespace.block)?),
                None => Ok(None),
            },
        }
    }

    /// The volume's zvol, when it is on this machine, and whether it takes writes.
    fn zvol(&self, volume: &str) -> Result<Option<(Zvol, Access)>, Error> {
        let Some(zvol) = self.devices.zvols().of_handle(volume)? else {
            return Ok(None);
        };
        let extent = block::extent(self.sys, &zvol.block)?;
        Ok(extent.map(|extent| (zvol, extent.access)))
    }

    /// Where the node of a device is bound, other than in `/dev` itself.
    pub(super) fn bound_nodes(&self, device: DevId) -> Result<Vec<PathBuf>, Error> {
        let name = block::kernel_name(self.sys, device)?;
        let shown = Shown::Node {
            filesystem: mount::filesystem_of(self.dev)?,
            name: &name,
        };
        self.other_mounts(shown, None)
    }

    fn other_mounts(
        &self,
        shown: Shown<'_>,
        except: Option<&Place>,
    ) -> Result<Vec<PathBuf>, Error> {
        let except = except.and_then(|place| mount::mount_id_at(&place.parent, &place.name));
        let mounts = mount::mounts_of(self.proc, shown)?;
        let others = mounts.into_iter().filter(|m| Some(m.id) != except);
        Ok(others.map(|m| m.path).collect())
    }
}

/// Whether what is mounted at a place allows writes.
fn access_of(at: &At, place: &Place) -> Result<Access, Error> {
    match at {
        At::Mount(Mounted {
            source: Source::Volume(_),
            ..
        })
        | At::Device(_) => Ok(mount::access_at(place.parent.as_fd(), &place.name)?),
        _ => Ok(Access::ReadWrite),
    }
}
