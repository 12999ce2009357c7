//! A fake driver: it records its calls, and answers what a test wants.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use csi_core::{Rpc, Service as Which};
use csi_proto::raw::RawCodec;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};

/// The answer to a call: one message, or several for a stream.
pub(crate) type Answers = mpsc::Receiver<Result<Vec<u8>, Status>>;
pub(crate) type Handler =
    Arc<dyn Fn(Rpc, Vec<u8>) -> Pin<Box<dyn Future<Output = Result<Answers, Status>> + Send>> + Send + Sync>;

type Asked = Arc<Mutex<Vec<(Rpc, Vec<u8>)>>>;

pub(crate) fn handler<F: Future<Output = Result<Answers, Status>> + Send + 'static>(
    function: impl Fn(Rpc, Vec<u8>) -> F + Send + Sync + 'static,
) -> Handler {
    Arc::new(move |rpc, bytes| Box::pin(function(rpc, bytes)))
}

pub(crate) fn answer(message: &impl Message) -> Result<Answers, Status> {
    one(message.encode_to_vec())
}

pub(crate) fn one(bytes: Vec<u8>) -> Result<Answers, Status> {
    let (sender, answers) = mpsc::channel(1);
    sender.try_send(Ok(bytes)).unwrap();
    Ok(answers)
}

pub(crate) async fn forward(
    client: csi_core::client::Client,
    rpc: Rpc,
    bytes: Vec<u8>,
) -> Result<Answers, Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().unwrap();
    one(grpc.unary(Request::new(bytes), path, RawCodec).await?.into_inner())
}

pub(crate) struct Fake {
    folder: tempfile::TempDir,
    asked: Asked,
    _runtime: Runtime,
}

impl Fake {
    pub(crate) fn new(handler: Handler) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let asked = Asked::default();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let served = Served { handler, asked: asked.clone() };
        let path = folder.path().join("csi.sock");
        let entered = runtime.enter();
        let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(path).unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(Identity(served.clone()))
            .add_service(Controller(served.clone()))
            .add_service(GroupController(served.clone()))
            .add_service(SnapshotMetadata(served.clone()))
            .add_service(Node(served));
        runtime.spawn(server.serve_with_incoming(listener));
        drop(entered);
        Self { folder, asked, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn asked(&self) -> Vec<(Rpc, Vec<u8>)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

#[derive(Clone)]
struct Served {
    handler: Handler,
    asked: Asked,
}

impl Served {
    fn call<B>(&self, which: Which, request: http::Request<B>) -> BoxFuture<Reply, Infallible>
    where
        B: Body + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let rpc = Rpc::ALL.iter().copied().find(|rpc| rpc.service() == which && rpc.name() == name).unwrap();
        let one = One { served: self.clone(), rpc };
        Box::pin(async move { Ok(Grpc::new(RawCodec).server_streaming(one, request).await) })
    }
}

type Reply = http::Response<tonic::body::Body>;

macro_rules! services {
    ($($service:ident)+) => {$(
        #[derive(Clone)]
        struct $service(Served);

        impl NamedService for $service {
            const NAME: &'static str = concat!("csi.v1.", stringify!($service));
        }

        impl<B> Service<http::Request<B>> for $service
        where
            B: Body + Send + 'static,
            B::Error: Into<StdError> + Send + 'static,
        {
            type Response = Reply;
            type Error = Infallible;
            type Future = BoxFuture<Reply, Infallible>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<B>) -> Self::Future {
                self.0.call(Which::$service, request)
            }
        }
    )+};
}

services! { Identity Controller GroupController SnapshotMetadata Node }

struct One {
    served: Served,
    rpc: Rpc,
}

impl ServerStreamingService<Vec<u8>> for One {
    type Response = Vec<u8>;
    type ResponseStream = ReceiverStream<Result<Vec<u8>, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let served = self.served.clone();
        let rpc = self.rpc;
        Box::pin(async move {
            let bytes = request.into_inner();
            served.asked.lock().unwrap().push((rpc, bytes.clone()));
            let answers = (served.handler)(rpc, bytes).await?;
            Ok(Response::new(ReceiverStream::new(answers)))
        })
    }
}
