//! The driver that is called: its sockets, and what it can do.

use std::time::Duration;

use csi_proto::client::Client;
use csi_proto::{RpcRequest, Service, v1};
use tonic::Status;

/// The sockets of a driver: one for all services, or a second one for its controller.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    client: Client,
    controller: Option<Client>,
}

impl Sockets {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, controller: None }
    }

    #[must_use]
    pub(crate) fn controller_at(self, controller: Client) -> Self {
        Self { controller: Some(controller), ..self }
    }

    #[must_use]
    pub(crate) fn deadline(self, deadline: Duration) -> Self {
        let controller = self.controller.map(|controller| controller.deadline(deadline));
        Self { client: self.client.deadline(deadline), controller }
    }

    pub(crate) async fn call<R: RpcRequest>(&self, request: R) -> Result<R::Answer, Status> {
        let client = match R::RPC.service() {
            Service::Identity | Service::Node => &self.client,
            _ => self.controller.as_ref().unwrap_or(&self.client),
        };
        client.call(request).await
    }
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
