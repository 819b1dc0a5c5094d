//! kubelet, played: it brings a pod's volume from where the attach-detach controller has left it to the pod's path, with
//! what is in the PersistentVolume and the VolumeAttachment, and nothing else.

use std::collections::HashMap;

use serde_json::{Value, json};
use zvolt_lab::fleet::{staging_path, target_path};
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};

use super::fixture::{Cluster, DRIVER};
use super::objects::{Bound, USERS, claim_at, volume_at};
use crate::cluster::fixture::lab;

const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// A pod that has its volume.
pub(super) struct Pod<'a> {
    cluster: &'a Cluster,
    name: String,
    pub(super) node: &'static str,
    pub(super) volume: Bound,
}

fn strings(map: &Value) -> HashMap<String, String> {
    serde_json::from_value(map.clone()).unwrap_or_default()
}

/// Makes a pod with a claim; the scheduler picks its node, of those with this name if there is one.
pub(super) fn make_pod(cluster: &Cluster, name: &str, claim: &str, node: Option<&str>) {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "it", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    });
    if let Some(node) = node {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    cluster.objects.create(&format!("{USERS}/pods"), &pod);
}

pub(super) fn pod_at(name: &str) -> String {
    format!("{USERS}/pods/{name}")
}

impl<'a> Pod<'a> {
    /// Makes one on a node, and brings its volume there.
    pub(super) fn run(cluster: &'a Cluster, claim: &str, node: &'static str) -> Self {
        let name = format!("{claim}-on-{node}");
        make_pod(cluster, &name, claim, Some(node));
        let mut pod = Self::attached(cluster, &name, claim);
        pod.mount();
        pod
    }

    /// One that is there: waits until its volume is attached to the node that the scheduler has picked.
    pub(super) fn attached(cluster: &'a Cluster, name: &str, claim: &str) -> Self {
        let node = cluster.objects.until(&pod_at(name), "scheduled", |pod| {
            let node = pod["spec"]["nodeName"].as_str()?;
            cluster.nodes.keys().find(|known| **known == node).copied()
        });
        let pod = Self {
            cluster,
            name: name.into(),
            node,
            volume: cluster.objects.bound(claim),
        };
        pod.attachment();
        pod
    }

    /// What the controller answered to ControllerPublishVolume, as external-attacher has written it down.
    pub(super) fn attachment(&self) -> HashMap<String, String> {
        let is_it = |item: &&Value| {
            item["spec"]["source"]["persistentVolumeName"] == self.volume.volume
                && item["spec"]["nodeName"] == self.node
                && item["status"]["attached"] == true
        };
        self.cluster
            .objects
            .until(ATTACHMENTS, "attached", |listed| {
                let found = listed["items"].as_array()?.iter().find(is_it)?;
                Some(strings(&found["status"]["attachmentMetadata"]))
            })
    }

    fn staging(&self) -> String {
        staging_path(&self.volume.handle)
    }

    fn target(&self) -> String {
        target_path(&self.volume.handle, &self.name)
    }

    fn csi(&self) -> &zvolt_lab::orchestrator::Csi {
        &self.cluster.nodes[self.node]
    }

    /// NodeStageVolume and NodePublishVolume.
    pub(super) fn mount(&mut self) {
        let volume = self.cluster.objects.get(&volume_at(&self.volume.volume));
        let source = &volume["spec"]["csi"];
        assert_eq!(source["driver"], DRIVER);
        let capability = csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeMultiWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: source["fsType"].as_str().unwrap().into(),
                ..MountVolume::default()
            })),
        };
        let publish_context = self.attachment();
        let mut volume_context = strings(&source["volumeAttributes"]);
        let (staging, target) = (self.staging(), self.target());
        let (parent, _) = target.rsplit_once('/').unwrap();
        let vm = lab().vm(self.node);
        vm.ok(&format!("mkdir -p {staging} {parent}")).unwrap();
        self.tell_in_use(|all, name| all.push(name));
        let csi = self.csi();
        let stage = csi::NodeStageVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: staging.clone(),
            volume_capability: Some(capability.clone()),
            volume_context: volume_context.clone(),
            ..Default::default()
        };
        csi.call(csi.node().node_stage_volume(csi.request(stage)))
            .unwrap();
        for (key, value) in [("name", self.name.as_str()), ("namespace", "default")] {
            volume_context.insert(format!("csi.storage.k8s.io/pod.{key}"), value.into());
        }
        let publish = csi::NodePublishVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context,
            staging_target_path: staging,
            target_path: target,
            volume_capability: Some(capability),
            volume_context,
            ..Default::default()
        };
        csi.call(csi.node().node_publish_volume(csi.request(publish)))
            .unwrap();
    }

    /// NodeExpandVolume, and what kubelet then says of the claim.
    pub(super) fn grow(&self, size: &str) {
        let csi = self.csi();
        let request = csi::NodeExpandVolumeRequest {
            volume_id: self.volume.handle.clone(),
            volume_path: self.target(),
            staging_target_path: self.staging(),
            ..Default::default()
        };
        csi.call(csi.node().node_expand_volume(csi.request(request)))
            .unwrap();
        let status = json!({"status": {
            "capacity": {"storage": size}, "conditions": null,
            "allocatedResourceStatuses": null,
        }});
        let target = format!("{}/status", claim_at(&self.volume.claim));
        self.cluster.objects.patch(&target, &status);
    }

    /// Ends it: unmounts its volume, and waits until that is detached.
    pub(super) fn stop(self) {
        let csi = self.csi();
        csi.unpublish(&self.volume.handle, &self.target()).unwrap();
        csi.unstage(&self.volume.handle, &self.staging()).unwrap();
        self.leave();
    }

    /// Ends one whose volume is not mounted.
    pub(super) fn leave(self) {
        let now = json!({"gracePeriodSeconds": 0});
        let objects = &self.cluster.objects;
        objects
            .try_send("DELETE", &pod_at(&self.name), Some(&now))
            .unwrap();
        self.tell_in_use(|all, name| all.retain(|other| *other != name));
        objects.until(ATTACHMENTS, "detached", |listed| {
            let of_it = |item: &Value| {
                item["spec"]["source"]["persistentVolumeName"] == self.volume.volume
                    && item["spec"]["nodeName"] == self.node
            };
            (!listed["items"].as_array()?.iter().any(of_it)).then_some(())
        });
    }

    /// The attach-detach controller waits for what a node says that it uses.
    fn tell_in_use(&self, change: impl FnOnce(&mut Vec<String>, String)) {
        let target = format!("/api/v1/nodes/{}", self.node);
        let node = self.cluster.objects.get(&target);
        let mut all: Vec<String> =
            serde_json::from_value(node["status"]["volumesInUse"].clone()).unwrap_or_default();
        let name = format!("kubernetes.io/csi/{DRIVER}^{}", self.volume.handle);
        change(&mut all, name);
        let said = json!({"status": {"volumesInUse": all}});
        self.cluster
            .objects
            .patch(&format!("{target}/status"), &said);
    }

    fn ok(&self, script: &str) -> String {
        lab().vm(self.node).ok(script).unwrap()
    }

    /// Writes 8 MiB, synced; gives their checksum.
    pub(super) fn write(&self) -> String {
        let file = format!("{}/data", self.target());
        self.ok(&format!(
            "dd if=/dev/urandom of={file} bs=1M count=8 conv=fsync status=none && sha256sum < {file}"
        ))
    }

    /// The checksum of what was written.
    pub(super) fn read(&self) -> String {
        self.ok(&format!("sha256sum < {}/data", self.target()))
    }

    /// Bytes of the filesystem that the pod sees.
    pub(super) fn bytes(&self) -> u64 {
        let script = format!(
            "stat -f -c '%b %S' {} | {{ read b s; echo $((b*s)); }}",
            self.target()
        );
        self.ok(&script).trim().parse().unwrap()
    }
}
