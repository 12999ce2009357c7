//! The simulated API server does what the real one does.

mod cluster;
mod objects;
mod requests;
mod watches;

use kube::{Client, Error};
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const NODES: &str = "/api/v1/nodes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// A request; its error is the code of the status.
async fn send(client: &Client, method: &str, path: &str, body: Value) -> Result<Value, u16> {
    let kind = match (&body, method) {
        (Value::Array(_), _) => "application/json-patch+json",
        (_, "PATCH") => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
    match client.request::<Value>(request.body(body).unwrap()).await {
        Ok(object) => Ok(object),
        Err(Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{error}"),
    }
}

fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": class,
        },
    })
}

fn volume(name: &str, claim: &Value) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "claimRef": { "namespace": "ns", "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"] },
            "csi": { "driver": "d", "volumeHandle": "h" },
        },
    })
}
