//! The plugin's socket is removed or replaced while the plugin serves on it.

mod common;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use common::*;
use csi_core::{ServeError, SocketRemoval};
use csi_proto::v1;

async fn probes(served: &Served) {
    let channel = connect(&served.endpoint);
    let mut identity = v1::identity_client::IdentityClient::new(channel);
    identity.probe(v1::ProbeRequest {}).await.expect("a new caller reaches it");
}

#[tokio::test]
async fn a_socket_that_somebody_removed_is_made_again_under_running_calls() {
    let memory = Memory::gated();
    let mut served = Served::start(plugin(memory.clone())).await;
    let mut node = served.node();
    let running = tokio::spawn(async move { node.node_stage_volume(stage("v")).await });
    memory.until_begun(1).await;

    std::fs::remove_file(served.endpoint.path()).unwrap();
    eventually("it is there again", || served.endpoint.path().exists()).await;
    probes(&served).await;
    assert_eq!(served.endpoint.path().metadata().unwrap().mode() & 0o777, 0o660, "with its mode");

    // The same for the socket's directory.
    std::fs::remove_file(served.endpoint.path()).unwrap();
    std::fs::remove_dir(served.directory.path()).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    std::fs::create_dir(served.directory.path()).unwrap();
    eventually("it is there again", || served.endpoint.path().exists()).await;
    probes(&served).await;

    memory.gate.as_ref().unwrap().add_permits(1);
    running.await.unwrap().expect("the call that ran meanwhile has its answer");
    drop(served.stop.take());
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
}

#[tokio::test]
async fn a_plugin_that_is_to_stop_then_says_why() {
    let served = Served::start(plugin(Arc::default()).socket_removal(SocketRemoval::Stop)).await;
    std::fs::remove_file(served.endpoint.path()).unwrap();
    let error = served.server.await.unwrap().unwrap_err();
    assert!(matches!(&error, ServeError::SocketRemoved(path) if path == served.endpoint.path()), "{error}");
    assert!(!error.is_start_up());
    assert!(error.to_string().contains("it was removed"), "{error}");
}

#[tokio::test]
async fn the_socket_of_another_process_stays_its_own() {
    for removal in [SocketRemoval::Recreate, SocketRemoval::Stop] {
        let served = Served::start(plugin(Arc::default()).socket_removal(removal)).await;
        let path = served.endpoint.path();
        // The new socket is created elsewhere and moved into place, so the path is never empty.
        let other = served.directory.path().join("other.sock");
        let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, path).unwrap();
        let error = served.server.await.unwrap().unwrap_err();
        assert!(matches!(&error, ServeError::SocketTaken(taken) if taken == path), "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
        let _caller = std::os::unix::net::UnixStream::connect(path).expect("it is there");
        listener.accept().expect("and reaches the other process");
    }
}

#[tokio::test]
async fn a_plugin_without_a_socket_still_stops() {
    let mut served = Served::start(plugin(Arc::default())).await;
    std::fs::remove_file(served.endpoint.path()).unwrap();
    std::fs::remove_dir(served.directory.path()).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    drop(served.stop.take());
    served.server.await.unwrap().unwrap();
}
