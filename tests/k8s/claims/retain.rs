//! Volumes that outlive their claims.

use serde_json::json;

use super::fixture::{Cluster, ours};
use super::kubelet::Pod;
use super::objects::{claim_at, volume_at};
use crate::cluster::fixture::lab;

#[test]
fn a_kept_volume_serves_another_claim_and_its_zvol_outlives_both() {
    let cluster = Cluster::fresh(1);
    let objects = &cluster.objects;
    objects.claim("kept", "zvolt-kept", json!({}));
    let pod = Pod::run(&cluster, "kept", "node0");
    let bound = pod.volume.clone();
    let sum = pod.write();
    pod.stop();
    objects.delete_and_wait(&claim_at("kept"));
    let volume = volume_at(&bound.volume);
    objects.until(&volume, "released", |volume| {
        (volume["status"]["phase"] == "Released").then_some(())
    });
    // An administrator gives it to somebody else.
    objects.patch(&volume, &json!({"spec": {"claimRef": null}}));
    objects.claim("heir", "zvolt-kept", json!({"volumeName": bound.volume}));
    let heir = objects.bound("heir");
    assert_eq!(heir.handle, bound.handle);
    let pod = Pod::run(&cluster, "heir", "node1");
    assert_eq!(pod.read(), sum);
    pod.stop();
    // Kubernetes lets go of it; the class has told the driver to keep the data.
    let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    objects.patch(&volume, &delete);
    objects.delete_claim(&heir);
    objects.until_gone(&ours(&format!("volumes/{}", bound.handle)));
    let dataset = format!("tank/csi/block/{}", bound.handle);
    let storage = lab().vm("storage0");
    storage
        .ok(&format!("zfs list {dataset} && zfs destroy {dataset}"))
        .expect("the zvol is still there");
    cluster.assert_clean();
}
