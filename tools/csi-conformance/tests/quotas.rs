//! The examples whose volumes are directories, under the kit on filesystems that enforce their sizes. Needs root, and
//! the quotas of ext4 and XFS.
#![cfg(target_os = "linux")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use csi_conformance::{Kit, Pairs, Report, Verdict};
use csi_core::{Endpoint, Plugin};
use csi_mount::{LoopDevice, LoopOptions, Mount, MountOptions, Target, unmount};
use support::*;

/// A filesystem with project quotas in an image file, mounted.
fn mounted(image: &Path, at: &Path, fs_type: &str) -> (LoopDevice, Target) {
    std::fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
    let device = LoopDevice::attach(image, &LoopOptions::new()).unwrap();
    let mut mkfs = Command::new(format!("mkfs.{fs_type}"));
    if fs_type == "ext4" {
        mkfs.args(["-O", "quota,project"]);
    }
    assert!(mkfs.arg("-q").arg(device.path()).status().unwrap().success());
    let target = Target::new(at).unwrap();
    let options = MountOptions::parse(["prjquota"]).unwrap();
    Mount::new(fs_type, device.path()).options(&options).at(&target).unwrap();
    (device, target)
}

/// Runs the kit on a plugin with its volumes below this path.
fn conforms(fs_type: &str, plugin: fn(&Endpoint, PathBuf) -> Plugin, kit: fn(Kit) -> Kit) -> Report {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let (device, disk) = mounted(&places.of("image"), &places.of("volumes"), fs_type);
        let kit = kit(places.kit(endpoint.clone()).enforces_size().size(16 << 20));
        let plugin = plugin(&endpoint, places.of("volumes").join("root"));
        let report = with_plugin(plugin, &endpoint, kit.run()).await.unwrap();
        print(&report);
        report.assert_ok();
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
    let report = conforms("ext4", |_, root| dirs::plugin(root), |kit| kit);
    assert_passed(&report, &["sizes.created", "sizes.enforced"]);
}

#[test]
fn the_sizes_of_dirs_are_enforced_on_xfs() {
    let report = conforms("xfs", |_, root| dirs::plugin(root), |kit| kit.only("sizes"));
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
    assert_passed(&conforms("ext4", hostpath, sizes), &OF_HOSTPATH);
}

#[test]
fn the_sizes_of_hostpaths_directories_are_enforced_on_xfs() {
    assert_passed(&conforms("xfs", hostpath, sizes), &OF_HOSTPATH);
}
