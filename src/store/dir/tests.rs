use std::fs;
use std::time::Duration;

use super::*;
use crate::store::conformance::{self, initiator, volume};

fn open(path: &Path) -> DirObjects<Volume> {
    DirObjects::open(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    let client = || Arc::new(open(dir.path()));
    conformance::all(client(), client()).await;
}

#[tokio::test]
async fn what_a_crash_left_is_cleaned_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let made = store.create(volume("kept")).await.unwrap();
    drop(store);
    let volumes = dir.path().join("volumes");
    fs::write(volumes.join(".kept.tmp"), "{").unwrap();
    fs::write(volumes.join(".gone.prev"), "{}").unwrap();
    fs::write(volumes.join("notes.txt"), "mine").unwrap();
    let store = open(dir.path());
    assert_eq!(store.list().await.unwrap(), [made]);
    let mut left: Vec<_> = fs::read_dir(&volumes)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["kept.json", "notes.txt"], "what is not ours stays");
}

#[tokio::test]
async fn an_object_whose_data_a_power_cut_has_eaten_comes_back_as_last_synced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let made = store.create(volume("cut")).await.unwrap();
    drop(store);
    let volumes = dir.path().join("volumes");
    fs::hard_link(volumes.join("cut.json"), volumes.join(".cut.prev")).unwrap();
    fs::write(volumes.join("new"), "").unwrap();
    fs::rename(volumes.join("new"), volumes.join("cut.json")).unwrap();
    let store = open(dir.path());
    assert_eq!(store.get("cut").await.unwrap(), Some(made));
    assert!(!volumes.join(".cut.prev").exists());
}

#[tokio::test]
async fn rule_04_no_version_that_still_maps_an_unmapped_node_is_left_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (files, to_sync) = Files::open(dir.path()).unwrap();
    let mut mapped = volume("fenced");
    mapped.status.mapped_initiators = vec![initiator("node0")];
    let held = files.lock("fenced").unwrap();
    files.write(&mapped, Durable::Now, &held).unwrap();
    let mut ready = mapped.clone();
    ready.status.was_ready = true;
    assert_eq!(durability(&mapped, &ready), Durable::Soon);
    files.write(&ready, Durable::Soon, &held).unwrap();
    let previous = dir.path().join("volumes/.fenced.prev");
    assert!(previous.exists(), "until the thread has synced");
    let mut unmapped = ready.clone();
    unmapped.status.mapped_initiators.clear();
    assert_eq!(durability(&ready, &unmapped), Durable::Now);
    files.write(&unmapped, Durable::Now, &held).unwrap();
    assert!(!previous.exists());
    drop(held);
    assert_eq!(to_sync.try_iter().collect::<Vec<_>>(), ["fenced"]);
}

#[test]
fn a_synced_version_drops_the_one_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (files, _to_sync) = Files::open(dir.path()).unwrap();
    let held = files.lock("v").unwrap();
    files.write(&volume("v"), Durable::Now, &held).unwrap();
    files.write(&volume("v"), Durable::Soon, &held).unwrap();
    drop(held);
    files.sync("v").unwrap();
    assert!(!dir.path().join("volumes/.v.prev").exists());
    files.sync("vanished").unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create(volume("good")).await.unwrap();
    let bad = dir.path().join("volumes/bad.json");
    fs::write(&bad, "{\"metadata\":").unwrap();
    let text = store.get("bad").await.unwrap_err().to_string();
    assert!(
        text.starts_with("parse ") && text.contains("volumes/bad.json"),
        "{text}"
    );
    assert!(
        store
            .list()
            .await
            .unwrap_err()
            .to_string()
            .contains("volumes/bad.json")
    );
    fs::copy(dir.path().join("volumes/good.json"), &bad).unwrap();
    assert!(
        store
            .get("bad")
            .await
            .unwrap_err()
            .to_string()
            .contains("metadata.name"),
        "a copy is no object"
    );
}

#[tokio::test]
async fn the_watch_ends_with_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch(None);
    drop(store);
    let end = tokio::time::timeout(Duration::from_secs(10), watch.next())
        .await
        .expect("in time");
    assert!(end.is_none());
}
