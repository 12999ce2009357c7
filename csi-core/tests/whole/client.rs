//! A client that sends any bytes to any RPC.

use csi_core::{Rpc, Service};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Bytes as they are.
#[derive(Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use prost::bytes::BufMut;
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use prost::bytes::Buf;
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

/// The RPC's answer to these bytes; of a stream, its first message, or none at all.
pub async fn call(channel: &Channel, rpc: Rpc, request: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("the server is there");
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().unwrap();
    let request = Request::new(request);
    if rpc.service() == Service::SnapshotMetadata {
        let mut messages = client.server_streaming(request, path, Raw).await?.into_inner();
        return Ok(messages.message().await?.unwrap_or_default());
    }
    client.unary(request, path, Raw).await.map(tonic::Response::into_inner)
}
