//! The pod of an owner, made from the template of the manifests.

use std::collections::BTreeSet;

use csi_core::kubernetes::Quantity as Bytes;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    PodTemplate,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, ResourceExt as _};

use super::owner::Owner;
use super::{Class, DRIVER, FusePods, NODE};
use crate::error::{Error, Result};
use crate::request::send;

/// The volumes that use a pod, and the memory that they need.
#[derive(Default)]
pub(super) struct Use<'v> {
    pub(super) users: BTreeSet<&'v str>,
    memory: Option<Bytes>,
}

impl<'v> Use<'v> {
    pub(super) fn add(&mut self, volume: &'v str, class: &Class) {
        self.users.insert(volume);
        self.memory = self.memory.max(class.memory);
    }
}

impl FusePods {
    pub(super) async fn pod(
        &self,
        name: &str,
        node: &Node,
        owner: Owner<'_>,
        volumes: &Use<'_>,
    ) -> Result<Pod> {
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), &self.namespace);
        let place = format!("pod template {0}/{0}", self.namespace);
        let found = send(&format!("read {place}"), templates.get_opt(&self.namespace)).await?;
        let template = found.and_then(|found| found.template).unwrap_or_default();
        let Some(mut spec) = template.spec else {
            let reason = "does not exist: apply the manifests of --fuse-pods=per-volume";
            return Err(Error::invalid(place, reason));
        };
        let mut metadata = template.metadata.unwrap_or_default();
        metadata.name = Some(name.to_owned());
        metadata.namespace = Some(self.namespace.clone());
        metadata.owner_references = Some(vec![controlled_by(node)]);
        let node = node.name_any();
        let own = [(DRIVER, self.driver.as_str()), (NODE, &node)];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.extend(own);
        annotations.extend(owner.annotations(&volumes.users));
        spec.affinity = Some(on_node(&node));
        if let Some(memory) = volumes.memory {
            limit(&mut spec, &memory.to_string());
        }
        Ok(Pod { metadata, spec: Some(spec), status: None })
    }
}

/// `kubectl drain` refuses a pod without a controller. The driver's Deployment would take the pods of volumes that are in use
/// with it when it is deleted; a node takes those that end with it.
fn controlled_by(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The scheduler places it there, if there is room.
fn on_node(node: &str) -> Affinity {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    let nodes = NodeSelector { node_selector_terms: vec![term] };
    let affinity = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(nodes),
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(affinity), ..Affinity::default() }
}

/// Sets what the container with the program reserves and can have.
fn limit(spec: &mut PodSpec, memory: &str) {
    for container in spec.containers.iter_mut().take(1) {
        let resources = container.resources.get_or_insert_default();
        for quantities in [&mut resources.requests, &mut resources.limits] {
            quantities.get_or_insert_default().insert("memory".to_owned(), Quantity(memory.to_owned()));
        }
    }
}
