//! The control plane, and requests of it that are not the store's.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};
use serde_json::{Value, json};
use zvolt::store::kube::KubeStore;
use zvolt_lab::control_plane::ControlPlane;

pub(crate) const GROUP: &str = "/apis/zfs.csi.randomvariable.co.uk/v1alpha1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const KINDS: [&str; 3] = ["volumes", "snapshots", "storagenodes"];

static PLANE: LazyLock<ControlPlane> = LazyLock::new(|| {
    let plane = ControlPlane::start(is_ready).unwrap_or_else(|error| panic!("{error:#}"));
    alone(define(&plane.kubeconfig("tests")));
    plane
});

/// The control plane, with the definitions of `deploy/crds` in it.
pub(crate) fn plane() -> &'static ControlPlane {
    &PLANE
}

/// Runs on a thread and a runtime of its own: the caller may be in one.
pub(crate) fn alone<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            { runtime }.enable_all().build().unwrap().block_on(future)
        };
        scope.spawn(run).join().unwrap()
    })
}

fn is_ready(kubeconfig: &Path) -> bool {
    alone(async {
        let Ok(client) = client(kubeconfig).await else {
            return false;
        };
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        let asked = client.request_text(request);
        matches!(tokio::time::timeout(Duration::from_secs(5), asked).await, Ok(Ok(text)) if text == "ok")
    })
}

async fn client(kubeconfig: &Path) -> Result<Client, Box<dyn std::error::Error>> {
    connected(Kubeconfig::read_from(kubeconfig)?).await
}

async fn connected(file: Kubeconfig) -> Result<Client, Box<dyn std::error::Error>> {
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Server-side apply of every definition, until all are established.
async fn define(kubeconfig: &Path) {
    let api = Api::of(kubeconfig).await;
    for kind in KINDS {
        let definition = serde_saphyr::from_str(&deployed(&format!("crds/{kind}.yaml"))).unwrap();
        api.apply(&definition, "").await.unwrap();
        let target = format!("{DEFINITIONS}/{kind}.zfs.csi.randomvariable.co.uk");
        let established = async {
            while !is_established(&api.get(&target).await) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(60), established);
        within
            .await
            .unwrap_or_else(|_| panic!("{kind} is not established"));
    }
}

/// A file of `deploy/`.
fn deployed(file: &str) -> String {
    let deploy = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy");
    fs::read_to_string(deploy.join(file)).unwrap()
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    let of = |kind: &str, status: &str| {
        conditions.is_some_and(|all| {
            all.iter()
                .any(|c| c["type"] == kind && c["status"] == status)
        })
    };
    assert!(!of("NonStructuralSchema", "True"), "{definition:#}");
    of("Established", "True")
}

/// Requests of the tests themselves.
pub(crate) struct Api(Client);

/// A refusal: the message, and the fields that it is about.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) fields: Vec<String>,
}

impl Api {
    pub(crate) async fn new() -> Self {
        Self::of(&plane().kubeconfig("tests")).await
    }

    async fn of(kubeconfig: &Path) -> Self {
        Self(client(kubeconfig).await.unwrap())
    }

    /// Who a bearer token says.
    pub(crate) async fn with_token(token: &str) -> Self {
        let text = fs::read_to_string(plane().kubeconfig("tests")).unwrap();
        let mut file: Value = serde_json::from_str(&text).unwrap();
        file["users"][0]["user"]["token"] = token.into();
        let read = Kubeconfig::from_yaml(&file.to_string()).unwrap();
        Self(connected(read).await.unwrap())
    }

    /// Server-side apply with strict validation; `effect` is `&dryRun=All`, or nothing.
    pub(crate) async fn apply(&self, object: &Value, effect: &str) -> Result<Value, String> {
        let target = self.place(object).await;
        let query = format!("fieldManager=chart&force=true&fieldValidation=Strict{effect}");
        let request = http::Request::patch(format!("{target}?{query}"))
            .header("content-type", "application/apply-patch+yaml")
            .body(object.to_string().into_bytes())
            .unwrap();
        let told = self.0.request(request).await;
        told.map_err(|error| format!("{target}: {error}"))
    }

    /// Where an object is, by what the server says of its kind.
    pub(crate) async fn place(&self, object: &Value) -> String {
        let version = object["apiVersion"].as_str().unwrap();
        let root = match version.contains('/') {
            true => format!("/apis/{version}"),
            false => format!("/api/{version}"),
        };
        let kinds = self.get(&root).await;
        let mut kinds = kinds["resources"].as_array().unwrap().iter();
        let is_whole = |kind: &Value| !kind["name"].as_str().unwrap().contains('/');
        let kind = kinds.find(|kind| kind["kind"] == object["kind"] && is_whole(kind));
        let plural = kind.unwrap()["name"].as_str().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{root}/{plural}/{name}"),
        }
    }

    pub(crate) async fn get(&self, target: &str) -> Value {
        self.try_send("GET", target, None).await.unwrap()
    }

    pub(crate) async fn send(&self, verb: &str, target: &str, body: &Value) -> Value {
        self.try_send(verb, target, Some(body)).await.unwrap()
    }

    /// A table, as kubectl gets it.
    pub(crate) async fn table(&self, target: &str) -> Value {
        let request = http::Request::get(target)
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .unwrap();
        self.0.request(request).await.unwrap()
    }

    pub(crate) async fn try_send(
        &self,
        verb: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let content = match verb {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(verb)
            .uri(target)
            .header("content-type", content)
            .body(body.map(|b| b.to_string().into_bytes()).unwrap_or_default())
            .unwrap();
        match self.0.request(request).await {
            Ok(value) => Ok(value),
            Err(Error::Api(status)) => Err(Refusal {
                message: status.message.clone(),
                fields: status
                    .details
                    .into_iter()
                    .flat_map(|details| details.causes)
                    .map(|cause| cause.field)
                    .collect(),
            }),
            Err(error) => panic!("{verb} {target}: {error}"),
        }
    }
}

/// Makes a namespace, where there is none of that name.
pub(crate) async fn namespace(name: &str) -> Api {
    let api = Api::new().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    api.apply(&namespace, "").await.unwrap();
    api
}

/// The store in a namespace, as a user of its own.
pub(crate) async fn open(namespace: &str) -> KubeStore {
    KubeStore::open(namespace, Some(&plane().kubeconfig("store")))
        .await
        .unwrap()
}
