//! The plugin's socket is removed or replaced while the plugin serves on it.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use csi_core::server::SocketRemoval;
use csi_proto::v1;

use crate::common::*;
use crate::driver::{TestDriver, plugin};

async fn probes(served: &Served) {
    connect(&served.endpoint).call(v1::ProbeRequest {}).await.expect("a new caller reaches it");
}

#[tokio::test]
async fn a_socket_that_somebody_removed_is_made_again_under_running_calls() {
    let driver = Arc::new(TestDriver::gated());
    let mut served = Served::start(plugin(&driver)).await;
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;

    std::fs::remove_file(served.endpoint.path()).unwrap();
    eventually("it is served again", || is_listening(served.endpoint.path())).await;
    probes(&served).await;
    assert_eq!(served.endpoint.path().metadata().unwrap().mode() & 0o777, 0o660, "with its mode");

    // The same for the socket's directory.
    std::fs::remove_file(served.endpoint.path()).unwrap();
    std::fs::remove_dir(served.directory.path()).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    std::fs::create_dir(served.directory.path()).unwrap();
    eventually("it is served again", || is_listening(served.endpoint.path())).await;
    probes(&served).await;

    driver.release(1);
    running.await.unwrap().expect("the call that ran meanwhile has its answer");
    drop(served.stop.take());
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
}

#[tokio::test]
async fn a_plugin_that_is_to_stop_then_says_why() {
    let served = Served::start(plugin(&Arc::default()).socket_removal(SocketRemoval::Stop)).await;
    std::fs::remove_file(served.endpoint.path()).unwrap();
    let error = served.server.await.unwrap().unwrap_err();
    assert!(!error.is_start_up(), "{error}");
    let path = served.endpoint.path().display().to_string();
    assert!(error.to_string().contains("it was removed") && error.to_string().contains(&path), "{error}");
}

#[tokio::test]
async fn the_socket_of_another_process_stays_its_own() {
    for removal in [SocketRemoval::Recreate, SocketRemoval::Stop] {
        let served = Served::start(plugin(&Arc::default()).socket_removal(removal)).await;
        let path = served.endpoint.path();
        // The new socket is created elsewhere and moved into place, so the path is never empty.
        let other = served.directory.path().join("other.sock");
        let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, path).unwrap();
        let error = served.server.await.unwrap().unwrap_err();
        assert!(!error.is_start_up(), "{error}");
        let text = error.to_string();
        assert!(text.contains("another process") && text.contains(&path.display().to_string()), "{error}");
        let _caller = std::os::unix::net::UnixStream::connect(path).expect("it is there");
        listener.accept().expect("and reaches the other process");
    }
}

#[tokio::test]
async fn a_plugin_without_a_socket_still_stops() {
    let mut served = Served::start(plugin(&Arc::default())).await;
    std::fs::remove_file(served.endpoint.path()).unwrap();
    std::fs::remove_dir(served.directory.path()).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    drop(served.stop.take());
    served.server.await.unwrap().unwrap();
}
