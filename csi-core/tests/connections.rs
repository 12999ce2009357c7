//! Many connections to the socket: how many are served, and which ones are closed to make room.

mod common;
mod raw;

use std::time::Duration;

use common::*;
use csi_proto::v1;
use raw::*;
use tokio::time::timeout;
use v1::identity_client::IdentityClient;

const PATIENCE: Duration = Duration::from_secs(20);

async fn new_caller(served: &Served) -> IdentityClient<tonic::transport::Channel> {
    let mut identity = IdentityClient::new(connect(&served.endpoint));
    let answer = timeout(PATIENCE, identity.probe(v1::ProbeRequest {})).await;
    answer.expect("in time").expect("a new caller is served");
    identity
}

#[tokio::test]
async fn idle_connections_give_way_and_those_with_calls_do_not() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone()).max_connections(8)).await;
    // A sidecar, which connects first and is idle afterwards.
    let mut sidecar = Raw::open(served.endpoint.path()).await;
    let mut probe = head("/csi.v1.Identity/Probe");
    tail(&mut probe);
    sidecar.call(&probe, Travel::Whole, &[]).await.unwrap();
    // A call that runs during the whole test.
    let mut node = served.node();
    let running = tokio::spawn(async move { node.node_stage_volume(stage("v")).await });
    memory.until_begun(1).await;

    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(Raw::open(served.endpoint.path()).await);
    }
    for _ in 0..20 {
        // Each caller leaves its connection open.
        silent.push(Raw::open(served.endpoint.path()).await);
        let caller = silent.last_mut().unwrap();
        let answer = timeout(PATIENCE, caller.call(&probe, Travel::Whole, &[])).await.expect("in time");
        answer.expect("a caller is served while others are silent");
    }
    let _callers = (new_caller(&served).await, new_caller(&served).await);
    sidecar.call(&probe, Travel::Whole, &[]).await.expect("the oldest caller keeps its connection");
    // A connection that does not acknowledge the GOAWAY is closed after one second.
    let open = timeout(PATIENCE, async {
        while silent.iter_mut().map(|connection| usize::from(connection.is_open())).sum::<usize>() > 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    open.await.expect("all above the limit are closed");

    memory.gate.as_ref().unwrap().add_permits(1);
    running.await.unwrap().expect("the call that ran has its answer");
}

#[tokio::test]
async fn no_connection_is_closed_while_none_waits() {
    let served = Served::start(plugin(Default::default()).max_connections(2)).await;
    let mut silent = [Raw::open(served.endpoint.path()).await, Raw::open(served.endpoint.path()).await];
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(silent.iter_mut().all(Raw::is_open), "there is room for two");
}

#[tokio::test]
async fn a_new_caller_waits_while_all_connections_have_calls() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone()).max_connections(2)).await;
    let calls: Vec<_> = ["a", "b"]
        .map(|id| {
            let mut node = v1::node_client::NodeClient::new(connect(&served.endpoint));
            let mut request = stage(id);
            request.staging_target_path = format!("/staging/{id}");
            tokio::spawn(async move { node.node_stage_volume(request).await })
        })
        .into();
    memory.until_begun(2).await;
    let waiting = new_caller(&served);
    let mut waiting = std::pin::pin!(waiting);
    assert!(timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "there is no room");
    memory.gate.as_ref().unwrap().add_permits(1);
    waiting.await;
    memory.gate.as_ref().unwrap().add_permits(1);
    for call in calls {
        call.await.unwrap().expect("no call is cut off to make room");
    }
}
