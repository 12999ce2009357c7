//! What the real server checks of the kinds that controllers of storage write.

use serde_json::{Value, json};

use super::request::Failure;

const WITH_STATUS: &[&str] = &[
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "volumeattachments",
    "volumegroupsnapshotcontents",
    "volumegroupsnapshots",
    "volumesnapshotcontents",
    "volumesnapshots",
];

const REQUIRED: &[(&str, &[&str])] = &[
    ("csistoragecapacities", &["/storageClassName"]),
    ("persistentvolumeclaims", &["/spec/accessModes", "/spec/resources/requests/storage"]),
    ("persistentvolumes", &["/spec/accessModes", "/spec/capacity/storage"]),
    ("storageclasses", &["/provisioner"]),
    ("volumeattachments", &["/spec/attacher", "/spec/nodeName", "/spec/source"]),
    (
        "volumesnapshotcontents",
        &["/spec/deletionPolicy", "/spec/driver", "/spec/source", "/spec/volumeSnapshotRef"],
    ),
    ("volumesnapshots", &["/spec/source"]),
];

const IMMUTABLE: &[(&str, &str)] = &[
    ("persistentvolumes", "/spec/volumeMode"),
    ("storageclasses", "/parameters"),
    ("storageclasses", "/provisioner"),
    ("volumeattachments", "/spec"),
    ("volumesnapshotcontents", "/spec/source"),
    ("volumesnapshots", "/spec/source"),
];

/// The resources and kinds that a cluster can lack, by their group.
const CUSTOM: &[(&str, &[(&str, &str)])] = &[
    (
        "snapshot.storage.k8s.io",
        &[
            ("volumesnapshots", "VolumeSnapshot"),
            ("volumesnapshotcontents", "VolumeSnapshotContent"),
            ("volumesnapshotclasses", "VolumeSnapshotClass"),
        ],
    ),
    (
        "groupsnapshot.storage.k8s.io",
        &[
            ("volumegroupsnapshots", "VolumeGroupSnapshot"),
            ("volumegroupsnapshotcontents", "VolumeGroupSnapshotContent"),
            ("volumegroupsnapshotclasses", "VolumeGroupSnapshotClass"),
        ],
    ),
    // Since Kubernetes 1.34; the other kinds of this group are not discovered.
    ("storage.k8s.io", &[("volumeattributesclasses", "VolumeAttributesClass")]),
];

/// The group, if a request asks for the kinds of one: `/apis/GROUP/VERSION`.
pub(super) fn discovered_group(path: &str) -> Option<&str> {
    let (group, version) = path.strip_prefix("/apis/")?.split_once('/')?;
    (!version.contains('/')).then_some(group)
}

pub(super) fn custom_resources(group: &str) -> &'static [(&'static str, &'static str)] {
    CUSTOM.iter().find(|(one, _)| *one == group).map_or(&[], |(_, resources)| resources)
}

pub(super) fn discovered(name: &str, kind: &str) -> Value {
    let is_namespaced = ["volumesnapshots", "volumegroupsnapshots"].contains(&name);
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    json!({ "name": name, "singularName": "", "kind": kind, "namespaced": is_namespaced, "verbs": verbs })
}

/// Kinds whose annotations can be written with their status.
pub(super) fn status_has_metadata(resource: &str) -> bool {
    ["persistentvolumeclaims", "persistentvolumes"].contains(&resource)
}

pub(super) fn has_status(resource: &str) -> bool {
    WITH_STATUS.contains(&resource)
}

/// The finalizer that the admission plugin StorageObjectInUseProtection adds.
pub(super) fn protection(resource: &str) -> Option<&'static str> {
    match resource {
        "persistentvolumeclaims" => Some("kubernetes.io/pvc-protection"),
        "persistentvolumes" => Some("kubernetes.io/pv-protection"),
        _ => None,
    }
}

pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|c| is_plain(*c) || *c == b'-')
            && bytes.first().is_some_and(|c| is_plain(*c))
            && bytes.last().is_some_and(|c| is_plain(*c))
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(());
    }
    Err(Failure::invalid("metadata.name", &format!("Invalid value: {name:?}: it is no DNS subdomain")))
}

pub(super) fn check(resource: &str, object: &Value) -> Result<(), Failure> {
    let fields = REQUIRED.iter().filter(|(of, _)| *of == resource).flat_map(|(_, fields)| *fields);
    let csi: &[&str] = match object.pointer("/spec/csi") {
        Some(_) if resource == "persistentvolumes" => &["/spec/csi/driver", "/spec/csi/volumeHandle"],
        _ => &[],
    };
    for field in fields.chain(csi) {
        if object.pointer(field).is_none_or(|value| value.is_null() || value == "") {
            return Err(Failure::invalid(field, "Required value"));
        }
    }
    Ok(())
}

/// What is checked of a status.
pub(super) fn check_status(resource: &str, object: &Value) -> Result<(), Failure> {
    for field in ["attachError", "detachError"].iter().filter(|_| resource == "volumeattachments") {
        if object["status"][field]["message"].as_str().is_some_and(|message| message.len() > 1024) {
            return Err(Failure::invalid(
                &format!("status.{field}.message"),
                "Too long: may not be more than 1024 bytes",
            ));
        }
    }
    Ok(())
}

pub(super) fn check_change(resource: &str, old: &Value, new: &Value) -> Result<(), Failure> {
    for (_, field) in IMMUTABLE.iter().filter(|(of, _)| *of == resource) {
        if old.pointer(field) != new.pointer(field) {
            return Err(Failure::invalid(field, "Forbidden: field is immutable"));
        }
    }
    match resource {
        "persistentvolumes" => {
            let source = |volume: &Value| {
                let mut source = volume["spec"]["csi"].clone();
                // These may be added later.
                for key in ["controllerExpandSecretRef", "nodeExpandSecretRef"] {
                    drop(source.as_object_mut().and_then(|source| source.remove(key)));
                }
                source
            };
            if source(old) != source(new) {
                let message = "Forbidden: spec.persistentvolumesource is immutable after creation";
                return Err(Failure::invalid("spec.persistentvolumesource", message));
            }
        }
        "persistentvolumeclaims" => check_claim(old, new)?,
        _ => {}
    }
    Ok(())
}

fn check_claim(old: &Value, new: &Value) -> Result<(), Failure> {
    let is_bound = old["status"]["phase"] == "Bound";
    let fixed = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        let fields = spec.as_object_mut().expect("a spec");
        fields.remove("volumeAttributesClassName");
        if is_bound {
            fields.remove("resources");
        }
        if old["spec"]["volumeName"].as_str().unwrap_or_default().is_empty() {
            fields.remove("volumeName");
        }
        spec
    };
    if fixed(old) != fixed(new) {
        let message = "Forbidden: spec is immutable after creation except resources.requests and \
                       volumeAttributesClassName for bound claims";
        return Err(Failure::invalid("spec", message));
    }
    let size = |claim: &Value, field| claim.pointer(field).and_then(Value::as_str).map_or(0.0, bytes);
    let request = "/spec/resources/requests/storage";
    let is_less = size(new, request) < size(old, request);
    if is_less && size(new, request) <= size(old, "/status/capacity/storage") {
        let message = "Forbidden: field can not be less than status.capacity";
        return Err(Failure::invalid("spec.resources.requests.storage", message));
    }
    Ok(())
}

/// The number of bytes of a quantity, exact enough to compare.
fn bytes(quantity: &str) -> f64 {
    let digits = quantity.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (prefix, base) = match quantity[digits.len()..].strip_suffix('i') {
        Some(prefix) => (prefix, 1024.0_f64),
        None => (&quantity[digits.len()..], 1000.0),
    };
    let power =
        "kmgtpe".find(&prefix.to_lowercase()).filter(|_| !prefix.is_empty()).map_or(0, |place| place + 1);
    digits.parse::<f64>().expect("a quantity") * base.powi(i32::try_from(power).expect("a power"))
}
