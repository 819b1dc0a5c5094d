//! What is left to do: pure, from what was asked and what the kernel says.

use zvolt_kernel::mount::Access;

use crate::model::names;
use crate::ops::Step as Named;

use super::observe::{At, PublishState, Source, StageState, UnstageState};
use super::{Error, ErrorKind, PublishRequest, StageRequest};

/// A step of a node plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Waits until an existing controller that is not live is live again, or gone.
    AwaitController,
    /// One write to `/dev/nvme-fabrics`.
    Connect,
    /// Waits for the uevent of the namespace with the volume's UUID.
    AwaitNamespace,
    /// Rule 3: the right device or none.
    Verify,
    /// Keeps requests within what the target takes.
    BoundRequests,
    /// Makes the directory that is mounted on.
    MakeDirectory,
    /// Mounts the filesystem.
    Attach,
    /// Binds the staged mount onto the target.
    Bind(Access),
    /// Unmounts, within the deadline.
    Detach,
    /// Sees that nothing else uses the volume's device.
    Released(String),
    /// Deletes these controllers and sees them gone.
    Disconnect(Vec<String>),
    /// Removes the empty directory that was mounted on.
    RemoveDirectory,
}

impl Named for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::AwaitController => "controller.await",
            Self::Connect => "fabrics.connect",
            Self::AwaitNamespace => "namespace.await",
            Self::Verify => "device.verify",
            Self::BoundRequests => "queue.bound",
            Self::MakeDirectory => "directory.make",
            Self::Attach => "mount.attach",
            Self::Bind(_) => "mount.bind",
            Self::Detach => "mount.detach",
            Self::Released(_) => "device.released",
            Self::Disconnect(_) => "fabrics.disconnect",
            Self::RemoveDirectory => "directory.remove",
        }
    }
}

pub(super) fn stage(request: &StageRequest, observed: &StageState) -> Result<Vec<Step>, Error> {
    if request.target.nqn != names::subsystem_nqn(&request.volume) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "publish_context \"nqn\" is {}, which is not the subsystem of volume {}",
                request.target.nqn, request.volume
            ),
        ));
    }
    let mut plan = Vec::with_capacity(6);
    match &observed.staging {
        At::Mount(mounted) => {
            return match &mounted.source {
                Source::Volume { namespace, .. }
                    if namespace.uuid == Some(request.target.namespace_uuid) =>
                {
                    Ok(plan)
                }
                Source::Gone => Err(precondition(format!(
                    "{} is still mounted from a device that is gone: unstage the volume, then stage it again",
                    request.staging_path.display()
                ))),
                other => Err(precondition(format!(
                    "{} is a mount of {}, not of volume {}: unmount it first",
                    request.staging_path.display(),
                    describe(other),
                    request.volume
                ))),
            };
        }
        At::File => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "staging path {} is no directory",
                    request.staging_path.display()
                ),
            ));
        }
        At::Directory | At::Nothing => {}
    }
    match observed.controllers.as_slice() {
        [] => plan.push(Step::Connect),
        controllers if controllers.iter().any(|c| c.state == "live") => {}
        _ => plan.push(Step::AwaitController),
    }
    plan.extend([Step::AwaitNamespace, Step::Verify, Step::BoundRequests]);
    if observed.staging == At::Nothing {
        plan.push(Step::MakeDirectory);
    }
    plan.push(Step::Attach);
    Ok(plan)
}

pub(super) fn unstage(volume: &str, observed: &UnstageState) -> Result<Vec<Step>, Error> {
    let mut plan = Vec::with_capacity(2);
    let mut controllers: Vec<String> = observed
        .controllers
        .iter()
        .map(|c| c.name.clone())
        .collect();
    if let At::Mount(mounted) = &observed.staging {
        match &mounted.source {
            Source::Volume {
                handle,
                controllers: of_mount,
                ..
            } if handle == volume => {
                for name in of_mount {
                    if !controllers.contains(name) {
                        controllers.push(name.clone());
                    }
                }
            }
            Source::Gone => {}
            other => {
                return Err(precondition(format!(
                    "the staging path is a mount of {}, not of volume {volume}: it is left alone",
                    describe(other)
                )));
            }
        }
        plan.push(Step::Detach);
    } else if !observed.held.is_empty() {
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
    if !controllers.is_empty() {
        plan.push(Step::Released(volume.to_owned()));
        plan.push(Step::Disconnect(controllers));
    }
    Ok(plan)
}

pub(super) fn publish(
    request: &PublishRequest,
    observed: &PublishState,
) -> Result<Vec<Step>, Error> {
    let At::Mount(staged) = &observed.staging else {
        return Err(precondition(format!(
            "volume {} is not mounted on {}: NodeStageVolume comes first",
            request.volume,
            request.staging_path.display()
        )));
    };
    match &staged.source {
        Source::Volume { handle, .. } if *handle == request.volume => {}
        other => {
            return Err(precondition(format!(
                "{} is a mount of {}, not of volume {}",
                request.staging_path.display(),
                describe(other),
                request.volume
            )));
        }
    }
    let access = if request.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let mut plan = Vec::with_capacity(2);
    match &observed.target {
        At::Mount(mounted) if mounted.dev == staged.dev => {
            if observed.target_access != access {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!(
                        "{} is published with readonly={} already: unpublish it first",
                        request.target_path.display(),
                        observed.target_access == Access::ReadOnly
                    ),
                ));
            }
            return Ok(plan);
        }
        At::Mount(mounted) => {
            return Err(precondition(format!(
                "{} is a mount of {} already: unmount it first",
                request.target_path.display(),
                describe(&mounted.source)
            )));
        }
        At::File => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "target path {} is no directory",
                    request.target_path.display()
                ),
            ));
        }
        At::Nothing => plan.push(Step::MakeDirectory),
        At::Directory => {}
    }
    plan.push(Step::Bind(access));
    Ok(plan)
}

pub(super) fn unpublish(volume: &str, target: &At) -> Result<Vec<Step>, Error> {
    match target {
        At::Nothing => Ok(Vec::new()),
        At::Directory => Ok(vec![Step::RemoveDirectory]),
        At::File => Err(precondition(
            "the target path is no directory: it is left alone".to_owned(),
        )),
        At::Mount(mounted) => match &mounted.source {
            Source::Volume { handle, .. } if handle == volume => {
                Ok(vec![Step::Detach, Step::RemoveDirectory])
            }
            Source::Gone => Ok(vec![Step::Detach, Step::RemoveDirectory]),
            other => Err(precondition(format!(
                "the target path is a mount of {}, not of volume {volume}: it is left alone",
                describe(other)
            ))),
        },
    }
}

fn describe(source: &Source) -> String {
    match source {
        Source::Volume { handle, .. } => format!("volume {handle}"),
        Source::Gone => "a device that is gone".into(),
        Source::Foreign => format!("something that does not carry {}", names::NQN_PREFIX),
    }
}

fn precondition(message: String) -> Error {
    Error::new(ErrorKind::FailedPrecondition, message)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use zvolt_kernel::block::DevId;
    use zvolt_kernel::nvme;

    use super::super::observe::Mounted;
    use super::*;
    use crate::model::access::ReadOnly;
    use crate::model::publish::{Content, Target};
    use crate::model::volume::FsType;

    fn request() -> StageRequest {
        StageRequest {
            volume: "pvc-1".into(),
            target: Target {
                nqn: names::subsystem_nqn("pvc-1"),
                portal: "10.0.0.1:4420".parse().expect("a portal"),
                namespace_uuid: Uuid::from_u128(1),
                nguid: [1; 16],
                size_bytes: 1 << 30,
                content: Content::Filesystem {
                    fs_type: FsType::Ext4,
                    uuid: Uuid::from_u128(2),
                },
                read_only: ReadOnly::No,
                owner_node: "storage0".into(),
                dataset: "tank/csi/block/pvc-1".into(),
            },
            staging_path: "/var/lib/kubelet/s".into(),
            mount_flags: Vec::new(),
        }
    }

    fn publish_request(read_only: bool) -> PublishRequest {
        PublishRequest {
            volume: "pvc-1".into(),
            staging_path: "/var/lib/kubelet/s".into(),
            target_path: "/var/lib/kubelet/t".into(),
            read_only,
        }
    }

    fn mounted(handle: &str, uuid: u128) -> At {
        At::Mount(Mounted {
            dev: DevId {
                major: 259,
                minor: 0,
            },
            source: Source::Volume {
                handle: handle.into(),
                namespace: nvme::Namespace {
                    block: "nvme0n1".into(),
                    uuid: Some(Uuid::from_u128(uuid)),
                    nguid: Some([1; 16]),
                    nsid: 1,
                },
                controllers: vec!["nvme0".into()],
            },
        })
    }

    fn foreign() -> At {
        At::Mount(Mounted {
            dev: DevId { major: 8, minor: 1 },
            source: Source::Foreign,
        })
    }

    fn controller(state: &str) -> nvme::Controller {
        nvme::Controller {
            name: "nvme0".into(),
            state: state.into(),
            transport: "tcp".into(),
            address: "traddr=10.0.0.1,trsvcid=4420".into(),
            subsystem_nqn: names::subsystem_nqn("pvc-1"),
            host_nqn: names::host_nqn("node0"),
        }
    }

    fn kind<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorKind {
        outcome.expect_err("a refusal").kind()
    }

    #[test]
    fn a_fresh_stage_connects_waits_verifies_mounts() {
        let observed = StageState {
            staging: At::Directory,
            controllers: vec![],
        };
        let plan = stage(&request(), &observed).expect("a plan");
        assert_eq!(
            plan,
            [
                Step::Connect,
                Step::AwaitNamespace,
                Step::Verify,
                Step::BoundRequests,
                Step::Attach
            ]
        );
    }

    #[test]
    fn rule_03_nothing_is_mounted_before_it_is_verified() {
        for staging in [At::Nothing, At::Directory] {
            for controllers in [
                vec![],
                vec![controller("live")],
                vec![controller("connecting")],
            ] {
                let observed = StageState {
                    staging: staging.clone(),
                    controllers,
                };
                let plan = stage(&request(), &observed).expect("a plan");
                let verify = plan
                    .iter()
                    .position(|s| *s == Step::Verify)
                    .expect("verified");
                let attach = plan
                    .iter()
                    .position(|s| *s == Step::Attach)
                    .expect("mounted");
                assert!(verify < attach);
            }
        }
    }

    #[test]
    fn a_repeated_stage_has_nothing_to_do_and_a_foreign_mount_is_refused() {
        let at = |staging| StageState {
            staging,
            controllers: vec![controller("live")],
        };
        assert_eq!(
            stage(&request(), &at(mounted("pvc-1", 1))).expect("a plan"),
            []
        );
        assert_eq!(
            kind(stage(&request(), &at(mounted("pvc-1", 9)))),
            ErrorKind::FailedPrecondition
        );
        assert_eq!(
            kind(stage(&request(), &at(foreign()))),
            ErrorKind::FailedPrecondition
        );
        assert_eq!(
            kind(stage(&request(), &at(At::File))),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn unstage_detaches_before_it_disconnects_and_leaves_foreign_mounts() {
        let at = |staging, held| UnstageState {
            staging,
            controllers: vec![controller("live")],
            held,
        };
        assert_eq!(
            unstage("pvc-1", &at(mounted("pvc-1", 1), vec![])).expect("a plan"),
            [
                Step::Detach,
                Step::Released("pvc-1".into()),
                Step::Disconnect(vec!["nvme0".into()])
            ]
        );
        assert_eq!(
            unstage("pvc-1", &at(At::Directory, vec![])).expect("a plan"),
            [
                Step::Released("pvc-1".into()),
                Step::Disconnect(vec!["nvme0".into()])
            ]
        );
        assert_eq!(
            kind(unstage("pvc-1", &at(foreign(), vec![]))),
            ErrorKind::FailedPrecondition
        );
        assert_eq!(
            kind(unstage("pvc-2", &at(mounted("pvc-1", 1), vec![]))),
            ErrorKind::FailedPrecondition
        );
    }

    #[test]
    fn rule_10_a_filesystem_that_was_detached_lazily_keeps_its_controller() {
        let observed = UnstageState {
            staging: At::Directory,
            controllers: vec![controller("connecting")],
            held: vec!["nvme0n1".into()],
        };
        assert_eq!(kind(unstage("pvc-1", &observed)), ErrorKind::Unavailable);
    }

    #[test]
    fn rule_05_a_publish_with_another_access_is_no_success() {
        let observed = |access| PublishState {
            staging: mounted("pvc-1", 1),
            target: mounted("pvc-1", 1),
            target_access: access,
        };
        assert_eq!(
            publish(&publish_request(true), &observed(Access::ReadOnly)).expect("a plan"),
            []
        );
        assert_eq!(
            kind(publish(
                &publish_request(true),
                &observed(Access::ReadWrite)
            )),
            ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn publish_needs_the_staged_volume() {
        let observed = |staging| PublishState {
            staging,
            target: At::Nothing,
            target_access: Access::ReadWrite,
        };
        assert_eq!(
            publish(&publish_request(false), &observed(mounted("pvc-1", 1))).expect("a plan"),
            [Step::MakeDirectory, Step::Bind(Access::ReadWrite)]
        );
        for staging in [At::Nothing, At::Directory, foreign(), mounted("pvc-2", 2)] {
            assert_eq!(
                kind(publish(&publish_request(false), &observed(staging))),
                ErrorKind::FailedPrecondition
            );
        }
    }

    /// A stop after any step, then a new plan on what is there: the same end, for stage and unstage.
    #[test]
    fn a_stop_after_any_step_is_finished_by_the_next_plan() {
        #[derive(Clone, Debug, PartialEq)]
        struct World {
            connected: bool,
            directory: bool,
            mounted: bool,
        }
        let apply = |world: &mut World, step: &Step| match step {
            Step::Connect => world.connected = true,
            Step::MakeDirectory => world.directory = true,
            Step::Attach => {
                assert!(world.connected && world.directory);
                world.mounted = true;
            }
            Step::Detach => world.mounted = false,
            Step::Disconnect(_) => {
                assert!(!world.mounted);
                world.connected = false;
            }
            _ => {}
        };
        let staging = |world: &World| match (world.mounted, world.directory) {
            (true, _) => mounted("pvc-1", 1),
            (false, true) => At::Directory,
            (false, false) => At::Nothing,
        };
        let controllers = |world: &World| {
            if world.connected {
                vec![controller("live")]
            } else {
                vec![]
            }
        };
        let plan_stage = |world: &World| {
            stage(
                &request(),
                &StageState {
                    staging: staging(world),
                    controllers: controllers(world),
                },
            )
            .expect("a plan")
        };
        let plan_unstage = |world: &World| {
            let observed = UnstageState {
                staging: staging(world),
                controllers: controllers(world),
                held: vec![],
            };
            unstage("pvc-1", &observed).expect("a plan")
        };
        let empty = World {
            connected: false,
            directory: false,
            mounted: false,
        };
        let staged = World {
            connected: true,
            directory: true,
            mounted: true,
        };
        let unstaged = World {
            connected: false,
            directory: true,
            mounted: false,
        };
        let sweep = |begin: &World, end: &World, plan: &dyn Fn(&World) -> Vec<Step>| {
            for stop in 0..=plan(begin).len() {
                let mut world = begin.clone();
                plan(begin)
                    .iter()
                    .take(stop)
                    .for_each(|s| apply(&mut world, s));
                let rest = plan(&world);
                rest.iter().for_each(|s| apply(&mut world, s));
                assert_eq!(world, *end, "stopped after {stop} steps");
                assert_eq!(plan(&world), [], "a finished world needs nothing");
            }
        };
        sweep(&empty, &staged, &plan_stage);
        sweep(&staged, &unstaged, &plan_unstage);
    }
}
