//! A driver's own gRPC service on the plugin's socket, and its layers around all calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csi_core::Plugin;
use csi_proto::pluginregistration as own;
use csi_proto::v1;
use own::registration_client::RegistrationClient;
use own::registration_server::{Registration, RegistrationServer};
use tokio::sync::Semaphore;
use tonic::service::InterceptorLayer;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::common::{Served, eventually, refused, stage};
use crate::driver::{TestDriver, plugin};

/// A second service, which answers only as often as it is allowed to.
struct Own {
    begun: AtomicU32,
    gate: Semaphore,
}

impl Own {
    fn new(answers: usize) -> Arc<Self> {
        Arc::new(Self { begun: AtomicU32::new(0), gate: Semaphore::new(answers) })
    }
}

struct Shared(Arc<Own>);

#[tonic::async_trait]
impl Registration for Shared {
    async fn get_info(&self, _: Request<own::InfoRequest>) -> Result<Response<own::PluginInfo>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.gate.acquire().await.unwrap().forget();
        Ok(Response::new(own::PluginInfo { name: "own".into(), ..Default::default() }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<own::RegistrationStatus>,
    ) -> Result<Response<own::RegistrationStatusResponse>, Status> {
        Err(Status::data_loss("from the service"))
    }
}

fn with_own(own: &Arc<Own>) -> Plugin {
    plugin(&Arc::default()).service(RegistrationServer::new(Shared(own.clone())))
}

fn client(served: &Served) -> RegistrationClient<Channel> {
    RegistrationClient::new(served.client.channel())
}

#[tokio::test]
async fn a_second_service_is_served_beside_those_of_the_spec() {
    let served = Served::start(with_own(&Own::new(1))).await;
    let told = client(&served).get_info(own::InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(told.name, "own");
    let outcome = client(&served).notify_registration_status(own::RegistrationStatus::default()).await;
    refused(outcome, Code::DataLoss);
    served.call(v1::ProbeRequest {}).await.unwrap();

    let without = Served::start(plugin(&Arc::default())).await;
    refused(client(&without).get_info(own::InfoRequest {}).await, Code::Unimplemented);
}

#[tokio::test]
async fn its_calls_have_their_caller_s_deadline() {
    let served = Served::start(with_own(&Own::new(0))).await;
    let mut request = Request::new(own::InfoRequest {});
    request.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    // The client has the same deadline, and answers itself if it is first.
    let code = client(&served).get_info(request).await.unwrap_err().code();
    assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code}");
}

#[tokio::test]
async fn a_stop_waits_for_its_running_call() {
    let own = Own::new(0);
    let mut served = Served::start(with_own(&own).grace(Duration::from_secs(60))).await;
    let mut client = client(&served);
    let running = tokio::spawn(async move { client.get_info(own::InfoRequest {}).await });
    eventually("the call has begun", || own.begun.load(Ordering::SeqCst) == 1).await;
    served.stop.take().unwrap().send(()).unwrap();
    // Longer than a connection without a call has.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!served.server.is_finished(), "a call runs");
    own.gate.add_permits(1);
    running.await.unwrap().expect("the running call is answered");
    served.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn layers_see_every_call_the_first_layer_first() {
    let number = Arc::new(AtomicU32::new(0));
    let first = number.clone();
    let second = number.clone();
    let count = |number: Arc<AtomicU32>, digit: u32| {
        InterceptorLayer::new(move |request: Request<()>| {
            number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(old * 10 + digit)).unwrap();
            Ok(request)
        })
    };
    let plugin = with_own(&Own::new(1)).layer(count(first, 1)).layer(count(second, 2));
    let served = Served::start(plugin).await;
    served.call(v1::ProbeRequest {}).await.unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 12);
    client(&served).get_info(own::InfoRequest {}).await.unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 1212);
}

#[tokio::test]
async fn a_layer_s_refusal_keeps_its_code_and_reaches_no_driver() {
    let driver = Arc::new(TestDriver::default());
    let refuse = InterceptorLayer::new(|request: Request<()>| {
        if request.metadata().contains_key("tenant") {
            Ok(request)
        } else {
            Err(Status::internal("no tenant"))
        }
    });
    let served = Served::start(plugin(&driver).layer(refuse)).await;
    assert_eq!(refused(served.call(stage("v")).await, Code::Internal).message(), "no tenant");
    assert_eq!(driver.begun.load(Ordering::SeqCst), 0);
    let mut request = Request::new(v1::ProbeRequest {});
    request.metadata_mut().insert("tenant", "a".parse().unwrap());
    served.client.call::<v1::ProbeRequest>(request).await.unwrap();
}

#[tokio::test]
async fn a_service_that_is_there_already_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("{}/csi.sock", directory.path().display()).parse().unwrap();
    let own = Own::new(0);
    let twice = with_own(&own).service(RegistrationServer::new(Shared(own)));
    let error = twice.serve_until(&endpoint, std::future::pending()).await.unwrap_err();
    assert!(error.is_start_up() && error.to_string().contains("served twice"), "{error}");
}
