//! Stage and unstage.

use zvolt_kernel::mount::Access;

use crate::model::publish::Content;

use super::super::observe::{At, Attach, Mounted, Source, StageState, UnstageState, Volume};
use super::super::{Error, ErrorKind, StageRequest};
use super::{
    Step, belongs, describe, device_access, is_ours_or_gone, is_pooled, listed, no_directory,
    precondition,
};

pub(in super::super) fn stage(
    request: &StageRequest,
    observed: &StageState,
) -> Result<Vec<Step>, Error> {
    belongs(&request.volume, &request.target)?;
    let is_raw = request.target.content == Content::Raw;
    if is_raw {
        device_access(&request.volume, request.access, &request.target)?;
    }
    let mut plan = Vec::with_capacity(8);
    match &observed.staging {
        At::Mount(mounted) if !is_raw => match &mounted.source {
            Source::Volume(found)
                if found.is(&request.volume, &request.target, observed.attach) =>
            {
                return staged_already(request, observed, found);
            }
            Source::Gone => {
                over_a_dead_mount(request, observed)?;
                plan.push(Step::Detach);
            }
            _ => return Err(somebody_elses(request, mounted)),
        },
        At::Mount(mounted) | At::Device(mounted) => return Err(somebody_elses(request, mounted)),
        At::File | At::EmptyFile => {
            return Err(no_directory("staging path", &request.staging_path));
        }
        At::Directory | At::Nothing => {}
    }
    match observed.attach {
        Attach::Fabric => attach_by_fabric(observed, &mut plan),
        Attach::Local => attach_locally(request, observed, &mut plan),
    }
    if is_raw {
        return Ok(plan); // the staging directory is the caller's; the device itself is published
    }
    if observed.staging == At::Nothing {
        plan.push(Step::MakeDirectory);
    }
    plan.push(Step::Attach);
    if request.access == Access::ReadWrite {
        plan.push(Step::Grow);
    }
    Ok(plan)
}

fn attach_by_fabric(observed: &StageState, plan: &mut Vec<Step>) {
    match observed.controllers.as_slice() {
        [] => plan.push(Step::Connect),
        controllers if controllers.iter().any(|c| c.state == "live") => {}
        _ => plan.push(Step::AwaitController),
    }
    plan.extend([Step::AwaitNamespace, Step::Verify, Step::BoundRequests]);
}

/// The zvol itself. A connection from the time when the pool was elsewhere goes first: one volume has one
/// device, or two page caches would differ.
fn attach_locally(request: &StageRequest, observed: &StageState, plan: &mut Vec<Step>) {
    if !observed.controllers.is_empty() && !is_pooled(&request.target) {
        let names = observed.controllers.iter().map(|c| c.name.clone());
        plan.push(Step::Released(request.volume.clone()));
        plan.push(Step::Disconnect(names.collect()));
    }
    plan.extend([
        Step::AwaitZvol,
        Step::Verify,
        Step::SetAccess(request.access),
    ]);
}

/// A repeated call; the one before may have been cut short after the mount and before the growth.
fn staged_already(
    request: &StageRequest,
    observed: &StageState,
    found: &Volume,
) -> Result<Vec<Step>, Error> {
    if observed.staging_access != request.access {
        let why = match request.access {
            Access::ReadWrite => {
                "it allows no writes; when it did before, the kernel has taken them away after an error (dmesg)"
            }
            Access::ReadOnly => "it allows writes",
        };
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "volume {} is mounted on {} already, but {why}: unstage it first",
                request.volume,
                request.staging_path.display()
            ),
        ));
    }
    // A device that does not answer cannot grow anything now, and must not hold this call.
    let grows = request.access == Access::ReadWrite && found.is_live();
    Ok(if grows { vec![Step::Grow] } else { Vec::new() })
}

/// C-51, C-111: what is mounted from a device that is gone never works again, whatever is connected anew. Where
/// nobody has it, it makes room; a pod that has it would go on with the dead one.
fn over_a_dead_mount(request: &StageRequest, observed: &StageState) -> Result<(), Error> {
    if observed.users.is_empty() {
        return Ok(());
    }
    Err(precondition(format!(
        "the device of volume {} is gone (its controller was removed), and its dead filesystem is still published on \
         {}: stop the pods that use it, so that NodeUnpublishVolume is called, then stage it again",
        request.volume,
        listed(&observed.users)
    )))
}

fn somebody_elses(request: &StageRequest, mounted: &Mounted) -> Error {
    precondition(format!(
        "{} is a mount of {}, not of volume {} as publish_context describes it: unstage that first",
        request.staging_path.display(),
        describe(&mounted.source),
        request.volume
    ))
}

pub(in super::super) fn unstage(volume: &str, observed: &UnstageState) -> Result<Vec<Step>, Error> {
    let mut plan = Vec::with_capacity(4);
    let is_mounted = match &observed.staging {
        At::Mount(mounted) if is_ours_or_gone(mounted, volume) => true,
        At::Mount(mounted) | At::Device(mounted) => {
            return Err(precondition(format!(
                "the staging path is a mount of {}, not of volume {volume}: it is left alone",
                describe(&mounted.source)
            )));
        }
        _ => false,
    };
    if !is_mounted && !observed.held.is_empty() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "/dev/{} is still in use, though nothing is mounted on the staging path: a filesystem that was \
                 detached waits for its target, or somebody holds the device (see /sys/block/{}/holders); \
                 deleting the controller now would lose what is not written yet",
                observed.held.join(", /dev/"),
                observed.held[0],
            ),
        ));
    }
    // Before the mount goes, because nothing leads from the handle to the zvol's device for sure afterwards.
    if let Some((_, Access::ReadOnly)) = observed.zvol {
        plan.push(Step::SetAccess(Access::ReadWrite));
    }
    if is_mounted {
        plan.push(Step::Detach);
    }
    // The target has the zvol open, so that its last local user's close writes nothing back: what came later, after
    // another node's writes, would overwrite them.
    if observed.zvol.is_some() {
        plan.push(Step::FlushZvol);
    }
    if observed.pooled || !observed.controllers.is_empty() {
        plan.push(Step::Released(volume.to_owned()));
        if !is_mounted {
            plan.push(Step::Flush(volume.to_owned()));
        }
    }
    // A pooled volume's stays: the target takes the namespace out of it, and leaves the others.
    if !observed.controllers.is_empty() {
        let names = observed.controllers.iter().map(|c| c.name.clone());
        plan.push(Step::Disconnect(names.collect()));
    }
    Ok(plan)
}
