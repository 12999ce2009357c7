//! The answer of CreateVolume, and the PersistentVolume that is made of it.

use csi_core::kubernetes::Quantity;
use csi_proto::ControllerCapability;
use csi_proto::v1::{self, CreateVolumeRequest};
use serde_json::{Value, json};

use super::request::Plan;
use crate::driver::Driver;
use crate::keys;
use crate::objects::{Claim, Class, Kind as _};
use crate::secrets::{CONTROLLER_MODIFY, OF_VOLUME, PROVISIONER};

/// Why this volume can't be the claim's.
pub(super) fn fault(request: &CreateVolumeRequest, volume: &v1::Volume) -> Option<String> {
    let required = required_bytes(request);
    if volume.capacity_bytes != 0 && volume.capacity_bytes < required {
        let got = volume.capacity_bytes;
        return Some(format!("created volume capacity {got} less than requested capacity {required}"));
    }
    if request.volume_content_source.is_some() && volume.content_source.is_none() {
        return Some("volume content source missing".to_owned());
    }
    None
}

fn required_bytes(request: &CreateVolumeRequest) -> i64 {
    request.capacity_range.as_ref().map_or(0, |range| range.required_bytes)
}

/// The volume's object, bound to the claim, without what the driver's answer adds. `identity` is the process that creates
/// the volume.
pub(super) fn template(driver: &Driver, identity: &str, claim: &Claim, class: &Class, plan: &Plan) -> Value {
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let mut spec = json!({
        "accessModes": claim.spec.access_modes,
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": claim.class_name(),
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
            "name": claim.name(), "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version,
        },
        "csi": csi_source(&driver.name, identity, plan),
    });
    let mut set = |field: &str, value: Value| spec[field] = value;
    if !class.mount_options.is_empty() {
        set("mountOptions", json!(class.mount_options));
    }
    if let Some(mode) = &claim.spec.volume_mode {
        set("volumeMode", json!(mode));
    }
    if let Some(name) = claim.spec.volume_attributes_class_name.as_deref().filter(|name| !name.is_empty()) {
        set("volumeAttributesClassName", json!(name));
    }
    let deleter = (policy == "Delete").then(|| keys::VOLUME_FINALIZER.to_owned());
    // The attacher would add it when the volume is attached for the first time.
    let is_attached = driver.can(ControllerCapability::PublishUnpublishVolume);
    let attacher = is_attached.then(|| keys::attacher_finalizer(&driver.name));
    let finalizers: Vec<String> = deleter.into_iter().chain(attacher).collect();
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": plan.request.name, "annotations": annotations(class, plan), "finalizers": finalizers,
        },
        "spec": spec,
    })
}

fn csi_source(driver: &str, identity: &str, plan: &Plan) -> Value {
    let mut csi = json!({"driver": driver, "volumeAttributes": { (keys::PROVISIONER_IDENTITY): identity }});
    if !plan.fs_type.is_empty() {
        csi["fsType"] = json!(plan.fs_type);
    }
    for (prefix, field) in OF_VOLUME {
        if let Some(reference) = plan.secrets.get(prefix) {
            csi[field] = json!(reference);
        }
    }
    csi
}

/// The volume's object.
pub(super) fn object(template: &Value, request: &CreateVolumeRequest, volume: &v1::Volume) -> Value {
    let mut object = template.clone();
    let spec = &mut object["spec"];
    let bytes = Some(volume.capacity_bytes).filter(|bytes| *bytes != 0);
    let bytes = bytes.unwrap_or_else(|| required_bytes(request));
    spec["capacity"] = json!({"storage": Quantity::new(bytes.unsigned_abs()).to_string()});
    spec["csi"]["volumeHandle"] = json!(volume.volume_id);
    for (key, value) in &volume.volume_context {
        spec["csi"]["volumeAttributes"][key] = json!(value);
    }
    let terms: Vec<Value> = volume.accessible_topology.iter().filter_map(node_term).collect();
    if !terms.is_empty() {
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    }
    object
}

/// The secret for the deletion is noted even if there is none: then the class isn't asked for it.
fn annotations(class: &Class, plan: &Plan) -> Value {
    let deletion = plan.secrets.get(PROVISIONER).cloned().unwrap_or_default();
    let mut annotations = json!({
        (keys::PROVISIONED_BY): class.provisioner,
        (keys::DELETION_SECRET[0]): deletion.name,
        (keys::DELETION_SECRET[1]): deletion.namespace,
    });
    if let Some(modify) = plan.secrets.get(CONTROLLER_MODIFY) {
        annotations[keys::MODIFY_SECRET[0]] = json!(modify.name);
        annotations[keys::MODIFY_SECRET[1]] = json!(modify.namespace);
    }
    annotations
}

fn node_term(topology: &v1::Topology) -> Option<Value> {
    let expression =
        |(key, value): (&String, &String)| json!({"key": key, "operator": "In", "values": [value]});
    let expressions: Vec<Value> = topology.segments.iter().map(expression).collect();
    (!expressions.is_empty()).then(|| json!({"matchExpressions": expressions}))
}
