//! An API server that dies and comes back.

use std::time::Duration;

use zvolt::model::volume::Volume;
use zvolt::store::conformance::volume;
use zvolt::store::kube::KubeStore;
use zvolt::store::{Change, Error, Objects, Store, Watch};

use crate::plane::{namespace, open, plane};

async fn next(watch: &mut Watch<Volume>) -> Change<Volume> {
    tokio::time::timeout(Duration::from_secs(30), watch.next())
        .await
        .expect("a change within 30 s")
        .expect("the store is there")
}

async fn counted(store: &KubeStore, name: &str, count: i64) {
    let mut volume = store.volumes().get(name).await.unwrap().unwrap();
    volume.status.observed_generation = count;
    store.volumes().update_status(volume).await.unwrap();
}

fn off(work: impl FnOnce() + Send + 'static) -> impl Future<Output = ()> {
    let task = tokio::task::spawn_blocking(work);
    async { task.await.unwrap() }
}

/// States come in order, each once, until `last` of `name`; what came is given.
async fn until(watch: &mut Watch<Volume>, name: &str, last: i64) -> Vec<(String, i64)> {
    let mut seen = Vec::new();
    loop {
        let Change::Put(volume) = next(watch).await else {
            panic!("nobody deletes it")
        };
        let state = (
            volume.metadata.name.clone(),
            volume.status.observed_generation,
        );
        assert!(!seen.contains(&state), "{state:?} twice: {seen:?}");
        let newer = |(other, count): &(String, i64)| *other != state.0 || *count < state.1;
        assert!(seen.iter().all(newer), "{state:?} after {seen:?}");
        let is_last = state == (name.to_owned(), last);
        seen.push(state);
        if is_last {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_a_watch_outlives_the_api_server_and_tells_each_state_once() {
    namespace("outage").await;
    let store = open("outage").await;
    for name in ["changed", "quiet"] {
        store.volumes().create(volume(name)).await.unwrap();
    }
    let mut all = store.volumes().watch(None);
    let mut one = store.volumes().watch(Some("changed"));
    for _ in 0..2 {
        assert!(
            matches!(next(&mut all).await, Change::Put(_)),
            "what there was"
        );
    }
    for count in 1..=3 {
        counted(&store, "changed", count).await;
    }
    until(&mut all, "changed", 3).await;
    until(&mut one, "changed", 3).await;

    off(|| plane().kill_api_server().unwrap()).await;
    let error = store.volumes().get("changed").await.unwrap_err();
    assert!(matches!(&error, Error::Failed { .. }), "{error:?}");
    assert!(
        error.to_string().contains("refused") || error.to_string().contains("closed"),
        "{error}"
    );
    off(|| plane().start_api_server().unwrap()).await;
    // Written perhaps before the watches are back.
    for count in 4..=6 {
        counted(&store, "changed", count).await;
    }
    for watch in [&mut all, &mut one] {
        let seen = until(watch, "changed", 6).await;
        assert!(
            seen.iter()
                .all(|(name, count)| name == "changed" && *count > 3),
            "{seen:?}"
        );
    }

    // Once more, and what happens while nobody watches: the API server that comes back knows only the end of it.
    off(|| plane().kill_api_server().unwrap()).await;
    off(|| plane().start_api_server().unwrap()).await;
    let mut gone = store.volumes().get("quiet").await.unwrap().unwrap();
    gone.metadata.finalizers.clear();
    let gone = store.volumes().update_spec(gone).await.unwrap();
    store.volumes().delete(&gone).await.unwrap();
    let mut told = Vec::new();
    while !matches!(told.last(), Some(Change::Gone(_))) {
        told.push(next(&mut all).await);
    }
    assert!(
        told.len() <= 2,
        "its last state, perhaps, and that it is gone: {told:?}"
    );
    counted(&store, "changed", 7).await;
    assert_eq!(until(&mut one, "changed", 7).await.len(), 1);
    assert_eq!(until(&mut all, "changed", 7).await.len(), 1);
}
