//! Calls any RPC by its descriptor.

use std::time::{Duration, Instant};

use csi_proto::Rpc;
use csi_proto::client::{Client, explain};
use csi_proto::internal::RawCodec;
use prost::Message as _;
use prost_reflect::DynamicMessage;
use tonic::{Code, Request, Status};

use super::output::Stop;
use super::rpcs;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The longest wait for an answer, or for the next message of a stream.
    pub(crate) timeout: Duration,
    /// The largest accepted message, in bytes.
    pub(crate) size: usize,
}

pub(crate) enum CallError {
    /// The plugin refused, or did not answer.
    Refused(Status),
    /// The receiver of the answers stopped.
    Stopped(Stop),
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<Stop> for CallError {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

/// Calls an RPC, and passes each answer to `take`. Most RPCs have one answer, a stream has many.
///
/// # Errors
/// The plugin's status, or DEADLINE_EXCEEDED after the timeout; for a stream the timeout applies to each
/// message. An error from `take` ends the call too.
pub(crate) async fn call(
    client: &Client,
    rpc: Rpc,
    request: DynamicMessage,
    limits: Limits,
    mut take: impl FnMut(DynamicMessage) -> Result<(), Stop>,
) -> Result<(), CallError> {
    let start = Instant::now();
    let timeout = limits.timeout;
    let sent = request.encoded_len();
    let answered = answer(client, rpc, request, limits, &mut take).await;
    answered.map_err(|ended| match ended {
        // The deadline sent to the driver also ends the wait on this side, with code CANCELLED.
        CallError::Refused(status) if status.code() == Code::Cancelled && start.elapsed() >= timeout => {
            late(timeout).into()
        }
        // If the request is larger than the limit, it can be the driver that refuses it.
        CallError::Refused(status) if is_too_large(&status) && sent <= limits.size => {
            Stop::failed(&format!("{rpc}: {}: --max-answer allows larger messages", status.message())).into()
        }
        CallError::Refused(status) if std::error::Error::source(&status).is_some() => {
            let words = explain(&status);
            let words = words.split_once(": ").map_or("", |(_, words)| words);
            Status::unavailable(format!("the connection broke: {words}")).into()
        }
        ended => ended,
    })
}

/// Whether tonic refused a message because of its size. Only the message text shows it.
fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("message length too large")
}

fn late(timeout: Duration) -> Status {
    Status::new(Code::DeadlineExceeded, format!("no answer within {timeout:?}"))
}

async fn answer(
    client: &Client,
    rpc: Rpc,
    request: DynamicMessage,
    Limits { timeout, size }: Limits,
    take: &mut impl FnMut(DynamicMessage) -> Result<(), Stop>,
) -> Result<(), CallError> {
    let late = |_| late(timeout);
    let method = rpcs::method(rpc);
    let mut take = |bytes: Vec<u8>| {
        let decoded = DynamicMessage::decode(method.output(), bytes.as_slice());
        let answer =
            decoded.map_err(|error| Status::internal(format!("the answer does not decode: {error}")))?;
        take(answer).map_err(CallError::Stopped)
    };
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().expect("a name is a path");
    let mut request = Request::new(request.encode_to_vec());
    let mut grpc = tonic::client::Grpc::new(client.channel()).max_decoding_message_size(size);
    let ready = tokio::time::timeout(timeout, grpc.ready()).await.map_err(late)?;
    ready.map_err(|error| Status::from_error(error.into()))?;
    if !method.is_server_streaming() {
        request.set_timeout(timeout);
        let answer =
            tokio::time::timeout(timeout, grpc.unary(request, path, RawCodec)).await.map_err(late)??;
        return take(answer.into_inner());
    }
    let answer = tokio::time::timeout(timeout, grpc.server_streaming(request, path, RawCodec)).await;
    let mut messages = answer.map_err(late)??.into_inner();
    while let Some(message) = tokio::time::timeout(timeout, messages.message()).await.map_err(late)?? {
        take(message)?;
    }
    Ok(())
}
