//! Watches: a list says where a watch begins, and the watch is resumed there when it breaks. Only when the server no longer
//! knows that moment (410 Gone) is there another list, of which watchers learn what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::core::WatchEvent;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt as _;
use uuid::Uuid;

use super::super::{Change, Error, Watch};
use super::Resource;
use super::api::{Endpoint, name_of};
use crate::model::object::Object;

/// A server sends a bookmark each minute: one that has said nothing for so long has gone, with the connection still up.
const SILENCE: Duration = Duration::from_secs(150);
/// The first and the longest pause before a watch is tried again; the first try has none.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The server no longer knows the version that a watch was to go on from.
const GONE: u16 = 410;

/// Starts a watch of all objects or of one. It ends with the store (`closed`), or when nobody listens any more.
pub(super) fn start<T: Resource>(
    runtime: &Handle,
    endpoint: Arc<Endpoint<T>>,
    name: Option<&str>,
    mut closed: Receiver<()>,
) -> Watch<T> {
    let (to, from) = mpsc::unbounded_channel();
    let name = name.map(str::to_owned);
    let mut following = Following {
        endpoint,
        name,
        to: to.clone(),
        told: Told::default(),
        position: None,
    };
    runtime.spawn(async move {
        tokio::select! {
            () = following.follow() => {}
            _ = closed.changed() => {}
            () = to.closed() => {}
        }
    });
    Watch(from)
}

struct Following<T> {
    endpoint: Arc<Endpoint<T>>,
    name: Option<String>,
    to: UnboundedSender<Change<T>>,
    told: Told,
    /// The version after which the watch goes on; `None` when only a list can tell.
    position: Option<String>,
}

impl<T: Resource> Following<T> {
    async fn follow(&mut self) {
        let mut failures = 0_u32;
        loop {
            let begin = Instant::now();
            let outcome = self.once().await;
            if begin.elapsed() > PAUSE.1 {
                failures = 0;
            }
            if let Err(error) = outcome
                && failures.is_power_of_two()
            {
                tracing::warn!(kind = T::KIND, name = self.name, failures, %error, "the watch is broken, and is tried again");
            }
            pause(failures).await;
            failures += 1;
        }
    }

    /// One watch, to its end.
    async fn once(&mut self) -> Result<(), Error> {
        let name = self.name.as_deref();
        let version = match &self.position {
            Some(version) => version.clone(),
            None => {
                let list = self.endpoint.listed(name).await?;
                let changes = self.told.settle::<T>(list.items);
                changes.into_iter().for_each(|change| self.tell(change));
                self.position = Some(list.metadata.resource_version.clone());
                list.metadata.resource_version
            }
        };
        let mut events = match self.endpoint.events(name, &version).await {
            Ok(events) => pin!(events),
            Err(Error::Refused { code: GONE, .. }) => {
                self.position = None;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        loop {
            let Ok(event) = timeout(SILENCE, events.next()).await else {
                tracing::info!(
                    kind = T::KIND,
                    name = self.name,
                    "the watch is silent, and is made anew"
                );
                return Ok(());
            };
            match event {
                None => return Ok(()),
                Some(event) => match event? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => self.put(object),
                    WatchEvent::Deleted(object) => self.gone(&object),
                    WatchEvent::Bookmark(mark) => {
                        self.position = Some(mark.metadata.resource_version)
                    }
                    WatchEvent::Error(status) if status.code == GONE => {
                        self.position = None;
                        return Ok(());
                    }
                    WatchEvent::Error(status) => return Err(self.endpoint.watch_refused(&status)),
                },
            }
        }
    }

    fn put(&mut self, object: Value) {
        self.moved_on(&object);
        if let Some(object) = read::<T>(object) {
            let changes = self.told.put(object);
            changes.into_iter().for_each(|change| self.tell(change));
        }
    }

    fn gone(&mut self, object: &Value) {
        self.moved_on(object);
        let name = name_of(object);
        if self.told.forget(name) {
            self.tell(Change::Gone(name.to_owned()));
        }
    }

    fn moved_on(&mut self, object: &Value) {
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.position = Some(version.to_owned());
        }
    }

    fn tell(&self, change: Change<T>) {
        // Nobody listens: the task ends.
        let _ = self.to.send(change);
    }
}

/// Lets an API server come back, without a crowd of clients that all come at once.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing tells when a server that does not answer is there again"
)]
async fn pause(failures: u32) {
    let Some(doublings) = failures.checked_sub(1) else {
        return;
    };
    let longest = PAUSE.1.min(PAUSE.0 * 2_u32.pow(doublings.min(8)));
    let share = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
    tokio::time::sleep(longest.mul_f64(0.5 + share / 2.0)).await;
}

/// An object, unless this program cannot read it: that one is left out, and the others are served.
fn read<T: Object>(object: Value) -> Option<T> {
    let name = name_of(&object).to_owned();
    match serde_json::from_value(object) {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::error!(kind = T::KIND, name, %error, "cannot be read; mend or remove the object");
            None
        }
    }
}

/// What a watcher has been told: uid and version, by name.
#[derive(Debug, Default)]
struct Told(BTreeMap<String, (String, String)>);

impl Told {
    /// An object as it is now: what is to be told of it.
    fn put<T: Object>(&mut self, object: T) -> Vec<Change<T>> {
        let metadata = object.metadata();
        let now = (metadata.uid.clone(), metadata.resource_version.clone());
        let name = metadata.name.clone();
        let before = self.0.insert(name.clone(), now.clone());
        let mut changes = Vec::new();
        if before.as_ref() == Some(&now) {
            return changes;
        }
        if before.is_some_and(|(uid, _)| uid != now.0) {
            changes.push(Change::Gone(name));
        }
        changes.push(Change::Put(Arc::new(object)));
        changes
    }

    /// Whether there is something to tell of an object that is gone.
    fn forget(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// What is to be told when these are all the objects that there are.
    fn settle<T: Object>(&mut self, items: Vec<Value>) -> Vec<Change<T>> {
        let names: BTreeSet<String> = items.iter().map(|item| name_of(item).to_owned()).collect();
        let mut changes = Vec::new();
        self.0.retain(|name, _| {
            let is_there = names.contains(name);
            if !is_there {
                changes.push(Change::Gone(name.clone()));
            }
            is_there
        });
        changes.extend(
            items
                .into_iter()
                .filter_map(read)
                .flat_map(|object| self.put(object)),
        );
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::volume::Volume;
    use crate::store::conformance::volume;

    fn object(name: &str, uid: &str, version: &str) -> Volume {
        let mut volume = volume(name);
        volume.metadata.uid = uid.into();
        volume.metadata.resource_version = version.into();
        volume
    }

    fn said(changes: Vec<Change<Volume>>) -> Vec<String> {
        let say = |change: Change<Volume>| match change {
            Change::Put(v) => format!("{} {}", v.metadata.name, v.metadata.resource_version),
            Change::Gone(name) => format!("{name} gone"),
        };
        changes.into_iter().map(say).collect()
    }

    fn settle(told: &mut Told, objects: &[Volume]) -> Vec<String> {
        let items = objects.iter().map(|v| serde_json::to_value(v).unwrap());
        said(told.settle(items.collect()))
    }

    #[test]
    fn after_a_gap_watchers_learn_what_differs_and_no_more() {
        let mut told = Told::default();
        let before = ["changed", "removed", "replaced", "same"].map(|name| object(name, "1", "1"));
        assert_eq!(settle(&mut told, &before).len(), 4);
        let after = [
            object("added", "1", "5"),
            object("changed", "1", "3"),
            object("replaced", "2", "4"),
            object("same", "1", "1"),
        ];
        assert_eq!(
            settle(&mut told, &after),
            [
                "removed gone",
                "added 5",
                "changed 3",
                "replaced gone",
                "replaced 4"
            ]
        );
        assert!(settle(&mut told, &after).is_empty());
        assert!(said(told.put(object("changed", "1", "3"))).is_empty());
        assert_eq!(said(told.put(object("changed", "1", "6"))), ["changed 6"]);
        assert!(told.forget("changed") && !told.forget("changed"));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_told_as_gone() {
        let mut told = Told::default();
        settle(
            &mut told,
            &[object("odd", "1", "1"), object("good", "1", "1")],
        );
        let odd =
            serde_json::json!({"metadata": {"name": "odd", "uid": "1", "resourceVersion": "2"}});
        let good = serde_json::to_value(object("good", "1", "3")).unwrap();
        assert_eq!(said(told.settle(vec![odd, good])), ["good 3"]);
    }
}
