//! The safety rules of the design, each by its number, on real kernels.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tonic::Code;
use zvolt_lab::fleet::{KUBELET, STORE};
use zvolt_lab::orchestrator::{Wanted, create_request, single_writer};
use zvolt_proto::csi;

use crate::fleet::{Fleet, Journey, assert_refused, lab};

/// Zeroes the head of a volume's zvol, behind the driver's back.
fn wipe(fleet: &Fleet, id: &str) {
    let script = format!(
        "dd if=/dev/zero of=/dev/zvol/tank/csi/block/{id} bs=1M count=4 conv=fsync status=none"
    );
    fleet.vm("storage0").ok(&script).unwrap();
}

#[test]
fn rule_01_the_node_never_formats() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-blank"));
    wipe(&fleet, &volume.id);
    let context = volume.attach("node0").unwrap();
    assert_refused(
        volume.stage("node0", &context),
        Code::FailedPrecondition,
        &["no filesystem", "never makes one"],
    );
    let head = fleet
        .vm("storage0")
        .ok(&format!(
            "dd if=/dev/zvol/tank/csi/block/{} bs=1M count=4 status=none | tr -d '\\0' | wc -c",
            volume.id
        ))
        .unwrap();
    assert_eq!(head.trim(), "0", "still blank");
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_01_the_agent_never_formats_twice() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-once"));
    wipe(&fleet, &volume.id);
    // A restarted agent converges the export, and so does a repeated CreateVolume.
    fleet.storage.kill().unwrap();
    fleet.storage.start().unwrap();
    fleet.controller.create(&Wanted::named("pvc-once")).unwrap();
    let head = fleet
        .vm("storage0")
        .ok(&format!(
            "dd if=/dev/zvol/tank/csi/block/{} bs=1M count=4 status=none | tr -d '\\0' | wc -c",
            volume.id
        ))
        .unwrap();
    assert_eq!(
        head.trim(),
        "0",
        "a zvol that is recorded as formatted is left as it is"
    );
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_02_a_volume_that_was_ready_is_never_created_again() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-lost").per_volume());
    fleet.storage.kill().unwrap();
    let storage = fleet.vm("storage0");
    storage
        .ok(&format!(
            "cd /sys/kernel/config/nvmet && rm ports/*/subsystems/*{id} && echo 0 > subsystems/*{id}/namespaces/1/enable && \
             zfs destroy tank/csi/block/{id}",
            id = volume.id
        ))
        .unwrap();
    fleet.storage.start().unwrap();
    assert_refused(
        volume.attach("node0"),
        Code::FailedPrecondition,
        &["missing", "not created again"],
    );
    let list = storage.ok("zfs list -H -o name -r tank").unwrap();
    assert!(
        !list.contains(&volume.id),
        "an empty volume must not take the lost one's place:\n{list}"
    );
}

#[test]
fn rule_03_the_right_device_or_none() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-right").per_volume());
    let context = volume.attach("node0").unwrap();
    let wrong = [
        ("nguid", "00000000000000000000000000000001", "NGUID"),
        ("sizeBytes", "2147483648", "bytes"),
        (
            "filesystemUUID",
            "00000000-0000-4000-8000-000000000001",
            "expected",
        ),
        ("fsType", "xfs", "expected xfs"),
    ];
    for (key, value, words) in wrong {
        let mut context = context.clone();
        context.insert(key.into(), value.into());
        assert_refused(
            volume.stage("node0", &context),
            Code::FailedPrecondition,
            &[words],
        );
        let left = fleet.vm("node0").ok("ls /sys/class/nvme").unwrap();
        assert_eq!(left, "", "a refused stage leaves no controller ({key})");
    }
    volume.stage("node0", &context).unwrap();
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_04_a_single_writer_is_never_displaced_silently() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-single"));
    volume.bring_to("node0");
    assert_refused(volume.attach("node1"), Code::FailedPrecondition, &["node0"]);
    let sum = volume.write("node0");
    assert_eq!(volume.read("node0"), sum, "the first writer goes on");
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

/// A forgotten mount (C-94): the volume is unpublished at the controller while node0 still has it
/// mounted. Node0's writes must not reach it once another node is admitted.
#[test]
fn rule_04_a_node_that_kept_its_mount_is_fenced() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-fence"));
    volume.bring_to("node0");
    let sum = volume.write("node0");
    volume.detach("node0").unwrap();
    let late = fleet.vm("node0").run(&format!(
        "timeout 30 dd if=/dev/zero of={}/late bs=4k count=1 oflag=direct conv=fsync status=none",
        volume.target()
    ));
    assert_ne!(late.unwrap().status, 0, "a write after the fence must fail");
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum);
    let names = fleet
        .vm("node1")
        .ok(&format!("ls {}", volume.target()))
        .unwrap();
    assert!(!names.contains("late"), "{names}");
    volume.take_from("node1");
    volume.unpublish("node0").unwrap();
    volume.unstage("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_05_a_read_only_publish_cannot_be_written() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-ro"));
    let context = volume.attach("node0").unwrap();
    volume.stage("node0", &context).unwrap();
    volume.publish("node0", &context, true).unwrap();
    let write = fleet
        .vm("node0")
        .run(&format!("touch {}/x", volume.target()))
        .unwrap();
    assert!(
        write.stderr.contains("Read-only file system"),
        "{}",
        write.stderr
    );
    assert_refused(
        volume.publish("node0", &context, false),
        Code::AlreadyExists,
        &["readonly=true"],
    );
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_06_a_volume_with_a_snapshot_is_not_destroyed_with_it() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-snap"));
    let snapshot = format!("tank/csi/block/{}@kept", volume.id);
    let storage = fleet.vm("storage0");
    storage.ok(&format!("zfs snapshot {snapshot}")).unwrap();
    let refused = fleet
        .controller
        .within(Duration::from_secs(5))
        .delete(&volume.id)
        .expect_err("the snapshot holds it");
    assert!(
        refused.message().contains("snapshot"),
        "{}",
        refused.message()
    );
    storage
        .ok(&format!("zfs list {snapshot}"))
        .expect("the snapshot is still there");
    storage.ok(&format!("zfs destroy {snapshot}")).unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn rule_07_capacity_rounds_up_and_is_what_zfs_says() {
    let fleet = Fleet::fresh();
    let wanted = Wanted::named("pvc-size")
        .size((1 << 30) + 1)
        .parameter("volBlockSize", "32k");
    let volume = fleet.controller.create(&wanted).unwrap();
    assert_eq!(volume.capacity_bytes, (1 << 30) + 32 * 1024);
    let real = fleet
        .vm("storage0")
        .ok(&format!(
            "zfs get -Hp -o value volsize tank/csi/block/{}",
            volume.volume_id
        ))
        .unwrap();
    assert_eq!(real.trim(), volume.capacity_bytes.to_string());
    fleet
        .controller
        .create(&wanted)
        .expect("a retry with the same range");
    assert_refused(
        fleet.controller.create(&wanted.clone().size(2 << 30)),
        Code::AlreadyExists,
        &["pvc-size"],
    );
    fleet.controller.delete(&volume.volume_id).unwrap();
    fleet.assert_clean();
}

/// A dead target: unpublish works, unstage ends within its deadline and says so, and finishes once
/// the target is back (C-47, C-91, C-92).
#[test]
fn rule_10_a_dead_target_hangs_no_call() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-dead"));
    volume.bring_to("node0");
    let sum = volume.write("node0");
    fleet
        .vm("node0")
        .ok(&format!("echo unwritten > {}/dirty", volume.target()))
        .unwrap();
    fleet.vm("storage0").cut_network().unwrap();
    let bound = Duration::from_secs(8);
    let node = fleet.nodes["node0"].within(bound);
    let begin = Instant::now();
    node.unpublish(&volume.id, &volume.target())
        .expect("a bind is taken off without asking the target");
    let outcome = node.unstage(&volume.id, &volume.staging());
    let took = begin.elapsed();
    fleet.vm("storage0").restore_network().unwrap();
    let status = outcome.expect_err("data is still to be written");
    assert!(took < bound * 2 + Duration::from_secs(2), "took {took:?}");
    assert_eq!(
        status.code(),
        Code::DeadlineExceeded,
        "{}",
        status.message()
    );
    assert!(
        status.message().contains("still waits"),
        "{}",
        status.message()
    );
    // The target is back: the kernel reconnects, writes what was left, and a retry finishes.
    let deadline = Instant::now() + Duration::from_secs(90);
    while let Err(status) = fleet.nodes["node0"].unstage(&volume.id, &volume.staging()) {
        assert!(
            Instant::now() < deadline,
            "never finished: {}",
            status.message()
        );
        std::thread::yield_now();
    }
    volume.detach("node0").unwrap();
    volume.bring_to("node1");
    assert_eq!(volume.read("node1"), sum);
    let dirty = fleet
        .vm("node1")
        .ok(&format!("cat {}/dirty", volume.target()))
        .unwrap();
    assert_eq!(
        dirty.trim(),
        "unwritten",
        "what was not written yet has been written"
    );
    volume.take_from("node1");
    volume.delete();
    fleet.assert_clean();
}

/// A secret that comes with every call of a volume's life is found nowhere: not in a log, a timeline, an
/// argument, the store, ZFS or what the calls answered.
#[test]
fn rule_11_a_secret_is_told_to_nobody() {
    const SECRET: &str = "hunter2-1f6d0c";
    let fleet = Fleet::fresh();
    let secrets = || HashMap::from([("key".to_owned(), SECRET.to_owned())]);
    let answers = lives_with(&fleet, "pvc-secret", &secrets);
    assert!(!answers.contains(SECRET), "{answers}");
    // One call is refused: the words of the refusal are looked at too.
    let mut refused = create_request(&Wanted::named("pvc-refused").parameter("colour", "blue"));
    refused.secrets = secrets();
    let refusal = fleet.controller.create_raw(refused).unwrap_err();
    assert!(!format!("{refusal:?}").contains(SECRET), "{refusal:?}");
    for name in ["storage0", "node0"] {
        let found = fleet.vm(name).ok(&format!(
            "{{ journalctl --no-pager -u zvolt; dmesg; zvolt trace --output json; \
             for p in $(pgrep -x zvolt); do tr '\\0' ' ' < /proc/$p/cmdline; tr '\\0' ' ' < /proc/$p/environ; done; \
             find {STORE} /run/zvolt -type f -exec cat {{}} +; \
             zfs get -H all -r tank; zpool history -il tank; }} > /tmp/told 2>&1; \
             grep -c pvc-secret /tmp/told; grep -c hunter2 /tmp/told; rm /tmp/told"
        ));
        let found = found.unwrap();
        let [volume, secret]: [u32; 2] = found
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert!(volume > 0, "on {name}: it is told of the volume");
        assert_eq!(secret, 0, "on {name}");
    }
    fleet.assert_clean();
}

/// A volume's whole life with secrets in every call that takes some; gives all answers as text.
fn lives_with(fleet: &Fleet, name: &str, secrets: &dyn Fn() -> HashMap<String, String>) -> String {
    let (controller, node) = (&fleet.controller, &fleet.nodes["node0"]);
    let capability = Some(single_writer("ext4"));
    let mut request = create_request(&Wanted::named(name));
    request.secrets = secrets();
    let volume = controller.create_raw(request).unwrap();
    let journey = Journey {
        fleet,
        id: volume.volume_id.clone(),
        fs_type: "ext4".into(),
    };
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: journey.id.clone(),
        node_id: "node0".into(),
        volume_capability: capability.clone(),
        secrets: secrets(),
        ..Default::default()
    };
    let mut client = controller.controller();
    let attached = controller
        .call(client.controller_publish_volume(controller.request(attach)))
        .unwrap();
    let stage = csi::NodeStageVolumeRequest {
        volume_id: journey.id.clone(),
        publish_context: attached.publish_context.clone(),
        staging_target_path: journey.staging(),
        volume_capability: capability.clone(),
        secrets: secrets(),
        ..Default::default()
    };
    let paths = format!(
        "mkdir -p {} $(dirname {})",
        journey.staging(),
        journey.target()
    );
    fleet.vm("node0").ok(&paths).unwrap();
    let mut client = node.node();
    node.call(client.node_stage_volume(node.request(stage)))
        .unwrap();
    let publish = csi::NodePublishVolumeRequest {
        volume_id: journey.id.clone(),
        publish_context: attached.publish_context.clone(),
        staging_target_path: journey.staging(),
        target_path: journey.target(),
        volume_capability: capability,
        secrets: secrets(),
        ..Default::default()
    };
    node.call(client.node_publish_volume(node.request(publish)))
        .unwrap();
    let said = format!("{volume:?} {attached:?}");
    journey.take_from("node0");
    journey.delete();
    said
}

#[test]
fn rule_12_paths_that_leave_the_kubelet_directory_are_refused() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-path"));
    let context = volume.attach("node0").unwrap();
    let vm = fleet.vm("node0");
    vm.ok(&format!(
        "mkdir -p /srv/outside && ln -sfn /srv {KUBELET}/pods/link"
    ))
    .unwrap();
    let node = &fleet.nodes["node0"];
    for path in [
        "/srv/outside".to_owned(),
        format!("{KUBELET}/../../../srv/outside"),
        format!("{KUBELET}/pods/link/outside"),
        format!("{KUBELET}/pods/a\nb"),
        "relative".to_owned(),
        String::new(),
    ] {
        assert_refused(
            node.stage(&volume.id, &context, &path, "ext4"),
            Code::InvalidArgument,
            &[],
        );
    }
    volume.stage("node0", &context).unwrap();
    for path in [
        "/srv/outside".to_owned(),
        format!("{KUBELET}/pods/link/outside"),
    ] {
        let outcome = node.publish(
            &volume.id,
            &context,
            &volume.staging(),
            &path,
            "ext4",
            false,
        );
        assert_refused(outcome, Code::InvalidArgument, &[]);
        assert_refused(
            node.unpublish(&volume.id, &path),
            Code::InvalidArgument,
            &[],
        );
    }
    assert_eq!(
        vm.ok("ls /srv/outside").unwrap(),
        "",
        "nothing was made outside"
    );
    vm.ok(&format!("rm {KUBELET}/pods/link; rm -r /srv/outside"))
        .unwrap();
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

/// Starts a node driver by hand under `wrapper` and expects it to refuse to serve.
fn refuses_to_serve(wrapper: &str, words: &[&str]) {
    let out = lab()
        .vm("node1")
        .run(&format!(
            "{wrapper} timeout 20 /usr/local/bin/zvolt node --node-id node1 --endpoint unix:///run/zvolt/x.sock \
             --kubelet-dir {KUBELET}"
        ))
        .unwrap();
    let said = format!("{}{}", out.stdout, out.stderr);
    assert_eq!(out.status, 3, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in:\n{said}");
    }
}

#[test]
fn rule_13_a_private_dev_is_refused() {
    refuses_to_serve(
        "unshare -m sh -c 'mount -t tmpfs none /dev && exec \"$@\"' --",
        &["/dev", "devtmpfs"],
    );
}

#[test]
fn rule_13_a_kubelet_directory_without_shared_propagation_is_refused() {
    // unshare makes every mount private.
    refuses_to_serve("unshare -m --propagation private", &["propagation"]);
}

#[test]
fn rule_13_a_missing_module_is_refused() {
    let vm = lab().vm("node1");
    zvolt_lab::fleet::scrub(vm).unwrap();
    vm.ok("modprobe -r nvme-tcp").unwrap();
    let outcome = std::panic::catch_unwind(|| refuses_to_serve("", &["modprobe nvme-tcp"]));
    vm.ok("modprobe nvme-tcp").unwrap();
    outcome.unwrap();
}
