//! An operation runs to its end, once, whatever its callers do.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use csi_proto::v1;
use tonic::Code;

// spec: timeouts.retry-continues, timeouts.only-the-opposite-cancels
#[tokio::test]
async fn a_caller_that_gives_up_leaves_the_operation_to_the_retry() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone())).await;

    // The first caller gives up by its deadline, the second by dropping the call.
    let mut hurried = tonic::Request::new(stage("v"));
    hurried.set_timeout(Duration::from_millis(50));
    let status = served.node().node_stage_volume(hurried).await.unwrap_err();
    assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status}");
    let mut node = served.node();
    let gone = tokio::time::timeout(Duration::from_millis(50), node.node_stage_volume(stage("v"))).await;
    assert!(gone.is_err());
    memory.until_begun(1).await;

    // Any other request on the volume is refused meanwhile. A repeat of the same request joins the running
    // operation, also with different secrets.
    let unstage =
        v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: "/staging".into() };
    let status = served.node().node_unstage_volume(unstage.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(
        status.message().contains("volume v") && status.message().contains("NodeStageVolume"),
        "{status}"
    );
    let mut with_secret = stage("v");
    with_secret.secrets.insert("token".into(), "fresh".into());
    let retry = tokio::spawn({
        let mut node = served.node();
        async move { node.node_stage_volume(with_secret).await }
    });
    let mut other = stage("v");
    other.volume_context.insert("other".into(), "yes".into());
    let status = served.node().node_stage_volume(other).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);

    memory.gate.as_ref().unwrap().add_permits(1);
    retry.await.unwrap().expect("the retry gets the first one's answer");
    assert_eq!(memory.begun.load(Ordering::SeqCst), 1, "it ran once");
    assert_eq!(memory.done.load(Ordering::SeqCst), 1, "and to its end");

    memory.gate.as_ref().unwrap().add_permits(1);
    served.node().node_unstage_volume(unstage).await.expect("the volume is free again");
}

#[tokio::test]
async fn two_volumes_exclude_each_other_at_one_staging_path() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone())).await;
    let mut node = served.node();
    let first = tokio::spawn(async move { node.node_stage_volume(stage("v1")).await });
    memory.until_begun(1).await;
    for path in ["/staging/v1", "//staging//v1/"] {
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "v2".into(), staging_target_path: path.into() };
        let second = v1::NodeStageVolumeRequest { staging_target_path: path.into(), ..stage("v2") };
        let from = v1::NodePublishVolumeRequest { staging_target_path: path.into(), ..publish("v2", "/t") };
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "v2".into(), target_path: path.into() };
        let outcomes = [
            served.node().node_unstage_volume(unstage).await.map(drop),
            served.node().node_stage_volume(second).await.map(drop),
            served.node().node_publish_volume(from).await.map(drop),
            served.node().node_unpublish_volume(unpublish).await.map(drop),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.unwrap_err().code(), Code::Aborted, "{path}");
        }
    }
    memory.gate.as_ref().unwrap().add_permits(2);
    first.await.unwrap().unwrap();
    let second = served.node().node_stage_volume(stage("v2")).await;
    second.expect("the path is free again");
}

#[tokio::test]
async fn two_targets_run_together_and_stats_at_the_same_time() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone())).await;
    let running: Vec<_> = ["/one", "/two"]
        .map(|target| {
            let mut node = served.node();
            tokio::spawn(async move { node.node_publish_volume(publish("v", target)).await })
        })
        .into();
    memory.until_begun(2).await;
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: "/one".into(),
        ..Default::default()
    };
    served.node().node_get_volume_stats(stats).await.expect("a question waits for nobody");
    let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: "/one".into() };
    assert_eq!(served.node().node_unpublish_volume(unpublish).await.unwrap_err().code(), Code::Aborted);
    memory.gate.as_ref().unwrap().add_permits(2);
    for publish in running {
        publish.await.unwrap().unwrap();
    }
}

// spec: errors.failure-is-an-error
#[tokio::test]
async fn a_panic_is_internal_and_frees_the_volume() {
    let served = Served::start(plugin(Default::default())).await;
    for _ in 0..2 {
        let status = served.controller().create_volume(create("panic")).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(!status.message().contains("as the test asked"), "the panic's words are for the log");
    }
    served.controller().create_volume(create("calm")).await.expect("the server lives");
}

#[tokio::test]
async fn callers_that_joined_an_operation_get_its_panic_as_an_error() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone())).await;
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let mut controller = served.controller();
            tokio::spawn(async move { controller.create_volume(create("panic")).await })
        })
        .collect();
    memory.until_begun(1).await;
    // One probe on each connection after the two calls: its answer shows that both calls are admitted.
    let probe = v1::ProbeRequest {};
    served.identity().probe(probe).await.unwrap();
    memory.gate.as_ref().unwrap().add_permits(1);
    for call in calls {
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
    assert_eq!(memory.begun.load(Ordering::SeqCst), 1, "the second one joined");
}

// spec: endpoint.nothing-beside
#[tokio::test]
async fn stopping_lets_operations_finish_and_removes_the_socket() {
    let memory = Memory::gated();
    let mut served = Served::start(plugin(memory.clone())).await;
    let running = tokio::spawn({
        let mut node = served.node();
        async move { node.node_stage_volume(stage("v")).await }
    });
    memory.until_begun(1).await;
    served.stop.take().unwrap().send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!served.server.is_finished(), "an operation is running");
    assert!(std::fs::read_dir(served.directory.path()).unwrap().count() <= 1, "nothing is beside the socket");
    memory.gate.as_ref().unwrap().add_permits(1);
    running.await.unwrap().expect("the caller gets its answer");
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
    assert_eq!(std::fs::read_dir(served.directory.path()).unwrap().count(), 0, "nothing beside it is left");
}

#[tokio::test]
async fn patience_ends() {
    let memory = Memory::gated();
    let mut served = Served::start(plugin(memory.clone()).grace(Duration::from_millis(50))).await;
    let mut node = served.node();
    let running = tokio::spawn(async move { node.node_stage_volume(stage("v")).await });
    memory.until_begun(1).await;
    served.stop.take().unwrap().send(()).unwrap();
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
    assert!(!running.is_finished(), "what runs on ends with the process, and its caller with it");
    running.abort();
}
