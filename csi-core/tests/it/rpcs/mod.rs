//! A client that sends any bytes to any RPC, and requests of every RPC.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

pub mod samples;
pub mod walk;

use csi_core::client::Client;
use csi_core::{Rpc, Service};
use csi_proto::internal::RawCodec;
use tonic::{Request, Status};

/// The RPC's answer to these bytes. For a stream, its first message, or no bytes if it has none.
pub async fn call(client: &Client, rpc: Rpc, request: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.expect("the server is there");
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().unwrap();
    let request = Request::new(request);
    if rpc.service() == Service::SnapshotMetadata {
        let mut messages = grpc.server_streaming(request, path, RawCodec).await?.into_inner();
        return Ok(messages.message().await?.unwrap_or_default());
    }
    grpc.unary(request, path, RawCodec).await.map(tonic::Response::into_inner)
}
