//! The requests of one kind of object, and what their answers mean.

use std::marker::PhantomData;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use kube::core::{Status, WatchEvent};
use kube::{Client, Error as ClientError};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_stream::Stream;

use super::super::Error;
use super::{Resource, VERSION};
use crate::model::DRIVER_NAME;

/// An API server that has not answered by then is taken for gone: a connection may be dead and not know it.
const ANSWER: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
/// Who we are in `managedFields`, and that no field may be unknown.
const WRITE: &str = "fieldManager=zvolt&fieldValidation=Strict";

/// Where the objects of one kind are.
pub(super) struct Endpoint<T> {
    client: Client,
    namespace: String,
    path: String,
    kind: PhantomData<fn() -> T>,
}

/// A list as the API gives it: what cannot be read of it is for the caller to judge.
#[derive(Debug, Deserialize)]
pub(super) struct List {
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<Value>,
}

/// What there is to know of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    /// Where a watch goes on from.
    pub(super) resource_version: String,
}

/// What was asked.
#[derive(Debug, Clone)]
struct Asked {
    verb: String,
    path: String,
    /// The object, where it is one.
    name: Option<String>,
}

impl<T: Resource> Endpoint<T> {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            path: format!(
                "/apis/{DRIVER_NAME}/{VERSION}/namespaces/{namespace}/{}",
                T::PLURAL
            ),
            kind: PhantomData,
        }
    }

    pub(super) async fn create(&self, object: &T) -> Result<T, Error> {
        let metadata = object.metadata();
        let body = json!({
            "apiVersion": format!("{DRIVER_NAME}/{VERSION}"),
            "kind": T::API_KIND,
            "metadata": {
                "name": metadata.name, "namespace": self.namespace, "finalizers": metadata.finalizers,
            },
            "spec": self.part(object, "spec")?,
        });
        let target = format!("{}?{WRITE}", self.path);
        self.ask(
            Method::POST,
            &target,
            Some(&metadata.name),
            Some((JSON, &body)),
        )
        .await
    }

    pub(super) async fn get(&self, name: &str) -> Result<T, Error> {
        let target = format!("{}/{name}", self.path);
        self.ask(Method::GET, &target, Some(name), None).await
    }

    /// All objects, by name.
    pub(super) async fn list(&self) -> Result<Vec<T>, Error> {
        let listed = self.listed(None).await?;
        let read = |item: Value| {
            let name = name_of(&item).to_owned();
            serde_json::from_value(item).map_err(|e| Error::Failed {
                verb: Method::GET.to_string(),
                path: format!("{}/{name}", self.path),
                problem: format!("is not readable: {e}"),
            })
        };
        let mut objects: Vec<T> = listed
            .items
            .into_iter()
            .map(read)
            .collect::<Result<_, _>>()?;
        objects.sort_by(|a, b| a.metadata().name.cmp(&b.metadata().name));
        Ok(objects)
    }

    /// All objects or one, and the moment that they are of.
    pub(super) async fn listed(&self, name: Option<&str>) -> Result<List, Error> {
        let target = format!("{}?{}", self.path, selector(name));
        self.ask(Method::GET, &target, None, None).await
    }

    pub(super) async fn update_spec(&self, object: &T) -> Result<T, Error> {
        let metadata = object.metadata();
        // The version makes it a conflict when somebody else was first. It is of this object alone: versions
        // are never used again, so one of an earlier object of this name is a conflict too.
        let body = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
            {"op": "add", "path": "/metadata/finalizers", "value": metadata.finalizers},
            {"op": "replace", "path": "/spec", "value": self.part(object, "spec")?},
        ]);
        let target = format!("{}/{}?{WRITE}", self.path, metadata.name);
        self.ask(
            Method::PATCH,
            &target,
            Some(&metadata.name),
            Some((JSON_PATCH, &body)),
        )
        .await
    }

    pub(super) async fn update_status(&self, object: &T) -> Result<T, Error> {
        let metadata = object.metadata();
        let body = json!({
            "apiVersion": format!("{DRIVER_NAME}/{VERSION}"),
            "kind": T::API_KIND,
            "metadata": {
                "name": metadata.name, "namespace": self.namespace, "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "spec": self.part(object, "spec")?,
            "status": self.part(object, "status")?,
        });
        let target = format!("{}/{}/status?{WRITE}", self.path, metadata.name);
        self.ask(
            Method::PUT,
            &target,
            Some(&metadata.name),
            Some((JSON, &body)),
        )
        .await
    }

    pub(super) async fn delete(&self, object: &T) -> Result<(), Error> {
        let metadata = object.metadata();
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
        });
        let target = format!("{}/{}", self.path, metadata.name);
        let _: IgnoredAny = self
            .ask(
                Method::DELETE,
                &target,
                Some(&metadata.name),
                Some((JSON, &body)),
            )
            .await?;
        Ok(())
    }

    /// What happens after `version`, to all objects or to one, for as long as the server likes (half an hour or more).
    pub(super) async fn events(
        &self,
        name: Option<&str>,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, Error>> + use<T>, Error> {
        use tokio_stream::StreamExt as _;
        let target = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&{}",
            self.path,
            selector(name)
        );
        let (asked, request) = self.request(Method::GET, &target, None, None)?;
        let events = timeout(ANSWER, self.client.request_events(request))
            .await
            .map_err(|_| late(&asked))?
            .map_err(|e| asked.error::<T>(&e))?;
        Ok(events.map(move |event| event.map_err(|e| asked.error::<T>(&e))))
    }

    /// What it means when a watch brings a refusal.
    pub(super) fn watch_refused(&self, status: &Status) -> Error {
        let asked = Asked {
            verb: Method::GET.to_string(),
            path: self.path.clone(),
            name: None,
        };
        asked.refused::<T>(status)
    }

    async fn ask<R: DeserializeOwned>(
        &self,
        verb: Method,
        target: &str,
        name: Option<&str>,
        body: Option<(&str, &Value)>,
    ) -> Result<R, Error> {
        let (asked, request) = self.request(verb, target, name, body)?;
        timeout(ANSWER, self.client.request(request))
            .await
            .map_err(|_| late(&asked))?
            .map_err(|e| asked.error::<T>(&e))
    }

    fn request(
        &self,
        verb: Method,
        target: &str,
        name: Option<&str>,
        body: Option<(&str, &Value)>,
    ) -> Result<(Asked, Request<Vec<u8>>), Error> {
        let asked = Asked {
            verb: verb.to_string(),
            path: target.split('?').next().unwrap_or_default().to_owned(),
            name: name.map(str::to_owned),
        };
        let mut builder = Request::builder()
            .method(verb)
            .uri(target)
            .header(ACCEPT, JSON);
        let mut bytes = Vec::new();
        if let Some((content, value)) = body {
            builder = builder.header(CONTENT_TYPE, content);
            bytes = value.to_string().into_bytes();
        }
        match builder.body(bytes) {
            Ok(request) => Ok((asked, request)),
            Err(error) => Err(asked.failed(chain(&error))),
        }
    }

    /// `spec` or `status`, as the model writes it.
    fn part(&self, object: &T, part: &str) -> Result<Value, Error> {
        serde_json::to_value(object)
            .map(|mut whole| whole[part].take())
            .map_err(|e| Error::Failed {
                verb: "serialize".into(),
                path: format!("{}/{}", self.path, object.metadata().name),
                problem: e.to_string(),
            })
    }
}

fn selector(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| {
        format!("fieldSelector=metadata.name%3D{name}")
    })
}

/// The name in an object that was not read yet.
pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn late(asked: &Asked) -> Error {
    asked.failed(format!(
        "the API server has not answered within {} s",
        ANSWER.as_secs()
    ))
}

impl Asked {
    fn failed(&self, problem: String) -> Error {
        Error::Failed {
            verb: self.verb.clone(),
            path: self.path.clone(),
            problem,
        }
    }

    fn error<T: Resource>(&self, error: &ClientError) -> Error {
        match error {
            ClientError::Api(status) => self.refused::<T>(status),
            error => self.failed(chain(error)),
        }
    }

    /// What a refusal means. A missing definition or namespace is no missing object.
    fn refused<T: Resource>(&self, status: &Status) -> Error {
        let name = self.name.clone().unwrap_or_default();
        let details = status.details.as_ref();
        // A precondition of a deletion that fails tells the kind itself (`rest.BeforeDelete` of the API server).
        let is_of_object = details.is_some_and(|d| {
            self.name.is_some() && d.name == name && [T::PLURAL, T::API_KIND].contains(&&*d.kind)
        });
        match status.reason.as_str() {
            "AlreadyExists" if is_of_object => Error::Exists(T::KIND, name),
            "NotFound" if is_of_object => Error::NotFound(T::KIND, name),
            "Conflict" if is_of_object => Error::Conflict(T::KIND, name),
            reason => Error::Refused {
                verb: self.verb.clone(),
                path: self.path.clone(),
                code: status.code,
                reason: reason.to_owned(),
                message: status.message.clone(),
            },
        }
    }
}

/// An error with all that caused it, each said once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !said.contains(&next) {
            said = format!("{said}: {next}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::volume::Volume;

    fn asked(name: Option<&str>) -> Asked {
        Asked {
            verb: "PUT".into(),
            path: "/apis/x/volumes/v".into(),
            name: name.map(str::to_owned),
        }
    }

    fn said(reason: &str, kind: &str, name: &str) -> Error {
        let status = serde_json::from_value(json!({
            "status": "Failure", "code": 404, "reason": reason, "message": "no",
            "details": {"kind": kind, "name": name},
        }));
        asked(Some("v")).refused::<Volume>(&status.unwrap())
    }

    #[test]
    fn only_the_object_itself_is_missing_there_or_changed() {
        assert!(
            matches!(said("NotFound", "volumes", "v"), Error::NotFound("volume", n) if n == "v")
        );
        assert!(
            matches!(said("AlreadyExists", "volumes", "v"), Error::Exists("volume", n) if n == "v")
        );
        assert!(
            matches!(said("Conflict", "volumes", "v"), Error::Conflict("volume", n) if n == "v")
        );
        assert!(
            matches!(said("Conflict", "Volume", "v"), Error::Conflict("volume", n) if n == "v")
        );
        assert!(matches!(
            said("NotFound", "namespaces", "v"),
            Error::Refused { .. }
        ));
        assert!(matches!(
            said("NotFound", "volumes", "w"),
            Error::Refused { .. }
        ));
        // A definition that is not installed: the path is unknown, in plain text.
        let plain =
            Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        assert!(matches!(
            asked(Some("v")).refused::<Volume>(&plain),
            Error::Refused { code: 404, .. }
        ));
        let gone = Status::failure("too old", "Expired").with_code(410);
        assert!(matches!(
            asked(None).refused::<Volume>(&gone),
            Error::Refused { code: 410, .. }
        ));
    }

    #[test]
    fn a_refusal_says_what_was_asked_and_the_apis_reason() {
        let text = said("Invalid", "volumes", "v").to_string();
        assert_eq!(text, "PUT /apis/x/volumes/v: 404 Invalid: no");
    }
}
