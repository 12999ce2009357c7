//! A driver with one fault: calls are forwarded to the correct driver, changed by the fault.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use csi_core::client::Client;
use csi_core::{Endpoint, Rpc, Service as CsiService};
use csi_proto::RpcRequest;
use csi_proto::internal::RawCodec;
use prost::Message;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::service_fn;

use crate::memory::Memory;
use crate::support::{Places, with_plugin};

/// The bytes of an answer. For a stream, its messages in sequence, each preceded by its length.
pub(crate) type Answer = Result<Vec<u8>, Status>;
/// What a fault does to a call; it can call the correct driver.
pub(crate) type Fault =
    Arc<dyn Fn(Rpc, Vec<u8>, Behind) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

pub(crate) fn fault<F: Future<Output = Answer> + Send + 'static>(
    on: impl Fn(Rpc, Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    Arc::new(move |rpc, bytes, behind| Box::pin(on(rpc, bytes, behind)))
}

/// A fault that keeps state between calls.
pub(crate) fn with_state<S: Send + Sync + 'static, F: Future<Output = Answer> + Send + 'static>(
    state: S,
    on: impl Fn(Arc<S>, Rpc, Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    let state = Arc::new(state);
    fault(move |rpc, bytes, behind| on(state.clone(), rpc, bytes, behind))
}

/// The request, if the call is of its RPC.
pub(crate) fn asked<R: RpcRequest>(rpc: Rpc, bytes: &[u8]) -> Option<R> {
    (rpc == R::RPC).then(|| R::decode(bytes).unwrap())
}

/// A fault in the RPC of this request; calls of other RPCs go to the driver unchanged.
pub(crate) fn only<R: RpcRequest, F: Future<Output = Result<R::Answer, Status>> + Send + 'static>(
    on: impl Fn(R, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    fault(move |rpc, bytes, behind| -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        match asked(rpc, &bytes) {
            Some(request) => {
                let answer = on(request, behind);
                Box::pin(async move { Ok(answer.await?.encode_to_vec()) })
            }
            None => Box::pin(async move { behind.call(rpc, bytes).await }),
        }
    })
}

#[derive(Clone)]
pub(crate) struct Behind(Client);

impl Behind {
    pub(crate) async fn ask<R: RpcRequest>(&self, request: &R) -> Result<R::Answer, Status> {
        let answer = self.call(R::RPC, request.encode_to_vec()).await?;
        Ok(R::Answer::decode(&*answer).unwrap())
    }

    pub(crate) async fn call(&self, rpc: Rpc, bytes: Vec<u8>) -> Answer {
        let mut grpc = tonic::client::Grpc::new(self.0.channel());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().unwrap();
        let mut messages = grpc.server_streaming(Request::new(bytes), path, RawCodec).await?.into_inner();
        let mut answer = Vec::new();
        while let Some(message) = messages.message().await? {
            if is_stream(rpc) {
                prost::encode_length_delimiter(message.len(), &mut answer).unwrap();
            }
            answer.extend(message);
        }
        Ok(answer)
    }
}

fn is_stream(rpc: Rpc) -> bool {
    rpc.service() == CsiService::SnapshotMetadata
}

pub(crate) fn changed<M: Message + Default>(bytes: &[u8], change: impl FnOnce(&mut M)) -> Vec<u8> {
    let mut message = M::decode(bytes).unwrap();
    change(&mut message);
    message.encode_to_vec()
}

/// The same for the messages of a stream.
pub(crate) fn changed_stream<M: Message + Default>(
    mut bytes: &[u8],
    change: impl FnOnce(&mut Vec<M>),
) -> Vec<u8> {
    let next = || (!bytes.is_empty()).then(|| M::decode_length_delimited(&mut bytes).unwrap());
    let mut messages = std::iter::from_fn(next).collect();
    change(&mut messages);
    messages.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
}

fn messages(rpc: Rpc, mut answer: &[u8]) -> Vec<Result<Vec<u8>, Status>> {
    if !is_stream(rpc) {
        return vec![Ok(answer.to_vec())];
    }
    let next = || {
        let length = (!answer.is_empty()).then(|| prost::decode_length_delimiter(&mut answer).unwrap())?;
        let (message, rest) = answer.split_at(length);
        answer = rest;
        Some(Ok(message.to_vec()))
    };
    std::iter::from_fn(next).collect()
}

/// Serves the driver in memory, with this fault, at `csi.sock` of these places until `work` ends.
pub(crate) async fn faulty<T>(places: &Places, fault: Fault, work: impl Future<Output = T>) -> T {
    let behind = places.endpoint("behind.sock");
    let plugin = Memory::directories(places.of("volumes")).plugin();
    with_plugin(plugin, &behind, with_fault(fault, &places.endpoint("csi.sock"), &behind, work)).await
}

/// Serves the faulty driver at `endpoint` until `work` ends. The correct driver serves at `behind`.
pub(crate) async fn with_fault<T>(
    fault: Fault,
    endpoint: &Endpoint,
    behind: &Endpoint,
    work: impl Future<Output = T>,
) -> T {
    let behind = Behind(Client::new(behind));
    // The same for every service, whose name is in the path.
    let service = service_fn(move |request: http::Request<Body>| {
        let rpc = Rpc::from_path(request.uri().path()).unwrap();
        let fault = fault.clone();
        let behind = behind.clone();
        let call = service_fn(move |request: Request<Vec<u8>>| {
            let answer = fault(rpc, request.into_inner(), behind.clone());
            async move { Ok(Response::new(tokio_stream::iter(messages(rpc, &answer.await?)))) }
        });
        async move { Ok::<_, Infallible>(Grpc::new(RawCodec).server_streaming(call, request).await) }
    });
    let listener = tokio::net::UnixListener::bind(endpoint.path()).unwrap();
    let server = Server::builder().serve_with_incoming(service, UnixListenerStream::new(listener));
    let server = tokio::spawn(server);
    let result = work.await;
    server.abort();
    result
}
