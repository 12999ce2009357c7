//! The objects around the pods: namespace, disruption budget, network policies, the service of
//! snapshot-metadata, monitoring.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::files::{Document, Files};
use crate::part::Part;
use crate::plan::Plan;
use crate::plan::{labels, metadata};
use crate::pods::{METRICS_PORT, SNAPSHOT_METADATA_PORT, port_name};

/// The namespace that every cluster has, with pods like these.
const SYSTEM: &str = "kube-system";

pub(crate) fn namespace(plan: &Plan<'_>, files: &mut Files) {
    let name = &plan.options.namespace;
    if name != SYSTEM {
        let comment =
            "The node's pods mount for other pods, which the Pod Security Standards call privileged.";
        let object = json!({ "metadata": { "labels": pod_security("privileged"), "name": name } });
        files.add("namespace.yaml", vec![comment.to_owned()], ("v1", "Namespace"), object);
    }
}

/// The labels of a namespace for pods of this level of the Pod Security Standards.
pub(crate) fn pod_security(level: &str) -> Value {
    json!({
        "pod-security.kubernetes.io/audit": level,
        "pod-security.kubernetes.io/enforce": level,
        "pod-security.kubernetes.io/warn": level,
    })
}

/// One pod is always allowed to go, so that a node can be drained; with one replica there is nothing to keep.
pub(crate) fn disruption_budget(plan: &Plan<'_>, files: &mut Files) {
    if !plan.has_controller_pods() || plan.options.replicas < 2 {
        return;
    }
    let part = Part::Controller;
    let object = json!({
        "metadata": metadata(plan, &part.name(plan), part),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels(plan, Some(part)) } },
    });
    files.add("controller.yaml", Vec::new(), ("policy/v1", "PodDisruptionBudget"), object);
}

/// Who reaches the ports of the pods. The kubelet's probes are always allowed.
pub(crate) fn network_policies(plan: &Plan<'_>, files: &mut Files) {
    for part in plan.parts() {
        // A policy does not apply to pods in the host's network.
        if part == Part::Controller || !plan.options.host_network {
            network_policy(plan, part, files);
        }
    }
}

fn network_policy(plan: &Plan<'_>, part: Part, files: &mut Files) {
    let mut ingress = Vec::new();
    if !plan.options.metrics_from.is_empty() {
        let peer = |namespace| json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } } });
        let peers: Vec<Value> = plan.options.metrics_from.iter().map(peer).collect();
        ingress.push(json!({ "from": peers }));
    }
    if plan.options.snapshot_metadata_secret.is_some() && part == snapshot_metadata_part(plan) {
        ingress.push(json!({ "ports": [{ "port": SNAPSHOT_METADATA_PORT }] }));
    }
    let comment = "Health and metrics have no password: only the kubelet and the namespaces of --metrics-from \
                   reach them, if the cluster's network enforces policies.";
    let object = json!({
        "metadata": metadata(plan, &part.name(plan), part),
        "spec": {
            "ingress": (!ingress.is_empty()).then_some(ingress),
            "podSelector": { "matchLabels": labels(plan, Some(part)) },
            "policyTypes": ["Ingress"],
        },
    });
    files.add(part.file(), vec![comment.to_owned()], ("networking.k8s.io/v1", "NetworkPolicy"), object);
}

/// The pods with the sidecar snapshot-metadata.
fn snapshot_metadata_part(plan: &Plan<'_>) -> Part {
    if plan.is_node_local() { Part::Node } else { Part::Controller }
}

const SNAPSHOT_METADATA_SERVICE_PORT: i32 = 6443;

/// Where backup programs reach snapshot-metadata.
pub(crate) fn snapshot_metadata(plan: &Plan<'_>, files: &mut Files) {
    if plan.options.snapshot_metadata_secret.is_none() {
        return;
    }
    let part = snapshot_metadata_part(plan);
    let name = format!("{}-snapshot-metadata", plan.name);
    let address = format!("{name}.{}.svc:{SNAPSHOT_METADATA_SERVICE_PORT}", plan.options.namespace);
    let comment = format!("The certificate has to be valid for {name}.NAMESPACE.svc.");
    let port = json!({
        "name": "metadata", "port": SNAPSHOT_METADATA_SERVICE_PORT, "targetPort": SNAPSHOT_METADATA_PORT,
    });
    let object = json!({
        "metadata": metadata(plan, &name, part),
        "spec": {
            "ports": [port],
            "selector": labels(plan, Some(part)),
        },
    });
    files.add("controller.yaml", vec![comment], ("v1", "Service"), object);
    let Some(ca) = &plan.options.snapshot_metadata_ca else { return };
    // A type of external-snapshot-metadata's CRD. The sidecar finds it by the driver's name.
    let object = json!({
        "metadata": { "labels": labels(plan, None), "name": plan.driver.name },
        "spec": { "address": address, "audience": plan.driver.name, "caCert": BASE64_STANDARD.encode(ca) },
    });
    files.add(
        "controller.yaml",
        Vec::new(),
        ("cbt.storage.k8s.io/v1beta1", "SnapshotMetadataService"),
        object,
    );
}

const MONITORING_FILE: &str = "monitoring.yaml";
const MONITORING_API: &str = "monitoring.coreos.com/v1";
const ALERTS: &str = include_str!("../docs/alerts.yaml");
/// How the alerts select the driver among all that Prometheus reads.
const ANY_JOB: &str = r#"job=~".*csi.*""#;

/// What the Prometheus operator reads: the Service of the metrics, a ServiceMonitor, and alerts.
pub(crate) fn monitoring(plan: &Plan<'_>, files: &mut Files) {
    if !plan.options.service_monitor {
        return;
    }
    let name = format!("{}-metrics", plan.name);
    let mut own_labels = labels(plan, None);
    own_labels.insert("app.kubernetes.io/component".to_owned(), "metrics".to_owned());
    let metadata = json!({ "labels": own_labels, "name": name, "namespace": plan.options.namespace });
    let driver = plan.probes_by_http().then_some((METRICS_PORT, plan.options.port));
    let sidecars = plan.sidecars().into_iter().map(|sidecar| (port_name(sidecar), sidecar.port(plan)));
    let ports: Vec<(&str, u16)> = driver.into_iter().chain(sidecars).collect();
    // By name: a pod without this port is then no target of it.
    let service_port =
        |(name, number): &(&str, u16)| json!({ "name": name, "port": number, "targetPort": name });
    let spec = json!({
        "clusterIP": "None",
        "ports": ports.iter().map(service_port).collect::<Vec<_>>(),
        "selector": labels(plan, None),
    });
    let service = json!({ "metadata": metadata, "spec": spec });
    files.add(MONITORING_FILE, Vec::new(), ("v1", "Service"), service);
    let endpoints: Vec<Value> = ports.iter().map(|(name, _)| json!({ "port": name })).collect();
    let spec = json!({ "endpoints": endpoints, "selector": { "matchLabels": own_labels } });
    files.add(
        MONITORING_FILE,
        Vec::new(),
        (MONITORING_API, "ServiceMonitor"),
        json!({ "metadata": metadata, "spec": spec }),
    );
    if plan.options.prometheus_rule {
        let job = format!(r#"job="{name}",endpoint="{METRICS_PORT}""#);
        let groups: String =
            ALERTS.replace(ANY_JOB, &job).lines().map(|line| format!("  {line}\n")).collect();
        let mut rule =
            Document::new(Vec::new(), (MONITORING_API, "PrometheusRule"), json!({ "metadata": metadata }));
        rule.tail = format!("spec:\n{groups}");
        files.push(MONITORING_FILE, rule);
    }
}
