//! The translation of in-tree volumes, compared with the results of Kubernetes' own library for the same objects.
//!
//! `golden/main.go` has the objects and made the results: `cd tests/migration/golden && go run . > ../vectors.json`.

use csi_kube::migration::{InTreePlugin, inline_to_csi, to_csi, to_in_tree};
use csi_kube::{Error, Result};
use serde_json::Value;

const VECTORS: &str = include_str!("migration/vectors.json");

/// Compares every vector of this kind with what `translate` makes of it. Returns the numbers of those that are
/// translated and of those that are refused.
fn compare(kind: &str, translate: impl Fn(&Value) -> Result<Value>) -> (usize, usize) {
    let vectors: Value = serde_json::from_str(VECTORS).expect("JSON");
    let mut translated = 0;
    let mut refused = 0;
    for vector in vectors[kind].as_array().expect("a list") {
        match (translate(vector), vector["refused"] == true) {
            (Ok(found), false) => {
                assert_eq!(found, written_as_here(kind, &vector["output"]), "{vector}");
                translated += 1;
            }
            (Err(Error::Invalid { field, reason }), true) => {
                assert!(!field.is_empty() && !reason.is_empty(), "{vector}");
                refused += 1;
            }
            (result, _) => panic!("{vector}\nis here\n{result:?}"),
        }
    }
    (translated, refused)
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn write(object: impl serde::Serialize) -> Value {
    serde_json::to_value(object).expect("an object")
}

/// The two libraries write the same object differently: ours adds `apiVersion` and `kind`.
fn written_as_here(kind: &str, output: &Value) -> Value {
    use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::StorageClass};
    match kind {
        "handles" => output.clone(),
        "classes" => write(read::<StorageClass>(output)),
        _ => {
            let mut volume: PersistentVolume = read(output);
            // Ours leaves out a status that says nothing.
            volume.status = volume.status.filter(|status| *status != Default::default());
            write(volume)
        }
    }
}

fn without_status(mut volume: k8s_openapi::api::core::v1::PersistentVolume) -> Value {
    volume.status = None;
    write(volume)
}

#[test]
fn volumes_become_those_of_the_driver() {
    let counts = compare("toCsi", |vector| to_csi(&read(&vector["input"])).map(without_status));
    assert_eq!(counts, (18, 5));
}

#[test]
fn volumes_of_the_driver_become_those_of_the_plugin() {
    let counts = compare("toInTree", |vector| to_in_tree(&read(&vector["input"])).map(without_status));
    assert_eq!(counts, (14, 7));
}

#[test]
fn volumes_of_pods_become_those_of_the_driver() {
    let counts = compare("inline", |vector| {
        let namespace = vector["namespace"].as_str().unwrap_or_default();
        inline_to_csi(&read(&vector["input"]), namespace).map(write)
    });
    assert_eq!(counts, (16, 2));
}

#[test]
fn classes_have_the_drivers_parameters_and_topologies() {
    let counts = compare("classes", |vector| {
        let plugin = InTreePlugin::from_name(vector["plugin"].as_str().expect("a name")).expect("a plugin");
        plugin.storage_class(&read(&vector["input"])).map(write)
    });
    assert_eq!(counts, (13, 1));
}

#[test]
fn handles_get_what_the_node_knows() {
    let counts = compare("handles", |vector| {
        let text = |name: &str| vector[name].as_str().expect("a text");
        let plugin = InTreePlugin::from_driver(text("plugin")).expect("a driver");
        plugin.repair_volume_handle(text("input"), text("node")).map(Value::from)
    });
    assert_eq!(counts, (6, 3));
}

/// Kubernetes' library ends with a crash for such a volume.
#[test]
fn a_vsphere_volume_of_a_pod_keeps_its_policy() {
    let volume = serde_json::json!({
        "name": "data",
        "vsphereVolume": { "volumePath": "[ds] a.vmdk", "storagePolicyName": "gold" }
    });
    let csi = inline_to_csi(&read(&volume), "ns").expect("a volume").spec.and_then(|spec| spec.csi);
    let attributes = csi.and_then(|csi| csi.volume_attributes).expect("attributes");
    assert_eq!(attributes["storagepolicyname"], "gold");
}

#[test]
fn names_lead_to_their_plugin() {
    for plugin in InTreePlugin::ALL {
        assert_eq!(InTreePlugin::from_name(plugin.name()), Some(plugin));
        assert_eq!(InTreePlugin::from_driver(plugin.driver()), Some(plugin));
    }
    assert_eq!(InTreePlugin::from_name("kubernetes.io/host-path"), None);
}
