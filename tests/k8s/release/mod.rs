//! The chart on a real API server: that it is taken as it is, and what a release leaves.

mod accounts;
pub(crate) mod fixture;
mod policies;

use std::fs;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use zvolt::model::DRIVER_NAME;
use zvolt_lab::chart::{self, Helm};

use self::fixture::{KNOWN, Release, folder};
use crate::chart::{objects, parse, value_sets};
use crate::plane::{Api, KINDS};

/// The definitions of snapshots, until the server serves them.
pub(crate) async fn define_snapshots(api: &Api) {
    for entry in fs::read_dir(Helm::given().unwrap().snapshot_definitions()).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for definition in parse(&text)
            .iter()
            .filter(|d| d["kind"] == "CustomResourceDefinition")
        {
            api.apply(definition, "").await.unwrap();
        }
    }
    for group in ["snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"] {
        let target = format!("/apis/{group}/v1");
        let served = async {
            while api.try_send("GET", &target, None).await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(KNOWN, served)
            .await
            .unwrap_or_else(|_| panic!("{target} is not served"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_as_it_is() {
    let api = crate::plane::namespace(chart::NAMESPACE).await;
    define_snapshots(&api).await;
    let mut sets: Vec<_> = value_sets().iter().map(|values| objects(values)).collect();
    sets.push(parse(&chart::written_manifests().unwrap()));
    for object in sets.iter().flatten() {
        let taken = api.apply(object, "&dryRun=All").await;
        let taken = taken.unwrap_or_else(|refusal| panic!("{refusal}\n{object:#}"));
        if object["kind"] != "CSIDriver" {
            continue;
        }
        for (field, value) in object["spec"].as_object().unwrap() {
            // Behind a gate that is off: known, and dropped.
            if field != "preventPodSchedulingIfMissing" {
                assert_eq!(taken["spec"][field], *value, "{field}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_goes_leaves_every_volume_and_one_that_comes_finds_them() {
    let release = Release::install("leaves").await;
    release.volume("kept", "storage0").await;
    let told = release.helm(
        "upgrade",
        &[
            &folder(),
            "--set",
            "controller.replicas=3,dataPolicy.enabled=false",
        ],
    );
    assert!(
        told.contains("kubectl --namespace leaves get storagenodes"),
        "{told}"
    );
    let deployment = "/apis/apps/v1/namespaces/leaves/deployments/zvolt-controller";
    assert_eq!(release.api.get(deployment).await["spec"]["replicas"], 3);

    let before = release
        .api
        .get(&format!("{}/kept", release.target("volumes")))
        .await;
    release.helm("uninstall", &[]);
    let driver = format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER_NAME}");
    release
        .api
        .try_send("GET", &driver, None)
        .await
        .expect_err("the driver is gone");
    release
        .api
        .try_send("GET", deployment, None)
        .await
        .expect_err("so is the controller");
    for plural in KINDS {
        let target = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{DRIVER_NAME}"
        );
        release.api.get(&target).await;
    }
    let after = || async {
        release
            .api
            .get(&format!("{}/kept", release.target("volumes")))
            .await
    };
    assert_eq!(after().await, before);

    release.helm("install", &[&folder(), "--set", "dataPolicy.enabled=false"]);
    assert_eq!(after().await, before);
    release.api.get(&driver).await;
}
