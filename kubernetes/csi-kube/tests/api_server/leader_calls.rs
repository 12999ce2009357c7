//! The calls of a process that does not lead any more are refused, and no others.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use tower::{Layer as _, Service as _, service_fn};

use crate::leader_election::{election, free_lease, server};
use crate::mock::LinkState;

#[tokio::test(start_paused = true)]
async fn only_the_leader_serves_the_controller() {
    let server = server();
    free_lease(&server);
    let (election, link) = election(&server, "a");
    let leadership = election.lead().await;
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let calls = service_fn(move |_: Request<()>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(String::from("served"))) }
    });
    let mut calls = leadership.layer().layer(calls);
    let mut call = async |path: &str| {
        let request = Request::builder().uri(format!("/{path}")).body(()).unwrap();
        calls.call(request).await.unwrap()
    };
    for path in ["csi.v1.Controller/CreateVolume", "csi.v1.Identity/Probe"] {
        assert_eq!(call(path).await.body(), "served");
    }
    link.set(LinkState::Cut);
    leadership.lost().await;
    for path in ["csi.v1.Controller/DeleteVolume", "csi.v1.GroupController/X", "csi.v1.SnapshotMetadata/X"] {
        let answer = call(path).await;
        assert_eq!((answer.headers()["grpc-status"].as_bytes(), answer.body().as_str()), (&b"14"[..], ""));
        assert_eq!(answer.headers()["grpc-message"], "this process is not the leader: repeat the call");
    }
    assert_eq!(served.load(Ordering::SeqCst), 2);
    for path in ["csi.v1.Identity/GetPluginInfo", "csi.v1.Node/NodeGetInfo", "vendor.v1.Own/Call"] {
        assert_eq!(call(path).await.body(), "served", "{path}");
    }
}
