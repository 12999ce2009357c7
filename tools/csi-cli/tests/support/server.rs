//! A fake driver: it records its calls, and answers what a test wants.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use csi_core::Rpc;
use csi_proto::RpcRequest;
use csi_proto::internal::RawCodec;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::service_fn;

/// The answer to a call: one message, or several for a stream.
pub(crate) type Answers = mpsc::Receiver<Result<Vec<u8>, Status>>;
type Asked = Arc<Mutex<Vec<(Rpc, Vec<u8>)>>>;

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
    /// Answers each call with what the function returns for it.
    pub(crate) fn new<F: Future<Output = Result<Answers, Status>> + Send + 'static>(
        function: impl Fn(Rpc, Vec<u8>) -> F + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(function);
        let folder = tempfile::tempdir().unwrap();
        let asked = Asked::default();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let record = asked.clone();
        // The same for every service, whose name is in the path.
        let service = service_fn(move |request: http::Request<Body>| {
            let rpc = Rpc::from_path(request.uri().path()).unwrap();
            let function = function.clone();
            let record = record.clone();
            let call = service_fn(move |request: Request<Vec<u8>>| {
                let bytes = request.into_inner();
                record.lock().unwrap().push((rpc, bytes.clone()));
                let answers = function(rpc, bytes);
                async move { Ok(Response::new(ReceiverStream::new(answers.await?))) }
            });
            async move { Ok::<_, Infallible>(Grpc::new(RawCodec).server_streaming(call, request).await) }
        });
        let path = folder.path().join("csi.sock");
        let entered = runtime.enter();
        let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(path).unwrap());
        runtime.spawn(Server::builder().serve_with_incoming(service, listener));
        drop(entered);
        Self { folder, asked, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The requests of one RPC among the calls since the last look.
    pub(crate) fn requests<R: RpcRequest>(&self) -> Vec<R> {
        let of_it = self.asked().into_iter().filter(|(rpc, _)| *rpc == R::RPC);
        of_it.map(|(_, bytes)| R::decode(&*bytes).unwrap()).collect()
    }

    pub(crate) fn asked(&self) -> Vec<(Rpc, Vec<u8>)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}
