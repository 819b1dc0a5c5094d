//! Plans, one by one; [`sweep`] stops them after every step.

mod pooled;
mod publish;
mod sweep;

use std::path::PathBuf;

use uuid::Uuid;
use zvolt_kernel::block::DevId;
use zvolt_kernel::nvme;

use super::super::observe::{
    At, Attach, ExpandState, PublishState, StageState, UnstageState, Volume,
};
use super::super::owner::Owner;
use super::super::zvols::Zvol;
use super::super::{ExpandRequest, PublishRequest, StageRequest};
use super::*;
use crate::model::access::{AccessMode, ReadOnly};
use crate::model::publish::Content;
use crate::model::volume::FsType;

const NVME: DevId = DevId {
    major: 259,
    minor: 0,
};
const ZVOL: DevId = DevId {
    major: 230,
    minor: 0,
};

fn target(content: Content) -> Target {
    Target {
        nqn: names::subsystem_nqn("pvc-1"),
        portal: "10.0.0.1:4420".parse().expect("a portal"),
        namespace_uuid: Uuid::from_u128(1),
        nguid: [1; 16],
        size_bytes: 1 << 30,
        content,
        read_only: ReadOnly::No,
        owner_node: "storage0".into(),
        dataset: "tank/csi/block/pvc-1".into(),
    }
}

fn ext4() -> Content {
    Content::Filesystem {
        fs_type: FsType::Ext4,
        uuid: Uuid::from_u128(2),
    }
}

fn request(content: Content) -> StageRequest {
    StageRequest {
        volume: "pvc-1".into(),
        target: target(content),
        staging_path: "/var/lib/kubelet/s".into(),
        access: Access::ReadWrite,
        mount_flags: Vec::new(),
    }
}

fn read_only(content: Content) -> StageRequest {
    let mut request = request(content);
    request.target.read_only = ReadOnly::Yes;
    request.access = Access::ReadOnly;
    request
}

fn publish_request(content: Content, access: Access) -> PublishRequest {
    PublishRequest {
        volume: "pvc-1".into(),
        target: target(content),
        staging_path: "/var/lib/kubelet/s".into(),
        target_path: "/var/lib/kubelet/t".into(),
        mode: AccessMode::SingleNodeWriter,
        access,
    }
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

fn remote(handle: &str, uuid: u128) -> Mounted {
    Mounted {
        dev: NVME,
        source: Source::Volume(Volume {
            owner: Owner::Handle(handle.into()),
            block: "nvme0n1".into(),
            link: Link::Fabric {
                namespace: nvme::Namespace {
                    block: "nvme0n1".into(),
                    uuid: Some(Uuid::from_u128(uuid)),
                    nguid: Some([1; 16]),
                    nsid: 1,
                },
                controllers: vec![controller("live")],
            },
        }),
    }
}

fn local(handle: &str) -> Mounted {
    Mounted {
        dev: ZVOL,
        source: Source::Volume(Volume {
            owner: Owner::Handle(handle.into()),
            block: "zd0".into(),
            link: Link::Local {
                dataset: format!("tank/csi/block/{handle}"),
            },
        }),
    }
}

fn gone() -> Mounted {
    Mounted {
        dev: NVME,
        source: Source::Gone,
    }
}

fn foreign() -> Mounted {
    Mounted {
        dev: DevId { major: 8, minor: 1 },
        source: Source::Foreign,
    }
}

fn staged(staging: At, controllers: Vec<nvme::Controller>) -> StageState {
    StageState {
        attach: Attach::Fabric,
        staging,
        staging_access: Access::ReadWrite,
        controllers,
        users: Vec::new(),
    }
}

fn unstaged(staging: At, controllers: Vec<nvme::Controller>) -> UnstageState {
    UnstageState {
        staging,
        controllers,
        pooled: false,
        held: Vec::new(),
        zvol: None,
    }
}

fn published(staging: At, target: At) -> PublishState {
    PublishState {
        attach: Attach::Fabric,
        staging,
        staging_access: Access::ReadWrite,
        target,
        target_access: Access::ReadWrite,
        device: Some(NVME),
        users: Vec::new(),
    }
}

fn zvol() -> Zvol {
    Zvol {
        block: "zd0".into(),
        id: ZVOL,
        dataset: "tank/csi/block/pvc-1".into(),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: ErrorKind, word: &str) {
    let error = outcome.expect_err("a refusal");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(
        error.to_string().contains(word),
        "{word:?} is not in {error}"
    );
}

#[test]
fn a_fresh_stage_connects_waits_verifies_mounts_and_grows() {
    let plan = stage(&request(ext4()), &staged(At::Directory, vec![])).expect("a plan");
    assert_eq!(
        plan,
        [
            Step::Connect,
            Step::AwaitNamespace,
            Step::Verify,
            Step::BoundRequests,
            Step::Attach,
            Step::Grow,
        ]
    );
}

#[test]
fn rule_05_what_is_staged_read_only_is_never_grown() {
    let plan = stage(&read_only(ext4()), &staged(At::Directory, vec![])).expect("a plan");
    assert_eq!(plan.last(), Some(&Step::Attach));
}

#[test]
fn a_raw_device_is_attached_and_verified_and_mounted_nowhere() {
    for staging in [At::Directory, At::Nothing] {
        let plan = stage(&request(Content::Raw), &staged(staging, vec![])).expect("a plan");
        assert_eq!(
            plan,
            [
                Step::Connect,
                Step::AwaitNamespace,
                Step::Verify,
                Step::BoundRequests,
            ]
        );
    }
}

#[test]
fn rule_03_nothing_is_mounted_or_bound_before_it_is_verified() {
    let position = |plan: &[Step], wanted: fn(&Step) -> bool| plan.iter().position(wanted);
    for attach in [Attach::Fabric, Attach::Local] {
        for staging in [At::Nothing, At::Directory] {
            for controllers in [
                vec![],
                vec![controller("live")],
                vec![controller("connecting")],
            ] {
                let mut observed = staged(staging.clone(), controllers);
                observed.attach = attach;
                let plan = stage(&request(ext4()), &observed).expect("a plan");
                let verify = position(&plan, |s| *s == Step::Verify).expect("verified");
                let attach = position(&plan, |s| *s == Step::Attach).expect("mounted");
                assert!(verify < attach);
            }
        }
    }
    let observed = published(At::Directory, At::Nothing);
    let plan = publish(&publish_request(Content::Raw, Access::ReadWrite), &observed);
    assert_eq!(
        plan.expect("a plan"),
        [
            Step::Verify,
            Step::MakeFile,
            Step::BindNode(Access::ReadWrite)
        ]
    );
}

#[test]
fn a_volume_of_this_machines_own_pool_takes_no_network() {
    let mut observed = staged(At::Directory, vec![]);
    observed.attach = Attach::Local;
    let plan = stage(&request(ext4()), &observed).expect("a plan");
    assert_eq!(
        plan,
        [
            Step::AwaitZvol,
            Step::Verify,
            Step::SetAccess(Access::ReadWrite),
            Step::Attach,
            Step::Grow,
        ]
    );
    let plan = stage(&read_only(Content::Raw), &observed).expect("a plan");
    assert_eq!(
        plan,
        [
            Step::AwaitZvol,
            Step::Verify,
            Step::SetAccess(Access::ReadOnly)
        ]
    );
}

#[test]
fn a_connection_from_when_the_pool_was_elsewhere_goes_before_the_zvol_is_used() {
    let mut observed = staged(At::Directory, vec![controller("connecting")]);
    observed.attach = Attach::Local;
    let plan = stage(&request(ext4()), &observed).expect("a plan");
    assert_eq!(
        plan[..3],
        [
            Step::Released("pvc-1".into()),
            Step::Disconnect(vec!["nvme0".into()]),
            Step::AwaitZvol,
        ]
    );
}

#[test]
fn a_volume_that_is_staged_the_other_way_is_not_the_one_that_is_asked_for() {
    for (attach, staging) in [
        (Attach::Fabric, local("pvc-1")),
        (Attach::Local, remote("pvc-1", 1)),
    ] {
        let mut observed = staged(At::Mount(staging), vec![]);
        observed.attach = attach;
        refused(
            stage(&request(ext4()), &observed),
            ErrorKind::FailedPrecondition,
            "unstage that first",
        );
    }
}

#[test]
fn a_repeated_stage_only_finishes_the_growth_and_a_foreign_mount_is_refused() {
    let at = |mounted| staged(At::Mount(mounted), vec![controller("live")]);
    assert_eq!(
        stage(&request(ext4()), &at(remote("pvc-1", 1))).expect("a plan"),
        [Step::Grow]
    );
    for other in [remote("pvc-1", 9), remote("pvc-2", 1), foreign()] {
        refused(
            stage(&request(ext4()), &at(other)),
            ErrorKind::FailedPrecondition,
            "",
        );
    }
    for file in [At::File, At::EmptyFile] {
        refused(
            stage(&request(ext4()), &staged(file, vec![])),
            ErrorKind::InvalidArgument,
            "no directory",
        );
    }
    let mut dead = remote("pvc-1", 1);
    if let Source::Volume(volume) = &mut dead.source
        && let Link::Fabric { controllers, .. } = &mut volume.link
    {
        controllers[0].state = "connecting".into();
    }
    assert_eq!(stage(&request(ext4()), &at(dead)).expect("a plan"), []);
}

#[test]
fn rule_05_a_stage_with_another_access_is_no_success() {
    for (request, found, word) in [
        (read_only(ext4()), Access::ReadWrite, "allows writes"),
        (request(ext4()), Access::ReadOnly, "allows no writes"),
    ] {
        let mut observed = staged(At::Mount(remote("pvc-1", 1)), vec![controller("live")]);
        observed.staging_access = found;
        refused(stage(&request, &observed), ErrorKind::AlreadyExists, word);
    }
    let mut observed = staged(At::Mount(remote("pvc-1", 1)), vec![controller("live")]);
    observed.staging_access = Access::ReadOnly;
    assert_eq!(stage(&read_only(ext4()), &observed).expect("a plan"), []);
}

#[test]
fn bug_c_51_a_dead_mount_makes_room_when_nobody_has_it_and_a_pod_is_named() {
    let mut observed = staged(At::Mount(gone()), vec![]);
    let plan = stage(&request(ext4()), &observed).expect("a plan");
    assert_eq!(plan[..2], [Step::Detach, Step::Connect]);
    assert!(plan.contains(&Step::Attach) && !plan.contains(&Step::MakeDirectory));
    observed.users = vec![PathBuf::from("/var/lib/kubelet/pods/1")];
    refused(
        stage(&request(ext4()), &observed),
        ErrorKind::FailedPrecondition,
        "/var/lib/kubelet/pods/1",
    );
}

#[test]
fn a_context_of_another_volume_is_refused() {
    let mut wrong = request(ext4());
    wrong.target.nqn = names::subsystem_nqn("pvc-2");
    refused(
        stage(&wrong, &staged(At::Directory, vec![])),
        ErrorKind::InvalidArgument,
        "\"nqn\"",
    );
    let mut wrong = publish_request(Content::Raw, Access::ReadWrite);
    wrong.target.dataset = "tank/csi/block/pvc-2".into();
    refused(
        publish(&wrong, &published(At::Directory, At::Nothing)),
        ErrorKind::InvalidArgument,
        "\"dataset\"",
    );
}

#[test]
fn unstage_detaches_before_it_disconnects_and_leaves_foreign_mounts() {
    let live = || vec![controller("live")];
    assert_eq!(
        unstage("pvc-1", &unstaged(At::Mount(remote("pvc-1", 1)), live())).expect("a plan"),
        [
            Step::Detach,
            Step::Released("pvc-1".into()),
            Step::Disconnect(vec!["nvme0".into()])
        ]
    );
    for other in [At::Mount(foreign()), At::Device(foreign())] {
        refused(
            unstage("pvc-1", &unstaged(other, live())),
            ErrorKind::FailedPrecondition,
            "left alone",
        );
    }
    refused(
        unstage("pvc-2", &unstaged(At::Mount(remote("pvc-1", 1)), live())),
        ErrorKind::FailedPrecondition,
        "pvc-1",
    );
}

#[test]
fn a_raw_device_is_found_by_its_subsystem_and_flushed_before_it_is_let_go() {
    for staging in [At::Directory, At::Nothing] {
        assert_eq!(
            unstage("pvc-1", &unstaged(staging, vec![controller("live")])).expect("a plan"),
            [
                Step::Released("pvc-1".into()),
                Step::Flush("pvc-1".into()),
                Step::Disconnect(vec!["nvme0".into()])
            ]
        );
    }
    assert_eq!(
        unstage("pvc-1", &unstaged(At::Directory, vec![])).expect("a plan"),
        [],
        "of a volume that is not here there is nothing"
    );
}

#[test]
fn a_zvol_that_was_read_only_here_takes_writes_again_before_it_is_let_go() {
    let mut observed = unstaged(At::Mount(local("pvc-1")), vec![]);
    observed.zvol = Some((zvol(), Access::ReadOnly));
    assert_eq!(
        unstage("pvc-1", &observed).expect("a plan"),
        [
            Step::SetAccess(Access::ReadWrite),
            Step::Detach,
            Step::FlushZvol
        ]
    );
    observed.staging = At::Directory;
    assert_eq!(
        unstage("pvc-1", &observed).expect("a plan"),
        [Step::SetAccess(Access::ReadWrite), Step::FlushZvol]
    );
    observed.zvol = Some((zvol(), Access::ReadWrite));
    assert_eq!(
        unstage("pvc-1", &observed).expect("a plan"),
        [Step::FlushZvol],
        "what a raw zvol's users wrote is not left to be written later"
    );
}

#[test]
fn rule_10_a_filesystem_that_was_detached_lazily_keeps_its_controller() {
    let mut observed = unstaged(At::Directory, vec![controller("connecting")]);
    observed.held = vec!["nvme0n1".into()];
    refused(
        unstage("pvc-1", &observed),
        ErrorKind::Unavailable,
        "nvme0n1",
    );
}

fn expanded(at: At, access: Access) -> ExpandState {
    let volume = match &at {
        At::Mount(m) | At::Device(m) => match &m.source {
            Source::Volume(volume) => Some(volume.clone()),
            _ => None,
        },
        _ => None,
    };
    ExpandState { at, access, volume }
}

#[test]
fn rule_09_a_filesystem_grows_after_its_device_and_a_raw_device_has_none() {
    let request = ExpandRequest {
        volume: "pvc-1".into(),
        path: "/var/lib/kubelet/t".into(),
        staging_path: None,
        required_bytes: 2 << 30,
        limit_bytes: None,
    };
    let plan = |at, access| expand(&request, &expanded(at, access));
    for mounted in [remote("pvc-1", 1), local("pvc-1")] {
        assert_eq!(
            plan(At::Mount(mounted.clone()), Access::ReadWrite).expect("a plan"),
            [Step::AwaitSize, Step::Grow]
        );
        for (at, access) in [
            (At::Mount(mounted.clone()), Access::ReadOnly),
            (At::Device(mounted), Access::ReadWrite),
        ] {
            assert_eq!(plan(at, access).expect("a plan"), [Step::AwaitSize]);
        }
    }
    refused(
        plan(At::Directory, Access::ReadWrite),
        ErrorKind::NotFound,
        "pvc-1",
    );
    refused(
        plan(At::Mount(gone()), Access::ReadWrite),
        ErrorKind::FailedPrecondition,
        "gone",
    );
    let mut dead = expanded(At::Mount(remote("pvc-1", 1)), Access::ReadWrite);
    if let Some(Volume {
        link: Link::Fabric { controllers, .. },
        ..
    }) = &mut dead.volume
    {
        controllers.clear();
    }
    refused(expand(&request, &dead), ErrorKind::Unavailable, "live");
}
