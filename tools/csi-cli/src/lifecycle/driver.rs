//! The driver that is called: its sockets, and what it can do.

use std::time::Duration;

use csi_proto::client::Client;
use csi_proto::{ControllerCapability, NodeCapability, RpcRequest, Service, v1};
use tonic::Status;
use v1::controller_service_capability::Type as ControllerType;
use v1::node_service_capability::Type as NodeType;

/// The sockets of a driver. The controller can have its own.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    pub(crate) node: Client,
    pub(crate) controller: Client,
}

impl Sockets {
    /// One socket for all services.
    pub(crate) fn new(client: Client) -> Self {
        Self { node: client.clone(), controller: client }
    }

    #[must_use]
    pub(crate) fn deadline(self, deadline: Duration) -> Self {
        Self { node: self.node.deadline(deadline), controller: self.controller.deadline(deadline) }
    }

    pub(crate) fn of(&self, service: Service) -> &Client {
        match service {
            Service::Identity | Service::Node => &self.node,
            _ => &self.controller,
        }
    }

    pub(crate) async fn call<R: RpcRequest>(&self, request: R) -> Result<R::Answer, Status> {
        self.of(R::RPC.service()).call(request).await
    }
}

pub(crate) fn of_controller(answer: &v1::ControllerGetCapabilitiesResponse) -> Vec<ControllerCapability> {
    let types = answer.capabilities.iter().filter_map(|one| one.r#type);
    types.map(|ControllerType::Rpc(rpc)| rpc.r#type()).collect()
}

pub(crate) fn of_node(answer: &v1::NodeGetCapabilitiesResponse) -> Vec<NodeCapability> {
    let types = answer.capabilities.iter().filter_map(|one| one.r#type);
    types.map(|NodeType::Rpc(rpc)| rpc.r#type()).collect()
}

/// The capabilities of a driver, as far as they matter here.
#[derive(Debug, Clone, Default)]
pub(crate) struct Capabilities {
    /// A controller with at least one capability is on this socket.
    pub(crate) has_controller: bool,
    pub(crate) creates: bool,
    pub(crate) attaches: bool,
    pub(crate) snapshots: bool,
    pub(crate) clones: bool,
    /// A node service is on this socket.
    pub(crate) node: bool,
    pub(crate) node_id: String,
    /// The node's topology, if volumes have accessibility constraints. Volumes are then created for it.
    pub(crate) topology: Option<v1::Topology>,
    /// A volume with several writers on one node can have several targets there. Every service on these
    /// sockets says so.
    pub(crate) several_targets: bool,
    /// A volume is staged on a node before it is published.
    pub(crate) stages: bool,
    pub(crate) stats: bool,
    pub(crate) growth: Growth,
    pub(crate) controller_expands: bool,
    pub(crate) node_expands: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Never.
    #[default]
    Never,
    /// Also while they are on a node.
    InUse,
    /// Only while they are on no node.
    Unused,
}
