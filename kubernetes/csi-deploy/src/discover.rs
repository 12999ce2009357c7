//! Reads the facts about a driver from its sockets.

use csi_proto::client::{Client, explain};
use csi_proto::v1;
use csi_proto::{Rpc, escape};
use tonic::Code;

use crate::driver::Driver;

impl Driver {
    /// Asks a driver for its name and capabilities. `controller` is the client of the controller's socket,
    /// which can be the same as `node`.
    ///
    /// # Errors
    /// [`DiscoverError`] when a call fails, or a service that the driver declares is on neither socket.
    pub async fn discover(node: &Client, controller: &Client) -> Result<Self, DiscoverError> {
        let info = node.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
        let info = answered(Rpc::GetPluginInfo, info)?;
        let plugin = node.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await;
        let plugin = answered(Rpc::GetPluginCapabilities, plugin)?;
        let mut driver = Self::new(info.name).with_plugin(&plugin.capabilities);
        let answer = controller
            .controller()
            .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
            .await;
        if let Some(answer) = if_served(Rpc::ControllerGetCapabilities, answer)? {
            use v1::controller_service_capability::Type::Rpc;
            driver = driver.with_controller(
                answer.capabilities.into_iter().filter_map(|one| one.r#type.map(|Rpc(rpc)| rpc.r#type())),
            );
        } else if driver.serves(v1::plugin_capability::service::Type::ControllerService) {
            return Err(DiscoverError::Missing { service: "Controller", flag: "--controller-endpoint" });
        }
        let answer = node.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await;
        let Some(answer) = if_served(Rpc::NodeGetCapabilities, answer)? else {
            return Err(DiscoverError::Missing { service: "Node", flag: "--endpoint" });
        };
        use v1::node_service_capability::Type::Rpc as NodeRpc;
        Ok(driver.with_node(
            answer.capabilities.into_iter().filter_map(|one| one.r#type.map(|NodeRpc(rpc)| rpc.r#type())),
        ))
    }
}

type Answer<T> = Result<tonic::Response<T>, tonic::Status>;

fn answered<T>(rpc: Rpc, answer: Answer<T>) -> Result<T, DiscoverError> {
    answer.map(tonic::Response::into_inner).map_err(|status| DiscoverError::Refused {
        rpc,
        code: status.code(),
        reason: escape::terminal(&explain(&status)).into_owned(),
    })
}

fn if_served<T>(rpc: Rpc, answer: Answer<T>) -> Result<Option<T>, DiscoverError> {
    match answer {
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        answer => answered(rpc, answer).map(Some),
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
