//! The store that is the Kubernetes API: one custom resource an object (`deploy/crds/`).
//!
//! What goes over the wire is the model's own serde form. A spec is written by a JSON patch, so that labels, annotations
//! and owners that others have put on an object stay; a status by its subresource. Unknown fields are an error
//! (`fieldValidation=Strict`): definitions that are older than this program do not eat what it writes.

mod api;
#[cfg(test)]
mod crds;
mod watch;

use std::path::Path;
use std::sync::Arc;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::Handle;
use tokio::sync::watch::Sender;

use self::api::Endpoint;
use super::{Error, Objects, Store, Watch, check};
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::StorageNode;
use crate::model::volume::Volume;

/// The version that is read and written, in the group of the driver's name.
const VERSION: &str = "v1alpha1";

/// What the API calls a kind.
trait Resource: Object {
    const API_KIND: &'static str;
}

impl Resource for Volume {
    const API_KIND: &'static str = "Volume";
}

impl Resource for Snapshot {
    const API_KIND: &'static str = "Snapshot";
}

impl Resource for StorageNode {
    const API_KIND: &'static str = "StorageNode";
}

/// A store in a namespace of a cluster.
pub struct KubeStore {
    volumes: KubeObjects<Volume>,
    snapshots: KubeObjects<Snapshot>,
    storage_nodes: KubeObjects<StorageNode>,
}

impl KubeStore {
    /// The store in `namespace` of the cluster that a kubeconfig file names; without one, of the cluster that kubectl would
    /// take (`KUBECONFIG`, `~/.kube/config`), or that this pod runs in. Asks the API server nothing.
    pub async fn open(namespace: &str, kubeconfig: Option<&Path>) -> Result<Self, Error> {
        check(namespace)?;
        let client = client(kubeconfig).await?;
        Ok(Self {
            volumes: KubeObjects::new(&client, namespace),
            snapshots: KubeObjects::new(&client, namespace),
            storage_nodes: KubeObjects::new(&client, namespace),
        })
    }
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let failed = |error: &dyn std::error::Error| Error::NoClient(api::chain(error));
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|e| failed(&e))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|e| failed(&e))?
        }
        None => Config::infer().await.map_err(|e| failed(&e))?,
    };
    Client::try_from(config).map_err(|e| failed(&e))
}

impl Store for KubeStore {
    fn volumes(&self) -> &impl Objects<Volume> {
        &self.volumes
    }

    fn snapshots(&self) -> &impl Objects<Snapshot> {
        &self.snapshots
    }

    fn storage_nodes(&self) -> &impl Objects<StorageNode> {
        &self.storage_nodes
    }
}

/// The objects of one kind.
struct KubeObjects<T> {
    endpoint: Arc<Endpoint<T>>,
    runtime: Handle,
    /// Watches end when it is dropped.
    open: Sender<()>,
}

impl<T: Resource> KubeObjects<T> {
    fn new(client: &Client, namespace: &str) -> Self {
        Self {
            endpoint: Arc::new(Endpoint::new(client.clone(), namespace)),
            runtime: Handle::current(),
            open: Sender::new(()),
        }
    }
}

impl<T: Resource> Objects<T> for KubeObjects<T> {
    async fn create(&self, object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        self.endpoint.create(&object).await
    }

    async fn get(&self, name: &str) -> Result<Option<T>, Error> {
        check(name)?;
        match self.endpoint.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::NotFound(..)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<T>, Error> {
        self.endpoint.list().await
    }

    async fn update_spec(&self, object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        self.endpoint.update_spec(&object).await
    }

    async fn update_status(&self, object: T) -> Result<T, Error> {
        check(&object.metadata().name)?;
        self.endpoint.update_status(&object).await
    }

    async fn delete(&self, object: &T) -> Result<(), Error> {
        check(&object.metadata().name)?;
        self.endpoint.delete(object).await
    }

    fn watch(&self, name: Option<&str>) -> Watch<T> {
        let (endpoint, closed) = (self.endpoint.clone(), self.open.subscribe());
        watch::start(&self.runtime, endpoint, name, closed)
    }
}
