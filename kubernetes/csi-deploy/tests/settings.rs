//! The driver's own Secrets and ConfigMaps, in the pods that get them.

mod support;

use std::collections::BTreeSet;

use csi_deploy::{Driver, FusePods, Options, manifests};
use csi_proto::ControllerCapability;
use csi_proto::v1::PluginCapability;
use csi_proto::v1::plugin_capability::service::Type as PluginService;
use csi_proto::v1::plugin_capability::{Service, Type};
use serde_json::{Value, json};

fn options() -> Options {
    let mut options = Options::new("registry.example.org/cloud-csi:1.0.0");
    options.namespace = "cloud-csi".to_owned();
    options
}

/// The container of the driver and the volumes, in the pods of this kind of workload.
fn pod(options: &Options, kind: &str) -> (Value, Value) {
    let driver = Driver::new("cloud.csi.example.org")
        .with_controller([ControllerCapability::CreateDeleteVolume])
        .with_node([]);
    let made = manifests(&driver, options).expect("manifests");
    let objects = support::objects(&made.single());
    let workload = objects.iter().find(|object| object["kind"] == kind).expect(kind);
    let pod = &workload["spec"]["template"]["spec"];
    (pod["containers"][0].clone(), pod["volumes"].clone())
}

/// The value with this name in a list of objects.
fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|one| one["name"] == name)
}

#[test]
fn credentials_reach_the_controller_and_the_node_only_if_it_is_named() {
    let mut options = options();
    options.secret_files = vec!["/etc/cloud=cloud".parse().expect("files")];
    options.config_files = vec!["/etc/settings=settings@all".parse().expect("files")];
    options.secret_env = ["TOKEN=cloud/token", "NODE_TOKEN=attach/token@node"]
        .map(|text| text.parse().expect("a variable"))
        .into();

    let (controller, volumes) = pod(&options, "Deployment");
    let secret = json!({"name": "secret-0", "secret": {"defaultMode": 0o400, "secretName": "cloud"}});
    assert_eq!(named(&volumes, "secret-0"), Some(&secret));
    let mounted = json!({"mountPath": "/etc/cloud", "name": "secret-0", "readOnly": true});
    assert_eq!(named(&controller["volumeMounts"], "secret-0"), Some(&mounted));
    let token = json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"key": "token", "name": "cloud"}}});
    assert_eq!(named(&controller["env"], "TOKEN"), Some(&token));
    assert_eq!(named(&controller["env"], "NODE_TOKEN"), None);

    let (node, node_volumes) = pod(&options, "DaemonSet");
    assert_eq!(named(&node_volumes, "secret-0"), None);
    assert_eq!(named(&node["env"], "TOKEN"), None);
    assert_eq!(
        named(&node["env"], "NODE_TOKEN").expect("it is the node's")["valueFrom"]["secretKeyRef"]["name"],
        "attach"
    );

    let settings = json!({"configMap": {"name": "settings"}, "name": "config-0"});
    for (container, volumes) in [(controller, volumes), (node, node_volumes)] {
        assert_eq!(named(&volumes, "config-0"), Some(&settings));
        assert_eq!(
            named(&container["volumeMounts"], "config-0").expect("mounted")["mountPath"],
            "/etc/settings"
        );
    }
}

/// Otherwise the controller could read all Secrets of the cluster.
#[test]
fn a_secret_with_the_name_of_a_claim_is_read_in_its_namespace_only() {
    let mut options = options();
    options.storage_class = vec!["cloud".parse().expect("a class")];
    let mut role = |reference: &str| {
        options.secret = vec![reference.parse().expect("a reference")];
        let driver = Driver::new("cloud.csi.example.org")
            .with_controller([ControllerCapability::CreateDeleteVolume])
            .with_node([]);
        let made = manifests(&driver, &options).expect("manifests");
        let roles = support::objects(&made.single()).into_iter().find_map(|object| {
            let rules = object["rules"].as_array()?;
            let rule = rules.iter().find(|rule| rule["resources"] == json!(["secrets"]))?.clone();
            Some((object["metadata"]["namespace"].clone(), rule["resourceNames"].clone()))
        });
        roles.expect("a role")
    };
    for (reference, expected) in [
        ("provisioner=vault/one", (json!("vault"), json!(["one"]))),
        ("provisioner=vault/${pvc.name}", (json!("vault"), Value::Null)),
        ("provisioner=${pvc.namespace}/one", (Value::Null, Value::Null)),
    ] {
        assert_eq!(role(reference), expected, "{reference}");
    }
}

/// No sidecar gets them.
#[test]
fn only_the_drivers_container_has_the_credentials() {
    let mut options = options();
    options.secret_files = vec!["/etc/cloud=cloud".parse().expect("files")];
    options.secret_env = vec!["TOKEN=cloud/token".parse().expect("a variable")];
    let driver = Driver::new("cloud.csi.example.org")
        .with_controller([ControllerCapability::CreateDeleteVolume])
        .with_node([]);
    let made = manifests(&driver, &options).expect("manifests");
    let objects = support::objects(&made.single());
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").expect("a controller");
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    let with_secret: Vec<&Value> = containers
        .iter()
        .filter(|container| ["secret-0", "TOKEN"].iter().any(|name| container.to_string().contains(name)))
        .map(|container| &container["name"])
        .collect();
    assert_eq!(with_secret, ["driver"]);
    assert!(containers.len() > 1, "there is a sidecar");
    assert_eq!(
        made.notes().last().map(String::as_str),
        Some("the driver's pods start when these exist in the namespace cloud-csi: Secret cloud")
    );
}

/// The second driver's name ends in what names of the first one's objects end in.
#[test]
fn two_drivers_in_one_namespace_share_no_object() {
    let service = Service { r#type: PluginService::SnapshotMetadataService as i32 };
    let service = PluginCapability { r#type: Some(Type::Service(service)) };
    let names = |driver: &str| -> BTreeSet<String> {
        let driver = Driver::new(driver)
            .with_plugin(&[service])
            .with_controller([ControllerCapability::CreateDeleteVolume, ControllerCapability::ListVolumes])
            .with_node([]);
        let mut options = options();
        options.fuse_pods = Some(FusePods::PerNode);
        options.storage_class = vec!["files".parse().expect("a class")];
        options.service_monitor = true;
        options.metrics_from = vec!["monitoring".to_owned()];
        options.snapshot_metadata_secret = Some("certificate".to_owned());
        options.secret = vec!["node-stage=cloud-csi/key".parse().expect("a secret")];
        let objects = support::objects(&manifests(&driver, &options).expect("manifests").single());
        let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
        // The user names these two.
        let is_made = |object: &&Value| object["kind"] != "Namespace" && object["kind"] != "StorageClass";
        objects.iter().filter(is_made).map(name).collect()
    };
    let first = names("cloud.example.org");
    let ends = ["controller", "node", "fuse", "metrics", "secrets", "snapshot.metadata", "volume.creations"];
    for end in ends {
        let second = names(&format!("cloud.example.org.{end}"));
        let shared: Vec<_> = first.intersection(&second).collect();
        assert!(shared.is_empty() && second.len() > 10, "{end}: {shared:?} of {second:?}");
    }
}
