//! The manifests of every example, compared with the files in `golden/`. `UPDATE_GOLDEN=1` writes the files;
//! read the difference before you commit it.

#[path = "support/examples.rs"]
mod examples;
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use csi_deploy::{Driver, Options, manifests};
use csi_proto::ControllerCapability as Capability;
use examples::Example;
use serde_json::Value;

#[test]
fn the_manifests_of_every_example() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let examples = examples::all();
    for Example { name, driver, options } in &examples {
        let made = || manifests(driver, options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = made().single();
        assert_eq!(made(), made(), "{name}: equal input, equal bytes");
        support::objects(&text);
        let path = golden.join(format!("{name}.yaml"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).expect("a file that can be written");
        }
        let due = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text == due,
            "{} differs: UPDATE_GOLDEN=1, then git diff. It would be:\n{text}",
            path.display()
        );
    }
    assert_eq!(
        std::fs::read_dir(golden).expect("the files").count(),
        examples.len(),
        "a file for each example"
    );
}

/// A wrong name in the file is ignored by the suite, and a test then left out.
#[test]
fn the_end_to_end_tests_get_what_the_driver_advertises() {
    let file_of = |driver: &Driver, options: &Options| -> Value {
        let made = manifests(driver, options).expect("manifests");
        serde_saphyr::from_str(made.e2e_testdriver()).expect("YAML")
    };
    let file = |name: &str| {
        let example = examples::all().into_iter().find(|example| example.name == name).expect("an example");
        file_of(&example.driver, &example.options)
    };
    let on = |file: &Value| -> Vec<String> {
        let capabilities = file["DriverInfo"]["Capabilities"].as_object().expect("capabilities");
        capabilities.iter().filter(|(_, is_on)| **is_on == true).map(|(name, _)| name.clone()).collect()
    };
    let everything = file("hostpath-everything");
    assert_eq!(everything["DriverInfo"]["Name"], "hostpath.csi.example.org");
    assert_eq!(everything["StorageClass"]["FromExistingClassName"], "hostpath");
    assert_eq!(everything["SnapshotClass"]["FromExistingClassName"], "hostpath");
    assert_eq!(everything["GroupSnapshotClass"]["FromExistingClassName"], "hostpath");
    assert_eq!(everything["VolumeAttributesClass"]["FromExistingClassName"], "thick");
    assert_eq!(everything["InlineVolumes"].as_array().map(Vec::len), Some(1));
    let all = [
        "block",
        "capacity",
        "controllerExpansion",
        "exec",
        "fsGroup",
        "groupSnapshot",
        "multiplePVsSameID",
        "multipods",
        "nodeExpansion",
        "offlineExpansion",
        "onlineExpansion",
        "persistence",
        "pvcDataSource",
        "readWriteOncePod",
        "seLinuxMount",
        "snapshotDataSource",
        "volumeMountGroup",
    ];
    assert_eq!(on(&everything), all);
    let secrets = file("secrets");
    assert_eq!(on(&secrets), ["exec", "fsGroup", "multiplePVsSameID", "multipods", "volumeMountGroup"]);
    assert!(secrets["StorageClass"].is_null() && secrets["InlineVolumes"].is_array());
    let clones = Driver::new("clones.csi.example.org").with_node([]);
    let clones = clones.with_controller([Capability::CreateDeleteVolume, Capability::CloneVolume]);
    let clones = on(&file_of(&clones, &Options::new("registry.example.org/clones:1.0.0")));
    assert!(
        clones.contains(&"pvcDataSource".to_owned()) && !clones.contains(&"snapshotDataSource".to_owned())
    );
    let local = file("hostpath-node-local");
    assert!(
        on(&local).contains(&"singleNodeVolume".to_owned())
            && !on(&local).contains(&"onlineExpansion".to_owned())
    );
    assert_eq!(file("hostpath-stateful-set")["StorageClass"]["FromName"], true);
}

/// A Service, and the ports and alerts that refer to what the pods have.
#[test]
fn what_prometheus_reads_is_what_the_pods_have() {
    let Example { driver, options, .. } =
        examples::all().into_iter().find(|example| example.options.prometheus_rule).expect("an example");
    let objects = support::objects(&manifests(&driver, &options).expect("manifests").single());
    let named = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let texts = |values: &Value, field: &str| -> BTreeSet<String> {
        let values = values.as_array().expect("a list").iter();
        values.filter_map(|value| value[field].as_str().map(str::to_owned)).collect()
    };
    let mut of_pods = BTreeSet::new();
    for kind in ["Deployment", "DaemonSet"] {
        let pods = named(kind).map(|object| &object["spec"]["template"]["spec"]["containers"]);
        for container in pods.flat_map(|containers| containers.as_array().expect("containers")) {
            of_pods.extend(texts(&container["ports"], "name"));
        }
    }
    // gRPC.
    assert!(of_pods.remove("metadata"));
    let service = named("Service").find(|object| object["spec"]["clusterIP"] == "None").expect("a Service");
    let monitor = named("ServiceMonitor").next().expect("a ServiceMonitor");
    assert_eq!(texts(&service["spec"]["ports"], "targetPort"), of_pods);
    assert_eq!(texts(&monitor["spec"]["endpoints"], "port"), of_pods);
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    let rule = named("PrometheusRule").next().expect("a rule")["spec"].to_string();
    let job = service["metadata"]["name"].as_str().expect("a name");
    // Every metric is that of these pods; three are not of calls.
    let selector = format!(r#"{{job=\"{job}\",endpoint=\"metrics\""#);
    let metrics = rule.matches("csi_plugin_operations_").count() + 3;
    assert_eq!(rule.matches(&selector).count(), metrics, "{rule}");
    assert_eq!(rule.matches("job=").count(), metrics, "{rule}");
}
