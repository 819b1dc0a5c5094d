//! What every store must do, and what this one adds.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use zvolt::model::object::Object;
use zvolt::model::snapshot::Snapshot;
use zvolt::model::storage_node::StorageNode;
use zvolt::model::volume::Volume;
use zvolt::store::conformance::{self, initiator, volume};
use zvolt::store::kube::KubeStore;
use zvolt::store::{Change, Error, Objects, Store, Watch, full};

use crate::plane::{GROUP, namespace, open, plane};

/// The volumes of a store, as objects of their own.
struct Volumes(KubeStore);

impl Objects<Volume> for Volumes {
    async fn create(&self, object: Volume) -> Result<Volume, Error> {
        self.0.volumes().create(object).await
    }

    async fn get(&self, name: &str) -> Result<Option<Volume>, Error> {
        self.0.volumes().get(name).await
    }

    async fn list(&self) -> Result<Vec<Volume>, Error> {
        self.0.volumes().list().await
    }

    async fn update_spec(&self, object: Volume) -> Result<Volume, Error> {
        self.0.volumes().update_spec(object).await
    }

    async fn update_status(&self, object: Volume) -> Result<Volume, Error> {
        self.0.volumes().update_status(object).await
    }

    async fn delete(&self, object: &Volume) -> Result<(), Error> {
        self.0.volumes().delete(object).await
    }

    fn watch(&self, name: Option<&str>) -> Watch<Volume> {
        self.0.volumes().watch(name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    namespace("conforms").await;
    let one = Arc::new(Volumes(open("conforms").await));
    let other = Arc::new(Volumes(open("conforms").await));
    conformance::all(one, other).await;
}

async fn keeps_every_field<T: Object>(objects: &impl Objects<T>, full: T) {
    let name = full.metadata().name.clone();
    let mut made = objects.create(full.clone()).await.unwrap();
    made.take_status(&full);
    let written = objects.update_status(made).await.unwrap();
    let read = objects.get(&name).await.unwrap().unwrap();
    assert_eq!(read, written);
    let mut wanted = full;
    *wanted.metadata_mut() = read.metadata().clone();
    assert_eq!(read, wanted, "{} lost something", T::KIND);
    let again = objects.update_spec(read.clone()).await.unwrap();
    assert_eq!(again, read, "the same spec is no change");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_field_is_pruned() {
    namespace("full").await;
    let store = open("full").await;
    keeps_every_field::<Volume>(store.volumes(), full::volume("v")).await;
    keeps_every_field::<Snapshot>(store.snapshots(), full::snapshot("s")).await;
    keeps_every_field::<StorageNode>(store.storage_nodes(), full::storage_node("n")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_is_a_conflict_and_leaves_the_newer_state() {
    namespace("conflict").await;
    let store = open("conflict").await;
    let volumes = store.volumes();
    let made = volumes.create(volume("v")).await.unwrap();
    let mut mapped = made.clone();
    mapped.status.mapped_initiators.push(initiator("node0"));
    let newer = volumes.update_status(mapped).await.unwrap();
    let mut stale = made;
    stale.status.was_ready = true;
    stale.spec.capacity *= 2;
    let is_conflict = |outcome| matches!(outcome, Err(Error::Conflict("volume", n)) if n == "v");
    assert!(is_conflict(volumes.update_status(stale.clone()).await));
    assert!(is_conflict(volumes.update_spec(stale).await));
    assert_eq!(volumes.get("v").await.unwrap(), Some(newer));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_put_on_an_object_stays() {
    let api = namespace("others").await;
    let store = open("others").await;
    let made = store.volumes().create(volume("v")).await.unwrap();
    let target = format!("{GROUP}/namespaces/others/volumes/v");
    let labels = json!({"metadata": {"labels": {"rack": "7"}, "annotations": {"note": "mine"}}});
    api.send("PATCH", &target, &labels).await;
    let mut newest = store.volumes().get("v").await.unwrap().unwrap();
    assert_eq!(newest.metadata.generation, made.metadata.generation);
    newest.spec.capacity *= 2;
    let mut grown = store.volumes().update_spec(newest).await.unwrap();
    grown.status.was_ready = true;
    store.volumes().update_status(grown).await.unwrap();
    let read = api.get(&target).await;
    assert_eq!(read["metadata"]["labels"]["rack"], "7");
    assert_eq!(read["metadata"]["annotations"]["note"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_says_what_was_asked_and_why_not() {
    namespace("errors").await;
    let store = open("errors").await;
    let made = store.volumes().create(volume("v")).await.unwrap();
    let mut moved = made;
    moved.spec.pool = "other".into();
    let said = store
        .volumes()
        .update_spec(moved)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with(&format!(
            "PATCH {GROUP}/namespaces/errors/volumes/v: 422 Invalid:"
        )),
        "{said}"
    );
    assert!(said.contains("spec.pool is immutable"), "{said}");

    let nowhere = open("nowhere").await;
    let error = nowhere.volumes().create(volume("v")).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { code: 404, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(matches!(
        KubeStore::open("../x", None).await,
        Err(Error::BadName(_))
    ));
    let missing = std::path::Path::new("/nonexistent/kubeconfig");
    let error = KubeStore::open("errors", Some(missing))
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("/nonexistent/kubeconfig"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_end_with_the_store() {
    namespace("ends").await;
    let store = open("ends").await;
    store.volumes().create(volume("v")).await.unwrap();
    let mut watch = store.volumes().watch(None);
    assert!(matches!(watch.next().await, Some(Change::Put(_))));
    drop(store);
    let end = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
    assert!(end.expect("in time").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_one_asks_for_no_other() {
    namespace("one").await;
    let store = open("one").await;
    let mut watch = store.volumes().watch(Some("v"));
    store.volumes().create(volume("w")).await.unwrap();
    store.volumes().create(volume("v")).await.unwrap();
    assert!(matches!(watch.next().await, Some(Change::Put(v)) if v.metadata.name == "v"));
    let asked = plane().audited("store").unwrap();
    let watches: Vec<_> = asked
        .iter()
        .map(|event| event["requestURI"].as_str().unwrap())
        .filter(|uri| uri.contains("/one/volumes?") && uri.contains("watch=true"))
        .collect();
    assert!(!watches.is_empty());
    assert!(
        watches
            .iter()
            .all(|uri| uri.contains("fieldSelector=metadata.name%3Dv")),
        "{watches:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_store_asks_nothing() {
    const QUIET: Duration = Duration::from_secs(20);
    namespace("quiet").await;
    let store = open("quiet").await;
    let mut made = store.volumes().create(volume("v")).await.unwrap();
    let mut watches = [
        store.volumes().watch(None),
        store.volumes().watch(Some("v")),
    ];
    made.status.was_ready = true;
    let ready = store.volumes().update_status(made).await.unwrap();
    for watch in &mut watches {
        while !matches!(watch.next().await, Some(Change::Put(v)) if *v == ready) {}
    }
    let asked = |what: &str| {
        let mut events = plane().audited("store").unwrap();
        events.retain(|event| {
            let uri = event["requestURI"].as_str().unwrap();
            uri.contains("/namespaces/quiet/") && uri.contains(what)
        });
        events.len()
    };
    // A list may have told all there was to tell, with its watch still on its way.
    let begun = async {
        while asked("watch=true") < watches.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(10), begun);
    within.await.expect("two watches");
    let before = asked("");
    assert_eq!(before, 6, "a create, an update, two lists and two watches");
    tokio::time::sleep(QUIET).await;
    assert_eq!(asked(""), before);
    for watch in &mut watches {
        let more = tokio::time::timeout(Duration::from_millis(10), watch.next()).await;
        assert!(more.is_err(), "{more:?}");
    }
}
