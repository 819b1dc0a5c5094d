//! Where intent lives. Controller and agent meet here, by watch, never by polling.
//!
//! The semantics are those of the Kubernetes API: `spec` and `status` are written apart, a write
//! with an old resource version is a conflict, deletion marks an object until its finalizers are gone.

#[cfg(test)]
pub(crate) mod conformance;
pub mod dir;
pub mod time;

use std::future::Future;
use std::sync::Arc;

use crate::model::volume::Volume;

/// Why the store said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object of this name exists.
    #[error("volume {0} exists already")]
    Exists(String),
    /// No object of this name.
    #[error("volume {0} does not exist")]
    NotFound(String),
    /// Somebody else wrote it first: read it again and retry.
    #[error("volume {0} was changed by somebody else")]
    Conflict(String),
    /// The name cannot be an object's name.
    #[error("{0:?} is no object name: a DNS label of at most 63 characters is needed")]
    BadName(String),
    /// The store itself failed.
    #[error("{call} {path}: {source}")]
    Io {
        /// System call or what was tried.
        call: &'static str,
        /// File or object.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// What a watcher learns.
#[derive(Debug, Clone)]
pub enum Change {
    /// An object appeared or changed; this is its newest state.
    Put(Arc<Volume>),
    /// An object vanished.
    Gone(String),
}

/// A watch: what changes from the moment of its making. `None`: the store is gone.
#[derive(Debug)]
pub struct Watch(pub tokio::sync::mpsc::UnboundedReceiver<Change>);

impl Watch {
    /// The next change.
    pub async fn next(&mut self) -> Option<Change> {
        self.0.recv().await
    }
}

/// A store of Volumes.
pub trait Store: Send + Sync + 'static {
    /// Makes an object; the store sets uid, versions and creation time. Durable when it returns.
    fn create(&self, volume: Volume) -> impl Future<Output = Result<Volume, Error>> + Send;
    /// The newest state of one object.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Volume>, Error>> + Send;
    /// All objects, by name.
    fn list(&self) -> impl Future<Output = Result<Vec<Volume>, Error>> + Send;
    /// Writes `spec` and finalizers; `status` is left alone. The resource version must be the newest. An object whose
    /// deletion was asked for vanishes with its last finalizer.
    fn update_spec(&self, volume: Volume) -> impl Future<Output = Result<Volume, Error>> + Send;
    /// Writes `status`; all else is left alone. The resource version must be the newest.
    fn update_status(&self, volume: Volume) -> impl Future<Output = Result<Volume, Error>> + Send;
    /// Asks for deletion. Fine when it was asked for already; `NotFound` when there is no such object.
    fn delete(&self, name: &str) -> impl Future<Output = Result<(), Error>> + Send;
    /// Changes of all objects (`None`) or of one, from now on.
    fn watch(&self, name: Option<&str>) -> Watch;
}
