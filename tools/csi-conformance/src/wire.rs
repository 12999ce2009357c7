//! Requests and answers as bytes, so that the kit can also send what no message type allows.

use csi_proto::internal::RawCodec;
use csi_proto::{Rpc, Service};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) has_details: bool,
}

impl Refusal {
    /// Whether the driver has no room for what the call makes.
    pub(crate) fn lacks_room(&self, rpc: Rpc) -> bool {
        let takes_room = matches!(
            rpc,
            Rpc::CreateVolume
                | Rpc::CreateSnapshot
                | Rpc::CreateVolumeGroupSnapshot
                | Rpc::ControllerExpandVolume
        );
        takes_room && self.code == Code::ResourceExhausted
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            message: status.message().to_owned(),
            has_details: !status.details().is_empty(),
        }
    }
}

/// Sends an RPC and returns its answer: one message, or all messages of a stream.
pub(crate) async fn send(
    channel: &Channel,
    rpc: Rpc,
    bytes: Vec<u8>,
    deadline: std::time::Duration,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut request = Request::new(bytes);
    request.set_timeout(deadline);
    let work = async {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = format!("/csi.v1.{}/{rpc}", rpc.service()).parse().expect("a name of the spec");
        if rpc.service() != Service::SnapshotMetadata {
            return Ok(vec![client.unary(request, path, RawCodec).await?.into_inner()]);
        }
        let mut messages = client.server_streaming(request, path, RawCodec).await?.into_inner();
        let mut all = Vec::new();
        while let Some(message) = messages.message().await? {
            all.push(message);
        }
        Ok(all)
    };
    // The transport applies the deadline only up to the first message of a stream.
    match tokio::time::timeout(deadline, work).await {
        Ok(result) => result.map_err(|status: Status| status.into()),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer in {deadline:?}")).into()),
    }
}
