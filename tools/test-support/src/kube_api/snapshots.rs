//! The snapshot-controller: contents for snapshots, their binding, and their deletion.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::ApiServer;
use super::cluster::{add_finalizer, annotate, is_deleting, path_of, remove_finalizers};
use super::state::finalizers;

const AS_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
const CONTENT_BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
const CLAIM_AS_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// A claim that is bound, or gone, frees the snapshots that wait for it.
pub(super) fn claim(server: &ApiServer, path: &str) {
    let namespace = path.split('/').nth(1).unwrap_or_default();
    let snapshots = server.shared(&format!("volumesnapshots/{namespace}/"));
    let is_bound = |snapshot: &Value| snapshot["status"]["boundVolumeSnapshotContentName"].is_string();
    for snapshot in snapshots.iter().filter(|snapshot| is_deleting(snapshot) || !is_bound(snapshot)) {
        self::snapshot(server, &path_of("volumesnapshots", &snapshot["metadata"]));
    }
}

pub(super) fn content(server: &ApiServer, path: &str) {
    let Some(content) = server.get(path) else {
        for snapshot in server.shared("volumesnapshots/").iter().filter(|snapshot| is_deleting(snapshot)) {
            self::snapshot(server, &path_of("volumesnapshots", &snapshot["metadata"]));
        }
        return;
    };
    let reference = &content["spec"]["volumeSnapshotRef"];
    if reference["uid"].is_string() && !is_deleting(&content) {
        add_finalizer(server, path, CONTENT_BOUND);
    }
    snapshot(server, &path_of("volumesnapshots", reference));
}

pub(super) fn snapshot(server: &ApiServer, path: &str) {
    let Some(snapshot) = server.get(path) else { return };
    let bound = content_of(server, &snapshot);
    if is_deleting(&snapshot) {
        return delete(server, path, &snapshot, bound.as_deref());
    }
    add_finalizer(server, path, AS_SOURCE);
    let content_path = bound.or_else(|| create_content(server, path, &snapshot));
    let Some(content_path) = content_path else { return };
    if server.get(&content_path).is_some_and(|content| content["spec"]["deletionPolicy"] == "Delete") {
        add_finalizer(server, path, BOUND);
    }
    let uid = &snapshot["metadata"]["uid"];
    let content =
        server.edit(&content_path, |content| content["spec"]["volumeSnapshotRef"]["uid"] = uid.clone());
    server.edit_status(path, |status| copy_status(status, &content));
    free_claim(server, &snapshot);
}

/// The path of the content of a snapshot, if each of the two names the other.
fn content_of(server: &ApiServer, snapshot: &Value) -> Option<String> {
    let metadata = &snapshot["metadata"];
    let names = [
        &snapshot["status"]["boundVolumeSnapshotContentName"],
        &snapshot["spec"]["source"]["volumeSnapshotContentName"],
    ];
    let named = names.into_iter().find_map(Value::as_str).map(str::to_owned);
    let name = named.unwrap_or_else(|| content_name(snapshot));
    let path = format!("volumesnapshotcontents/{name}");
    let content = server.get(&path)?;
    let reference = &content["spec"]["volumeSnapshotRef"];
    let is_named = reference["name"] == metadata["name"] && reference["namespace"] == metadata["namespace"];
    let is_it = reference["uid"].is_null() || reference["uid"] == metadata["uid"];
    (is_named && is_it).then_some(path)
}

fn content_name(snapshot: &Value) -> String {
    format!("snapcontent-{}", snapshot["metadata"]["uid"].as_str().unwrap_or_default())
}

fn create_content(server: &ApiServer, path: &str, snapshot: &Value) -> Option<String> {
    let metadata = &snapshot["metadata"];
    let claim_name = snapshot["spec"]["source"]["persistentVolumeClaimName"].as_str()?;
    let claim_path = format!("persistentvolumeclaims/{}/{claim_name}", metadata["namespace"].as_str()?);
    let claim = server.get(&claim_path).filter(|claim| claim["status"]["phase"] == "Bound")?;
    let volume = server.get(&format!("persistentvolumes/{}", claim["spec"]["volumeName"].as_str()?))?;
    let class = class_of(server, snapshot, &volume)?;
    let name = content_name(snapshot);
    if !is_deleting(&claim) {
        add_finalizer(server, &claim_path, CLAIM_AS_SOURCE);
    }
    server.edit(path, |snapshot| {
        snapshot["spec"]["volumeSnapshotClassName"] = class["metadata"]["name"].clone();
    });
    let mut annotations = json!({});
    for half in ["name", "namespace"] {
        let value = &class["parameters"][format!("csi.storage.k8s.io/snapshotter-secret-{half}")];
        if value.is_string() {
            annotations[format!("snapshot.storage.kubernetes.io/deletion-secret-{half}")] = value.clone();
        }
    }
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "source": { "volumeHandle": volume["spec"]["csi"]["volumeHandle"] },
            "volumeSnapshotClassName": class["metadata"]["name"],
            "deletionPolicy": class["deletionPolicy"],
            "driver": class["driver"],
            "sourceVolumeMode": volume["spec"]["volumeMode"],
        },
    });
    server.create("volumesnapshotcontents", content);
    Some(format!("volumesnapshotcontents/{name}"))
}

/// The class that the snapshot names, or the default class of the driver.
fn class_of(server: &ApiServer, snapshot: &Value, volume: &Value) -> Option<Value> {
    if let Some(name) = snapshot["spec"]["volumeSnapshotClassName"].as_str() {
        return server.get(&format!("volumesnapshotclasses/{name}"));
    }
    let key = "snapshot.storage.kubernetes.io/is-default-class";
    server.objects("volumesnapshotclasses/").into_iter().find(|class| {
        class["metadata"]["annotations"][key] == "true" && class["driver"] == volume["spec"]["csi"]["driver"]
    })
}

fn copy_status(status: &mut Value, content: &Value) {
    let made = &content["status"];
    status["boundVolumeSnapshotContentName"] = content["metadata"]["name"].clone();
    status["readyToUse"] = json!(made["readyToUse"] == true);
    if let Some(nanos) = made["creationTime"].as_u64() {
        let time = UNIX_EPOCH + Duration::from_nanos(nanos);
        status["creationTime"] = json!(humantime::format_rfc3339_seconds(time).to_string());
    }
    if let Some(size) = made["restoreSize"].as_u64() {
        status["restoreSize"] = json!(size.to_string());
    }
    if let Some(fields) = status.as_object_mut() {
        match &made["error"] {
            Value::Null => drop(fields.remove("error")),
            error => drop(fields.insert("error".to_owned(), error.clone())),
        }
    }
}

fn delete(server: &ApiServer, path: &str, snapshot: &Value, content: Option<&str>) {
    let namespace = snapshot["metadata"]["namespace"].as_str().unwrap_or_default();
    let restores = |claim: &Value| {
        let source = &claim["spec"]["dataSource"];
        let is_source = source["kind"] == "VolumeSnapshot" && source["name"] == snapshot["metadata"]["name"];
        is_source && claim["status"]["phase"] == "Pending"
    };
    if content.is_some()
        && server.shared(&format!("persistentvolumeclaims/{namespace}/")).iter().any(|claim| restores(claim))
    {
        return;
    }
    let mut removed = vec![AS_SOURCE, BOUND];
    if let Some(content) = content {
        annotate(server, content, BEING_DELETED, "yes");
        if server.get(content).is_some_and(|content| content["spec"]["deletionPolicy"] == "Delete") {
            server.begin_deletion(content);
            // The snapshot stays until the content is gone.
            removed.pop();
        }
    }
    free_claim(server, snapshot);
    remove_finalizers(server, path, &removed);
}

/// Frees the source of a snapshot once none of its snapshots is being made.
fn free_claim(server: &ApiServer, snapshot: &Value) {
    let namespace = snapshot["metadata"]["namespace"].as_str().unwrap_or_default();
    let source = &snapshot["spec"]["source"]["persistentVolumeClaimName"];
    let claim = format!("persistentvolumeclaims/{namespace}/{}", source.as_str().unwrap_or_default());
    if !server.get(&claim).is_some_and(|claim| finalizers(&claim).contains(CLAIM_AS_SOURCE)) {
        return;
    }
    let snapshots = server.shared(&format!("volumesnapshots/{namespace}/"));
    let mut of_it =
        snapshots.iter().filter(|other| other["spec"]["source"]["persistentVolumeClaimName"] == *source);
    if !of_it.any(|other| other["status"]["readyToUse"] != true && !is_deleting(other)) {
        remove_finalizers(server, &claim, &[CLAIM_AS_SOURCE]);
    }
}
