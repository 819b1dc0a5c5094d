//! What users make, and what they wait for.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::plane::{Api, Refusal};

/// Users' namespace.
pub(super) const USERS: &str = "/api/v1/namespaces/default";
pub(super) const SNAPSHOTS: &str =
    "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
pub(super) const GROUPS: &str =
    "/apis/groupsnapshot.storage.k8s.io/v1/namespaces/default/volumegroupsnapshots";
pub(super) const VOLUMES: &str = "/api/v1/persistentvolumes";
/// How long something may take to come about.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// Somebody who may do all, and waits.
pub(super) struct Objects {
    runtime: Runtime,
    api: Api,
}

/// A claim that a volume is bound to.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub(super) claim: String,
    /// The PersistentVolume.
    pub(super) volume: String,
    pub(super) handle: String,
}

impl Objects {
    pub(super) fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let api = runtime.block_on(Api::new());
        Self { runtime, api }
    }

    /// Runs what asks by itself.
    pub(super) fn run<T>(&self, asks: impl AsyncFnOnce(&Api) -> T) -> T {
        self.runtime.block_on(asks(&self.api))
    }

    pub(super) fn get(&self, target: &str) -> Value {
        self.run(async |api| api.get(target).await)
    }

    /// Whatever is there now.
    pub(super) fn find(&self, target: &str) -> Option<Value> {
        self.try_send("GET", target, None).ok()
    }

    pub(super) fn items(&self, target: &str) -> Vec<Value> {
        let listed = self.get(target);
        listed["items"].as_array().unwrap().clone()
    }

    pub(super) fn create(&self, target: &str, object: &Value) -> Value {
        self.run(async |api| api.send("POST", target, object).await)
    }

    pub(super) fn patch(&self, target: &str, change: &Value) -> Value {
        self.run(async |api| api.send("PATCH", target, change).await)
    }

    pub(super) fn try_send(
        &self,
        verb: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        self.run(async |api| api.try_send(verb, target, body).await)
    }

    /// Asks for its end, if it is there.
    pub(super) fn delete(&self, target: &str) {
        let _ = self.try_send("DELETE", target, None);
    }

    /// Waits until `seen` gives something of what there is.
    pub(super) fn until<T>(
        &self,
        target: &str,
        what: &str,
        seen: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.find(target);
            if let Some(seen) = found.as_ref().and_then(&seen) {
                return seen;
            }
            if Instant::now() >= end {
                let events = self.events();
                panic!("{target}: not {what}: {found:#?}\n{events}");
            }
            thread::sleep(LOOK);
        }
    }

    pub(super) fn until_gone(&self, target: &str) {
        let end = Instant::now() + PATIENCE;
        while let Some(found) = self.find(target) {
            if Instant::now() >= end {
                let events = self.events();
                panic!("{target}: is still there: {found:#}\n{events}");
            }
            thread::sleep(LOOK);
        }
    }

    pub(super) fn delete_and_wait(&self, target: &str) {
        self.delete(target);
        self.until_gone(target);
    }

    /// What the cluster has told its users.
    fn events(&self) -> String {
        let events = self.items(&format!("{USERS}/events"));
        let line = |event: &Value| format!("{}: {}", event["reason"], event["message"]);
        events.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// A claim of 1 GiB for one node's writers, with more in its spec.
    pub(super) fn claim(&self, name: &str, class: &str, more: Value) {
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": {"group": "together"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            claim["spec"][key] = value.clone();
        }
        self.create(&format!("{USERS}/persistentvolumeclaims"), &claim);
    }

    /// Waits until a volume is bound to it.
    pub(super) fn bound(&self, claim: &str) -> Bound {
        let volume = self.until(&claim_at(claim), "bound", |claim| {
            let bound = claim["status"]["phase"] == "Bound";
            bound.then(|| claim["spec"]["volumeName"].as_str().unwrap().to_owned())
        });
        let found = self.get(&volume_at(&volume));
        let handle = found["spec"]["csi"]["volumeHandle"].as_str().unwrap();
        Bound {
            claim: claim.into(),
            handle: handle.into(),
            volume,
        }
    }

    /// Deletes a claim, and waits until its volume is gone with it.
    pub(super) fn delete_claim(&self, bound: &Bound) {
        self.delete_and_wait(&claim_at(&bound.claim));
        self.until_gone(&volume_at(&bound.volume));
    }
}

pub(super) fn claim_at(name: &str) -> String {
    format!("{USERS}/persistentvolumeclaims/{name}")
}

pub(super) fn volume_at(name: &str) -> String {
    format!("{VOLUMES}/{name}")
}
