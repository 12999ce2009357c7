//! A driver as a process: how it ends, and with which status.

use csi_proto::pluginregistration::RegistrationStatus;
use csi_proto::v1;
use prost::Message;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::common::{PATIENCE, eventually, stage};
use crate::process::program::Program;
use crate::process::program::files::HANGS;
use crate::raw::{Raw, head, kubelet_again, kubelet_get_info};

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
    kubelet.call(&kubelet_get_info(), &[]).await.unwrap();
    // The kubelet repeats its error in each step that it made, so it can be long.
    let error = format!("no such node today: {}", "the node id is another one; ".repeat(20));
    let status = RegistrationStatus { plugin_registered: false, error };
    let block = kubelet_again("/pluginregistration.Registration/NotifyRegistrationStatus");
    kubelet.call(&block, &status.encode_to_vec()).await.expect("it has its answer");
    let status = program.ended().await;
    assert_eq!(status.code(), Some(1));
    let shown = program.termination_message();
    for part in ["refused the plugin: no such node today", "no two nodes have the same node id (NODE_ID"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!program.socket().exists() && !socket.exists(), "the sockets are gone");
}

// spec: process.fails-fast
#[tokio::test]
async fn what_can_not_start_is_status_2_and_says_how_to_fix_it() {
    for (flags, hint) in [
        (&["--mode=both"][..], "all, controller, node"),
        (&["--log-level=csi_core=loud"], "info,csi_core=debug"),
        (&["--log-level=verbose"], "off, error, warn, info, debug, trace"),
        (&["--mode=controller", "--registration-dir=/registration"], "leave out the registration"),
        (&["--registration-dir=/nowhere/at/all"], "does not exist; create or mount it"),
        (&["--metrics-address=203.0.113.1:1"], "give another one, or none"),
    ] {
        let mut program = Program::start(flags);
        let status = program.ended().await;
        assert_eq!(status.code(), Some(2), "{flags:?}: {}", program.log());
        assert!(program.termination_message().contains(hint), "{flags:?}: {}", program.log());
        assert!(!program.socket().exists(), "{flags:?}");
    }
}

/// Starts a call that hangs, as the kubelet makes it, and waits until it does. Returns its task.
async fn hang(program: &Program) -> JoinHandle<Result<v1::NodeStageVolumeResponse, Status>> {
    let client = program.client().await;
    let call = tokio::spawn(async move { client.call(stage("stuck")).await });
    eventually("the call hangs", || program.log().contains(HANGS)).await;
    call
}

#[tokio::test]
async fn a_second_signal_ends_the_patience() {
    let mut program = Program::start_files(&["--grace=10m"], None);
    let _call = hang(&program).await;
    program.terminate();
    let waits = "waits at most 600s for what runs: NodeStageVolume stuck (request ";
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
    let mut program = Program::start_files(&["--grace=10m"], None);
    let client = program.client().await;
    // Four silent connections: no bytes, half a preface, one that never acknowledges, and a call whose
    // message is not sent.
    let silent = tokio::net::UnixStream::connect(program.socket()).await.unwrap();
    let mut half = tokio::net::UnixStream::connect(program.socket()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut half, b"PRI * HTTP/2.0").await.unwrap();
    let deaf = Raw::open(&program.socket()).await;
    let mut begun = Raw::open(&program.socket()).await;
    begun.begin(&head("/csi.v1.Identity/Probe")).await;
    client.ready(PATIENCE).await.unwrap();

    program.terminate();
    // Long before the end of the grace.
    assert_eq!(program.ended().await.code(), Some(0), "{}", program.log());
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
        client.call(stage(volume)).await.expect("there are descriptors for it");
    }
    drop((idle, client));
    program.terminate();
    assert_eq!(program.ended().await.code(), Some(0), "{}", program.log());
}
