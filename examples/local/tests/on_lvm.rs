//! The kit against the driver, on a volume group of loop devices: thick and thin volumes, encrypted ones, and erase.
//!
//! Not run by `cargo test`: it needs a device mapper and a machine of its own, which `cargo xtask test --kernels`
//! provides.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser as _;
use csi_conformance::Kit;
use csi_core::Host;
use csi_core::mount::LoopOptions;
use csi_core::mount::lvm::LvmOptions;
use csi_core::node_plugins::LogicalVolumes;
use csi_core::testing::serve;
use test_support::driver::conforms;

/// Runs lvm2 as an administrator does, and returns what it printed.
fn lvm(arguments: &[&str]) -> String {
    let mut command = Command::new("lvm");
    command.args(arguments).envs([("DM_DISABLE_UDEV", "1"), ("LVM_SUPPRESS_FD_WARNINGS", "1")]);
    let output = command.output().expect("lvm");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A volume group with a thin pool, on a loop device.
fn volume_group(group: &str, directory: &Path) {
    let image = directory.join("disk");
    File::create(&image).and_then(|file| file.set_len(4 << 30)).expect("an image");
    let device = Host::kernel().devices().loop_attach(&image, &LoopOptions::new()).expect("a loop device");
    lvm(&["vgcreate", "--yes", group, device.path.to_str().expect("UTF-8")]);
    lvm(&["lvcreate", "--yes", "--type", "thin-pool", "-L", "1g", "-n", "pool", group]);
}

/// Runs these parts of the kit: all of it takes more than an hour, because each lvm takes half a second in emulation.
async fn conforms_to(group: &str, parts: &[&str], least: usize, settings: fn(Kit) -> Kit) {
    let directory = tempfile::tempdir().expect("a directory");
    volume_group(group, directory.path());
    let args = ["local", "--node-id=node-1", "--overcommit=400", "--group", group];
    let args = local::Args::parse_from(args);
    serve(local::plugin(&args), directory.path()).await;
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
    conforms_to("thin", &["contents", "create-snapshot"], 4, |kit| kit.parameters([("pool", "pool")].into()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_volumes() {
    let encrypted = |kit: Kit| {
        kit.parameters([("encrypted", "true")].into()).secrets([("luksKey", "a passphrase")].into())
    };
    conforms_to("encrypted", &["node-use"], 4, encrypted).await;
}
