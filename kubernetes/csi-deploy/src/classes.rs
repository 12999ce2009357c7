//! The classes that users choose from.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::error::Error;
use crate::files::Files;
use crate::options::Options;
use crate::options::{Class, SecretUse};
use crate::plan::Plan;
use crate::plan::labels;

const FILE: &str = "classes.yaml";
const PREFIX: &str = "csi.storage.k8s.io/";

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    let Options { storage_class, attributes_class, snapshot_class, group_snapshot_class, .. } = plan.options;
    let driver = || plan.driver.name.clone();
    let delete = || "Delete".to_owned();
    for class in storage_class {
        // With a topology the scheduler's choice comes first; else the volume would be where the pod can't be.
        let mode = if plan.has_topology() { "WaitForFirstConsumer" } else { "Immediate" };
        let object = StorageClass {
            metadata: metadata(plan, class),
            provisioner: driver(),
            parameters: parameters(plan, class, &STORAGE),
            allow_volume_expansion: Some(plan.expands()),
            reclaim_policy: Some(delete()),
            volume_binding_mode: Some(mode.to_owned()),
            ..StorageClass::default()
        };
        files.add(FILE, Vec::new(), &object)?;
    }
    for class in attributes_class {
        let parameters = parameters(plan, class, &[]);
        let object =
            VolumeAttributesClass { metadata: metadata(plan, class), driver_name: driver(), parameters };
        files.add(FILE, Vec::new(), &object)?;
    }
    for class in snapshot_class {
        let kind = ("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass");
        let object = Snapshots::new(plan, class, kind, SecretUse::Snapshotter);
        files.add_as(object.kind, FILE, Vec::new(), &object)?;
    }
    for class in group_snapshot_class {
        let kind = ("groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshotClass");
        let object = Snapshots::new(plan, class, kind, SecretUse::GroupSnapshotter);
        files.add_as(object.kind, FILE, Vec::new(), &object)?;
    }
    Ok(())
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

fn metadata(plan: &Plan<'_>, class: &Class) -> ObjectMeta {
    ObjectMeta { name: Some(class.name.clone()), labels: Some(labels(plan, None)), ..ObjectMeta::default() }
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

/// The fields of VolumeSnapshotClass and VolumeGroupSnapshotClass, whose types are those of
/// external-snapshotter's CRDs and not of Kubernetes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Snapshots {
    api_version: &'static str,
    kind: &'static str,
    deletion_policy: &'static str,
    driver: String,
    metadata: ObjectMeta,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BTreeMap<String, String>>,
}

impl Snapshots {
    fn new(
        plan: &Plan<'_>,
        class: &Class,
        (api_version, kind): (&'static str, &'static str),
        secret: SecretUse,
    ) -> Self {
        Self {
            api_version,
            kind,
            deletion_policy: "Delete",
            driver: plan.driver.name.clone(),
            metadata: metadata(plan, class),
            parameters: parameters(plan, class, &[secret]),
        }
    }
}
