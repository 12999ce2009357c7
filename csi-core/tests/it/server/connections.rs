//! Many connections to the socket: how many are served, and which ones are closed to make room.

use std::sync::Arc;
use std::time::Duration;

use csi_core::client::Client;
use csi_proto::v1;
use tokio::time::timeout;

use crate::common::*;
use crate::driver::{TestDriver, plugin};
use crate::raw::*;

async fn new_caller(served: &Served) -> Client {
    let client = connect(&served.endpoint);
    let answer = timeout(PATIENCE, client.call(v1::ProbeRequest {})).await;
    answer.expect("in time").expect("a new caller is served");
    client
}

#[tokio::test]
async fn idle_connections_give_way_and_those_with_calls_do_not() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver).max_connections(8)).await;
    // A sidecar, which connects first and is idle afterwards.
    let mut sidecar = Raw::open(served.endpoint.path()).await;
    let probe = head("/csi.v1.Identity/Probe");
    sidecar.call(&probe, &[]).await.unwrap();
    // A call that runs during the whole test.
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;

    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(Raw::open(served.endpoint.path()).await);
    }
    for _ in 0..20 {
        // Each caller leaves its connection open.
        silent.push(Raw::open(served.endpoint.path()).await);
        let caller = silent.last_mut().unwrap();
        let answer = timeout(PATIENCE, caller.call(&probe, &[])).await.expect("in time");
        answer.expect("a caller is served while others are silent");
    }
    let _callers = (new_caller(&served).await, new_caller(&served).await);
    sidecar.call(&probe, &[]).await.expect("the oldest caller keeps its connection");
    // A connection that does not acknowledge the GOAWAY is closed after one second.
    let open = timeout(PATIENCE, async {
        while silent.iter_mut().map(|connection| usize::from(connection.is_open())).sum::<usize>() > 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    open.await.expect("all above the limit are closed");

    driver.release(1);
    running.await.unwrap().expect("the call that ran has its answer");
}

#[tokio::test]
async fn no_connection_is_closed_while_none_waits() {
    let served = Served::start(plugin(&Arc::default()).max_connections(2)).await;
    let mut silent = [Raw::open(served.endpoint.path()).await, Raw::open(served.endpoint.path()).await];
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(silent.iter_mut().all(Raw::is_open), "there is room for two");
}

#[tokio::test]
async fn a_new_caller_waits_while_all_connections_have_calls() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver).max_connections(2)).await;
    let calls = ["a", "b"].map(|id| {
        let client = connect(&served.endpoint);
        tokio::spawn(async move { client.call(stage(id)).await })
    });
    driver.until_begun(2).await;
    let waiting = new_caller(&served);
    let mut waiting = std::pin::pin!(waiting);
    assert!(timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "there is no room");
    driver.release(1);
    waiting.await;
    driver.release(1);
    for call in calls {
        call.await.unwrap().expect("no call is cut off to make room");
    }
}

/// A sidecar has a hundred workers with one deadline. A driver that was stopped for longer reads the calls and their
/// end at once, and a sidecar that loses its connection ends.
#[tokio::test]
async fn calls_that_are_given_up_together_cost_no_connection() {
    let served = Served::start(plugin(&Arc::default())).await;
    let mut sidecar = Raw::open(served.endpoint.path()).await;
    let probe = head("/csi.v1.Identity/Probe");
    sidecar.call(&probe, &[]).await.unwrap();
    sidecar.give_up(&probe, 300).await;
    sidecar.call(&probe, &[]).await.expect("the connection stays");
}
