//! What the chart gives, by Helm itself: no cluster is asked.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use zvolt::model::DRIVER_NAME;
use zvolt::model::parameters::{Changes, Given, Parameters, TABLE};
use zvolt_lab::chart::{self, Helm};

/// Sets of values that everything must hold for: the defaults, each example, and what a cluster may switch.
pub(crate) fn value_sets() -> Vec<Vec<String>> {
    let file = |name: &str| chart::values(&Path::new("examples").join(name)).to_vec();
    let set = |assignment: &str| vec!["--set".into(), assignment.into()];
    vec![
        vec![],
        file("classes.yaml"),
        file("storage-network.yaml"),
        set("agent.addressFamily=IPv6,networkPolicy.apiServerCIDRs[0]=10.0.0.0/8"),
        set(
            "snapshots.enabled=false,crds.install=false,admissionPolicy.enabled=false,dataPolicy.enabled=false,networkPolicy.enabled=false",
        ),
        set("csiDriver.preventPodSchedulingIfMissing=true,imagePullSecrets[0].name=mirror"),
        set(
            "log.format=json,controller.extraArgs[0]=--rpc-timeout=30,agent.extraArgs[0]=--parallel=4,node.extraArgs[0]=--max-volumes=32",
        ),
    ]
}

pub(crate) fn objects(values: &[String]) -> Vec<Value> {
    parse(
        &Helm::given()
            .unwrap()
            .template(chart::NAMESPACE, values)
            .unwrap(),
    )
}

pub(crate) fn parse(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn examples() -> Vec<Value> {
    objects(&chart::values(Path::new("examples/classes.yaml")))
}

pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}

fn strings(map: &Value) -> HashMap<String, String> {
    serde_json::from_value(map.clone()).unwrap()
}

#[test]
fn helm_has_nothing_to_say_against_it() {
    for values in value_sets() {
        let folder = chart::folder();
        let folder = folder.to_string_lossy();
        let mut arguments = vec!["lint", "--strict", &folder];
        arguments.extend(values.iter().map(String::as_str));
        Helm::given().unwrap().run(&arguments).unwrap();
    }
}

#[test]
fn it_is_of_the_drivers_own_version() {
    let text = fs::read_to_string(chart::folder().join("Chart.yaml")).unwrap();
    let about: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn its_sidecars_are_those_that_are_tested() {
    let values = fs::read_to_string(chart::folder().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/k8s/sidecars/go.mod");
    let module = fs::read_to_string(module).unwrap();
    let mut tags = strings(&values["sidecars"]["tags"]);
    // Neither is to be had as a module.
    tags.retain(|name, _| name != "registrar" && name != "livenessprobe");
    assert_eq!(tags.len(), 4);
    for (name, tag) in tags {
        let major = tag.split('.').next().unwrap();
        let pinned = format!("kubernetes-csi/external-{name}/{major} {tag} ");
        assert!(module.contains(&pinned), "{pinned}");
    }
}

#[test]
fn values_that_are_wrong_are_refused_by_name() {
    for (wrong, place, why) in [
        ("node.kubeletdir=/k", "/node", "'kubeletdir' not allowed"),
        ("nodes.kubeletDir=/k", "", "'nodes' not allowed"),
        ("node.kubeletDir=var", "/node/kubeletDir", "pattern"),
        ("node.kubeletDir=/var/", "/node/kubeletDir", "pattern"),
        ("controller.replicas=0", "/controller/replicas", "minimum"),
        (
            "controller.extraArgs[0]=-v",
            "/controller/extraArgs/0",
            "pattern",
        ),
        ("agent.portalPort=70000", "/agent/portalPort", "maximum"),
        ("agent.addressFamily=v6", "/agent/addressFamily", "IPv6"),
        ("agent.sets=null", "/agent", "sets"),
        ("image.digest=sha256:12", "/image/digest", "pattern"),
        ("log.format=yaml", "/log/format", "json"),
        (
            "sidecars.tags.attacher=latest",
            "/sidecars/tags/attacher",
            "pattern",
        ),
        (
            "csiDriver.nodeAllocatableUpdatePeriodSeconds=9",
            "/csiDriver/nodeAllocatableUpdatePeriodSeconds",
            "minimum",
        ),
        ("snapshots.enabled=yes", "/snapshots/enabled", "boolean"),
        (
            "storageClasses[0].name=a",
            "/storageClasses/0",
            "parameters",
        ),
        (
            "storageClasses[0].parameters.pool=tank",
            "/storageClasses/0",
            "name",
        ),
    ] {
        let said = Helm::given()
            .unwrap()
            .template(chart::NAMESPACE, &["--set", wrong])
            .expect_err(wrong);
        let said = format!("{said:#}");
        assert!(
            said.contains(&format!("'{place}'")) && said.contains(why),
            "{wrong}: {said}"
        );
    }
}

#[test]
fn a_class_takes_the_parameters_that_the_driver_takes_and_no_other() {
    let schema = fs::read_to_string(chart::folder().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let keys = |classes: &str| -> BTreeSet<String> {
        let class = &schema["properties"][classes]["items"]["properties"]["parameters"];
        assert_eq!(class["additionalProperties"], false);
        class["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let known = |fits: fn(Given) -> bool| -> BTreeSet<String> {
        let all = TABLE.iter().filter(|known| fits(known.given));
        let all = all.map(|known| known.key.to_owned());
        // The provisioner sets those of the claim; and kubelet knows a filesystem by Kubernetes' own key alone.
        all.filter(|key| !key.starts_with("csi.storage.k8s.io/p") && key != "fsType")
            .collect()
    };
    assert_eq!(keys("storageClasses"), known(|given| given != Given::Later));
    assert_eq!(
        keys("attributesClasses"),
        known(|given| given != Given::AtCreation)
    );
}

#[test]
fn the_drivers_own_reader_takes_every_class_of_the_examples() {
    let objects = examples();
    let classes = of_kind(&objects, "StorageClass");
    assert!(classes.len() > 3);
    for class in &classes {
        Parameters::parse(&strings(&class["parameters"]))
            .unwrap_or_else(|e| panic!("{e}: {class:#}"));
        assert_eq!(class["provisioner"], DRIVER_NAME);
    }
    let modes: BTreeSet<&str> = classes
        .iter()
        .filter_map(|c| c["volumeBindingMode"].as_str())
        .collect();
    assert_eq!(modes, BTreeSet::from(["Immediate", "WaitForFirstConsumer"]));
    let changes = of_kind(&objects, "VolumeAttributesClass");
    assert!(!changes.is_empty());
    for class in changes {
        let parsed = Changes::parse(&strings(&class["parameters"]));
        assert!(
            !parsed
                .unwrap_or_else(|e| panic!("{e}: {class:#}"))
                .is_empty(),
            "{class:#}"
        );
    }
    for (kind, annotation) in [
        (
            "StorageClass",
            "storageclass.kubernetes.io/is-default-class",
        ),
        (
            "VolumeSnapshotClass",
            "snapshot.storage.kubernetes.io/is-default-class",
        ),
        (
            "VolumeGroupSnapshotClass",
            "groupsnapshot.storage.kubernetes.io/is-default-class",
        ),
    ] {
        let all = of_kind(&objects, kind);
        let defaults = all
            .iter()
            .filter(|c| c["metadata"]["annotations"][annotation] == "true");
        assert_eq!(defaults.count(), 1, "{kind}");
    }
}

/// Design, section 10.
#[test]
fn csi_driver_says_field_by_field_what_the_driver_is() {
    let objects = objects(&[]);
    let [driver] = of_kind(&objects, "CSIDriver")[..] else {
        panic!("one CSIDriver")
    };
    assert_eq!(driver["metadata"]["name"], DRIVER_NAME);
    assert_eq!(
        driver["spec"],
        json!({
            "attachRequired": true,
            "podInfoOnMount": true,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "storageCapacity": true,
            "seLinuxMount": true,
            "volumeLifecycleModes": ["Persistent"],
            "requiresRepublish": false,
            "nodeAllocatableUpdatePeriodSeconds": 60,
        })
    );
}

#[test]
fn definitions_are_those_of_the_store_and_stay_when_a_release_goes() {
    let objects = objects(&[]);
    let definitions = of_kind(&objects, "CustomResourceDefinition");
    for plural in crate::plane::KINDS {
        let file = chart::folder().join(format!("../crds/{plural}.yaml"));
        let kept: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let name = &kept["metadata"]["name"];
        let given = definitions
            .iter()
            .find(|d| d["metadata"]["name"] == *name)
            .unwrap();
        assert_eq!(given["spec"], kept["spec"], "{plural}");
        assert_eq!(
            given["metadata"]["annotations"]["helm.sh/resource-policy"],
            "keep"
        );
    }
    assert_eq!(definitions.len(), crate::plane::KINDS.len());
}

#[test]
fn the_plain_manifests_are_what_the_chart_gives() {
    let given = Helm::given().unwrap().manifests().unwrap();
    assert!(
        chart::written_manifests().unwrap() == given,
        "deploy/manifests is not what deploy/chart gives: run `cargo lab manifests`"
    );
}
