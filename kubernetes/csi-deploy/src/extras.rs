//! The objects around the pods: namespace, disruption budget, network policies, the service of
//! snapshot-metadata.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use crate::error::Error;
use crate::files::Files;
use crate::part::Part;
use crate::plan::Plan;
use crate::plan::{labels, metadata};
use crate::pods::SNAPSHOT_METADATA_PORT;

/// The namespace that every cluster has, with pods like these.
const SYSTEM: &str = "kube-system";

pub(crate) fn namespace(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    let name = &plan.options.namespace;
    if name == SYSTEM {
        return Ok(());
    }
    let key = |mode| format!("pod-security.kubernetes.io/{mode}");
    let labels: BTreeMap<_, _> =
        ["audit", "enforce", "warn"].map(|mode| (key(mode), "privileged".to_owned())).into();
    let metadata = ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() };
    let comment = "The node's pods mount for other pods, which the Pod Security Standards call privileged.";
    files.add("namespace.yaml", vec![comment.to_owned()], &Namespace { metadata, ..Namespace::default() })
}

/// One pod is always allowed to go, so that a node can be drained; with one replica there is nothing to keep.
pub(crate) fn disruption_budget(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if !plan.has_controller_pods() || plan.options.replicas < 2 {
        return Ok(());
    }
    let part = Part::Controller;
    let selector = LabelSelector { match_labels: Some(labels(plan, Some(part))), ..LabelSelector::default() };
    let spec = PodDisruptionBudgetSpec {
        max_unavailable: Some(IntOrString::Int(1)),
        selector: Some(selector),
        ..PodDisruptionBudgetSpec::default()
    };
    let metadata = metadata(plan, part.name(plan), part);
    let budget = PodDisruptionBudget { metadata, spec: Some(spec), ..PodDisruptionBudget::default() };
    files.add("controller.yaml", Vec::new(), &budget)
}

/// Who reaches the ports of the pods. The kubelet's probes are always allowed.
pub(crate) fn network_policies(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    plan.parts().into_iter().try_for_each(|part| network_policy(plan, part, files))
}

fn network_policy(plan: &Plan<'_>, part: Part, files: &mut Files) -> Result<(), Error> {
    // A policy does not apply to pods in the host's network.
    if part == Part::Node && plan.options.host_network {
        return Ok(());
    }
    let mut ingress = Vec::new();
    if !plan.options.metrics_from.is_empty() {
        let peers = plan.options.metrics_from.iter().map(|namespace| namespace_peer(namespace));
        ingress.push(NetworkPolicyIngressRule { from: Some(peers.collect()), ports: None });
    }
    if plan.options.snapshot_metadata_secret.is_some() && part == snapshot_metadata_part(plan) {
        let port = NetworkPolicyPort {
            port: Some(IntOrString::Int(SNAPSHOT_METADATA_PORT.into())),
            ..NetworkPolicyPort::default()
        };
        ingress.push(NetworkPolicyIngressRule { from: None, ports: Some(vec![port]) });
    }
    let spec = NetworkPolicySpec {
        ingress: Some(ingress).filter(|rules| !rules.is_empty()),
        pod_selector: Some(LabelSelector {
            match_labels: Some(labels(plan, Some(part))),
            ..LabelSelector::default()
        }),
        policy_types: Some(vec!["Ingress".to_owned()]),
        ..NetworkPolicySpec::default()
    };
    let comment = "Health and metrics have no password: only the kubelet and the namespaces of --metrics-from \
                   reach them, if the cluster's network enforces policies.";
    let metadata = metadata(plan, part.name(plan), part);
    files.add(part.file(), vec![comment.to_owned()], &NetworkPolicy { metadata, spec: Some(spec) })
}

fn namespace_peer(namespace: &str) -> NetworkPolicyPeer {
    let label = ("kubernetes.io/metadata.name".to_owned(), namespace.to_owned());
    let selector = LabelSelector { match_labels: Some(BTreeMap::from([label])), ..LabelSelector::default() };
    NetworkPolicyPeer { namespace_selector: Some(selector), ..NetworkPolicyPeer::default() }
}

/// The pods with the sidecar snapshot-metadata.
fn snapshot_metadata_part(plan: &Plan<'_>) -> Part {
    if plan.is_node_local() { Part::Node } else { Part::Controller }
}

const SNAPSHOT_METADATA_SERVICE_PORT: i32 = 6443;

/// Where backup programs reach snapshot-metadata.
pub(crate) fn snapshot_metadata(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if plan.options.snapshot_metadata_secret.is_none() {
        return Ok(());
    }
    let part = snapshot_metadata_part(plan);
    let port = ServicePort {
        name: Some("metadata".to_owned()),
        port: SNAPSHOT_METADATA_SERVICE_PORT,
        target_port: Some(IntOrString::Int(SNAPSHOT_METADATA_PORT.into())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        ports: Some(vec![port]),
        selector: Some(labels(plan, Some(part))),
        ..ServiceSpec::default()
    };
    let name = format!("{}-snapshot-metadata", plan.name);
    let address = format!("{name}.{}.svc:{SNAPSHOT_METADATA_SERVICE_PORT}", plan.options.namespace);
    let comment = format!("The certificate has to be valid for {name}.NAMESPACE.svc.");
    let service = Service { metadata: metadata(plan, name, part), spec: Some(spec), ..Service::default() };
    files.add("controller.yaml", vec![comment], &service)?;
    let Some(ca) = &plan.options.snapshot_metadata_ca else { return Ok(()) };
    // A type of external-snapshot-metadata's CRD. The sidecar finds it by the driver's name.
    let object = json!({
        "apiVersion": "cbt.storage.k8s.io/v1beta1",
        "kind": "SnapshotMetadataService",
        "metadata": { "name": plan.driver.name, "labels": labels(plan, None) },
        "spec": {
            "address": address,
            "audience": plan.driver.name,
            "caCert": ByteString(ca.clone().into_bytes()),
        },
    });
    files.add_as("SnapshotMetadataService", "controller.yaml", Vec::new(), &object)
}
