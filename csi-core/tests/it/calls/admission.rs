//! An operation runs to its end, once, whatever its callers do. Operations of one volume exclude each other, and
//! the driver's own work excludes them too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use csi_core::types::Name;
use csi_core::{ControllerService, Expansion, NodeService, Plugin, VolumeId};
use csi_proto::v1;
use prost::Message as _;
use tonic::Code;

use crate::common::*;
use crate::driver::{TestDriver, id, plugin};
use crate::raw::{Raw, head};

// spec: timeouts.retry-continues, timeouts.only-the-opposite-cancels
#[tokio::test]
async fn a_caller_that_gives_up_leaves_the_operation_to_the_retry() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver)).await;

    // The first caller gives up by its deadline, the second by dropping the call. A short deadline can pass
    // before the call has begun, so the next one is longer.
    for deadline in [50, 1000, 20_000].map(Duration::from_millis) {
        let hurried = served.client.clone().deadline(deadline);
        let status = hurried.call(stage("v")).await.unwrap_err();
        assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status}");
        if driver.begun.load(Ordering::SeqCst) == 1 {
            break;
        }
    }
    let gone = tokio::time::timeout(Duration::from_millis(50), served.call(stage("v"))).await;
    assert!(gone.is_err());
    driver.until_begun(1).await;

    // Any other request on the volume is refused meanwhile. A repeat of the same request joins the running
    // operation, also with different secrets.
    let elsewhere = v1::NodeUnstageVolumeRequest { staging_target_path: "/elsewhere".into(), ..unstage("v") };
    let status = refused(served.call(elsewhere).await, Code::Aborted);
    assert!(
        status.message().contains("volume v") && status.message().contains("NodeStageVolume"),
        "{status}"
    );
    let mut with_secret = stage("v");
    with_secret.secrets.insert("token".into(), "fresh".into());
    let retry = served.begin(with_secret);
    let mut other = stage("v");
    other.volume_context.insert("other".into(), "yes".into());
    refused(served.call(other).await, Code::Aborted);

    driver.release(1);
    retry.await.unwrap().expect("the retry gets the first one's answer");
    assert_eq!(driver.begun.load(Ordering::SeqCst), 1, "it ran once");
    assert_eq!(driver.done.load(Ordering::SeqCst), 1, "and to its end");

    driver.release(1);
    served.call(unstage("v")).await.expect("the volume is free again");
}

/// A plugin that stood still, or whose node has no time for it, reads a call after its caller has gone on to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_given_up_before_it_began_is_not_begun() {
    let driver = Arc::new(TestDriver::default());
    let served = Served::start(plugin(&driver)).await;
    let mut caller = Raw::open(served.endpoint.path()).await;
    let late = (head("/csi.v1.Node/NodeStageVolume"), stage("v").encode_to_vec());
    for _ in 0..100 {
        caller.call_and_give_up(&late.0, &late.1).await;
        caller.call(&head("/csi.v1.Identity/Probe"), &[]).await.unwrap();
    }
    assert_eq!(driver.begun.load(Ordering::SeqCst), 0);
    caller.call(&late.0, &late.1).await.unwrap();
    assert_eq!(driver.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn two_volumes_exclude_each_other_at_one_staging_path() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver)).await;
    let first = served.begin(stage("v1"));
    driver.until_begun(1).await;
    for path in ["/staging/v1", "//staging//v1/"] {
        let second = v1::NodeStageVolumeRequest { staging_target_path: path.into(), ..stage("v2") };
        let from = v1::NodePublishVolumeRequest { staging_target_path: path.into(), ..publish("v2", "/t") };
        refused(served.call(v1::NodeUnstageVolumeRequest::from(&second)).await, Code::Aborted);
        refused(served.call(second).await, Code::Aborted);
        refused(served.call(from).await, Code::Aborted);
        refused(served.call(unpublish("v2", path)).await, Code::Aborted);
    }
    driver.release(2);
    first.await.unwrap().unwrap();
    served.call(stage("v2")).await.expect("the path is free again");
}

#[tokio::test]
async fn two_targets_run_together_and_stats_at_the_same_time() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver)).await;
    let running = ["/one", "/two"].map(|target| served.begin(publish("v", target)));
    driver.until_begun(2).await;
    served.call(stats("v", "/one")).await.expect("a question waits for nobody");
    refused(served.call(unpublish("v", "/one")).await, Code::Aborted);
    driver.release(2);
    for publish in running {
        publish.await.unwrap().unwrap();
    }
}

// spec: errors.failure-is-an-error
#[tokio::test]
async fn a_panic_is_an_error_and_frees_the_volume() {
    let driver = Arc::new(TestDriver::default());
    driver.create_volume.answers(|_| panic!("as the test asked"));
    let served = Served::start(plugin(&driver)).await;
    for _ in 0..2 {
        // A volume can have been created, so the caller has to ask again.
        let status = refused(served.call(create("v")).await, Code::Unavailable);
        assert!(!status.message().contains("as the test asked"), "the panic's words are for the log");
    }
    served.call(delete("v")).await.expect("the server lives");
}

/// The framework asks for the id before the operation begins.
#[tokio::test]
async fn a_panic_over_a_volumes_id_is_an_error() {
    let volume_id_of_name = |name: &Name| panic!("no id for {name}");
    let driver = Arc::new(TestDriver { volume_id_of_name, ..TestDriver::default() });
    let served = Served::start(plugin(&driver)).await;
    let status = refused(served.call(create("v")).await, Code::Unavailable);
    assert!(status.message().contains("the driver panicked"), "{status}");
}

#[tokio::test]
async fn callers_that_joined_an_operation_get_its_panic_as_an_error() {
    let driver = Arc::new(TestDriver::gated());
    driver.create_volume.answers(|_| panic!("as the test asked"));
    let served = Served::start(plugin(&driver)).await;
    let calls = [served.begin(create("v")), served.begin(create("v"))];
    driver.until_begun(1).await;
    // One probe on each connection after the two calls: its answer shows that both calls are admitted.
    served.call(v1::ProbeRequest {}).await.unwrap();
    driver.release(1);
    for call in calls {
        refused(call.await.unwrap(), Code::Unavailable);
    }
    assert_eq!(driver.begun.load(Ordering::SeqCst), 1, "the second one joined");
}

// spec: endpoint.nothing-beside
#[tokio::test]
async fn stopping_lets_operations_finish_and_removes_the_socket() {
    let driver = Arc::new(TestDriver::gated());
    let mut served = Served::start(plugin(&driver)).await;
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;
    served.stop.take().unwrap().send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!served.server.is_finished(), "an operation is running");
    assert!(std::fs::read_dir(served.directory.path()).unwrap().count() <= 1, "nothing is beside the socket");
    driver.release(1);
    running.await.unwrap().expect("the caller gets its answer");
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
    assert_eq!(std::fs::read_dir(served.directory.path()).unwrap().count(), 0, "nothing beside it is left");
}

#[tokio::test]
async fn patience_ends() {
    let driver = Arc::new(TestDriver::gated());
    let mut served = Served::start(plugin(&driver).grace(Duration::from_millis(50))).await;
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;
    served.stop.take().unwrap().send(()).unwrap();
    served.server.await.unwrap().unwrap();
    assert!(!served.endpoint.path().exists());
    assert!(!running.is_finished(), "what runs on ends with the process, and its caller with it");
    running.abort();
}

/// Two publishes of one volume at the same time, to two targets.
#[tokio::test]
async fn the_second_publish_waits_its_turn_where_one_target_is_allowed() {
    let publish_in = |mode, target| v1::NodePublishVolumeRequest {
        volume_capability: Some(mount_capability(mode)),
        ..publish("v", target)
    };
    for (mode, together) in [(1, false), (2, false), (3, true), (4, true), (5, true), (6, false), (7, true)] {
        let driver = Arc::new(TestDriver::gated());
        let node = NodeService::new(driver.clone()).single_node_multi_writer();
        let served = Served::start(Plugin::new("test.csi.example.org", "1").node(node)).await;
        let first = served.begin(publish_in(mode, "/one"));
        driver.until_begun(1).await;
        if together {
            driver.release(2);
            served.call(publish_in(mode, "/two")).await.unwrap();
            first.await.unwrap().unwrap();
            continue;
        }
        let status = served.call(publish_in(mode, "/two")).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "mode {mode}: {status}");
        driver.release(2);
        first.await.unwrap().unwrap();
        // This driver does not report where its volumes are published, so the second publish only waits for
        // the first to end.
        served.call(publish_in(mode, "/two")).await.unwrap();
    }
}

/// A driver whose volumes have their names as ids.
fn named() -> Arc<TestDriver> {
    let volume_id_of_name = |name: &Name| VolumeId::new(name.as_str()).ok();
    Arc::new(TestDriver { volume_id_of_name, ..TestDriver::gated() })
}

#[tokio::test]
async fn a_create_and_a_delete_of_one_volume_exclude_each_other_by_its_name() {
    let driver = named();
    let served = Served::start(plugin(&driver)).await;
    let creating = served.begin(create("v"));
    driver.until_begun(1).await;
    let status = refused(served.call(delete("v")).await, Code::Aborted);
    assert!(status.message().contains("CreateVolume"), "{status:?}");
    driver.release(2);
    served.call(delete("other")).await.unwrap();
    creating.await.unwrap().unwrap();
    driver.release(1);
    served.call(delete("v")).await.unwrap();
}

#[tokio::test]
async fn a_volume_is_modified_while_it_is_expanded_where_the_driver_says_so() {
    for together in [true, false] {
        let driver = named();
        let service = ControllerService::new(driver.clone()).create_delete_volume().modify_volume();
        let service = service.expand_volume(Expansion::Online);
        let service = if together { service.modify_while_expanding() } else { service };
        let served = Served::start(Plugin::new("test.csi.example.org", "1").controller(service)).await;
        let expanding = served.begin(expand("v", 9));
        driver.until_begun(1).await;
        refused(served.call(expand("v", 10)).await, Code::Aborted);
        refused(served.call(delete("v")).await, Code::Aborted);
        let modifying = served.begin(v1::ControllerModifyVolumeRequest {
            volume_id: "v".into(),
            mutable_parameters: map(&[("iops", "9")]),
            ..Default::default()
        });
        if together {
            driver.until_begun(2).await;
            driver.release(2);
            modifying.await.unwrap().unwrap();
        } else {
            refused(modifying.await.unwrap(), Code::Aborted);
            driver.release(1);
        }
        expanding.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_driver_s_own_work_excludes_operations_and_waits_for_them() {
    let driver = named();
    let plugin = plugin(&driver);
    let claims = plugin.claims();
    let served = Served::start(plugin).await;
    let id = id("v");
    let claim = claims.volume(&id).await;
    let status = refused(served.call(delete("v")).await, Code::Aborted);
    assert!(status.message().contains("work of the driver"), "{status:?}");
    drop(claim);
    // The volume on the node is another key: the controller's operations are not excluded.
    let on_node = claims.volume_on_node(&id).await;
    driver.release(1);
    served.call(delete("v")).await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(50), claims.volume_on_node(&id)).await;
    assert!(second.is_err(), "the volume is claimed on the node");
    drop(on_node);

    let expanding = served.begin(expand("v", 9));
    driver.until_begun(2).await;
    let early = tokio::time::timeout(Duration::from_millis(50), claims.volume(&id)).await;
    assert!(early.is_err(), "the volume is being expanded");
    let waiting = tokio::spawn(async move { claims.volume(&id).await });
    driver.release(1);
    let _claim = waiting.await.unwrap();
    expanding.await.unwrap().unwrap();
}
