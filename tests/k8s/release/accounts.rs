//! What each account of a release may do, by the API server's own word.

use zvolt::model::DRIVER_NAME;

use super::fixture::Release;

fn pairs<'a>(verbs: &'a str, resources: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let verbs = verbs.split(' ');
    verbs.flat_map(|verb| resources.split(' ').map(move |resource| (verb, resource)))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_account_may_do_its_work_and_nothing_else() {
    let release = Release::install("rights").await;
    let here = release.namespace;
    let ours = |resource: &str| format!("{DRIVER_NAME}:{resource}");
    let may: [(&str, &str, &str, &str); 29] = [
        (
            "controller",
            "create watch patch delete",
            "zfs:volumes",
            here,
        ),
        ("controller", "create watch delete", "zfs:snapshots", here),
        ("controller", "update", "zfs:volumes/status", here),
        ("controller", "list", "zfs:storagenodes", here),
        (
            "controller",
            "create update",
            "coordination.k8s.io:leases",
            here,
        ),
        (
            "controller",
            "create update delete",
            "storage.k8s.io:csistoragecapacities",
            here,
        ),
        ("controller", "get", "pods", here),
        ("controller", "get", "apps:replicasets", here),
        ("controller", "create delete patch", "persistentvolumes", ""),
        ("controller", "watch update", "persistentvolumeclaims", ""),
        ("controller", "patch", "persistentvolumeclaims/status", ""),
        ("controller", "create patch", "events", ""),
        (
            "controller",
            "watch patch",
            "storage.k8s.io:volumeattachments",
            "",
        ),
        (
            "controller",
            "patch",
            "storage.k8s.io:volumeattachments/status",
            "",
        ),
        ("controller", "watch", "storage.k8s.io:storageclasses", ""),
        (
            "controller",
            "watch",
            "storage.k8s.io:volumeattributesclasses",
            "",
        ),
        ("controller", "watch", "storage.k8s.io:csinodes", ""),
        (
            "controller",
            "watch update",
            "snapshot.storage.k8s.io:volumesnapshots",
            "",
        ),
        (
            "controller",
            "watch update patch",
            "snapshot.storage.k8s.io:volumesnapshotcontents",
            "",
        ),
        (
            "controller",
            "update patch",
            "snapshot.storage.k8s.io:volumesnapshotcontents/status",
            "",
        ),
        (
            "controller",
            "watch",
            "snapshot.storage.k8s.io:volumesnapshotclasses",
            "",
        ),
        (
            "controller",
            "watch patch",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotcontents",
            "",
        ),
        (
            "controller",
            "update",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotcontents/status",
            "",
        ),
        (
            "controller",
            "watch",
            "groupsnapshot.storage.k8s.io:volumegroupsnapshotclasses",
            "",
        ),
        ("agent", "get list watch patch", "zfs:volumes", here),
        ("agent", "get list watch patch", "zfs:snapshots", here),
        ("agent", "update", "zfs:volumes/status", here),
        ("agent", "create get", "zfs:storagenodes", here),
        ("agent", "update", "zfs:storagenodes/status", here),
    ];
    for (account, verbs, resource, namespace) in may {
        let resource = resource.replace("zfs:", &format!("{DRIVER_NAME}:"));
        for verb in verbs.split(' ') {
            assert!(
                release.may(account, verb, &resource, namespace).await,
                "{account} {verb} {resource}"
            );
        }
    }
    for account in ["controller", "agent", "node"] {
        for namespace in ["", here, "kube-system"] {
            for verb in ["get", "list", "watch", "create", "update"] {
                for resource in ["secrets", "configmaps", "serviceaccounts/token"] {
                    assert!(
                        !release.may(account, verb, resource, namespace).await,
                        "{account} {verb} {resource}"
                    );
                }
            }
        }
        for (verb, resource) in [
            ("create", "pods"),
            ("create", "pods/exec"),
            ("patch", "nodes"),
            ("delete", "nodes"),
            ("update", "rbac.authorization.k8s.io:clusterroles"),
            ("create", "apps:daemonsets"),
            ("create", "storage.k8s.io:storageclasses"),
            ("impersonate", "users"),
            ("get", "nodes/proxy"),
        ] {
            assert!(
                !release.may(account, verb, resource, here).await,
                "{account} {verb} {resource}"
            );
            assert!(
                !release.may(account, verb, resource, "").await,
                "{account} {verb} {resource}"
            );
        }
        for namespace in ["", "kube-system"] {
            assert!(
                !release
                    .may(account, "list", &ours("volumes"), namespace)
                    .await,
                "{account} {namespace}"
            );
        }
    }
    for (account, verbs, resources) in [
        ("controller", "update deletecollection", "volumes"),
        ("controller", "patch", "volumes/status"),
        ("controller", "update patch deletecollection", "snapshots"),
        ("controller", "update patch", "snapshots/status"),
        (
            "controller",
            "get watch create update patch delete deletecollection",
            "storagenodes",
        ),
        ("controller", "update patch", "storagenodes/status"),
        (
            "agent",
            "create update delete deletecollection",
            "volumes snapshots",
        ),
        (
            "agent",
            "update patch delete deletecollection",
            "storagenodes",
        ),
        (
            "agent",
            "patch",
            "volumes/status snapshots/status storagenodes/status",
        ),
        (
            "node",
            "get list watch create update patch delete deletecollection",
            "volumes snapshots storagenodes",
        ),
        (
            "node",
            "get update patch",
            "volumes/status snapshots/status storagenodes/status",
        ),
    ] {
        for (verb, resource) in pairs(verbs, resources) {
            assert!(
                !release.may(account, verb, &ours(resource), here).await,
                "{account} {verb} {resource}"
            );
        }
    }
    // The controller's sidecars need some of these; nobody else sees anything but the driver's own objects.
    for account in ["agent", "node"] {
        for (verb, resource) in pairs("get list watch", "pods nodes persistentvolumes events") {
            for namespace in ["", here] {
                assert!(
                    !release.may(account, verb, resource, namespace).await,
                    "{account} {verb} {resource}"
                );
            }
        }
    }
}
