//! A volume in a subsystem with others: the controller is the node's, not the volume's.

use super::*;
use crate::model::names::Identity;

fn nqn() -> String {
    Pooled {
        owner: "storage0",
        node: "node0",
        number: 0,
    }
    .nqn()
}

pub(super) fn request(content: Content) -> StageRequest {
    let mut request = super::request(content);
    request.target.nqn = nqn();
    request.target.nguid = Identity::new(1, 2).tagged("pvc-1").nguid;
    request
}

pub(super) fn mounted() -> Mounted {
    let mut mounted = remote("pvc-1", 1);
    if let Source::Volume(volume) = &mut mounted.source {
        volume.owner = Owner::Tag(names::tag("pvc-1"));
    }
    mounted
}

#[test]
fn a_live_controller_is_used_as_it_is_and_one_that_is_missing_is_made() {
    let attached = [
        Step::AwaitNamespace,
        Step::Verify,
        Step::BoundRequests,
        Step::Attach,
        Step::Grow,
    ];
    let with = |states: &[&str]| {
        let controllers = states.iter().map(|s| controller(s)).collect();
        stage(&request(ext4()), &staged(At::Directory, controllers)).expect("a plan")
    };
    assert_eq!(with(&["live"]), attached, "no write to /dev/nvme-fabrics");
    assert_eq!(with(&["connecting", "live"]), attached);
    for (states, first) in [
        (&[][..], Step::Connect),
        (&["connecting"], Step::AwaitController),
    ] {
        let plan = with(states);
        assert_eq!((&plan[0], &plan[1..]), (&first, &attached[..]));
    }
}

#[test]
fn rule_03_the_subsystem_is_the_owners_and_the_namespace_is_the_volumes() {
    let refuse = |change: &dyn Fn(&mut Target), word: &str| {
        let mut wrong = request(ext4());
        change(&mut wrong.target);
        let outcome = stage(&wrong, &staged(At::Directory, vec![]));
        refused(outcome, ErrorKind::InvalidArgument, word);
    };
    refuse(&|target| target.owner_node = "storage1".into(), "\"nqn\"");
    refuse(&|target| target.nqn.push('x'), "\"nqn\"");
    let other = Identity::new(1, 2).tagged("pvc-2").nguid;
    refuse(&|target| target.nguid = other, "\"nguid\"");
    refuse(&|target| target.nguid = [1; 16], "\"nguid\"");
}

#[test]
fn rule_04_unstage_leaves_the_controller_to_the_others() {
    let unstaged = |staging| UnstageState {
        pooled: true,
        ..unstaged(staging, vec![])
    };
    let released = Step::Released("pvc-1".into());
    assert_eq!(
        unstage("pvc-1", &unstaged(At::Mount(mounted()))).expect("a plan"),
        [Step::Detach, released.clone()]
    );
    assert_eq!(
        unstage("pvc-1", &unstaged(At::Directory)).expect("a plan"),
        [released, Step::Flush("pvc-1".into())],
        "a raw one is written out"
    );
    let mut held = unstaged(At::Directory);
    held.held = vec!["nvme0n7".into()];
    refused(
        unstage("pvc-1", &held),
        ErrorKind::Unavailable,
        "/dev/nvme0n7",
    );
    let mut other = mounted();
    if let Source::Volume(volume) = &mut other.source {
        volume.owner = Owner::Tag(names::tag("pvc-2"));
    }
    refused(
        unstage("pvc-1", &unstaged(At::Mount(other))),
        ErrorKind::FailedPrecondition,
        "pooled volume of tag",
    );
}
