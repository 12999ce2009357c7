//! Reads manifests back as the types of the API, strictly.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PodTemplate, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttributesClass};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Every object of a text with several documents, checked.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    // A marker is a whole line; a value can end with one.
    let documents = text.split("\n---\n");
    let objects: Vec<Value> = documents
        .map(|document| {
            serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .collect();
    objects.iter().for_each(check);
    objects
}

/// Reads the object as its type and back. A field that the type does not have is lost on the way.
fn check(object: &Value) {
    let kind = object["kind"].as_str().expect("a kind");
    let back = match kind {
        "ClusterRole" => back::<ClusterRole>(object),
        "ClusterRoleBinding" => back::<ClusterRoleBinding>(object),
        "CSIDriver" => back::<CSIDriver>(object),
        "DaemonSet" => back::<DaemonSet>(object),
        "Deployment" => back::<Deployment>(object),
        "Namespace" => back::<Namespace>(object),
        "NetworkPolicy" => back::<NetworkPolicy>(object),
        "PodDisruptionBudget" => back::<PodDisruptionBudget>(object),
        "PodTemplate" => back::<PodTemplate>(object),
        "Role" => back::<Role>(object),
        "RoleBinding" => back::<RoleBinding>(object),
        "Service" => back::<Service>(object),
        "ServiceAccount" => back::<ServiceAccount>(object),
        "StatefulSet" => back::<StatefulSet>(object),
        "StorageClass" => back::<StorageClass>(object),
        "VolumeAttributesClass" => back::<VolumeAttributesClass>(object),
        // Of external-snapshotter's CRDs: exactly these fields.
        "VolumeSnapshotClass" | "VolumeGroupSnapshotClass" => {
            let fields: Vec<&String> = object.as_object().expect("an object").keys().collect();
            let known = ["apiVersion", "deletionPolicy", "driver", "kind", "metadata", "parameters"];
            assert!(fields.iter().all(|field| known.contains(&field.as_str())), "{fields:?}");
            return;
        }
        // Of external-snapshot-metadata's CRD, whose three fields are required.
        "SnapshotMetadataService" => {
            let fields: Vec<&String> = object["spec"].as_object().expect("a spec").keys().collect();
            assert_eq!(fields, ["address", "audience", "caCert"]);
            return;
        }
        // Of the Prometheus operator's CRDs.
        "ServiceMonitor" | "PrometheusRule" => {
            let fields: Vec<&String> = object["spec"].as_object().expect("a spec").keys().collect();
            let known = ["endpoints", "groups", "selector"];
            assert!(fields.iter().all(|field| known.contains(&field.as_str())), "{fields:?}");
            return;
        }
        other => panic!("no type for {other}"),
    };
    assert_eq!(&back, object, "a field of {kind} is not the API's");
}

fn back<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    serde_json::to_value(typed).expect("JSON")
}
