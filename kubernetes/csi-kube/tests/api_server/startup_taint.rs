//! The start-up taint goes once the driver is registered, and only then; other taints stay.

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault};

use crate::rows;
use csi_kube::{StartupTaint, rules};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const DRIVER: &str = "block.csi.example.org";
const NODE: &str = "nodes/worker-1";

fn taint(key: &str, effect: &str) -> Value {
    json!({ "key": key, "effect": effect })
}

fn ours() -> Value {
    taint("block.csi.example.org/agent-not-ready", "NoExecute")
}

/// A node with these taints, and the drivers that the kubelet has registered.
fn server(taints: &[Value], drivers: &[&str]) -> ApiServer {
    let server = ApiServer::new();
    server.allow(&rows(rules::STARTUP_TAINT));
    let node = json!({ "metadata": { "name": "worker-1", "uid": "u1" }, "spec": { "taints": taints, "podCIDR": "x" } });
    server.put(NODE, node);
    server.put("csinodes/worker-1", csi_node(drivers, "u1"));
    server
}

fn csi_node(drivers: &[&str], owner: &str) -> Value {
    let drivers: Vec<Value> = drivers.iter().map(|name| json!({ "name": name, "nodeID": "n" })).collect();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": owner });
    json!({ "metadata": { "name": "worker-1", "ownerReferences": [owner] }, "spec": { "drivers": drivers } })
}

fn taints(server: &ApiServer) -> Value {
    server.get(NODE).unwrap()["spec"]["taints"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_taint_goes_and_others_stay() {
    let other = taint("disk.csi.example.org/agent-not-ready", "NoExecute");
    let twice = taint("block.csi.example.org/agent-not-ready", "NoSchedule");
    let server = server(&[other.clone(), ours(), twice], &[DRIVER]);
    let removed = StartupTaint::new(DRIVER).try_remove(&server.client(), "worker-1").await.unwrap();
    let key = "block.csi.example.org/agent-not-ready";
    assert_eq!(removed, [format!("{key}:NoExecute"), format!("{key}:NoSchedule")]);
    assert_eq!(taints(&server), json!([other]));
    assert_eq!(server.get(NODE).unwrap()["spec"]["podCIDR"], "x");
    server.assert_rules_used(&rows(rules::STARTUP_TAINT));
    // A second time there is nothing to do, and nothing is written.
    assert_eq!(StartupTaint::new(DRIVER).try_remove(&server.client(), "worker-1").await.unwrap(), [""; 0]);
    assert_eq!(server.verbs("nodes"), ["get", "patch", "get"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_taint_and_further_keys() {
    let server = server(&[ours(), taint("old/key", "NoSchedule")], &[DRIVER]);
    StartupTaint::new(DRIVER).key("old/key").run(server.client(), "worker-1").await;
    assert_eq!(taints(&server), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn it_stays_until_the_driver_is_registered() {
    let server = server(&[ours()], &["other.csi.example.org"]);
    tokio::spawn(StartupTaint::new(DRIVER).run(server.client(), "worker-1"));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(taints(&server), json!([ours()]));
    // The CSINode of a node that was deleted, and has joined again with the same name.
    server.put("csinodes/worker-1", csi_node(&[DRIVER], "u0"));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(taints(&server), json!([ours()]));
    server.delete("csinodes/worker-1");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(taints(&server), json!([ours()]));
    server.put("csinodes/worker-1", csi_node(&[DRIVER], "u1"));
    sleep(Duration::from_secs(12)).await;
    assert_eq!(taints(&server), Value::Null);
}

/// After a reboot the CSINode still lists the driver, although the kubelet has registered nothing yet.
#[tokio::test(start_paused = true)]
async fn an_entry_from_before_a_reboot_is_no_registration() {
    let server = server(&[ours()], &[DRIVER]);
    let report = |boot_id: &str| {
        let mut node = server.get(NODE).unwrap();
        node["status"] = json!({ "nodeInfo": { "bootID": boot_id, "architecture": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": "" } });
        server.put(NODE, node);
    };
    // The kubelet has not started: the node's status is that of the boot before.
    report("2c0a1f0e-0000-4000-8000-000000000000");
    let run = tokio::spawn(StartupTaint::new(DRIVER).run(server.client(), "worker-1"));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(taints(&server), json!([ours()]));
    let error = StartupTaint::new(DRIVER).try_remove(&server.client(), "worker-1").await.unwrap_err();
    assert!(error.to_string().contains("since this boot"), "{error}");
    let this_boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    report(this_boot.trim());
    sleep(Duration::from_secs(12)).await;
    assert_eq!(taints(&server), Value::Null);
    run.await.unwrap();

    // The kubelet runs, and has not registered the driver of this process.
    server.put(NODE, {
        let mut node = server.get(NODE).unwrap();
        node["spec"]["taints"] = json!([ours()]);
        node
    });
    let (report, registered) = tokio::sync::oneshot::channel::<()>();
    let registered = async move { registered.await.unwrap() };
    let taint = StartupTaint::new(DRIVER);
    tokio::spawn(taint.run_after(registered, server.client(), "worker-1"));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(taints(&server), json!([ours()]));
    report.send(()).unwrap();
    sleep(Duration::from_secs(12)).await;
    assert_eq!(taints(&server), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_change_between_read_and_write_is_kept() {
    let server = server(&[ours()], &[DRIVER]);
    let added = taint("node.kubernetes.io/unschedulable", "NoSchedule");
    let late = added.clone();
    server.before("patch", move |server| {
        let mut node = server.get(NODE).unwrap();
        node["spec"]["taints"] = json!([ours(), late]);
        server.put(NODE, node);
    });
    let error = StartupTaint::new(DRIVER).try_remove(&server.client(), "worker-1").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(taints(&server), json!([ours(), added]));
    StartupTaint::new(DRIVER).run(server.client(), "worker-1").await;
    assert_eq!(taints(&server), json!([added]));
}

/// Node managers and autoscalers add it to a node that has joined already.
#[tokio::test(start_paused = true)]
async fn a_taint_that_comes_after_the_registration_goes_too() {
    let server = server(&[], &[DRIVER]);
    let run = tokio::spawn(StartupTaint::new(DRIVER).run(server.client(), "worker-1"));
    for _ in 0..2 {
        sleep(Duration::from_secs(30)).await;
        server.edit(NODE, |node| node["spec"]["taints"] = json!([ours()]));
        sleep(Duration::from_secs(11)).await;
        assert_eq!(taints(&server), Value::Null);
    }
    run.await.unwrap();
    let requests = server.verbs("nodes").len();
    assert!(requests < 25, "{requests} requests");
}

#[tokio::test(start_paused = true)]
async fn every_failure_is_repeated() {
    let server = server(&[ours()], &[DRIVER]);
    for verb in ["get", "patch"] {
        for fault in [Fault::Status(500), Fault::TooMany(3), Fault::NoAnswer, Fault::Reset] {
            server.fail(verb, fault);
        }
    }
    server.fail("patch", Fault::AnswerLost);
    server.allow(&[]);
    let run = tokio::spawn(StartupTaint::new(DRIVER).run(server.client(), "worker-1"));
    sleep(Duration::from_secs(300)).await;
    server.allow(&rows(rules::STARTUP_TAINT));
    timeout(Duration::from_secs(300), run).await.unwrap().unwrap();
    assert_eq!(taints(&server), Value::Null);
}
