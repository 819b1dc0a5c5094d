//! The main job.

use zvolt_lab::orchestrator::Wanted;

use crate::fleet::{Fleet, assert_refused};

fn lives_moves_and_dies(fs_type: &str) {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-life").fs(fs_type));
    volume.bring_to("node0");
    let sum = volume.write("node0");
    volume.take_from("node0");
    volume.bring_to("node1");
    assert_eq!(
        volume.read("node1"),
        sum,
        "what node0 wrote is what node1 reads"
    );
    volume.take_from("node1");
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn an_ext4_volume_lives_moves_and_dies() {
    lives_moves_and_dies("ext4");
}

#[test]
fn an_xfs_volume_lives_moves_and_dies() {
    lives_moves_and_dies("xfs");
}

/// nvmet-tcp refuses requests of more than 4 MiB and says nothing of that limit beforehand, while a zvol invites
/// 32 MiB (truenas-proxmox-plugin 96 is one report of what becomes of it).
#[test]
fn writes_larger_than_the_target_takes_at_once_arrive() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-large"));
    volume.bring_to("node0");
    let vm = fleet.vm("node0");
    let file = format!("{}/large", volume.target());
    vm.ok(&format!(
        "dd if=/dev/zero of={file} bs=32M count=1 oflag=direct status=none"
    ))
    .unwrap();
    vm.ok(&format!(
        "dd if=/dev/zero of={file} bs=1M count=64 conv=fsync status=none"
    ))
    .unwrap();
    let log = vm.ok("dmesg | grep -c 'I/O error' || true").unwrap();
    vm.ok(&format!(
        "dd if={file} of=/dev/null bs=32M iflag=direct status=none"
    ))
    .unwrap();
    assert_eq!(vm.ok("dmesg | grep -c 'I/O error' || true").unwrap(), log);
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

/// C-16: in what udev has not read, LVM finds nothing to activate.
#[test]
fn udev_leaves_our_namespaces_alone() {
    let fleet = Fleet::fresh();
    let vm = fleet.vm("node0");
    let volume = fleet.create(&Wanted::named("pvc-quiet"));
    volume.bring_to("node0");
    // udevd reads new rules within some seconds; here it is told to.
    let told = vm.ok(
        "udevadm control --reload && udevadm trigger --settle /dev/nvme*n1 && \
         udevadm info --query=property /dev/nvme*n1",
    );
    let told = told.unwrap();
    let flag = "UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG=1";
    assert!(told.contains(flag), "{told}");
    assert!(!told.contains("ID_FS_TYPE"), "it was read: {told}");
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn every_call_repeated_is_fine() {
    let fleet = Fleet::fresh();
    let wanted = Wanted::named("pvc-twice");
    let volume = fleet.create(&wanted);
    assert_eq!(fleet.create(&wanted).id, volume.id);
    let context = volume.attach("node0").unwrap();
    assert_eq!(volume.attach("node0").unwrap(), context);
    for _ in 0..2 {
        volume.stage("node0", &context).unwrap();
    }
    for _ in 0..2 {
        volume.publish("node0", &context, false).unwrap();
    }
    let sum = volume.write("node0");
    volume.stage("node0", &context).unwrap();
    assert_eq!(
        volume.read("node0"),
        sum,
        "staging again keeps every byte (C-22)"
    );
    for _ in 0..2 {
        volume.unpublish("node0").unwrap();
    }
    for _ in 0..2 {
        volume.unstage("node0").unwrap();
    }
    for _ in 0..2 {
        volume.detach("node0").unwrap();
    }
    for _ in 0..2 {
        fleet.controller.delete(&volume.id).unwrap();
    }
    fleet.assert_clean();
}

#[test]
fn bug_c_60_a_volume_is_reached_over_ipv6() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-six"));
    let mut context = volume.attach("node0").unwrap();
    let portal = format!("[{}]:4420", fleet.vm("storage0").ipv6());
    context.insert("portal".into(), portal.clone());
    volume.stage("node0", &context).unwrap();
    let address = fleet
        .vm("node0")
        .ok("cat /sys/class/nvme/nvme*/address")
        .unwrap();
    assert!(
        address.contains(&fleet.vm("storage0").ipv6().to_string()),
        "{address}"
    );
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

#[test]
fn bug_c_107_a_name_of_128_bytes_makes_a_volume_and_another_one_is_another() {
    let fleet = Fleet::fresh();
    let long = "Claim.With_A-Name/".repeat(8)[..128].to_owned();
    let mut other = long.clone();
    other.pop();
    other.push('x');
    let first = fleet.create(&Wanted::named(&long));
    let second = fleet.create(&Wanted::named(&other));
    assert_ne!(first.id, second.id);
    assert!(first.id.len() <= 63, "{}", first.id);
    let name = fleet
        .vm("storage0")
        .ok(&format!(
            "zfs get -H -o value zfs.csi.randomvariable.co.uk:name tank/csi/block/{}",
            first.id
        ))
        .unwrap();
    assert_eq!(
        name.trim(),
        long,
        "the whole name is stored with the dataset"
    );
    first.delete();
    second.delete();
    fleet.assert_clean();
}

#[test]
fn a_volume_is_deleted_only_when_no_node_has_it() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-held"));
    volume.attach("node0").unwrap();
    assert_refused(
        fleet.controller.delete(&volume.id),
        tonic::Code::FailedPrecondition,
        &["node0"],
    );
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}
