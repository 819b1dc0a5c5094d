//! Publish and unpublish.

use zvolt_kernel::block::DevId;
use zvolt_kernel::mount::Access;

use crate::model::access::AccessMode;
use crate::model::publish::Content;

use super::super::observe::{At, Mounted, PublishState, Source};
use super::super::{Error, ErrorKind, PublishRequest};
use super::{
    Step, belongs, describe, device_access, is_ours_or_gone, listed, no_directory, precondition,
};

pub(in super::super) fn publish(
    request: &PublishRequest,
    observed: &PublishState,
) -> Result<Vec<Step>, Error> {
    belongs(&request.volume, &request.target)?;
    match request.target.content {
        Content::Filesystem { .. } => publish_mount(request, observed),
        Content::Raw => publish_device(request, observed),
    }
}

fn publish_mount(request: &PublishRequest, observed: &PublishState) -> Result<Vec<Step>, Error> {
    let staged = staged_mount(request, observed)?;
    let mut plan = Vec::with_capacity(2);
    match &observed.target {
        At::Mount(mounted) if mounted.dev == staged.dev => {
            return published_already(request, observed);
        }
        // The volume was staged anew since: what is left of the old one goes.
        At::Mount(mounted) if mounted.source == Source::Gone => plan.push(Step::Detach),
        At::Mount(mounted) | At::Device(mounted) => return Err(taken(request, mounted)),
        At::File | At::EmptyFile => {
            return Err(no_directory("target path", &request.target_path));
        }
        At::Nothing => plan.push(Step::MakeDirectory),
        At::Directory => {}
    }
    alone_where_it_must_be(request, observed)?;
    plan.push(Step::Bind(request.access));
    Ok(plan)
}

fn staged_mount<'a>(
    request: &PublishRequest,
    observed: &'a PublishState,
) -> Result<&'a Mounted, Error> {
    let At::Mount(staged) = &observed.staging else {
        return Err(precondition(format!(
            "volume {} is not mounted on {}: NodeStageVolume comes first",
            request.volume,
            request.staging_path.display()
        )));
    };
    match &staged.source {
        Source::Volume(found) if found.is(&request.volume, &request.target, observed.attach) => {}
        other => {
            return Err(precondition(format!(
                "{} is a mount of {}, not of volume {} as publish_context describes it: unstage it, then stage it again",
                request.staging_path.display(),
                describe(other),
                request.volume
            )));
        }
    }
    if observed.staging_access == Access::ReadOnly && request.access == Access::ReadWrite {
        return Err(precondition(format!(
            "the filesystem of volume {} on {} allows no writes, which this call asks for: it was staged read-only, or \
             the kernel has made it so after an error (dmesg); unpublish and unstage it, then stage it again",
            request.volume,
            request.staging_path.display()
        )));
    }
    Ok(staged)
}

/// The device's own node on a file. Nothing of it is kept where it is staged, so that it is verified here again.
fn publish_device(request: &PublishRequest, observed: &PublishState) -> Result<Vec<Step>, Error> {
    device_access(&request.volume, request.access, &request.target)?;
    if let At::Mount(mounted) | At::Device(mounted) = &observed.staging {
        return Err(precondition(format!(
            "{} is a mount of {}: a raw device is staged without one",
            request.staging_path.display(),
            describe(&mounted.source)
        )));
    }
    let Some(device) = observed.device else {
        return Err(precondition(format!(
            "volume {} is not attached to this node: NodeStageVolume comes first",
            request.volume
        )));
    };
    let mut plan = vec![Step::Verify];
    match &observed.target {
        At::Device(mounted) if is_published(request, observed, mounted, device) => {
            return published_already(request, observed);
        }
        At::Device(mounted) if mounted.source == Source::Gone => plan.push(Step::Detach),
        At::Device(mounted) | At::Mount(mounted) => return Err(taken(request, mounted)),
        At::Directory | At::File => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "target path {} exists and is no empty file, which the device could be bound onto",
                    request.target_path.display()
                ),
            ));
        }
        At::Nothing => plan.push(Step::MakeFile),
        At::EmptyFile => {}
    }
    alone_where_it_must_be(request, observed)?;
    plan.push(Step::BindNode(request.access));
    Ok(plan)
}

fn is_published(
    request: &PublishRequest,
    observed: &PublishState,
    mounted: &Mounted,
    device: DevId,
) -> bool {
    let is_it = |source: &Source| match source {
        Source::Volume(found) => found.is(&request.volume, &request.target, observed.attach),
        _ => false,
    };
    mounted.dev == device && is_it(&mounted.source)
}

fn published_already(
    request: &PublishRequest,
    observed: &PublishState,
) -> Result<Vec<Step>, Error> {
    if observed.target_access == request.access {
        return Ok(Vec::new());
    }
    Err(Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "{} is published with readonly={} already: unpublish it first",
            request.target_path.display(),
            observed.target_access == Access::ReadOnly
        ),
    ))
}

/// SINGLE_NODE_SINGLE_WRITER is one publish on one node.
fn alone_where_it_must_be(request: &PublishRequest, observed: &PublishState) -> Result<(), Error> {
    if request.mode != AccessMode::SingleNodeSingleWriter || observed.users.is_empty() {
        return Ok(());
    }
    Err(precondition(format!(
        "volume {} is published on {} already, and its access mode {} allows one place: unpublish that first",
        request.volume,
        listed(&observed.users),
        request.mode.as_str()
    )))
}

fn taken(request: &PublishRequest, mounted: &Mounted) -> Error {
    precondition(format!(
        "{} is a mount of {} already: unmount it first",
        request.target_path.display(),
        describe(&mounted.source)
    ))
}

pub(in super::super) fn unpublish(volume: &str, target: &At) -> Result<Vec<Step>, Error> {
    match target {
        At::Nothing => Ok(Vec::new()),
        At::Directory => Ok(vec![Step::RemoveDirectory]),
        At::EmptyFile => Ok(vec![Step::RemoveFile]),
        At::File => Err(precondition(
            "the target path is neither a directory nor an empty file: it is left alone",
        )),
        At::Mount(mounted) if is_ours_or_gone(mounted, volume) => {
            Ok(vec![Step::Detach, Step::RemoveDirectory])
        }
        At::Device(mounted) if is_ours_or_gone(mounted, volume) => {
            Ok(vec![Step::Detach, Step::RemoveFile])
        }
        At::Mount(mounted) | At::Device(mounted) => Err(precondition(format!(
            "the target path is a mount of {}, not of volume {volume}: it is left alone",
            describe(&mounted.source)
        ))),
    }
}
