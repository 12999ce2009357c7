//! A driver with one fault: calls are forwarded to the correct driver, changed by the fault.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use csi_core::client::Client;
use csi_core::{Endpoint, Rpc, Service as CsiService};
use csi_proto::raw::RawCodec;
use prost::Message;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};

/// The bytes of an answer. For a stream, its messages in sequence, each preceded by its length.
pub(crate) type Answer = Result<Vec<u8>, Status>;
/// What a fault does to a call; it can call the correct driver.
pub(crate) type Fault =
    Arc<dyn Fn(Rpc, Vec<u8>, Behind) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Behind(Client);

impl Behind {
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

#[derive(Clone)]
struct Proxy {
    fault: Fault,
    behind: Behind,
}

const SERVICES: [&str; 5] = [
    "csi.v1.Identity",
    "csi.v1.Controller",
    "csi.v1.GroupController",
    "csi.v1.SnapshotMetadata",
    "csi.v1.Node",
];

/// One of the services, by its place in the list.
#[derive(Clone)]
struct Served<const SERVICE: usize>(Proxy);

impl<const SERVICE: usize> NamedService for Served<SERVICE> {
    const NAME: &'static str = SERVICES[SERVICE];
}

impl<const SERVICE: usize, B> Service<http::Request<B>> for Served<SERVICE>
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let call = Call { proxy: self.0.clone(), rpc: Rpc::from_path(request.uri().path()).unwrap() };
        Box::pin(async move { Ok(Grpc::new(RawCodec).server_streaming(call, request).await) })
    }
}

struct Call {
    proxy: Proxy,
    rpc: Rpc,
}

impl ServerStreamingService<Vec<u8>> for Call {
    type Response = Vec<u8>;
    type ResponseStream = tokio_stream::Iter<std::vec::IntoIter<Result<Vec<u8>, Status>>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let rpc = self.rpc;
        let Proxy { fault, behind } = self.proxy.clone();
        Box::pin(async move {
            let answer = fault(rpc, request.into_inner(), behind).await?;
            Ok(Response::new(tokio_stream::iter(messages(rpc, &answer))))
        })
    }
}

/// Serves the faulty driver at `endpoint` until `work` ends. The correct driver serves at `behind`.
pub(crate) async fn with_fault<T>(
    fault: Fault,
    endpoint: &Endpoint,
    behind: &Endpoint,
    work: impl Future<Output = T>,
) -> T {
    let proxy = Proxy { fault, behind: Behind(Client::new(behind)) };
    let listener = tokio::net::UnixListener::bind(endpoint.path()).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(Served::<0>(proxy.clone()))
        .add_service(Served::<1>(proxy.clone()))
        .add_service(Served::<2>(proxy.clone()))
        .add_service(Served::<3>(proxy.clone()))
        .add_service(Served::<4>(proxy))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(server);
    let result = work.await;
    server.abort();
    result
}
