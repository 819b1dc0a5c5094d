//! What the kernel says now: the first move of every node call.

use std::os::fd::AsFd;
use std::path::Path;

use zvolt_kernel::block::{self, DevId};
use zvolt_kernel::mount::{self, Access};
use zvolt_kernel::nvme;

use crate::model::names;

use super::devices::Devices;
use super::paths::Place;
use super::{Error, StageRequest};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum At {
    /// There is no such entry.
    Nothing,
    /// A directory with nothing mounted on it.
    Directory,
    /// Something that is no directory.
    File,
    /// A mount.
    Mount(Mounted),
}

/// What is mounted at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The device of the mounted filesystem.
    pub(super) dev: DevId,
    /// What that device is.
    pub(super) source: Source,
}

/// What a mounted filesystem's device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A namespace of one of our subsystems.
    Volume {
        /// Volume handle.
        handle: String,
        /// The namespace.
        namespace: nvme::Namespace,
        /// Kernel names of the subsystem's controllers.
        controllers: Vec<String>,
    },
    /// A block device that is gone: the mount has outlived it.
    Gone,
    /// Anything else.
    Foreign,
}

/// For stage.
#[derive(Debug)]
pub(super) struct StageState {
    pub(super) staging: At,
    pub(super) controllers: Vec<nvme::Controller>,
}

/// For unstage.
#[derive(Debug)]
pub(super) struct UnstageState {
    pub(super) staging: At,
    pub(super) controllers: Vec<nvme::Controller>,
    /// Our namespaces that something still holds open exclusively, though nothing is mounted on the staging path.
    pub(super) held: Vec<String>,
}

/// For publish.
#[derive(Debug)]
pub(super) struct PublishState {
    pub(super) staging: At,
    pub(super) target: At,
    /// Whether the target's mount allows writes; meaningless where nothing is mounted.
    pub(super) target_access: Access,
}

pub(super) struct Observer<'a> {
    pub(super) sys: &'a Path,
    pub(super) dev: &'a Path,
    pub(super) devices: &'a Devices,
}

impl Observer<'_> {
    pub(super) fn stage(
        &self,
        request: &StageRequest,
        staging: &Place,
    ) -> Result<StageState, Error> {
        Ok(StageState {
            staging: self.at(staging)?,
            controllers: self.devices.controllers(&request.target.nqn)?,
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
        let controllers = self.devices.controllers(&names::subsystem_nqn(volume))?;
        let mut held = Vec::new();
        if !matches!(staging, At::Mount(_)) {
            for name in self.devices.blocks(&names::subsystem_nqn(volume)) {
                if block::is_held(&self.dev.join(&name))? {
                    held.push(name);
                }
            }
        }
        Ok(UnstageState {
            staging,
            controllers,
            held,
        })
    }

    pub(super) fn publish(&self, staging: &Place, target: &Place) -> Result<PublishState, Error> {
        let at_target = self.at(target)?;
        let target_access = match at_target {
            At::Mount(_) => mount::access_at(target.parent.as_fd(), &target.name)?,
            _ => Access::ReadWrite,
        };
        Ok(PublishState {
            staging: self.at(staging)?,
            target: at_target,
            target_access,
        })
    }

    pub(super) fn unpublish(&self, target: &Place) -> Result<At, Error> {
        self.at(target)
    }

    fn at(&self, place: &Place) -> Result<At, Error> {
        let Some(state) = mount::state_at(place.parent.as_fd(), &place.name)? else {
            return Ok(At::Nothing);
        };
        if !state.is_mount_root {
            return Ok(if state.is_dir {
                At::Directory
            } else {
                At::File
            });
        }
        Ok(At::Mount(Mounted {
            dev: state.dev,
            source: self.source(state.dev)?,
        }))
    }

    /// What a mounted filesystem's device is. A device that cannot be read is foreign, never ours.
    fn source(&self, dev: DevId) -> Result<Source, Error> {
        if dev.major == 0 {
            return Ok(Source::Foreign); // no block device: tmpfs, proc, overlay, …
        }
        let Ok(block) = block::kernel_name(self.sys, dev) else {
            return Ok(Source::Gone);
        };
        let Some(subsystem) = nvme::subsystem_of(self.sys, &block)? else {
            return Ok(Source::Foreign);
        };
        let Some(handle) = names::handle_of_nqn(&subsystem.nqn) else {
            return Ok(Source::Foreign);
        };
        Ok(match nvme::namespace(self.sys, &block)? {
            Some(namespace) => Source::Volume {
                handle: handle.to_owned(),
                namespace,
                controllers: subsystem.controllers,
            },
            None => Source::Gone,
        })
    }
}
