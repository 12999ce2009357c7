//! No Node RPC reaches the driver with a path that belongs to the system or the driver, or with a parent
//! of one.

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;

use common::*;
use csi_proto::v1;
use tonic::{Code, Status};

/// The outcome of each Node RPC with this path in each of its path fields.
async fn outcomes(served: &Served, path: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let (volume_id, path, other) = ("v".to_owned(), path.to_owned(), "/no-such/other".to_owned());
    let mut node = served.node();
    let staged = v1::NodeStageVolumeRequest { staging_target_path: path.clone(), ..stage("v") };
    let from = v1::NodePublishVolumeRequest { staging_target_path: path.clone(), ..publish("v", &other) };
    let unstaged =
        v1::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path: path.clone() };
    let unpublished =
        v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: path.clone() };
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: volume_id.clone(),
        volume_path: path.clone(),
        ..Default::default()
    };
    let expanded = v1::NodeExpandVolumeRequest { volume_id, volume_path: path.clone(), ..Default::default() };
    vec![
        ("stage", node.node_stage_volume(staged).await.map(drop)),
        ("publish from", node.node_publish_volume(from).await.map(drop)),
        ("publish at", node.node_publish_volume(publish("v", &path)).await.map(drop)),
        ("unpublish", node.node_unpublish_volume(unpublished).await.map(drop)),
        ("unstage", node.node_unstage_volume(unstaged).await.map(drop)),
        ("stats", node.node_get_volume_stats(stats).await.map(drop)),
        ("expand", node.node_expand_volume(expanded).await.map(drop)),
    ]
}

/// This driver uses no path that it gets, so protected paths can be sent safely.
// spec: fields.invalid-is-invalid-argument
#[tokio::test]
async fn protected_paths_are_refused_by_every_node_rpc() {
    let own = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(own.path().join("data/volume")).unwrap();
    std::os::unix::fs::symlink(own.path(), own.path().join("link")).unwrap();
    std::os::unix::fs::symlink("/", own.path().join("root")).unwrap();
    let at = |name: &str| own.path().join(name).display().to_string();
    let memory = std::sync::Arc::new(Memory::default());
    let served = Served::start(plugin(memory.clone()).own_directory(at("data"))).await;
    let sockets = served.directory.path().display().to_string();
    let system =
        ["/", "//", "/proc", "/./proc/", "/proc/self", "/etc/x", "/usr", "/var/lib", "/tmp", "/dev/null"];
    let kubelet =
        ["/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins/kubernetes.io/csi/"];
    let aliases = ["root/proc", "root/etc/x", "link/data", "link/data/volume"].map(at);
    let own_paths = [at("data"), at("data/volume"), at("data//new"), at("."), sockets.clone()];
    let refused = system.into_iter().chain(kubelet).map(str::to_owned).chain(own_paths).chain(aliases);
    for path in refused {
        for (rpc, outcome) in outcomes(&served, &path).await {
            let status = outcome.expect_err(&format!("{rpc} {path}"));
            assert_eq!(status.code(), Code::InvalidArgument, "{rpc} {path}: {status}");
            assert!(status.message().contains("protected"), "{rpc} {path}: {status}");
        }
    }
    assert_eq!(memory.begun.load(Ordering::SeqCst), 0, "the driver was not called");
    let pod = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/x/mount";
    let beside_socket = Path::new(&sockets).join("target").display().to_string();
    for path in [pod, &at("other"), &at("database"), &beside_socket] {
        for (rpc, outcome) in outcomes(&served, path).await {
            outcome.unwrap_or_else(|status| panic!("{rpc} {path}: {status}"));
        }
    }
}
