//! Any RPC, called by its descriptor.

use std::time::{Duration, Instant};

use csi_core::Rpc;
use csi_core::client::{Client, explain};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::{Code, Request, Status};

use super::output::Stop;
use super::rpcs;

/// The messages of one RPC. What encodes and decodes them is the same thing.
#[derive(Debug, Clone)]
struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(format!("the request does not encode: {error}")))
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let decoded = DynamicMessage::decode(self.0.clone(), buffer);
        decoded.map(Some).map_err(|error| Status::internal(format!("the answer does not decode: {error}")))
    }
}

/// Why a call ended before its time.
pub(crate) enum Ended {
    /// The plugin refused, or did not answer.
    Refused(Status),
    /// Who takes the answers takes no more.
    Stopped(Stop),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// Calls an RPC, and hands over its answers as they come: of most one, of a stream many.
///
/// # Errors
/// The plugin's status, or DEADLINE_EXCEEDED after `timeout`; of a stream that is the longest wait for its next
/// message. What `take` returns as an error ends it too.
pub(crate) async fn call(
    client: &Client,
    rpc: Rpc,
    request: DynamicMessage,
    timeout: Duration,
    mut take: impl FnMut(DynamicMessage) -> Result<(), Stop>,
) -> Result<(), Ended> {
    let start = Instant::now();
    let answered = answer(client, rpc, request, timeout, &mut take).await;
    answered.map_err(|ended| match ended {
        // The deadline that the driver is told ends the wait on this side too, under another name.
        Ended::Refused(status) if status.code() == Code::Cancelled && start.elapsed() >= timeout => {
            late(timeout).into()
        }
        Ended::Refused(status) if std::error::Error::source(&status).is_some() => {
            let words = explain(&status);
            let words = words.split_once(": ").map_or("", |(_, words)| words);
            Status::unavailable(format!("the connection broke: {words}")).into()
        }
        ended => ended,
    })
}

fn late(timeout: Duration) -> Status {
    Status::new(Code::DeadlineExceeded, format!("no answer within {timeout:?}"))
}

async fn answer(
    client: &Client,
    rpc: Rpc,
    request: DynamicMessage,
    timeout: Duration,
    take: &mut impl FnMut(DynamicMessage) -> Result<(), Stop>,
) -> Result<(), Ended> {
    let late = |_| late(timeout);
    let method = rpcs::method(rpc);
    let codec = Dynamic(method.output());
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().expect("a name is a path");
    let mut request = Request::new(request);
    let mut grpc = tonic::client::Grpc::new(client.channel()).max_decoding_message_size(usize::MAX);
    let ready = tokio::time::timeout(timeout, grpc.ready()).await.map_err(late)?;
    ready.map_err(|error| Status::from_error(error.into()))?;
    if !method.is_server_streaming() {
        request.set_timeout(timeout);
        let answer =
            tokio::time::timeout(timeout, grpc.unary(request, path, codec)).await.map_err(late)??;
        return take(answer.into_inner()).map_err(Ended::Stopped);
    }
    let answer = tokio::time::timeout(timeout, grpc.server_streaming(request, path, codec)).await;
    let mut messages: Streaming<DynamicMessage> = answer.map_err(late)??.into_inner();
    while let Some(message) = tokio::time::timeout(timeout, messages.message()).await.map_err(late)?? {
        take(message).map_err(Ended::Stopped)?;
    }
    Ok(())
}
