//! The driver's RPCs, in this process: the same path as calls from the socket, with its checks and its metrics.

use std::time::Duration;

use csi_core::internal::LocalCalls;
use csi_kube::Leadership;
use csi_proto::{Rpc, RpcRequest, v1};
use tokio::time::{Instant, timeout};
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::metrics::Metrics;

/// After this time a call counts as one that can still be going on. The driver goes on with it, and the same call again
/// waits for the same operation.
const LIMIT: Duration = Duration::from_secs(60);

/// The largest answer: a page of a list with long ids can have more than tonic's 4 MiB.
const MAX_ANSWER: usize = 64 << 20;

#[derive(Clone)]
pub(crate) struct Calls {
    local: LocalCalls,
    pub(crate) metrics: Metrics,
    /// What allows the calls of a process that is one of several.
    pub(crate) leaderships: Vec<Leadership>,
}

/// What an answer says of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The call can still be going on, or have left something behind: it must be repeated as it was.
    Unknown,
    /// The driver left nothing behind.
    Final,
    /// The driver left nothing behind, and will not do it while the request stays the same.
    Infeasible,
}

/// What a failed call of this RPC says.
pub(crate) fn outcome(rpc: Rpc, code: Code) -> Outcome {
    match (code, rpc) {
        (Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted, _) => Outcome::Unknown,
        // A volume has this name, which only its claim has: an earlier call made it, with other arguments.
        (Code::AlreadyExists, Rpc::CreateVolume) => Outcome::Unknown,
        (Code::ResourceExhausted, Rpc::CreateVolume) => Outcome::Final,
        (Code::ResourceExhausted, _) => Outcome::Unknown,
        // No code means that it never works.
        (Code::InvalidArgument, Rpc::CreateSnapshot) => Outcome::Final,
        (Code::InvalidArgument, _) => Outcome::Infeasible,
        (Code::OutOfRange | Code::NotFound, Rpc::ControllerExpandVolume) => Outcome::Infeasible,
        _ => Outcome::Final,
    }
}

impl Calls {
    pub(crate) fn new(local: LocalCalls, metrics: Metrics) -> Self {
        Self { local, metrics, leaderships: Vec::new() }
    }

    /// Makes a call. The type of the request chooses the RPC.
    pub(crate) async fn call<R: RpcRequest>(&self, request: R) -> Result<R::Answer, Status> {
        // A process that was frozen has steps that are due before it sees that another one leads.
        for leadership in &self.leaderships {
            leadership.check().map_err(|error| Status::unavailable(error.to_string()))?;
        }
        let method = format!("/csi.v1.{}/{}", R::RPC.service(), R::RPC);
        let path = method.parse().map_err(|_| Status::internal(format!("the path {method}")))?;
        let mut grpc = Grpc::new(self.local.clone()).max_decoding_message_size(MAX_ANSWER);
        let since = Instant::now();
        let call = grpc.unary(Request::new(request), path, ProstCodec::default());
        let late = || Status::deadline_exceeded("context deadline exceeded");
        let answer = timeout(LIMIT, call).await.unwrap_or_else(|_| Err(late()));
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics.called(&method, code, since.elapsed());
        Ok(answer?.into_inner())
    }

    /// All volumes of the driver, page by page.
    pub(crate) async fn all_volumes(&self) -> Result<Vec<v1::list_volumes_response::Entry>, Status> {
        let mut volumes = Vec::new();
        let mut request = v1::ListVolumesRequest::default();
        loop {
            let page = self.call(request.clone()).await?;
            volumes.extend(page.entries);
            if page.next_token.is_empty() {
                return Ok(volumes);
            }
            request.starting_token = page.next_token;
        }
    }
}
