//! The kit against the driver, on a volume group of loop devices: thick and thin volumes, encrypted ones, and erase.
//!
//! Not run by `cargo test`: it needs a device mapper and a machine of its own, which `cargo xtask test --kernels`
//! provides.

mod lvm;

use std::time::{Duration, Instant};

use csi_conformance::Kit;
use csi_core::mount::lvm::LvmOptions;
use csi_core::node_plugins::LogicalVolumes;
use csi_core::testing::serve;
use test_support::driver::conforms;

use lvm::{lvm, plugin, volume_group};

/// Runs these parts of the kit, or all of it without a part. It takes a quarter of an hour in emulation.
async fn conforms_to(group: &str, parts: &[&str], least: usize, settings: fn(Kit) -> Kit) {
    let directory = tempfile::tempdir().expect("a directory");
    volume_group(group, directory.path());
    serve(plugin(group), directory.path()).await;
    let chosen = |kit: Kit| parts.iter().fold(settings(kit.size(64 << 20)), |kit, part| kit.only(*part));
    conforms(directory.path(), chosen, least).await;
    // Thick volumes are erased in the background.
    let left = || lvm(&["lvs", "--noheadings", "-o", "lv_name", group]);
    let end = Instant::now() + Duration::from_secs(120);
    while left().split_whitespace().ne(["pool"]) {
        assert!(Instant::now() < end, "more than the pool is left: {}", left());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    metrics_have_the_pool(group).await;
    lvm(&["vgremove", "--yes", "--force", group]);
}

async fn metrics_have_the_pool(group: &str) {
    let volumes = LogicalVolumes::new(group, LvmOptions::new("local.csi.example.org"));
    let mut text = String::new();
    volumes.write_metrics(&mut text).expect("text");
    assert!(!text.contains("pool="), "nothing is known yet: {text}");
    volumes.run(|_| Ok(())).await.expect("a volume group");
    volumes.write_metrics(&mut text).expect("text");
    for sample in
        ["csi_lvm_pool_bytes{pool=\"pool\"} 1073741824.0", "csi_lvm_pool_data_ratio{pool=\"pool\"} 0.0"]
    {
        assert!(text.contains(sample), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thick_volumes() {
    conforms_to("thick", &["node-use", "node-publish", "get-capacity"], 8, |kit| kit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thin_volumes_and_copies() {
    conforms_to("thin", &[], 125, |kit| kit.parameters([("pool", "pool")].into())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_volumes() {
    let encrypted = |kit: Kit| {
        kit.parameters([("encrypted", "true")].into()).secrets([("luksKey", "a passphrase")].into())
    };
    conforms_to("encrypted", &["node-use"], 4, encrypted).await;
}
