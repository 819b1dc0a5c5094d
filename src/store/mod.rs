//! Where intent lives. Controller and agent meet here, by watch, never by polling.
//!
//! The semantics are those of the Kubernetes API: `spec` and `status` are written apart, a write
//! with an old resource version is a conflict, deletion marks an object until its finalizers are gone.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod dir;
#[cfg(any(test, feature = "conformance"))]
pub mod full;
pub mod kube;
pub mod time;

use std::future::Future;
use std::sync::Arc;

use crate::model::names;
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::StorageNode;
use crate::model::volume::Volume;

/// Why the store said no.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object of this name exists.
    #[error("{0} {1} exists already")]
    Exists(&'static str, String),
    /// No object of this name.
    #[error("{0} {1} does not exist")]
    NotFound(&'static str, String),
    /// Somebody else wrote it first: read it again and retry.
    #[error("{0} {1} was changed by somebody else")]
    Conflict(&'static str, String),
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
    /// There is no way to the API server: no configuration, or a bad one.
    #[error("the Kubernetes client cannot be set up: {0}")]
    NoClient(String),
    /// The API server understood, and said no.
    #[error("{verb} {path}: {code} {reason}: {message}")]
    Refused {
        /// HTTP method.
        verb: String,
        /// What was asked for.
        path: String,
        /// HTTP status.
        code: u16,
        /// The API's word for it: `Invalid`, `Forbidden`, …
        reason: String,
        /// The API's own message; it names the field.
        message: String,
    },
    /// The API server could not be asked, or its answer not be read.
    #[error("{verb} {path}: {problem}")]
    Failed {
        /// HTTP method.
        verb: String,
        /// What was asked for.
        path: String,
        /// What happened, down to the system call.
        problem: String,
    },
}

impl Error {
    /// Whether the same may be answered later, with nothing done about it: an API server that is starting is not there, or
    /// knows nobody yet.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Refused { code, .. } => matches!(code, 401 | 403 | 429 | 500..),
            _ => false,
        }
    }
}

/// Refuses what cannot be an object's name, before it becomes part of a path.
fn check(name: &str) -> Result<(), Error> {
    names::is_handle(name)
        .then_some(())
        .ok_or_else(|| Error::BadName(name.to_owned()))
}

/// What a watcher learns.
#[derive(Debug, Clone)]
pub enum Change<T> {
    /// An object appeared or changed; this is its newest state.
    Put(Arc<T>),
    /// An object vanished.
    Gone(String),
}

/// A watch: what changes from the moment of its making, and perhaps what there was before; each state once, newer ones
/// later. `None`: the store is gone.
#[derive(Debug)]
pub struct Watch<T>(pub tokio::sync::mpsc::UnboundedReceiver<Change<T>>);

impl<T> Watch<T> {
    /// The next change.
    pub async fn next(&mut self) -> Option<Change<T>> {
        self.0.recv().await
    }
}

/// The objects of one kind.
pub trait Objects<T: Object>: Send + Sync + 'static {
    /// Makes an object; the store sets uid, versions and creation time. Durable when it returns.
    fn create(&self, object: T) -> impl Future<Output = Result<T, Error>> + Send;
    /// The newest state of one object.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<T>, Error>> + Send;
    /// All objects, by name.
    fn list(&self) -> impl Future<Output = Result<Vec<T>, Error>> + Send;
    /// Writes `spec` and finalizers; `status` is left alone. The resource version must be the newest. An object whose
    /// deletion was asked for vanishes with its last finalizer.
    fn update_spec(&self, object: T) -> impl Future<Output = Result<T, Error>> + Send;
    /// Writes `status`; all else is left alone. The resource version must be the newest.
    fn update_status(&self, object: T) -> impl Future<Output = Result<T, Error>> + Send;
    /// Asks for the deletion of the object in exactly this state: whoever judged that it may go judged the newest. The
    /// resource version must be that; fine when it was asked for already; `NotFound` when there is no such object.
    fn delete(&self, object: &T) -> impl Future<Output = Result<(), Error>> + Send;
    /// Changes of all objects (`None`) or of one, from now on.
    fn watch(&self, name: Option<&str>) -> Watch<T>;
}

/// A store: every kind of object that controller and agents share.
pub trait Store: Send + Sync + 'static {
    /// What volumes are wanted, and what is.
    fn volumes(&self) -> &impl Objects<Volume>;
    /// What snapshots are wanted, and what is.
    fn snapshots(&self) -> &impl Objects<Snapshot>;
    /// What storage hosts can give.
    fn storage_nodes(&self) -> &impl Objects<StorageNode>;
}
