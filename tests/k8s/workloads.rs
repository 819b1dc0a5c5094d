//! What the chart's workloads run, with what rights on their machines, and how their parts find each other.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};
use zvolt_lab::chart;

use crate::chart::{objects, of_kind, value_sets};

/// Every container of every workload: its pod's component, its name, and its security context.
fn containers(objects: &[Value]) -> Vec<(String, String, Map<String, Value>)> {
    let mut all = Vec::new();
    for object in objects {
        let pod = &object["spec"]["template"];
        let listed = pod["spec"]["containers"].as_array();
        for container in listed.into_iter().flatten() {
            let component = &pod["metadata"]["labels"]["app.kubernetes.io/component"];
            all.push((
                component.as_str().unwrap().to_owned(),
                container["name"].as_str().unwrap().to_owned(),
                container["securityContext"].as_object().unwrap().clone(),
            ));
        }
    }
    all
}

#[test]
fn only_the_driver_itself_on_hosts_is_privileged_and_all_else_has_no_capability() {
    for values in value_sets() {
        let objects = objects(&values);
        for (component, name, context) in containers(&objects) {
            let privileged = context.get("privileged") == Some(&json!(true));
            assert_eq!(
                privileged,
                name == "zvolt" && component != "controller",
                "{component} {name}"
            );
            assert_eq!(
                context["readOnlyRootFilesystem"], true,
                "{component} {name}"
            );
            if !privileged {
                assert_eq!(
                    context["allowPrivilegeEscalation"], false,
                    "{component} {name}"
                );
                assert_eq!(
                    context["capabilities"],
                    json!({"drop": ["ALL"]}),
                    "{component} {name}"
                );
            }
        }
        let [deployment] = of_kind(&objects, "Deployment")[..] else {
            panic!("one Deployment")
        };
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod.get("hostNetwork").is_none());
        assert!(
            pod["volumes"]
                .as_array()
                .unwrap()
                .iter()
                .all(|v| v.get("hostPath").is_none())
        );
    }
}

#[test]
fn nodes_have_no_way_into_the_api() {
    let objects = objects(&[]);
    let daemon_sets = of_kind(&objects, "DaemonSet");
    let node = daemon_sets
        .iter()
        .find(|d| d["metadata"]["name"] == "zvolt-node")
        .unwrap();
    assert_eq!(
        node["spec"]["template"]["spec"]["automountServiceAccountToken"],
        false
    );
    let bindings = [
        of_kind(&objects, "RoleBinding"),
        of_kind(&objects, "ClusterRoleBinding"),
    ]
    .concat();
    assert!(bindings.len() > 4);
    for binding in bindings {
        assert!(
            !binding["subjects"].to_string().contains("zvolt-node"),
            "{binding:#}"
        );
    }
}

#[test]
fn portals_are_the_nodes_own_address_or_what_the_values_say() {
    let portals = |values: &[String]| -> Vec<String> {
        let objects = objects(values);
        let agents = of_kind(&objects, "DaemonSet")
            .into_iter()
            .filter(|d| d["metadata"]["name"] != "zvolt-node");
        let arguments = agents.flat_map(|d| {
            let container = &d["spec"]["template"]["spec"]["containers"][0];
            container["args"].as_array().unwrap().clone()
        });
        let arguments =
            arguments.filter_map(|a| Some(a.as_str()?.strip_prefix("--portal=")?.to_owned()));
        arguments.collect()
    };
    assert_eq!(portals(&[]), ["$(HOST_ADDRESS):4420"]);
    let ipv6 = ["--set", "agent.addressFamily=IPv6"].map(str::to_owned);
    assert_eq!(portals(&ipv6), ["[$(HOST_ADDRESS)]:4420"]);
    let own = chart::values(Path::new("examples/storage-network.yaml"));
    let expected = [
        "10.77.0.10:4420",
        "[fd00:77::10]:4420",
        "10.77.0.11:4420",
        "[fd00:77::11]:4420",
    ];
    assert_eq!(portals(&own), expected);
}

/// Every pod of every workload.
fn pods(objects: &[Value]) -> Vec<&Value> {
    let pods = objects.iter().map(|object| &object["spec"]["template"]);
    pods.filter(|pod| pod["spec"]["containers"].is_array())
        .map(|pod| &pod["spec"])
        .collect()
}

fn container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let mut containers = pod["containers"].as_array().unwrap().iter();
    containers.find(|container| container["name"] == name)
}

fn arguments(container: &Value) -> Vec<String> {
    serde_json::from_value(container["args"].clone()).unwrap()
}

/// What a container is told by an argument.
fn told(container: &Value, option: &str) -> Option<String> {
    let all = arguments(container).into_iter();
    let mut fitting = all.filter_map(|argument| Some(argument.strip_prefix(option)?.to_owned()));
    fitting.next()
}

/// The driver's command line as its container has it, each variable that it reads as the option that it stands for.
fn command_line(driver: &Value) -> Vec<String> {
    let mut line = arguments(driver);
    let command = zvolt::command();
    let mode = command.find_subcommand(&line[0]).expect("a mode");
    let known: Vec<&clap::Arg> = command
        .get_arguments()
        .chain(mode.get_arguments())
        .collect();
    for variable in driver["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let reference = format!("$({name})");
        let is_used = line.iter().any(|argument| argument.contains(&reference));
        let is_ipv6 = line
            .iter()
            .any(|argument| argument.contains(&format!("[{reference}]")));
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("spec.nodeName") => "storage0",
            Some("status.hostIP") if is_ipv6 => "fd00::1",
            Some("status.hostIP") => "10.0.0.1",
            Some(field) => panic!("{name} is of {field}"),
            None => variable["value"].as_str().unwrap(),
        };
        for argument in &mut line {
            *argument = argument.replace(&reference, value);
        }
        match known
            .iter()
            .find(|option| option.get_env() == Some(name.as_ref()))
        {
            Some(option) => line.push(format!("--{}={value}", option.get_long().unwrap())),
            None => assert!(is_used || name == "RUST_LOG", "nobody reads {name}"),
        }
    }
    line
}

#[test]
fn the_driver_takes_every_command_line_that_it_is_given() {
    let mut modes = BTreeSet::new();
    for values in value_sets() {
        let objects = objects(&values);
        for driver in pods(&objects)
            .into_iter()
            .filter_map(|pod| container(pod, "zvolt"))
        {
            let line = command_line(driver);
            assert!(
                !line.iter().any(|argument| argument.contains("$(")),
                "{line:?}"
            );
            let taken = zvolt::command()
                .no_binary_name(true)
                .try_get_matches_from(&line);
            taken.unwrap_or_else(|error| panic!("{line:?}: {error}"));
            modes.insert(line[0].clone());
        }
    }
    assert_eq!(
        modes,
        ["agent", "controller", "node"].map(str::to_owned).into()
    );
}

/// Where a file of a container really is: on the host, or in a volume of the pod.
fn place(pod: &Value, container: &Value, file: &str) -> String {
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let beneath =
        |mount: &&Value| Path::new(file).starts_with(mount["mountPath"].as_str().unwrap());
    let mount = mounts
        .filter(beneath)
        .max_by_key(|mount| mount["mountPath"].as_str().unwrap().len())
        .unwrap_or_else(|| panic!("{file} is below no mount: the root is read-only"));
    let rest = file
        .strip_prefix(mount["mountPath"].as_str().unwrap())
        .unwrap();
    let mut volumes = pod["volumes"].as_array().unwrap().iter();
    let volume = volumes
        .find(|volume| volume["name"] == mount["name"])
        .unwrap();
    match volume["hostPath"]["path"].as_str() {
        Some(path) => format!("{path}{rest}"),
        None => format!("{}:{rest}", volume["name"].as_str().unwrap()),
    }
}

#[test]
fn sidecars_and_probes_look_for_the_driver_where_it_is() {
    for values in value_sets() {
        let objects = objects(&values);
        for pod in pods(&objects) {
            let driver = container(pod, "zvolt").unwrap();
            let endpoint = told(driver, "--endpoint=unix://").expect("a socket");
            let socket = place(pod, driver, &endpoint);
            for sidecar in pod["containers"].as_array().unwrap() {
                if sidecar == driver {
                    continue;
                }
                let address = told(sidecar, "--csi-address=").expect("the driver's socket");
                assert_eq!(place(pod, sidecar, &address), socket, "{sidecar:#}");
            }
            if let Some(registrar) = container(pod, "node-driver-registrar") {
                let kubelets = told(registrar, "--kubelet-registration-path=");
                assert_eq!(kubelets, Some(socket.clone()), "kubelet is on the host");
            }
            match container(pod, "livenessprobe") {
                Some(sidecar) => {
                    let probe = &driver["livenessProbe"]["httpGet"];
                    let host = probe["host"].as_str().unwrap_or_default();
                    let at = format!("{host}:{}", probe["port"]);
                    assert_eq!(told(sidecar, "--http-endpoint="), Some(at));
                }
                // An agent answers nobody but `zvolt trace`, and ends when it cannot work.
                None => assert_eq!(socket, "/run/zvolt/agent.sock", "one agent a host"),
            }
        }
    }
}

#[test]
fn controllers_and_agents_have_the_token_of_their_pod() {
    let objects = objects(&[]);
    for pod in pods(&objects) {
        let name = &pod["serviceAccountName"];
        let is_node = name == "zvolt-node";
        let accounts = of_kind(&objects, "ServiceAccount");
        let account = accounts
            .iter()
            .find(|account| account["metadata"]["name"] == *name);
        let mounted = pod.get("automountServiceAccountToken");
        let mounted = mounted.unwrap_or(&account.unwrap()["automountServiceAccountToken"]);
        assert_eq!(*mounted, !is_node, "{name}");
        let driver = container(pod, "zvolt").unwrap();
        assert_eq!(told(driver, "--kubeconfig"), None, "{name}");
    }
}

#[test]
fn no_image_is_asked_of_a_registry_that_nobody_has_named() {
    let images = |values: &[&str]| -> Vec<String> {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        let objects = objects(&values);
        let containers = pods(&objects)
            .into_iter()
            .flat_map(|pod| pod["containers"].as_array().unwrap().clone());
        let image = |container: Value| container["image"].as_str().unwrap().to_owned();
        containers.map(image).collect()
    };
    let by_default = images(&[]);
    assert!(
        by_default
            .iter()
            .all(|image| image.starts_with("localhost/")),
        "{by_default:?}"
    );
    let named = images(&["--set", "sidecars.repository=example.com/sidecars"]);
    let there = |images: &[String], place: &str| {
        let all = images.iter().filter(|image| image.starts_with(place));
        all.count()
    };
    let sidecars = there(&by_default, "localhost/sig-storage/");
    assert!(sidecars > 4);
    assert_eq!(there(&named, "example.com/sidecars/"), sidecars);
    assert_eq!(there(&named, "localhost/sig-storage/"), 0);
}
