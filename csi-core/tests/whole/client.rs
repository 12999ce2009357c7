//! A client that sends any bytes to any RPC.

use csi_core::{Rpc, Service};
use csi_proto::raw::RawCodec;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// The RPC's answer to these bytes. For a stream, its first message, or no bytes if it has none.
pub async fn call(channel: &Channel, rpc: Rpc, request: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("the server is there");
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().unwrap();
    let request = Request::new(request);
    if rpc.service() == Service::SnapshotMetadata {
        let mut messages = client.server_streaming(request, path, RawCodec).await?.into_inner();
        return Ok(messages.message().await?.unwrap_or_default());
    }
    client.unary(request, path, RawCodec).await.map(tonic::Response::into_inner)
}
