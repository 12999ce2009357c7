//! What Helm makes of the charts. The variable HELM has the path of the program.

#[path = "support/examples.rs"]
mod examples;
mod support;

use std::path::Path;
use std::process::Command;

use csi_deploy::{Class, Driver, Options, manifests};
use csi_proto::ControllerCapability;
use examples::Example;
use serde_json::{Value, json};

/// What Helm prints for these words about a chart.
#[track_caller]
fn helm(words: &[&str], chart: &Path) -> String {
    let program = std::env::var_os("HELM").expect("HELM is the path of helm: cargo xtask helm");
    let output = Command::new(program).args(words).arg(chart).output().expect("helm starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "helm {words:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The objects of a text without the Namespace, in one order.
fn sorted(text: &str) -> Vec<Value> {
    let mut objects = support::objects(text);
    objects.retain(|object| object["kind"] != "Namespace");
    objects.sort_by_key(|object| {
        [&object["kind"], &object["metadata"]["namespace"], &object["metadata"]["name"]].map(Value::to_string)
    });
    objects
}

/// The objects that the chart of these options gives, with these words for Helm.
#[track_caller]
fn templated(driver: &Driver, options: &Options, words: &[&str]) -> Vec<Value> {
    let chart = tempfile::tempdir().expect("a directory");
    manifests(driver, options).expect("manifests").write_chart_to(chart.path()).expect("a chart");
    helm(&["lint", "--strict"], chart.path());
    let text = helm(&[&["template", "release"], words].concat(), chart.path());
    sorted(text.strip_prefix("---\n").unwrap_or(&text))
}

#[track_caller]
fn plain(driver: &Driver, options: &Options) -> Vec<Value> {
    sorted(&manifests(driver, options).expect("manifests").single())
}

#[track_caller]
fn assert_same(chart: &[Value], plain: &[Value]) {
    assert_eq!(chart.len(), plain.len());
    chart.iter().zip(plain).for_each(|(chart, plain)| assert_eq!(chart, plain));
}

#[test]
fn the_chart_of_every_example_gives_the_objects_of_its_manifests() {
    for Example { name, driver, options } in &examples::all() {
        println!("{name}");
        let chart = templated(driver, options, &["--namespace", &options.namespace]);
        assert_same(&chart, &plain(driver, options));
    }
}

fn driver() -> (Driver, Options) {
    let driver =
        Driver::new("files.csi.example.org").with_controller([ControllerCapability::CreateDeleteVolume]);
    (driver.with_node([]), Options::new("registry.example.org/files-csi:1.0.0"))
}

#[test]
fn the_values_that_are_options_do_what_the_options_do() {
    let (driver, options) = driver();
    let set =
        "kubeletDir=/srv/kubelet,controller.replicas=3,images.driver=registry.example.org/files-csi:1.0.1";
    let chart = templated(&driver, &options, &["--namespace=files-csi", "--set", set]);
    let mut changed = options;
    changed.namespace = "files-csi".to_owned();
    changed.kubelet_dir = "/srv/kubelet".to_owned();
    changed.replicas = 3;
    changed.image = "registry.example.org/files-csi:1.0.1".to_owned();
    assert_same(&chart, &plain(&driver, &changed));
}

#[test]
fn each_other_value_is_in_its_field() {
    let (driver, options) = driver();
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a<b", "operator": "Exists" }] }] } } });
    let tolerations = json!([{ "key": "quoted \"key\"", "operator": "Exists" }]);
    let resources = json!({ "limits": { "memory": "1Gi" }, "requests": { "cpu": "1", "memory": "1Gi" } });
    let level = json!("info,csi_core=\"debug\"");
    let pull_secrets = json!([{ "name": "registry" }]);
    let mut words = vec!["--namespace=kube-system".to_owned()];
    let values = [
        ("logLevel", &level),
        ("imagePullSecrets", &pull_secrets),
        ("images.csiProvisioner", &json!("mirror.example.org/provisioner:1")),
        ("controller.affinity", &affinity),
        ("controller.tolerations", &tolerations),
        ("controller.priorityClassName", &json!("mine")),
        ("controller.resources.csiProvisioner", &resources),
        ("node.nodeSelector.disk", &json!("fast")),
        ("node.resources.driver", &resources),
    ];
    words.extend(values.map(|(name, value)| format!("--set-json={name}={value}")));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut due = plain(&driver, &options);
    for object in &mut due {
        let kind = object["kind"].as_str().map(str::to_owned);
        let Some(pod) = object.pointer_mut("/spec/template/spec") else { continue };
        let variable = json!({ "name": "RUST_LOG", "value": level });
        match kind.as_deref() {
            Some("Deployment") => {
                pod["affinity"] = affinity.clone();
                pod["tolerations"] = tolerations.clone();
                pod["priorityClassName"] = "mine".into();
                pod["containers"][0]["env"] = json!([variable]);
                pod["containers"][1]["image"] = "mirror.example.org/provisioner:1".into();
                pod["containers"][1]["resources"] = resources.clone();
            }
            Some("DaemonSet") => {
                pod["nodeSelector"]["disk"] = "fast".into();
                pod["containers"][0]["resources"] = resources.clone();
                pod["containers"][0]["env"].as_array_mut().expect("variables").push(variable);
            }
            other => panic!("{other:?} has pods"),
        }
        pod["imagePullSecrets"] = pull_secrets.clone();
    }
    assert_same(&templated(&driver, &options, &words), &due);
}

/// Text that Helm or YAML could read as their own.
#[test]
fn text_is_text_in_a_chart_too() {
    for text in
        ["{{ .Values.kubeletDir }}", "{{", "}}", "{{/* a */}}", "\"\\0\\0\"", "a: b # c", "a\n{{ fail }}"]
    {
        let (driver, mut options) = driver();
        // No version for the chart.
        options.image = "registry.example.org:5000/files-csi".to_owned();
        options.arg = vec![text.to_owned()];
        options.env = vec![("A".to_owned(), text.to_owned())];
        let mut class = Class::new("files");
        class.parameters.insert("a".to_owned(), text.to_owned());
        options.storage_class = vec![class];
        assert_same(&templated(&driver, &options, &["--namespace=kube-system"]), &plain(&driver, &options));
    }
}
