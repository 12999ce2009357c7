//! csi-sanity, Kubernetes' suite, against the driver on a volume group: thin volumes, with snapshots and copies.
//!
//! Not run by `cargo test`: it needs a device mapper and a machine of its own, which
//! `cargo xtask test --kernels newest local/sanity` provides.

mod lvm;

use std::process::Command;

use csi_core::Spec;
use csi_core::testing::serve;
use lvm::{lvm, plugin, volume_group};

#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_passes() {
    let directory = tempfile::tempdir().expect("a directory");
    volume_group("sanity", directory.path());
    serve(plugin("sanity").spec(Spec::V1_13), directory.path()).await;
    let parameters = directory.path().join("parameters.yaml");
    std::fs::write(&parameters, "pool: pool\n").expect("a file");
    let of = |flag: &str, file: &str| format!("--csi.{flag}={}", directory.path().join(file).display());
    let mut suite = Command::new("csi-sanity");
    suite.args(["--ginkgo.no-color", "--ginkgo.timeout=2h", "--csi.testvolumesize=67108864"]);
    suite.args(["--csi.testvolumeexpandsize=134217728"]);
    suite.args([of("endpoint", "csi.sock"), of("mountdir", "target"), of("stagingdir", "staging")]);
    suite.arg(of("testvolumeparameters", "parameters.yaml"));
    let status = tokio::task::spawn_blocking(move || suite.status()).await.expect("a thread");
    assert!(status.expect("csi-sanity").success());
    let left = lvm(&["lvs", "--noheadings", "-o", "lv_name", "sanity"]);
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["pool"]);
    lvm(&["vgremove", "--yes", "--force", "sanity"]);
}
