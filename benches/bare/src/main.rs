//! The Identity service on tonic alone, at the socket that `CSI_ENDPOINT` names: no checks, no signals, no log.

use csi_proto::v1;
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

struct Bare;

#[tonic::async_trait]
impl Identity for Bare {
    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }

    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::var("CSI_ENDPOINT")?;
    let listener = tokio::net::UnixListener::bind(endpoint.trim_start_matches("unix://"))?;
    let server = tonic::transport::Server::builder().add_service(IdentityServer::new(Bare));
    Ok(server.serve_with_incoming(UnixListenerStream::new(listener)).await?)
}
