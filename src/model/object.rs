//! What all objects of a store have: Kubernetes' conventions, in the parts that both stores keep.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// An object of a store: `spec` says what is wanted, `status` what is.
pub trait Object:
    Debug + Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Its kind in lower case, for messages: `volume`.
    const KIND: &'static str;
    /// Its plural in lower case, as in the API's paths: `volumes`.
    const PLURAL: &'static str;

    /// Name, versions, deletion.
    fn metadata(&self) -> &Metadata;
    /// The same, to change.
    fn metadata_mut(&mut self) -> &mut Metadata;
    /// Takes the spec of `other`; whether it was another.
    fn take_spec(&mut self, other: &Self) -> bool;
    /// Takes the status of `other`.
    fn take_status(&mut self, other: &Self);
    /// Empties the status.
    fn reset_status(&mut self);
    /// Whether a power cut must not undo the change from `self` to `next` once the write has been answered.
    fn must_be_durable(&self, next: &Self) -> bool;

    /// Deletion has been asked for.
    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }
}

/// The part of Kubernetes' ObjectMeta that both stores keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The object's name, a DNS label.
    pub name: String,
    /// Set by the store at creation; differs when a name is used again.
    pub uid: String,
    /// Changes with every write; opaque.
    pub resource_version: String,
    /// Counts changes of `spec`.
    pub generation: i64,
    /// RFC 3339, UTC.
    pub creation_timestamp: String,
    /// Set once deletion has been asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Who must finish before the object may vanish.
    pub finalizers: Vec<String>,
}

/// A condition, as Kubernetes has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `Applied` or `Encrypted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase, for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// RFC 3339, UTC.
    pub last_transition_time: String,
    /// The generation that it speaks of.
    pub observed_generation: i64,
}

/// What a condition says now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// `Ready`, `Applied` or `Encrypted`.
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// CamelCase, for programs.
    pub reason: &'a str,
    /// For people.
    pub message: &'a str,
}

/// Sets a condition; its transition time only moves when its status does.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    verdict: Verdict<'_>,
    generation: i64,
    now: &str,
) {
    let old = conditions.iter_mut().find(|c| c.kind == verdict.kind);
    let since = match &old {
        Some(old) if old.status == verdict.status => old.last_transition_time.clone(),
        _ => now.to_owned(),
    };
    let new = Condition {
        kind: verdict.kind.to_owned(),
        status: verdict.status.to_owned(),
        reason: verdict.reason.to_owned(),
        message: verdict.message.to_owned(),
        last_transition_time: since,
        observed_generation: generation,
    };
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}
