//! What every store must do: each store's tests call [`all`] with two clients of one empty store.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests, also where another program runs them"
)]

use std::sync::Arc;
use std::time::Duration;

use super::{Change, Error, Objects, Watch};
use crate::model::volume::{FINALIZER, MappedInitiator, Metadata, Volume, VolumeSpec};

/// A Volume as a controller would write it.
pub fn volume(name: &str) -> Volume {
    let spec = serde_json::json!({
        "pool": "tank", "capacity": 1 << 30, "volBlockSize": "16k", "ownerNode": "storage0",
        "volName": name, "volumeID": name,
    });
    Volume {
        metadata: Metadata {
            name: name.into(),
            finalizers: vec![FINALIZER.into()],
            ..Metadata::default()
        },
        spec: serde_json::from_value::<VolumeSpec>(spec).unwrap(),
        status: Default::default(),
    }
}

/// A consumer called `node`.
pub fn initiator(node: &str) -> MappedInitiator {
    MappedInitiator {
        node_name: node.into(),
        initiator_id: crate::model::names::host_nqn(node),
        attached_at: super::time::now(),
        read_only: false,
        access_mode: Default::default(),
    }
}

/// Runs them all, the second client standing for another process.
pub async fn all<S: Objects<Volume>>(one: Arc<S>, other: Arc<S>) {
    creates_once(&*one, &*other).await;
    refuses_bad_names(&*one).await;
    writes_spec_and_status_apart(&*one, &*other).await;
    refuses_an_old_version(&*one, &*other).await;
    deletes_with_the_last_finalizer(&*one, &*other).await;
    a_name_used_again_is_another_object(&*one, &*other).await;
    watches_in_order(&*one, &*other).await;
    a_watch_before_a_list_misses_nothing(one.clone(), &*other).await;
    many_writers_lose_no_update(one, other).await;
}

async fn creates_once<S: Objects<Volume>>(one: &S, other: &S) {
    let made = one.create(volume("once")).await.unwrap();
    assert!(!made.metadata.uid.is_empty() && !made.metadata.resource_version.is_empty());
    assert_eq!(made.metadata.generation, 1);
    assert!(
        matches!(other.create(volume("once")).await, Err(Error::Exists(_, name)) if name == "once")
    );
    assert_eq!(other.get("once").await.unwrap().as_ref(), Some(&made));
    assert_eq!(other.list().await.unwrap(), [made]);
    assert_eq!(other.get("none").await.unwrap(), None);
}

async fn refuses_bad_names<S: Objects<Volume>>(one: &S) {
    for name in [
        "",
        "..",
        "a/b",
        "../once",
        "a\0",
        "once\n",
        ".once",
        "Once",
        &"a".repeat(64),
    ] {
        assert!(
            matches!(one.create(volume(name)).await, Err(Error::BadName(_))),
            "{name:?}"
        );
        assert!(
            matches!(one.get(name).await, Err(Error::BadName(_))),
            "{name:?}"
        );
        assert!(
            matches!(one.delete(&volume(name)).await, Err(Error::BadName(_))),
            "{name:?}"
        );
        assert!(
            matches!(one.update_spec(volume(name)).await, Err(Error::BadName(_))),
            "{name:?}"
        );
        assert!(
            matches!(
                one.update_status(volume(name)).await,
                Err(Error::BadName(_))
            ),
            "{name:?}"
        );
    }
}

async fn writes_spec_and_status_apart<S: Objects<Volume>>(one: &S, other: &S) {
    let mut made = one.create(volume("apart")).await.unwrap();
    made.spec.capacity *= 2;
    made.status.was_ready = true;
    let grown = one.update_spec(made.clone()).await.unwrap();
    assert_eq!(
        (grown.metadata.generation, grown.status.was_ready),
        (2, false)
    );
    let mut wanted = grown.clone();
    wanted.spec.capacity = 1;
    wanted.status.was_ready = true;
    let ready = other.update_status(wanted).await.unwrap();
    assert_eq!(
        (ready.spec.capacity, ready.status.was_ready),
        (made.spec.capacity, true)
    );
    assert_eq!(ready.metadata.generation, 2);
    let again = other.update_status(ready.clone()).await.unwrap();
    assert_eq!(
        again.metadata.resource_version, ready.metadata.resource_version,
        "nothing changed, nothing written"
    );
}

async fn refuses_an_old_version<S: Objects<Volume>>(one: &S, other: &S) {
    let made = one.create(volume("old")).await.unwrap();
    let mut newer = made.clone();
    newer.status.mapped_initiators.push(initiator("node0"));
    other.update_status(newer).await.unwrap();
    let mut stale = made;
    stale.status.was_ready = true;
    assert!(matches!(
        one.update_status(stale.clone()).await,
        Err(Error::Conflict(..))
    ));
    assert!(matches!(
        one.update_spec(stale.clone()).await,
        Err(Error::Conflict(..))
    ));
    let deleted = one.delete(&stale).await;
    assert!(matches!(deleted, Err(Error::Conflict(..))), "{deleted:?}");
    assert!(!newest(other, "old").await.is_deleting());
    assert!(matches!(
        one.update_status(volume("none")).await,
        Err(Error::NotFound(..))
    ));
    assert!(matches!(
        one.delete(&volume("none")).await,
        Err(Error::NotFound(..))
    ));
}

async fn newest<S: Objects<Volume>>(store: &S, name: &str) -> Volume {
    store.get(name).await.unwrap().expect("it is there")
}

async fn deletes_with_the_last_finalizer<S: Objects<Volume>>(one: &S, other: &S) {
    let made = one.create(volume("final")).await.unwrap();
    one.delete(&made).await.unwrap();
    let mut marked = other
        .get("final")
        .await
        .unwrap()
        .expect("its finalizer keeps it");
    assert!(marked.is_deleting());
    other.delete(&marked).await.expect("asking twice is fine");
    assert_eq!(
        other.get("final").await.unwrap().as_ref(),
        Some(&marked),
        "the second time changes nothing"
    );
    marked.metadata.finalizers.clear();
    other.update_spec(marked).await.unwrap();
    assert_eq!(one.get("final").await.unwrap(), None);
    let mut free = volume("final");
    free.metadata.finalizers.clear();
    let made = one.create(free).await.unwrap();
    one.delete(&made).await.unwrap();
    assert_eq!(other.get("final").await.unwrap(), None);
}

async fn a_name_used_again_is_another_object<S: Objects<Volume>>(one: &S, other: &S) {
    let mut free = volume("again");
    free.metadata.finalizers.clear();
    let first = one.create(free.clone()).await.unwrap();
    one.delete(&first).await.unwrap();
    let second = other.create(free).await.unwrap();
    assert_ne!(first.metadata.uid, second.metadata.uid);
    let mut stale = first;
    assert!(matches!(one.delete(&stale).await, Err(Error::Conflict(..))));
    stale.status.was_ready = true;
    assert!(matches!(
        one.update_status(stale).await,
        Err(Error::Conflict(..))
    ));
    assert_eq!(newest(other, "again").await, second);
}

async fn next(watch: &mut Watch<Volume>) -> Change<Volume> {
    tokio::time::timeout(Duration::from_secs(10), watch.next())
        .await
        .expect("a change within 10 s")
        .expect("the store is there")
}

async fn watches_in_order<S: Objects<Volume>>(one: &S, other: &S) {
    let (mut own, mut foreign) = (one.watch(Some("seen")), other.watch(Some("seen")));
    let mut elsewhere = one.watch(Some("elsewhere"));
    let mut made = one.create(volume("seen")).await.unwrap();
    for watch in [&mut own, &mut foreign] {
        assert!(matches!(next(watch).await, Change::Put(v) if *v == made));
    }
    made.status.was_ready = true;
    let mut ready = other.update_status(made).await.unwrap();
    for watch in [&mut own, &mut foreign] {
        assert!(matches!(next(watch).await, Change::Put(v) if *v == ready));
    }
    one.delete(&ready).await.unwrap();
    for watch in [&mut own, &mut foreign] {
        let Change::Put(v) = next(watch).await else {
            panic!("it is there until its finalizer is gone")
        };
        assert!(v.is_deleting());
        ready = (*v).clone();
    }
    ready.metadata.finalizers.clear();
    one.update_spec(ready).await.unwrap();
    for watch in [&mut own, &mut foreign] {
        assert!(matches!(next(watch).await, Change::Gone(name) if name == "seen"));
    }
    one.create(volume("elsewhere")).await.unwrap();
    assert!(
        matches!(next(&mut elsewhere).await, Change::Put(v) if v.metadata.name == "elsewhere"),
        "and no other"
    );
}

async fn a_watch_before_a_list_misses_nothing<S: Objects<Volume>>(one: Arc<S>, other: &S) {
    const MANY: usize = 40;
    let maker = tokio::spawn(async move {
        for n in 0..MANY {
            one.create(volume(&format!("burst-{n}"))).await.unwrap();
        }
    });
    let mut watch = other.watch(None);
    let mut seen: std::collections::BTreeSet<String> = other
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|v| v.metadata.name)
        .collect();
    while seen
        .iter()
        .filter(|name| name.starts_with("burst-"))
        .count()
        < MANY
    {
        if let Change::Put(v) = next(&mut watch).await {
            seen.insert(v.metadata.name.clone());
        }
    }
    maker.await.unwrap();
}

async fn many_writers_lose_no_update<S: Objects<Volume>>(one: Arc<S>, other: Arc<S>) {
    const WRITERS: usize = 8;
    const EACH: usize = 8;
    one.create(volume("shared")).await.unwrap();
    let mut watch = one.watch(Some("shared"));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = if writer % 2 == 0 {
            one.clone()
        } else {
            other.clone()
        };
        writers.spawn(async move {
            for n in 0..EACH {
                loop {
                    let mut volume = store.get("shared").await.unwrap().unwrap();
                    volume
                        .status
                        .published_initiators
                        .push(format!("{writer}.{n}"));
                    match store.update_status(volume).await {
                        Ok(_) => break,
                        Err(Error::Conflict(..)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    writers.join_all().await;
    let shared = other.get("shared").await.unwrap().unwrap();
    let mut all = shared.status.published_initiators.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), WRITERS * EACH);
    // The first word may be of the creation, whose event is read after the watch was made.
    let mut last = None;
    while last != Some(WRITERS * EACH) {
        let Change::Put(v) = next(&mut watch).await else {
            panic!("nobody deletes it")
        };
        let length = v.status.published_initiators.len();
        assert!(
            last.is_none_or(|last| length > last),
            "newer states come later: {length} after {last:?}"
        );
        last = Some(length);
    }
}
