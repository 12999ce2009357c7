//! The classes that users choose from.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::files::Files;
use crate::options::Options;
use crate::options::{Class, SecretUse};
use crate::plan::Plan;
use crate::plan::labels;

const FILE: &str = "classes.yaml";
const PREFIX: &str = "csi.storage.k8s.io/";

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) {
    let Options { storage_class, attributes_class, snapshot_class, group_snapshot_class, .. } = plan.options;
    let driver = &plan.driver.name;
    for class in storage_class {
        // With a topology the scheduler's choice comes first; else the volume would be where the pod can't be.
        let mode = if plan.has_topology() { "WaitForFirstConsumer" } else { "Immediate" };
        let object = json!({
            "allowVolumeExpansion": plan.expands(),
            "metadata": metadata(plan, class),
            "parameters": parameters(plan, class, &STORAGE),
            "provisioner": driver,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": mode,
        });
        files.add(FILE, Vec::new(), ("storage.k8s.io/v1", "StorageClass"), object);
    }
    for class in attributes_class {
        let object = json!({
            "driverName": driver,
            "metadata": metadata(plan, class),
            "parameters": parameters(plan, class, &[]),
        });
        files.add(FILE, Vec::new(), ("storage.k8s.io/v1", "VolumeAttributesClass"), object);
    }
    let single = ("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass");
    let group = ("groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshotClass");
    for (kind, classes, secret) in [
        (single, snapshot_class, SecretUse::Snapshotter),
        (group, group_snapshot_class, SecretUse::GroupSnapshotter),
    ] {
        for class in classes {
            let object = json!({
                "deletionPolicy": "Delete",
                "driver": driver,
                "metadata": metadata(plan, class),
                "parameters": parameters(plan, class, &[secret]),
            });
            files.add(FILE, Vec::new(), kind, object);
        }
    }
}

const STORAGE: [SecretUse; 7] = [
    SecretUse::Provisioner,
    SecretUse::ControllerPublish,
    SecretUse::ControllerExpand,
    SecretUse::ControllerModify,
    SecretUse::NodeStage,
    SecretUse::NodePublish,
    SecretUse::NodeExpand,
];

fn metadata(plan: &Plan<'_>, class: &Class) -> Value {
    json!({ "labels": labels(plan, None), "name": class.name })
}

fn parameters(plan: &Plan<'_>, class: &Class, uses: &[SecretUse]) -> Option<BTreeMap<String, String>> {
    let mut parameters = class.parameters.clone();
    for secret in plan.options.secret.iter().filter(|secret| uses.contains(&secret.used_for)) {
        let used_for = secret.used_for.as_str();
        parameters.insert(format!("{PREFIX}{used_for}-secret-name"), secret.name.clone());
        parameters.insert(format!("{PREFIX}{used_for}-secret-namespace"), secret.namespace.clone());
    }
    Some(parameters).filter(|parameters| !parameters.is_empty())
}
