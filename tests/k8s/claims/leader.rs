//! Two replicas of the controller: one leads, and dies.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{Cluster, NAMESPACE};
use super::kubelet::Pod;

const CLASS: &str = "zvolt-immediate";
/// A lease ends 15 s after it was last renewed, and is looked at every 5 s; the rest is for the sidecar to begin.
const TAKEN_OVER: Duration = Duration::from_secs(60);

/// The sidecars' leases, with their holders, once each has one.
fn leaders(cluster: &Cluster) -> Vec<(String, String)> {
    const SIDECARS: usize = 4;
    let target = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let pair = |lease: &Value| {
        let name = lease["metadata"]["name"].as_str()?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        (!holder.is_empty()).then(|| (name.to_owned(), holder.to_owned()))
    };
    cluster.objects.until(&target, "each led", |listed| {
        let all: Vec<_> = listed["items"]
            .as_array()?
            .iter()
            .filter_map(pair)
            .collect();
        (all.len() == SIDECARS).then_some(all)
    })
}

#[test]
fn the_other_controller_takes_over_when_the_leader_dies() {
    let mut cluster = Cluster::fresh(2);
    cluster.objects.claim("before", CLASS, json!({}));
    let before = cluster.objects.bound("before");
    let pod = Pod::run(&cluster, "before", "node0");
    let sum = pod.write();
    pod.stop();
    let leads = |pod: &str, all: &[(String, String)]| {
        all.iter().filter(|(_, holder)| holder == pod).count()
    };
    let now = leaders(&cluster);
    let held = cluster
        .replicas
        .iter()
        .map(|replica| leads(&replica.pod, &now));
    assert_eq!(held.sum::<usize>(), now.len(), "{now:?}");
    // The provisioner's and with it whatever else it leads.
    let (_, dead) = now
        .iter()
        .find(|(lease, _)| lease == "zfs-csi-randomvariable-co-uk")
        .unwrap_or_else(|| panic!("{now:?}"));
    cluster.replicas.retain(|replica| replica.pod != *dead);
    assert_eq!(cluster.replicas.len(), 1);
    let begin = Instant::now();
    cluster.objects.claim("after", CLASS, json!({}));
    let after = cluster.objects.bound("after");
    let bound = begin.elapsed();
    let pods = ["before", "after"].map(|claim| Pod::run(&cluster, claim, "node1"));
    let attached = begin.elapsed();
    let told = writeln!(
        std::io::stderr(),
        "leader killed: a claim bound after {bound:?}, both attached and mounted after {attached:?}"
    );
    told.unwrap();
    assert!(attached < TAKEN_OVER, "{attached:?}");
    assert_eq!(pods[0].read(), sum);
    for pod in pods {
        pod.stop();
    }
    for bound in [&before, &after] {
        cluster.objects.delete_claim(bound);
    }
    cluster.assert_clean();
}
