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
async fn what_can_not_start_is_status_2_and_says_how_to_fix_it() {
    for (flags, hint) in [
        (&["--mode=both"][..], "all, controller, node"),
        (&["--log-level=csi_core=loud"], "info,csi_core=debug"),
        (&["--mode=controller", "--registration-dir=/registration"], "leave out the registration"),
        (&["--registration-dir=/nowhere/at/all"], "does not exist; create or mount it"),
        (&["--metrics-address=203.0.113.1:1"], "give another one, or none"),
    ] {
        let mut program = Program::start(flags);
        let status = program.ended().await;
        assert_eq!(status.code(), Some(2), "{flags:?}: {}", program.log());
        assert!(program.log().contains(hint), "{flags:?}: {}", program.log());
        assert!(!program.socket().exists(), "{flags:?}");
    }
}

/// Starts a call that hangs, as the kubelet makes it. Returns its task.
async fn hang(program: &Program) -> tokio::task::JoinHandle<Result<(), tonic::Status>> {
    let mut node = program.client().await.node();
    let call = tokio::spawn(async move { node.node_stage_volume(common::stage("stuck")).await.map(drop) });
    let mut other = program.client().await.node();
    // As soon as the call runs, another request for the same volume is refused.
    let mut request = common::stage("stuck");
    request.staging_target_path = "/elsewhere".to_owned();
    for _ in 0..2000 {
        let mut request = tonic::Request::new(request.clone());
        request.set_timeout(Duration::from_secs(5));
        if let Err(status) = other.node_stage_volume(request).await
            && status.code() == tonic::Code::Aborted
        {
            return call;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the call does not run: {}", program.log());
}

#[tokio::test]
async fn a_second_signal_ends_the_patience() {
    let mut program = Program::start_files(&["--grace=2m"], None);
    let _call = hang(&program).await;
    program.terminate();
    let waits = "waits at most 120s for what runs: NodeStageVolume stuck (request ";
    eventually("it says what it waits for", || program.log().contains(waits)).await;
    program.terminate();
    assert_eq!(program.ended().await.code(), Some(0));
    assert!(!program.socket().exists());
}

#[tokio::test]
async fn a_call_that_hangs_is_left_at_the_end_of_the_grace_and_named() {
    let mut program = Program::start_files(&["--grace=1s"], None);
    let _call = hang(&program).await;
    program.terminate();
    assert_eq!(program.ended().await.code(), Some(0), "{}", program.log());
    let left = "stops while this runs, and a retry continues it: NodeStageVolume stuck (request ";
    assert!(program.log().contains(left), "{}", program.log());
    assert!(!program.socket().exists());
}

#[tokio::test]
async fn connections_without_a_call_are_closed_within_a_second_of_sigterm() {
    let mut program = Program::start_files(&["--grace=2m"], None);
    let client = program.client().await;
    // Four silent connections: no bytes, half a preface, one that never acknowledges, and a call whose
    // message is not sent.
    let silent = tokio::net::UnixStream::connect(program.socket()).await.unwrap();
    let mut half = tokio::net::UnixStream::connect(program.socket()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut half, b"PRI * HTTP/2.0").await.unwrap();
    let deaf = Raw::open(&program.socket()).await;
    let mut begun = Raw::open(&program.socket()).await;
    begun.begin(&raw::head("/csi.v1.Identity/Probe")).await;
    client.ready(Duration::from_secs(20)).await.unwrap();

    program.terminate();
    let status = tokio::time::timeout(Duration::from_secs(10), program.ended()).await;
    assert_eq!(status.expect("long before the end of the grace").code(), Some(0), "{}", program.log());
    assert!(!program.log().contains("what runs"), "{}", program.log());
    drop((silent, half, deaf, begun, client));
}

#[tokio::test]
async fn idle_connections_leave_descriptors_for_operations() {
    let mut program = Program::start_files(&[], Some(64));
    program.client().await;
    let mut idle = Vec::new();
    for _ in 0..60 {
        idle.push(Raw::open(&program.socket()).await);
    }
    let client = program.client().await;
    for volume in ["a", "b", "c"] {
        client.node().node_stage_volume(common::stage(volume)).await.expect("there are descriptors for it");
    }
    drop((idle, client));
    program.terminate();
    assert_eq!(program.ended().await.code(), Some(0), "{}", program.log());
}
