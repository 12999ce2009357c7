//! NodeGetInfo and NodeGetCapabilities.

use csi_proto::v1;

use crate::call::request::question;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};
use crate::types::volume::signed;
use crate::types::{NodeId, Topology};

/// The node's id, its topology, and how many volumes it can have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The node's id, by which ControllerPublishVolume names the node.
    pub node_id: NodeId,
    /// How many volumes can be on this node at once; `None` lets the orchestrator decide, and so does 0: the spec has
    /// no word for a node that takes none.
    pub max_volumes_per_node: Option<u64>,
    /// The node's topology. Only with VOLUME_ACCESSIBILITY_CONSTRAINTS.
    pub accessible_topology: Option<Topology>,
}

impl NodeInfo {
    /// Creates the information for the node with this id.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an id that is empty or longer than 256 bytes.
    pub fn new(node_id: impl Into<String>) -> Result<Self> {
        Ok(Self { node_id: NodeId::new(node_id)?, max_volumes_per_node: None, accessible_topology: None })
    }

    /// Creates the information with this machine's host name as the id. Under Kubernetes this is the node's
    /// name, if the plugin's pod has `hostNetwork`.
    ///
    /// - spec: `node-get-info.id-is-unique`
    ///
    /// # Errors
    /// [`Error::Internal`] when the host name can't be read.
    pub fn from_host_name() -> Result<Self> {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        Self::new(name.trim()).map_err(Error::internal)
    }

    /// Sets how many volumes the node can have at most; 0 lets the orchestrator decide.
    #[must_use]
    pub fn max_volumes(mut self, most: u64) -> Self {
        self.max_volumes_per_node = Some(most);
        self
    }

    /// Sets the node's topology.
    #[must_use]
    pub fn at(mut self, topology: Topology) -> Self {
        self.accessible_topology = Some(topology);
        self
    }
}

question!(NodeGetInfoRequest, NodeGetCapabilitiesRequest);

impl Call for NodeGetInfoRequest {
    type Answer = NodeInfo;

    // spec: node-get-info.served, node-get-info.max-volumes, node-get-info.topology-needs-capability
    fn reply(info: NodeInfo, _: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        if let Some(topology) = &info.accessible_topology {
            let place = std::slice::from_ref(topology);
            let needs = PluginService::VolumeAccessibilityConstraints;
            offer.check_places("accessible_topology", place, needs)?;
        }
        let most = info.max_volumes_per_node.unwrap_or(0);
        Ok(v1::NodeGetInfoResponse {
            node_id: info.node_id.into(),
            max_volumes_per_node: signed("max_volumes_per_node", most)?,
            accessible_topology: info.accessible_topology.map(Into::into),
        })
    }
}

impl Call for NodeGetCapabilitiesRequest {
    type Answer = ();

    // spec: node-get-capabilities.served
    fn reply((): (), _: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        Ok(v1::NodeGetCapabilitiesResponse { capabilities: offer.node_wire() })
    }
}
