//! The examples whose volumes are directories, under the kit on filesystems that enforce their sizes. Needs root, and
//! the quotas of ext4 and XFS.
#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use csi_conformance::{Kit, Pairs, Report, Verdict};
use csi_core::{Endpoint, Plugin};
use csi_mount::internal::LoopDevice;
use csi_mount::{LoopOptions, Mount, MountOptions, Target, unmount};
use support::*;

/// A filesystem with quotas in an image file, mounted.
fn mounted(image: &Path, at: &Path, fs_type: &str) -> (LoopDevice, Target) {
    std::fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
    let device = LoopDevice::attach(image, &LoopOptions::new()).unwrap();
    let mut mkfs = Command::new(format!("mkfs.{fs_type}"));
    if fs_type == "ext4" {
        mkfs.args(["-O", "quota,project"]);
    }
    assert!(mkfs.arg("-q").arg(device.path()).status().unwrap().success());
    let target = Target::new(at).unwrap();
    // The usage of a btrfs is that of its last commit, and the kit waits 30 seconds, the usual time between two.
    let options = MountOptions::parse([if fs_type == "btrfs" { "commit=5" } else { "prjquota" }]).unwrap();
    Mount::new(fs_type, device.path()).options(&options).at(&target).unwrap();
    if fs_type == "btrfs" {
        for arguments in [&["quota", "enable"][..], &["quota", "rescan", "-w"], &["filesystem", "sync"]] {
            assert!(Command::new("btrfs").args(arguments).arg(at).status().unwrap().success());
        }
    }
    (device, target)
}

/// Runs the kit on a plugin with its volumes below this path.
fn sized(fs_type: &str, plugin: fn(&Endpoint, PathBuf) -> Plugin, kit: fn(Kit) -> Kit) -> Report {
    in_private(async || {
        let places = Places::new();
        let (device, disk) = mounted(&places.of("image"), &places.of("volumes"), fs_type);
        let kit = kit(places.kit().enforces_size().size(16 << 20));
        let plugin = plugin(&places.endpoint("csi.sock"), places.of("volumes").join("root"));
        let report = conforms(plugin, &places, kit).await;
        unmount(&disk).unwrap();
        device.detach().unwrap();
        report
    })
}

fn hostpath(endpoint: &Endpoint, root: PathBuf) -> Plugin {
    std::fs::create_dir(&root).unwrap();
    let flags = ["hostpath", "--node-id=node-1", "--kind=directory", "--without=snapshot-metadata"];
    let places = [format!("--endpoint={endpoint}"), format!("--data={}", root.display())];
    let args = flags.into_iter().map(str::to_owned).chain(places);
    hostpath::plugin(&hostpath::Args::parse_from(args)).unwrap()
}

/// The tests of the kit about sizes alone: a machine in emulation takes minutes for all.
fn sizes(kit: Kit) -> Kit {
    kit.only("sizes").ephemeral([("kind", "directory")].into_iter().collect::<Pairs>())
}

fn assert_passed(report: &Report, tests: &[&str]) {
    for test in tests {
        let entry = report.entries.iter().find(|entry| entry.test.id == *test).expect(test);
        assert_eq!(entry.verdict, Verdict::Passed, "{test}");
    }
}

#[test]
fn dirs_conforms_with_sizes_on_ext4() {
    let report = sized("ext4", |_, root| dirs::plugin(root), |kit| kit);
    assert_passed(&report, &["sizes.created", "sizes.enforced"]);
}

#[test]
fn dirs_conforms_with_sizes_on_btrfs() {
    let report = sized("btrfs", |_, root| dirs::plugin(root), |kit| kit);
    assert_passed(&report, &["sizes.created", "sizes.enforced"]);
}

#[test]
fn the_sizes_of_dirs_are_enforced_on_xfs() {
    let report = sized("xfs", |_, root| dirs::plugin(root), |kit| kit.only("sizes"));
    assert_passed(&report, &["sizes.created", "sizes.enforced"]);
}

const OF_HOSTPATH: [&str; 5] = [
    "sizes.created",
    "sizes.copies",
    "sizes.enforced",
    "sizes.enforced-after-expansion",
    "sizes.copies-enforced",
];

#[test]
fn the_sizes_of_hostpaths_directories_are_enforced_on_ext4() {
    assert_passed(&sized("ext4", hostpath, sizes), &OF_HOSTPATH);
}

#[test]
fn the_sizes_of_hostpaths_directories_are_enforced_on_btrfs() {
    assert_passed(&sized("btrfs", hostpath, sizes), &OF_HOSTPATH);
}

#[test]
fn the_sizes_of_hostpaths_directories_are_enforced_on_xfs() {
    assert_passed(&sized("xfs", hostpath, sizes), &OF_HOSTPATH);
}
