use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSINodeDriver, CSINodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::{Metadata, Named, Pairs, Pool, Text, kind};

const STORAGE: &str = "storage.k8s.io";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Class {
    pub(crate) metadata: Metadata,
    pub(crate) provisioner: String,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) reclaim_policy: Option<String>,
    pub(crate) mount_options: Vec<String>,
    volume_binding_mode: String,
    pub(crate) allowed_topologies: Vec<TopologySelectorTerm>,
}

kind!(Class, "StorageClass", STORAGE, "storageclasses");

impl Class {
    /// Whether its volumes wait for the node of their pod.
    pub(crate) fn is_delayed(&self) -> bool {
        self.volume_binding_mode == "WaitForFirstConsumer"
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttributesClass {
    pub(crate) metadata: Metadata,
    pub(crate) driver_name: String,
    pub(crate) parameters: BTreeMap<String, String>,
}

kind!(AttributesClass, "VolumeAttributesClass", STORAGE, "volumeattributesclasses");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attachment {
    pub(crate) metadata: Metadata,
    pub(crate) spec: AttachmentSpec,
    pub(crate) status: AttachmentStatus,
}

kind!(Attachment, "VolumeAttachment", STORAGE, "volumeattachments", compact);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSpec {
    /// The name of the driver.
    pub(crate) attacher: Text,
    pub(crate) node_name: Text,
    source: AttachmentSource,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSource {
    persistent_volume_name: Option<Text>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentStatus {
    pub(crate) attached: bool,
    pub(crate) attachment_metadata: Pairs,
}

impl Attachment {
    /// The name of its volume, if that has an object of its own.
    pub(crate) fn volume(&self) -> Option<&str> {
        self.spec.source.persistent_volume_name.as_deref()
    }

    /// Drops labels, and shares what other attachments have too.
    fn compact(&mut self, pool: &mut Pool) {
        self.metadata.keep_annotations(|_, _| true);
        pool.share(&mut self.spec.attacher);
        pool.share(&mut self.spec.node_name);
        self.status.attachment_metadata.share(pool);
    }
}

/// A CSINode: the drivers that registered on a node.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CsiNode {
    pub(crate) metadata: Metadata,
    spec: CSINodeSpec,
}

kind!(CsiNode, "CSINode", STORAGE, "csinodes");

impl CsiNode {
    /// What this driver registered.
    pub(crate) fn driver(&self, name: &str) -> Option<&CSINodeDriver> {
        self.spec.drivers.iter().find(|registered| registered.name == name)
    }
}

/// A Node, of which only the labels are used.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
}

kind!(Node, "Node", "", "nodes");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Capacity {
    pub(crate) metadata: Metadata,
    pub(crate) storage_class_name: String,
    pub(crate) node_topology: LabelSelector,
    pub(crate) capacity: Option<String>,
    pub(crate) maximum_volume_size: Option<String>,
}

kind!(Capacity, "CSIStorageCapacity", STORAGE, "csistoragecapacities");

/// Allows claims of other namespaces to use objects of its own.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ReferenceGrant {
    /// `from` and `to`: lists of group, kind, and namespace or name.
    pub(crate) spec: Value,
}

impl Named for ReferenceGrant {
    const GROUP: &'static str = "gateway.networking.k8s.io";
    const VERSION: &'static str = "v1beta1";
    const KIND: &'static str = "ReferenceGrant";
    const PLURAL: &'static str = "referencegrants";
}

/// Whether a pod uses the claim, and has not ended.
pub(crate) fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    !matches!(phase, Some("Succeeded" | "Failed"))
        && volumes.any(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|used| used.claim_name == claim)
        })
}
