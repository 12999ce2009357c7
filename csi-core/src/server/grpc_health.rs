//! gRPC's own health service (`grpc.health.v1`), answered by the plugin's probe.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::{Rpc, escape};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::health;
use crate::adapters::Core;
use crate::identity::Identity;

/// How often a watched plugin is probed.
const PERIOD: Duration = Duration::from_secs(5);

pub(super) fn service(core: &Core) -> HealthServer<impl Health> {
    let services = Rpc::ALL
        .iter()
        .map(|rpc| rpc.service())
        .filter(|service| core.serves(*service))
        .map(|service| format!("csi.v1.{service}"))
        .collect();
    HealthServer::new(Probed { identity: Arc::clone(&core.identity), services })
}

struct Probed {
    identity: Arc<dyn Identity>,
    services: Vec<String>,
}

impl Probed {
    /// The empty name stands for the whole server.
    fn known(&self, name: &str) -> bool {
        name.is_empty() || self.services.iter().any(|service| service == name)
    }
}

async fn status(identity: &Arc<dyn Identity>) -> ServingStatus {
    match health::ask(identity).await {
        health::Health::Serving => ServingStatus::Serving,
        health::Health::Starting | health::Health::Failed(_) => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for Probed {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = &request.get_ref().service;
        if self.known(name) {
            Ok(Response::new(answer(status(&self.identity).await)))
        } else {
            let text = format!("there is no service {name} here");
            Err(Status::not_found(escape::message(&text)))
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Sends the status, and then each change of it.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = self.known(&request.get_ref().service);
        let identity = Arc::clone(&self.identity);
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut told = None;
            while !sender.is_closed() {
                let now = if known { status(&identity).await } else { ServingStatus::ServiceUnknown };
                if told.replace(now) != Some(now) && sender.send(Ok(answer(now))).await.is_err() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(PERIOD) => {}
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
