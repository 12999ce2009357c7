//! The objects around the pods: namespace, disruption budget, the service of snapshot-metadata.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::Error;
use crate::manifests::Files;
use crate::plan::Plan;
use crate::pods::{Part, SNAPSHOT_METADATA_PORT, labels, metadata};

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

/// Where backup programs reach snapshot-metadata.
pub(crate) fn snapshot_metadata(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if plan.options.snapshot_metadata_secret.is_none() {
        return Ok(());
    }
    let part = if plan.is_node_local() { Part::Node } else { Part::Controller };
    let port = ServicePort {
        name: Some("metadata".to_owned()),
        port: 6443,
        target_port: Some(IntOrString::Int(SNAPSHOT_METADATA_PORT.into())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        ports: Some(vec![port]),
        selector: Some(labels(plan, Some(part))),
        ..ServiceSpec::default()
    };
    let metadata = metadata(plan, format!("{}-snapshot-metadata", plan.name), part);
    let comment =
        "Its address belongs into the SnapshotMetadataService object, with the CA of the certificate.";
    let service = Service { metadata, spec: Some(spec), ..Service::default() };
    files.add("controller.yaml", vec![comment.to_owned()], &service)
}
