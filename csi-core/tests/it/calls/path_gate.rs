//! No Node RPC reaches the driver with a path that belongs to the system or the driver, or with a parent
//! of one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use csi_proto::v1;
use tonic::{Code, Status};

use crate::common::*;
use crate::driver::{TestDriver, plugin};

/// The outcome of each Node RPC with this path in each of its path fields.
async fn outcomes(served: &Served, path: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let other = "/no-such/other";
    let staged = v1::NodeStageVolumeRequest { staging_target_path: path.to_owned(), ..stage("v") };
    let from = v1::NodePublishVolumeRequest { staging_target_path: path.to_owned(), ..publish("v", other) };
    let unstaged = v1::NodeUnstageVolumeRequest::from(&staged);
    let expanded = v1::NodeExpandVolumeRequest {
        volume_id: "v".to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    vec![
        ("stage", served.call(staged).await.map(drop)),
        ("publish from", served.call(from).await.map(drop)),
        ("publish at", served.call(publish("v", path)).await.map(drop)),
        ("unpublish", served.call(unpublish("v", path)).await.map(drop)),
        ("unstage", served.call(unstaged).await.map(drop)),
        ("stats", served.call(stats("v", path)).await.map(drop)),
        ("expand", served.call(expanded).await.map(drop)),
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
    let driver = Arc::new(TestDriver::default());
    let served = Served::start(plugin(&driver).own_directory(at("data"))).await;
    let sockets = served.directory.path().display().to_string();
    let system =
        ["/", "//", "/proc", "/./proc/", "/proc/self", "/etc/x", "/usr", "/var/lib", "/tmp", "/dev/null"];
    let kubelet =
        ["/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins/kubernetes.io/csi/"];
    let refused = [
        ("of the system", system.map(str::to_owned).to_vec()),
        ("of all volumes (VOLUME_ROOTS)", kubelet.map(str::to_owned).to_vec()),
        ("of this driver", [at("data"), at("data/volume"), at("data//new"), at(".")].to_vec()),
        ("of a socket of this driver", vec![sockets.clone()]),
        ("it is protected", ["root/proc", "root/etc/x", "link/data", "link/data/volume"].map(at).to_vec()),
    ];
    for (why, path) in refused.iter().flat_map(|(why, paths)| paths.iter().map(move |path| (why, path))) {
        for (rpc, outcome) in outcomes(&served, path).await {
            let status = outcome.expect_err(&format!("{rpc} {path}"));
            assert_eq!(status.code(), Code::InvalidArgument, "{rpc} {path}: {status}");
            assert!(status.message().contains(why), "{rpc} {path}: {status}");
        }
    }
    assert_eq!(driver.node_get_volume_stats.calls(), 0, "the driver was not called");
    assert_eq!(driver.begun.load(Ordering::SeqCst), 0, "the driver was not called");
    let pod = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/x/mount";
    let beside_socket = Path::new(&sockets).join("target").display().to_string();
    for path in [pod, &at("other"), &at("database"), &beside_socket] {
        for (rpc, outcome) in outcomes(&served, path).await {
            outcome.unwrap_or_else(|status| panic!("{rpc} {path}: {status}"));
        }
    }
}
