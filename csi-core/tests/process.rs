//! A driver as a process: how it ends, and with which status.

mod common;
mod program;
mod raw;

use std::time::Duration;

use common::eventually;
use csi_proto::pluginregistration::RegistrationStatus;
use program::Program;
use prost::Message;
use raw::{Raw, Travel, kubelet_again, kubelet_get_info};

// spec: process.long-running, process.logs-to-standard-streams
#[tokio::test]
async fn sigterm_ends_all_that_is_served_and_the_status_is_0() {
    let registry = tempfile::tempdir().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let registration = format!("--registration-dir={}", registry.path().display());
    let mut program = Program::start(&[&registration, &format!("--metrics-address={address}")]);
    program.client().await;
    let socket = registry.path().join("flags.csi.example.org-reg.sock");
    eventually("it registers", || socket.exists()).await;
    eventually("it serves health", || std::net::TcpStream::connect(address).is_ok()).await;

    program.terminate();
    let status = program.ended().await;
    assert_eq!(status.code(), Some(0), "{}", program.log());
    assert!(!program.socket().exists() && !socket.exists(), "the sockets are gone");
    assert!(std::net::TcpStream::connect(address).is_err());
    assert!(program.log().contains("stopped"), "{}", program.log());
}

#[tokio::test]
async fn a_refusal_is_status_1_with_the_kubelets_words() {
    let registry = tempfile::tempdir().unwrap();
    let mut program = Program::start(&[&format!("--registration-dir={}", registry.path().display())]);
    let socket = registry.path().join("flags.csi.example.org-reg.sock");
    eventually("it registers", || socket.exists()).await;
    let mut kubelet = Raw::open(&socket).await;
    kubelet.call(&kubelet_get_info(), Travel::Whole, &[]).await.unwrap();
    let status = RegistrationStatus { plugin_registered: false, error: "no such node today".into() };
    let block = kubelet_again("/pluginregistration.Registration/NotifyRegistrationStatus");
    kubelet.call(&block, Travel::Whole, &status.encode_to_vec()).await.expect("it has its answer");
    let status = program.ended().await;
    assert_eq!(status.code(), Some(1));
    assert!(program.log().contains("refused the plugin: no such node today"), "{}", program.log());
    assert!(!program.socket().exists() && !socket.exists(), "the sockets are gone");
}

// spec: process.fails-fast
#[tokio::test]
async fn what_can_not_start_is_status_2_and_says_the_mend() {
    for (flags, mend) in [
        (&["--mode=both"][..], "all, controller, node"),
        (&["--log-level=csi_core=loud"], "info,csi_core=debug"),
        (&["--mode=controller", "--registration-dir=/registration"], "leave out the registration"),
        (&["--registration-dir=/nowhere/at/all"], "does not exist; create or mount it"),
        (&["--metrics-address=203.0.113.1:1"], "give another one, or none"),
    ] {
        let mut program = Program::start(flags);
        let status = program.ended().await;
        assert_eq!(status.code(), Some(2), "{flags:?}: {}", program.log());
        assert!(program.log().contains(mend), "{flags:?}: {}", program.log());
        assert!(!program.socket().exists(), "{flags:?}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_patience() {
    let mut program = Program::start(&["--grace=2m"]);
    let client = program.client().await;
    // A call that never ends keeps the server waiting: its body is not sent.
    let mut stuck = Raw::open(&program.socket()).await;
    stuck.begin(&raw::head("/csi.v1.Identity/Probe")).await;
    drop(client);
    program.terminate();
    tokio::time::sleep(Duration::from_millis(50)).await;
    program.terminate();
    assert_eq!(program.ended().await.code(), Some(0));
    assert!(!program.socket().exists());
}
