//! A store in memory, for one caller at a time: nobody watches it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::SimHost;
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::StorageNode;
use crate::model::volume::Volume;
use crate::store::{Error, Objects, Store, Watch};

/// Objects of one kind.
#[derive(Debug)]
pub(in crate::agent) struct Kind<T> {
    objects: Mutex<BTreeMap<String, T>>,
    /// So many lists fail.
    pub(in crate::agent) unanswered: Mutex<u32>,
    /// Who writes may die before it.
    host: Arc<SimHost>,
}

#[derive(Debug)]
pub(in crate::agent) struct MemoryStore {
    pub(in crate::agent) volumes: Kind<Volume>,
    pub(in crate::agent) snapshots: Kind<Snapshot>,
    nodes: Kind<StorageNode>,
}

impl MemoryStore {
    pub(in crate::agent) fn on(host: Arc<SimHost>) -> Self {
        fn kind<T>(host: &Arc<SimHost>) -> Kind<T> {
            Kind {
                objects: Mutex::default(),
                unanswered: Mutex::default(),
                host: host.clone(),
            }
        }
        Self {
            volumes: kind(&host),
            snapshots: kind(&host),
            nodes: kind(&host),
        }
    }
}

impl Store for MemoryStore {
    fn volumes(&self) -> &impl Objects<Volume> {
        &self.volumes
    }

    fn snapshots(&self) -> &impl Objects<Snapshot> {
        &self.snapshots
    }

    fn storage_nodes(&self) -> &impl Objects<StorageNode> {
        &self.nodes
    }
}

impl<T: Object> Kind<T> {
    pub(in crate::agent) fn all(&self) -> Vec<T> {
        self.objects.lock().unwrap().values().cloned().collect()
    }

    pub(in crate::agent) fn one(&self, name: &str) -> Option<T> {
        self.objects.lock().unwrap().get(name).cloned()
    }

    /// As a client of the store does.
    pub(in crate::agent) fn put(&self, mut object: T) {
        let metadata = object.metadata_mut();
        metadata.uid = format!("{:0>8}", metadata.name);
        metadata.resource_version = "1".into();
        metadata.generation = 1;
        self.keep(object);
    }

    /// As it is.
    pub(in crate::agent) fn keep(&self, object: T) {
        let name = object.metadata().name.clone();
        self.objects.lock().unwrap().insert(name, object);
    }

    pub(in crate::agent) fn ask_to_delete(&self, name: &str) {
        let mut all = self.objects.lock().unwrap();
        let metadata = all.get_mut(name).unwrap().metadata_mut();
        metadata.deletion_timestamp = Some("2026-11-01T12:00:00Z".into());
    }

    fn write(&self, object: &T, change: impl FnOnce(&mut T)) -> Result<T, Error> {
        let name = &object.metadata().name;
        self.host.tick("store".into()).map_err(|dead| Error::Io {
            call: "write",
            path: name.clone(),
            source: std::io::Error::other(dead),
        })?;
        let mut all = self.objects.lock().unwrap();
        let Some(mut now) = all.get(name).cloned() else {
            return Err(Error::NotFound(T::KIND, name.clone()));
        };
        if now.metadata().resource_version != object.metadata().resource_version {
            return Err(Error::Conflict(T::KIND, name.clone()));
        }
        change(&mut now);
        let metadata = now.metadata_mut();
        let version: u64 = metadata.resource_version.parse().unwrap();
        metadata.resource_version = (version + 1).to_string();
        match metadata.deletion_timestamp.is_some() && metadata.finalizers.is_empty() {
            true => all.remove(name),
            false => all.insert(name.clone(), now.clone()),
        };
        Ok(now)
    }
}

impl<T: Object> Objects<T> for Kind<T> {
    async fn create(&self, object: T) -> Result<T, Error> {
        let name = object.metadata().name.clone();
        self.put(object);
        Ok(self.one(&name).expect("it was put there"))
    }

    async fn get(&self, name: &str) -> Result<Option<T>, Error> {
        Ok(self.one(name))
    }

    async fn list(&self) -> Result<Vec<T>, Error> {
        let mut unanswered = self.unanswered.lock().unwrap();
        if let Some(left) = unanswered.checked_sub(1) {
            *unanswered = left;
            return Err(Error::Failed {
                verb: "GET".into(),
                path: "/volumes".into(),
                problem: "connection refused".into(),
            });
        }
        Ok(self.all())
    }

    async fn update_spec(&self, object: T) -> Result<T, Error> {
        self.write(&object, |now| {
            now.take_spec(&object);
            let finalizers = &object.metadata().finalizers;
            now.metadata_mut().finalizers.clone_from(finalizers);
        })
    }

    async fn update_status(&self, object: T) -> Result<T, Error> {
        self.write(&object, |now| now.take_status(&object))
    }

    async fn delete(&self, object: &T) -> Result<(), Error> {
        self.ask_to_delete(&object.metadata().name);
        Ok(())
    }

    fn watch(&self, _name: Option<&str>) -> Watch<T> {
        Watch(tokio::sync::mpsc::unbounded_channel().1)
    }
}
