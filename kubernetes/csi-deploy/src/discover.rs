//! Reads the facts about a driver from its sockets.

use csi_proto::client::{Client, explain};
use csi_proto::v1;
use csi_proto::{Rpc, RpcRequest, escape};
use tonic::Code;

use crate::driver::Driver;

impl Driver {
    /// Asks a driver for its name and capabilities. `controller` is the client of the controller's socket,
    /// which can be the same as `node`.
    ///
    /// # Errors
    /// [`DiscoverError`] when a call fails, or a service that the driver declares is on neither socket.
    pub async fn discover(node: &Client, controller: &Client) -> Result<Self, DiscoverError> {
        let info = ask(node, v1::GetPluginInfoRequest {}).await?;
        let plugin = ask(node, v1::GetPluginCapabilitiesRequest {}).await?;
        let mut driver = Self::new(info.name).with_plugin(&plugin.capabilities);
        let answer = ask(controller, v1::ControllerGetCapabilitiesRequest {}).await;
        if let Some(answer) = if_served(answer)? {
            use v1::controller_service_capability::Type::Rpc;
            driver = driver.with_controller(
                answer.capabilities.into_iter().filter_map(|one| one.r#type.map(|Rpc(rpc)| rpc.r#type())),
            );
        } else if driver.serves(v1::plugin_capability::service::Type::ControllerService) {
            return Err(DiscoverError::Missing { service: "Controller", flag: "--controller-endpoint" });
        }
        let answer = ask(node, v1::NodeGetCapabilitiesRequest {}).await;
        let Some(answer) = if_served(answer)? else {
            return Err(DiscoverError::Missing { service: "Node", flag: "--endpoint" });
        };
        use v1::node_service_capability::Type::Rpc as NodeRpc;
        Ok(driver.with_node(
            answer.capabilities.into_iter().filter_map(|one| one.r#type.map(|NodeRpc(rpc)| rpc.r#type())),
        ))
    }
}

async fn ask<R: RpcRequest>(client: &Client, request: R) -> Result<R::Answer, DiscoverError> {
    client.call(request).await.map_err(|status| DiscoverError::Refused {
        rpc: R::RPC,
        code: status.code(),
        reason: escape::terminal(&explain(&status)).into_owned(),
    })
}

fn if_served<T>(answer: Result<T, DiscoverError>) -> Result<Option<T>, DiscoverError> {
    match answer {
        Err(DiscoverError::Refused { code: Code::Unimplemented, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Why the facts can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// A call failed.
    #[error("{rpc}: {reason}")]
    Refused {
        /// The call.
        rpc: Rpc,
        /// The code of its status.
        code: Code,
        /// Its status, escaped for a terminal.
        reason: String,
    },
    /// A service that the manifests need is not on its socket.
    #[error("the {service} service is not on its socket: give the socket that has it with {flag}")]
    Missing {
        /// The name of the service.
        service: &'static str,
        /// The flag of `csi` for its socket.
        flag: &'static str,
    },
}
