//! The kit against the driver, on a volume group of loop devices: thick and thin volumes, encrypted ones, and erase.
//!
//! Not run by `cargo test`: it needs a device mapper and a machine of its own, which `cargo xtask test --kernels`
//! provides.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use csi_conformance::Kit;
use csi_core::Host;
use csi_core::mount::LoopOptions;
use csi_core::testing::serve;
use test_support::driver::conforms;

const GROUP: &str = "csi";

/// Runs lvm2 as an administrator does, and returns what it printed.
fn lvm(arguments: &[&str]) -> String {
    let mut command = Command::new("lvm");
    command.args(arguments).envs([("DM_DISABLE_UDEV", "1"), ("LVM_SUPPRESS_FD_WARNINGS", "1")]);
    let output = command.output().expect("lvm");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A volume group with a thin pool, on a loop device.
fn volume_group(directory: &Path) {
    let image = directory.join("disk");
    File::create(&image).and_then(|file| file.set_len(4 << 30)).expect("an image");
    let device = Host::kernel().devices().loop_attach(&image, &LoopOptions::new()).expect("a loop device");
    lvm(&["vgcreate", "--yes", GROUP, device.path.to_str().expect("UTF-8")]);
    lvm(&["lvcreate", "--yes", "--type", "thin-pool", "-L", "1g", "-n", "pool", GROUP]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_conforms_and_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    volume_group(directory.path());
    let args = local::Args::parse_from(["local", "--node-id=node-1", "--overcommit=400"]);
    serve(local::plugin(&args), directory.path()).await;
    let kinds: [fn(Kit) -> Kit; 3] = [
        |kit| kit,
        |kit| kit.parameters([("pool", "pool")].into()),
        |kit| kit.parameters([("encrypted", "true")].into()).secrets([("luksKey", "a passphrase")].into()),
    ];
    for kind in kinds {
        conforms(directory.path(), |kit| kind(kit).size(64 << 20).enforces_size(), 80).await;
    }
    let left = lvm(&["lvs", "--noheadings", "-o", "lv_name", GROUP]);
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["pool"], "nothing but the pool is left");
}
