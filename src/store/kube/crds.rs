//! The definitions in `deploy/crds` against the model: a field that a definition lacks is one that the API server would
//! not take.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Resource, VERSION};
use crate::model::DRIVER_NAME;
use crate::model::object::Object;
use crate::model::snapshot::Snapshot;
use crate::model::storage_node::StorageNode;
use crate::model::volume::Volume;
use crate::store::full;

fn definition(plural: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/crds/{plural}.yaml"));
    let text = fs::read_to_string(&path).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

fn version(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]
}

fn schema(definition: &Value) -> &Value {
    &version(definition)["schema"]["openAPIV3Schema"]
}

/// The fields of a value, as the API server sees them: `.spec.members[].volumeID`; map keys are `*`.
fn fields_of(value: &Value, schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let (at, schema) = match schema.get("additionalProperties") {
                    Some(schema) => (format!("{at}.*"), schema),
                    None => (format!("{at}.{key}"), &schema["properties"][key]),
                };
                found.insert(at.clone());
                fields_of(value, schema, &at, found);
            }
        }
        Value::Array(items) => {
            assert!(!items.is_empty(), "{at}: set it, to check what is in it");
            let at = format!("{at}[]");
            for item in items {
                fields_of(item, &schema["items"], &at, found);
            }
        }
        _ => {}
    }
}

/// The fields that a schema knows. Each part of it must have a type: that is what makes it structural.
fn fields_in(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    assert!(schema["type"].is_string(), "{at} has no type");
    assert!(
        schema.get("x-kubernetes-preserve-unknown-fields").is_none(),
        "{at}: every field is named"
    );
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        found.insert(at.clone());
        fields_in(schema, &at, found);
    }
    if let Some(schema) = schema.get("items") {
        fields_in(schema, &format!("{at}[]"), found);
    }
    if let Some(schema) = schema.get("additionalProperties") {
        let at = format!("{at}.*");
        found.insert(at.clone());
        fields_in(schema, &at, found);
    }
}

fn has_the_models_fields<T: Resource>(object: &T) {
    let definition = definition(T::PLURAL);
    for part in ["spec", "status"] {
        let at = format!("{} {part}", T::API_KIND);
        let value = serde_json::to_value(object).unwrap();
        let schema = &schema(&definition)["properties"][part];
        let (mut written, mut known) = (BTreeSet::new(), BTreeSet::new());
        fields_of(&value[part], schema, &at, &mut written);
        fields_in(schema, &at, &mut known);
        assert_eq!(written, known, "the model's on the left");
    }
}

#[test]
fn every_field_of_the_model_is_in_its_definition_and_no_other() {
    has_the_models_fields(&full::volume("v"));
    has_the_models_fields(&full::snapshot("s"));
    has_the_models_fields(&full::storage_node("n"));
}

fn is_named_as_its_store_asks<T: Resource>(scoped: &str) {
    let definition = definition(T::PLURAL);
    let spec = &definition["spec"];
    assert_eq!(
        definition["metadata"]["name"],
        format!("{}.{DRIVER_NAME}", T::PLURAL)
    );
    assert_eq!(
        (
            &spec["group"],
            &spec["scope"],
            &version(&definition)["name"]
        ),
        (&DRIVER_NAME.into(), &scoped.into(), &VERSION.into())
    );
    assert_eq!(
        (&spec["names"]["kind"], &spec["names"]["plural"]),
        (&T::API_KIND.into(), &T::PLURAL.into())
    );
    assert!(version(&definition)["subresources"]["status"].is_object());
}

#[test]
fn definitions_are_named_as_the_store_asks_for_them() {
    is_named_as_its_store_asks::<Volume>("Namespaced");
    is_named_as_its_store_asks::<Snapshot>("Namespaced");
    is_named_as_its_store_asks::<StorageNode>("Namespaced");
    assert_eq!(
        definition(Volume::PLURAL)["spec"]["names"]["shortNames"],
        serde_json::json!(["zv"])
    );
}

#[test]
fn a_rule_names_its_field() {
    for plural in [Volume::PLURAL, Snapshot::PLURAL, StorageNode::PLURAL] {
        let definition = definition(plural);
        let (whole, spec) = (
            schema(&definition),
            &schema(&definition)["properties"]["spec"],
        );
        for (at, schema) in [("", whole), ("spec", spec)] {
            for rule in schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let message = rule["message"].as_str().unwrap();
                let path = rule["fieldPath"].as_str().unwrap_or_default();
                let named = format!("{at}{path}");
                assert!(
                    message.starts_with(named.trim_start_matches('.')),
                    "{message:?}: {named}"
                );
            }
        }
    }
}

#[test]
fn the_seeds_defaults_are_the_models() {
    let definition = definition(Volume::PLURAL);
    let properties = &schema(&definition)["properties"]["spec"]["properties"];
    let bare = serde_json::json!({
        "pool": "tank", "capacity": 1, "ownerNode": "n", "volName": "v", "volumeID": "v",
    });
    let mut defaulted = bare.clone();
    for (key, property) in properties.as_object().unwrap() {
        if let Some(default) = property.get("default") {
            defaulted[key] = default.clone();
        }
    }
    let read = |spec| serde_json::from_value::<crate::model::volume::VolumeSpec>(spec).unwrap();
    assert_eq!(read(defaulted.clone()), read(bare));
    for (key, default) in [
        ("provenance", "Dynamic"),
        ("deletionPolicy", "Delete"),
        ("type", "block"),
        ("fsType", "ext4"),
        ("transport", "nvme-tcp"),
        ("nfsExportAccessMode", "rw"),
    ] {
        assert_eq!(defaulted[key], default, "{key}");
    }
}
