//! Publish and its reverse: what a pod's path may become, and of what.

use super::*;

#[test]
fn rule_05_a_publish_with_another_access_is_no_success() {
    for (content, staging, target) in [
        (
            ext4(),
            At::Mount(remote("pvc-1", 1)),
            At::Mount(remote("pvc-1", 1)),
        ),
        (Content::Raw, At::Directory, At::Device(remote("pvc-1", 1))),
    ] {
        let mut observed = published(staging, target);
        let mut request = publish_request(content, Access::ReadOnly);
        request.target.read_only = ReadOnly::Yes;
        refused(
            publish(&request, &observed),
            ErrorKind::AlreadyExists,
            "readonly=false",
        );
        observed.target_access = Access::ReadOnly;
        assert_eq!(publish(&request, &observed).expect("a plan"), []);
    }
}

#[test]
fn rule_05_a_raw_device_is_read_only_by_itself_or_not_at_all() {
    let observed = published(At::Directory, At::Nothing);
    refused(
        publish(&publish_request(Content::Raw, Access::ReadOnly), &observed),
        ErrorKind::InvalidArgument,
        "ControllerPublishVolume",
    );
    let mut reader = request(Content::Raw);
    reader.access = Access::ReadOnly;
    refused(
        stage(&reader, &staged(At::Directory, vec![])),
        ErrorKind::InvalidArgument,
        "ControllerPublishVolume",
    );
}

#[test]
fn rule_05_what_the_kernel_made_read_only_is_not_published_for_writing() {
    let mut observed = published(At::Mount(remote("pvc-1", 1)), At::Nothing);
    observed.staging_access = Access::ReadOnly;
    refused(
        publish(&publish_request(ext4(), Access::ReadWrite), &observed),
        ErrorKind::FailedPrecondition,
        "dmesg",
    );
    assert_eq!(
        publish(&publish_request(ext4(), Access::ReadOnly), &observed).expect("a plan"),
        [Step::MakeDirectory, Step::Bind(Access::ReadOnly)]
    );
}

#[test]
fn publish_needs_the_staged_volume() {
    let fine = published(At::Mount(remote("pvc-1", 1)), At::Nothing);
    let request = publish_request(ext4(), Access::ReadWrite);
    assert_eq!(
        publish(&request, &fine).expect("a plan"),
        [Step::MakeDirectory, Step::Bind(Access::ReadWrite)]
    );
    for staging in [
        At::Nothing,
        At::Directory,
        At::Mount(foreign()),
        At::Mount(gone()),
        At::Mount(remote("pvc-2", 1)),
        At::Mount(remote("pvc-1", 2)),
        At::Mount(local("pvc-1")),
    ] {
        refused(
            publish(&request, &published(staging, At::Nothing)),
            ErrorKind::FailedPrecondition,
            "",
        );
    }
    let mut detached = published(At::Directory, At::Nothing);
    detached.device = None;
    refused(
        publish(&publish_request(Content::Raw, Access::ReadWrite), &detached),
        ErrorKind::FailedPrecondition,
        "NodeStageVolume",
    );
}

#[test]
fn what_is_left_of_a_dead_publish_makes_room() {
    let observed = published(At::Mount(local("pvc-1")), At::Mount(gone()));
    let mut request = publish_request(ext4(), Access::ReadWrite);
    let mut here = observed;
    here.attach = Attach::Local;
    assert_eq!(
        publish(&request, &here).expect("a plan"),
        [Step::Detach, Step::Bind(Access::ReadWrite)]
    );
    request.target.content = Content::Raw;
    let observed = published(At::Directory, At::Device(gone()));
    assert_eq!(
        publish(&request, &observed).expect("a plan"),
        [
            Step::Verify,
            Step::Detach,
            Step::BindNode(Access::ReadWrite)
        ]
    );
}

#[test]
fn rule_04_a_single_writer_on_one_node_has_one_place() {
    for (content, staging) in [
        (ext4(), At::Mount(remote("pvc-1", 1))),
        (Content::Raw, At::Directory),
    ] {
        let mut observed = published(staging.clone(), At::Nothing);
        observed.users = vec![PathBuf::from("/var/lib/kubelet/other")];
        let mut request = publish_request(content, Access::ReadWrite);
        request.mode = AccessMode::SingleNodeSingleWriter;
        refused(
            publish(&request, &observed),
            ErrorKind::FailedPrecondition,
            "/var/lib/kubelet/other",
        );
        observed.users.clear();
        publish(&request, &observed).expect("the first place");
        // The same place again is not a second one.
        let there = match content {
            Content::Raw => At::Device(remote("pvc-1", 1)),
            Content::Filesystem { .. } => At::Mount(remote("pvc-1", 1)),
        };
        let mut again = published(staging, there);
        again.users = vec![PathBuf::from("/var/lib/kubelet/t")];
        assert_eq!(publish(&request, &again).expect("a plan"), []);
    }
}

#[test]
fn a_device_is_bound_onto_an_empty_file_and_nothing_else() {
    let request = publish_request(Content::Raw, Access::ReadWrite);
    for taken in [At::Directory, At::File] {
        refused(
            publish(&request, &published(At::Directory, taken)),
            ErrorKind::InvalidArgument,
            "no empty file",
        );
    }
    for taken in [
        At::Mount(foreign()),
        At::Device(foreign()),
        At::Device(remote("pvc-2", 2)),
    ] {
        refused(
            publish(&request, &published(At::Directory, taken)),
            ErrorKind::FailedPrecondition,
            "unmount it first",
        );
    }
    // The device got another number since: what is bound is not it.
    let mut renumbered = published(At::Directory, At::Device(remote("pvc-1", 1)));
    renumbered.device = Some(ZVOL);
    refused(
        publish(&request, &renumbered),
        ErrorKind::FailedPrecondition,
        "unmount it first",
    );
}

#[test]
fn unpublish_takes_off_what_is_the_volumes_and_removes_what_it_was_on() {
    for (at, expected) in [
        (At::Nothing, vec![]),
        (At::Directory, vec![Step::RemoveDirectory]),
        (At::EmptyFile, vec![Step::RemoveFile]),
        (
            At::Mount(remote("pvc-1", 1)),
            vec![Step::Detach, Step::RemoveDirectory],
        ),
        (
            At::Device(local("pvc-1")),
            vec![Step::Detach, Step::RemoveFile],
        ),
        (At::Device(gone()), vec![Step::Detach, Step::RemoveFile]),
        (At::Mount(gone()), vec![Step::Detach, Step::RemoveDirectory]),
    ] {
        assert_eq!(unpublish("pvc-1", &at).expect("a plan"), expected, "{at:?}");
    }
    for other in [
        At::File,
        At::Mount(foreign()),
        At::Device(remote("pvc-2", 1)),
    ] {
        refused(
            unpublish("pvc-1", &other),
            ErrorKind::FailedPrecondition,
            "left alone",
        );
    }
}
