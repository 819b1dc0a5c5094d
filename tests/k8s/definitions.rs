//! The definitions by the API server's own judgement: each rule refuses what breaks it and names the field, and kubectl
//! shows what the Volume API says.

use serde_json::{Map, Value, json};

use crate::plane::{Api, GROUP, Refusal, namespace};

/// Objects of one kind in a namespace.
struct Objects {
    api: Api,
    target: String,
    kind: &'static str,
}

impl Objects {
    async fn new(at: &str, plural: &str, kind: &'static str) -> Self {
        Self {
            api: namespace(at).await,
            target: format!("{GROUP}/namespaces/{at}/{plural}"),
            kind,
        }
    }

    async fn create(&self, name: &str, spec: &Value) -> Result<Value, Refusal> {
        let body = json!({
            "apiVersion": "zfs.csi.randomvariable.co.uk/v1alpha1", "kind": self.kind,
            "metadata": {"name": name}, "spec": spec,
        });
        self.api.try_send("POST", &self.target, Some(&body)).await
    }

    async fn patch(&self, name: &str, part: &str, fields: &Value) -> Result<Value, Refusal> {
        let sub = if part == "status" { "/status" } else { "" };
        let target = format!("{}/{name}{sub}", self.target);
        self.api
            .try_send("PATCH", &target, Some(&json!({ part: fields })))
            .await
    }

    /// A change of one field is refused, and both the message and the cause name it.
    async fn refuses(&self, name: &str, field: &str, value: Value) {
        let change = Value::Object(Map::from_iter([(field.to_owned(), value.clone())]));
        let Err(refusal) = self.patch(name, "spec", &change).await else {
            panic!("{field} of {name} may become {value}");
        };
        let path = format!("spec.{field}");
        assert!(refusal.message.contains(&path), "{refusal:?}");
        assert!(refusal.fields.contains(&path), "{refusal:?}");
    }
}

fn spec() -> Value {
    json!({"pool": "tank", "capacity": 1 << 30, "ownerNode": "storage0", "volName": "v", "volumeID": "v"})
}

fn with(mut spec: Value, fields: Value) -> Value {
    for (key, value) in fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_volume_gets_the_seeds_defaults() {
    let volumes = Objects::new("defaults", "volumes", "Volume").await;
    let made = volumes.create("v", &spec()).await.unwrap();
    for (field, default) in [
        ("provenance", "Dynamic"),
        ("deletionPolicy", "Delete"),
        ("type", "block"),
        ("fsType", "ext4"),
        ("transport", "nvme-tcp"),
        ("nfsExportAccessMode", "rw"),
    ] {
        assert_eq!(made["spec"][field], default, "{field}");
    }
    for absent in [
        "compression",
        "volBlockSize",
        "encryptionKeyRef",
        "backendPath",
    ] {
        assert!(made["spec"].get(absent).is_none(), "{absent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_a_volume_itself_never_changes() {
    let volumes = Objects::new("immutable", "volumes", "Volume").await;
    volumes.create("bare", &spec()).await.unwrap();
    let set = json!({
        "volBlockSize": "16k", "encryptionKeyRef": "kv/one", "sourceSnapshotID": "a@b", "sourceVolumeID": "a",
    });
    volumes.create("set", &with(spec(), set)).await.unwrap();
    let imported = json!({"provenance": "Imported", "backendPath": "tank/x"});
    volumes
        .create("imported", &with(spec(), imported))
        .await
        .unwrap();
    for name in ["bare", "set"] {
        for (field, value) in [
            ("volName", "w"),
            ("volumeID", "w"),
            ("ownerNode", "storage1"),
            ("pool", "other"),
            ("type", "filesystem"),
            ("volumeMode", "Block"),
            ("attach", "pooled"),
            ("provenance", "Imported"),
            ("backendPath", "tank/y"),
            ("encryptionKeyRef", "kv/two"),
            ("sourceSnapshotID", "c@d"),
            ("sourceVolumeID", "c"),
        ] {
            volumes.refuses(name, field, value.into()).await;
        }
    }
    for field in [
        "encryptionKeyRef",
        "sourceSnapshotID",
        "sourceVolumeID",
        "volBlockSize",
    ] {
        volumes.refuses("set", field, Value::Null).await;
    }
    volumes.refuses("set", "volBlockSize", "32k".into()).await;
    volumes
        .refuses("imported", "backendPath", "tank/y".into())
        .await;
    volumes
        .refuses("imported", "backendPath", Value::Null)
        .await;
    let once = volumes
        .patch("bare", "spec", &json!({"volBlockSize": "8k"}))
        .await;
    once.expect("it may be set once");
    volumes.refuses("bare", "volBlockSize", "16k".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_07_capacity_never_shrinks_below_what_zfs_has() {
    const GIB: u64 = 1 << 30;
    let volumes = Objects::new("capacity", "volumes", "Volume").await;
    volumes.create("v", &spec()).await.unwrap();
    volumes.refuses("v", "capacity", (GIB - 1).into()).await;
    let size = |bytes: u64| json!({ "capacity": bytes });
    volumes
        .patch("v", "spec", &size(4 * GIB))
        .await
        .expect("it grows");
    volumes.refuses("v", "capacity", (4 * GIB - 1).into()).await;
    let actual = json!({"actualCapacity": 2 * GIB});
    volumes.patch("v", "status", &actual).await.unwrap();
    volumes.refuses("v", "capacity", (2 * GIB - 1).into()).await;
    volumes
        .patch("v", "spec", &size(2 * GIB))
        .await
        .expect("a refused expansion is taken back");
    volumes.refuses("v", "capacity", GIB.into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_volume_lacks_or_has_wrong_is_named() {
    let volumes = Objects::new("fields", "volumes", "Volume").await;
    for (field, wrong) in [
        ("backendPath", json!({"provenance": "Imported"})),
        (
            "backendPath",
            json!({"provenance": "Imported", "backendPath": ""}),
        ),
        ("backendPath", json!({"backendPath": "tank/x"})),
        ("nfsExportCIDRs", json!({"type": "filesystem"})),
        (
            "nfsExportCIDRs",
            json!({"type": "filesystem", "nfsExportCIDRs": []}),
        ),
        (
            "nfsExportCIDRs",
            json!({"type": "filesystem", "nfsExportCIDRs": ["10.0.0.1"]}),
        ),
        ("nfsExportAccessMode", json!({"nfsExportAccessMode": "rx"})),
        ("pool", json!({"pool": ""})),
        ("pool", json!({"pool": "p".repeat(64)})),
        ("pool", json!({"pool": "a/b"})),
        ("capacity", json!({"capacity": 0})),
        ("type", json!({"type": "zvol"})),
        ("fsType", json!({"fsType": "btrfs"})),
        ("volBlockSize", json!({"volBlockSize": "16kb"})),
        ("compression", json!({"compression": "zstd-10"})),
        (
            "encryptionKeyRef",
            json!({"encryptionKeyRef": "file:///etc/key"}),
        ),
        ("transport", json!({"transport": "iscsi"})),
        ("provenance", json!({"provenance": "Found"})),
        ("deletionPolicy", json!({"deletionPolicy": "Recycle"})),
    ] {
        let said = volumes.create("v", &with(spec(), wrong.clone())).await;
        let refusal = said.expect_err(&wrong.to_string());
        let path = format!("spec.{field}");
        assert!(
            refusal.fields.iter().any(|f| f.starts_with(&path)),
            "{refusal:?}"
        );
        assert!(refusal.message.contains(&path), "{refusal:?}");
    }
    for field in ["pool", "capacity", "ownerNode", "volName", "volumeID"] {
        let mut without = spec();
        without.as_object_mut().unwrap().remove(field);
        let refusal = volumes.create("v", &without).await.expect_err(field);
        assert!(
            refusal.fields.contains(&format!("spec.{field}")),
            "{refusal:?}"
        );
    }
    volumes.create("v", &spec()).await.unwrap();
    for state in [
        "Pending",
        "Ready",
        "ReadyToPublish",
        "Deleting",
        "Destroyed",
        "Error",
    ] {
        volumes
            .patch("v", "status", &json!({"state": state}))
            .await
            .expect(state);
    }
    volumes
        .patch("v", "status", &json!({"state": "Lost"}))
        .await
        .unwrap_err();
    let nfs = json!({"type": "filesystem", "nfsExportCIDRs": ["10.0.0.0/8", "fd00::/8"]});
    volumes
        .create("nfs", &with(spec(), nfs))
        .await
        .expect("a filesystem volume");
    for compression in ["on", "off", "lz4", "gzip", "zstd", "zstd-1", "zstd-9-fast"] {
        let fields = json!({ "compression": compression });
        volumes
            .patch("v", "spec", &fields)
            .await
            .expect(compression);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_and_a_storage_node_stay_what_they_are() {
    let snapshots = Objects::new("others-kinds", "snapshots", "Snapshot").await;
    let member = json!({
        "volumeID": "v", "volumeUID": "1", "datasetPath": "tank/v", "volumeMode": "Block", "fsType": "ext4",
        "volBlockSize": "16k",
    });
    let taken = json!({
        "snapName": "s", "kind": "Single", "ownerNode": "storage0", "pool": "tank", "poolGUID": "1", "members": [member],
    });
    snapshots.create("s", &taken).await.unwrap();
    for (field, value) in [
        ("pool", "other"),
        ("poolGUID", "2"),
        ("snapName", "t"),
        ("kind", "Group"),
    ] {
        let change = Value::Object(Map::from_iter([(field.to_owned(), value.into())]));
        let refusal = snapshots.patch("s", "spec", &change).await.unwrap_err();
        assert!(refusal.message.contains("spec is immutable"), "{refusal:?}");
        assert!(refusal.fields.contains(&"spec".to_owned()), "{refusal:?}");
    }
    let nodes = Objects {
        target: snapshots.target.replace("/snapshots", "/storagenodes"),
        api: Api::new().await,
        kind: "StorageNode",
    };
    nodes
        .create("n", &json!({"nodeName": "storage0"}))
        .await
        .unwrap();
    nodes.refuses("n", "nodeName", "storage1".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_pool_type_capacity_state_and_age() {
    let volumes = Objects::new("columns", "volumes", "Volume").await;
    volumes.create("v", &spec()).await.unwrap();
    volumes
        .patch("v", "status", &json!({"state": "Ready"}))
        .await
        .unwrap();
    let table = volumes.api.table(&volumes.target).await;
    let names: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Name", "Pool", "Type", "Capacity", "State", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(
        cells[..5],
        json!(["v", "tank", "block", 1 << 30, "Ready"])
            .as_array()
            .unwrap()[..]
    );
    assert!(
        !cells[5].as_str().unwrap().contains("invalid"),
        "{}",
        cells[5]
    );
    let resources = volumes.api.get(GROUP).await;
    let all = resources["resources"].as_array().unwrap();
    let volume = all.iter().find(|r| r["name"] == "volumes").unwrap();
    assert_eq!(
        (&volume["shortNames"], &volume["namespaced"]),
        (&json!(["zv"]), &json!(true))
    );
    assert!(all.iter().any(|r| r["name"] == "volumes/status"));
}
