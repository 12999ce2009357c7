//! The calls of a process that does not lead any more are refused, and no others.

use std::future::pending;

use csi_core::{Endpoint, Plugin};
use csi_kube::internal::while_leading;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::Duration;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use crate::leader_election::{SkewedClock, election, free_lease, server};
use test_support::kube_api::LinkState;

#[tokio::test(start_paused = true)]
async fn only_the_leader_serves_the_controller() {
    let server = server();
    free_lease(&server);
    let (election, link) = election(&server, "a");
    let leadership = election.lead().await;
    let plugin = leadership.guard(Plugin::new("block.csi.example.org", "1"));
    let mut calls = csi_core::internal::local_calls(&plugin);
    let folder = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("unix://{}", folder.path().join("csi.sock").display()).parse().unwrap();
    tokio::spawn(async move { plugin.serve_until(&endpoint, pending()).await });
    let mut refusal = async |path: &str| {
        let request = Request::post(format!("/{path}")).body(Body::empty()).unwrap();
        let answer = calls.call(request).await.unwrap();
        Status::from_header_map(answer.headers()).filter(|status| status.code() == Code::Unavailable)
    };
    for path in ["csi.v1.Controller/CreateVolume", "csi.v1.Identity/Probe"] {
        assert!(refusal(path).await.is_none(), "{path}");
    }
    link.set(LinkState::Cut);
    leadership.lost().await;
    for path in ["csi.v1.Controller/DeleteVolume", "csi.v1.GroupController/X", "csi.v1.SnapshotMetadata/X"] {
        let refusal = refusal(path).await.expect(path);
        assert_eq!(refusal.message(), "this process is not the leader: repeat the call");
    }
    for path in ["csi.v1.Identity/GetPluginInfo", "csi.v1.Node/NodeGetInfo", "vendor.v1.Own/Call"] {
        assert!(refusal(path).await.is_none(), "{path}");
    }
}

/// The clock is asked, because a process that was frozen has not seen yet that its time is over.
#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_any_more_writes_nothing() {
    let server = server();
    free_lease(&server);
    let clock = SkewedClock::new(0, 100);
    let (election, _) = election(&server, "a");
    let leadership = election.clock(clock.clone()).lead().await;
    let client = while_leading(&server.client(), vec![leadership]);
    let leases: Api<Lease> = Api::default_namespaced(client);
    leases.get("block").await.unwrap();
    *clock.offset.lock().unwrap() += Duration::from_secs(20);
    let mark = server.mark();
    let refused = leases.get("block").await.unwrap_err();
    assert!(matches!(refused, kube::Error::Service(_)), "{refused:?}");
    assert_eq!(server.mark(), mark);
}
