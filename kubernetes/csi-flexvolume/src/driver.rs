//! Calls to the driver: with the secrets, in bounded time.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::time::Duration;

use csi_proto::client::{Client, explain};
use csi_proto::internal::{MakeCalls, Redactor};
use csi_proto::{ControllerCapability, NodeCapability, RpcRequest, v1};
use tonic::Code;

use crate::config::Config;

/// The driver at its socket.
pub(crate) struct Driver {
    client: Client,
    secrets: BTreeMap<String, String>,
    timeout: Duration,
    /// Where the socket's path is from.
    origin: String,
}

pub(crate) struct Refused {
    pub(crate) code: Option<Code>,
    text: String,
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        refused.text
    }
}

impl Driver {
    /// Needs a runtime. It connects with the first call.
    pub(crate) fn new(config: &Config) -> Self {
        let origin = format!("{} (`socket` in {})", config.socket, config.file.display());
        // The driver's own limit is a little later, so that the message is ours.
        let client = Client::new(&config.socket).deadline(config.timeout + Duration::from_secs(1));
        Self { client, secrets: BTreeMap::new(), timeout: config.timeout, origin }
    }

    /// Sends these secrets in each later call that has a field for them.
    pub(crate) fn set_secrets(&mut self, secrets: BTreeMap<String, String>) {
        self.secrets = secrets;
    }

    pub(crate) async fn call<R: RpcRequest>(&mut self, mut request: R) -> Result<R::Answer, Refused> {
        if let Some(secrets) = request.secrets_mut() {
            secrets.clone_from(&self.secrets);
        }
        let rpc = R::RPC;
        let origin = &self.origin;
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.client.call(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) if status.source().is_some() => Err(Refused {
                code: None,
                text: format!("{rpc}: no driver at {origin}: {}; start the driver", explain(&status)),
            }),
            Ok(Err(status)) => {
                let text = self.without_secrets(&format!("{rpc}: {}", explain(&status)));
                Err(Refused { code: Some(status.code()), text })
            }
            Err(_) => Err(Refused {
                code: None,
                text: format!("{rpc}: no answer in {timeout:?} from the driver at {origin}: look at its log"),
            }),
        }
    }

    pub(crate) async fn controller_offers(&mut self) -> Result<Vec<ControllerCapability>, Refused> {
        use v1::controller_service_capability::Type;
        let answer = self.call(v1::ControllerGetCapabilitiesRequest {}).await?;
        let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
        Ok(types.map(|Type::Rpc(rpc)| rpc.r#type()).collect())
    }

    pub(crate) async fn node_offers(&mut self) -> Result<Vec<NodeCapability>, Refused> {
        use v1::node_service_capability::Type;
        let answer = self.call(v1::NodeGetCapabilitiesRequest {}).await?;
        let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
        Ok(types.map(|Type::Rpc(rpc)| rpc.r#type()).collect())
    }

    /// The callers log messages, and a driver can repeat what it was sent.
    fn without_secrets(&self, text: &str) -> String {
        let mut hidden = Redactor::default();
        hidden.add(self.secrets.values());
        hidden.scrub(text)
    }
}

impl MakeCalls for Driver {
    type Error = Refused;

    async fn make_call<R: RpcRequest>(&mut self, request: R) -> Result<R::Answer, Refused> {
        self.call(request).await
    }
}
