//! Volumes that wait for their pod: the scheduler knows what room there is.

use std::collections::HashMap;

use serde_json::json;
use zvolt_proto::csi;

use super::fixture::{Cluster, NAMESPACE, forget_pod};
use super::kubelet::{Pod, make_pod, pod_at};
use super::objects::claim_at;

const CLASS: &str = "zvolt-ext4";

/// What the controller says of the class.
fn supply(cluster: &Cluster) -> csi::GetCapacityResponse {
    let csi = &cluster.replicas[0].csi;
    let parameters = [("pool", "tank"), ("csi.storage.k8s.io/fstype", "ext4")];
    let request = csi::GetCapacityRequest {
        parameters: HashMap::from(parameters.map(|(key, value)| (key.into(), value.into()))),
        ..Default::default()
    };
    csi.call(csi.controller().get_capacity(csi.request(request)))
        .unwrap()
}

/// Bytes of a quantity that Kubernetes wrote.
fn bytes(quantity: &str) -> i64 {
    let end = quantity
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(end);
    let shift = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
        .iter()
        .position(|known| *known == unit);
    number.parse::<i64>().unwrap() << (10 * shift.unwrap_or_else(|| panic!("{quantity}")))
}

#[test]
fn a_pod_waits_for_room_and_is_placed_where_its_volume_is_made() {
    let cluster = Cluster::fresh(1);
    let objects = &cluster.objects;
    let target = format!("/apis/storage.k8s.io/v1/namespaces/{NAMESPACE}/csistoragecapacities");
    let told = objects.until(&target, "told of the class", |listed| {
        let mut items = listed["items"].as_array()?.iter();
        items
            .find(|item| item["storageClassName"] == CLASS && !item["capacity"].is_null())
            .cloned()
    });
    let supply = supply(&cluster);
    assert_eq!(
        bytes(told["capacity"].as_str().unwrap()),
        supply.available_capacity
    );
    let largest = supply.maximum_volume_size.unwrap();
    assert_eq!(bytes(told["maximumVolumeSize"].as_str().unwrap()), largest);
    assert_eq!(
        told["nodeTopology"],
        json!({}),
        "it is there for every node"
    );
    let owner = &told["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "Deployment", "it goes with the release");

    let more = json!({"resources": {"requests": {"storage": (largest + 1).to_string()}}});
    objects.claim("large", CLASS, more);
    make_pod(&cluster, "large", "large", None);
    objects.until(&pod_at("large"), "refused for want of room", |pod| {
        let mut conditions = pod["status"]["conditions"].as_array()?.iter();
        conditions
            .any(|c| {
                c["type"] == "PodScheduled"
                    && c["status"] == "False"
                    && c["message"]
                        .as_str()
                        .is_some_and(|why| why.contains("enough free storage"))
            })
            .then_some(())
    });
    let claim = objects.get(&claim_at("large"));
    assert_eq!(claim["status"]["phase"], "Pending");
    forget_pod(objects, "large");
    objects.delete_and_wait(&claim_at("large"));

    objects.claim("small", CLASS, json!({}));
    make_pod(&cluster, "small", "small", None);
    let mut pod = Pod::attached(&cluster, "small", "small");
    pod.mount();
    let sum = pod.write();
    assert_eq!(pod.read(), sum);
    let bound = pod.volume.clone();
    pod.stop();
    objects.delete_claim(&bound);
    cluster.assert_clean();
}
