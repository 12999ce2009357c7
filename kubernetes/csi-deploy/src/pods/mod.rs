//! The pods of the driver: the controller's and the node's.
//!
//! | file | has |
//! |---|---|
//! | `driver` | the container of the driver: arguments, probes, what it needs of the host |
//! | `fuse` | the pods of FUSE programs |
//! | `sidecar` | the containers next to it |
//! | `workload` | Deployment, StatefulSet, DaemonSet around the pods |

mod driver;
mod fuse;
mod sidecar;
mod workload;

pub(crate) use fuse::namespace as fuse_namespace;
pub(crate) use sidecar::{SNAPSHOT_METADATA_PORT, port_name};

use serde_json::{Value, json};

use crate::files::Files;
use crate::part::API_TOKEN_DIR;
use crate::plan::Plan;

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) {
    for part in plan.parts() {
        workload::add(plan, part, files);
    }
    fuse::add(plan, files);
}

const SOCKET: &str = "socket";
/// The name of the driver's port.
pub(crate) const METRICS_PORT: &str = "metrics";

fn mount(name: &str, path: &str) -> Value {
    json!({ "mountPath": path, "name": name })
}

fn read_only(name: &str, path: &str) -> Value {
    json!({ "mountPath": path, "name": name, "readOnly": true })
}

fn empty_dir(name: &str) -> Value {
    json!({ "emptyDir": {}, "name": name })
}

fn host_path(name: &str, path: &str, kind: &str) -> Value {
    json!({ "hostPath": { "path": path, "type": kind }, "name": name })
}

/// The files of a Secret are readable by the driver's user alone; the kubelet adds the pod's group.
const SECRET_MODE: i32 = 0o400;

fn secret_volume(name: &str, secret: &str) -> Value {
    json!({ "name": name, "secret": { "defaultMode": SECRET_MODE, "secretName": secret } })
}

fn config_volume(name: &str, config_map: &str) -> Value {
    json!({ "configMap": { "name": config_map }, "name": name })
}

fn secret_variable(name: &str, secret: &str, key: &str) -> Value {
    json!({ "name": name, "valueFrom": { "secretKeyRef": { "key": key, "name": secret } } })
}

/// The name of the volume with the token of the pods' service account.
const API_TOKEN: &str = "api-token";
/// How long a token is valid, as in the volume that Kubernetes makes itself; the kubelet renews it.
const API_TOKEN_SECONDS: i64 = 3607;

/// The mount and the volume by which one container calls the API. Kubernetes' own volume would be in every
/// container of the pod.
fn api_token() -> (Value, Value) {
    let token = json!({ "expirationSeconds": API_TOKEN_SECONDS, "path": "token" });
    let certificate = json!({ "items": [{ "key": "ca.crt", "path": "ca.crt" }], "name": "kube-root-ca.crt" });
    let namespace =
        json!({ "items": [{ "fieldRef": { "fieldPath": "metadata.namespace" }, "path": "namespace" }] });
    let sources = json!([
        { "serviceAccountToken": token },
        { "configMap": certificate },
        { "downwardAPI": namespace },
    ]);
    let volume = json!({ "name": API_TOKEN, "projected": { "sources": sources } });
    (read_only(API_TOKEN, API_TOKEN_DIR), volume)
}

fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

fn port(name: &str, number: u16) -> Value {
    json!({ "containerPort": number, "name": name })
}

/// A list that is left out if it is empty.
fn unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Asks this path of the container's own pod. A restart of a driver interrupts calls, so it takes several
/// failures; the driver's own answer has a limit of 5 s.
fn probe(path: &str, port: u16) -> Value {
    json!({
        "failureThreshold": 5,
        "httpGet": { "path": path, "port": port },
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    })
}

/// What a container that needs nothing of the host is allowed.
fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// A container with its volumes; those of the pod are collected from its containers.
struct Built {
    container: Value,
    volumes: Vec<Value>,
}
