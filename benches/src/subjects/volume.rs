//! A volume's whole life on a node.

use std::path::Path;

use csi_mount::internal::flow::block::{StagePlan, publish, stage, unpublish, unstage};
use csi_mount::{Filesystem, MountAttributes, Target};
use nix::mount::{MsFlags, mount};

use super::bind::bare_read_only;
use crate::place::{self, Image, Place};
use crate::{Bench, Contestant, each, looped, mount_utils, program};

/// Stages a blank device for the first time.
pub(super) fn first_stage(bench: &mut Bench<'_>, mebibytes: usize) {
    let place = Place::new();
    let staging = place.directory("staging");
    let prepare = || Image::new(&place, "image", mebibytes as u64);
    let bare = |image: Image| {
        let arguments = ["-q", "-F", "-m", "0", "-E", "nodiscard"].map(Path::new);
        program("mkfs.ext4", arguments.into_iter().chain([image.path()]));
        mount(Some(image.path()), &staging, Some("ext4"), MsFlags::empty(), None::<&str>).expect("mount(2)");
        image
    };
    let ours = |image: Image| {
        let target = Target::new(&staging).expect("open");
        stage(image.path(), &target, &StagePlan::new(Filesystem::Ext4)).expect("stage");
        image
    };
    let undo = |image: Image| {
        place::unmount(&staging);
        drop(image);
    };
    let others = [
        Contestant::bare("mkfs.ext4, mount(2)", each(prepare, bare, undo)),
        Contestant::ours("flow::block::stage", each(prepare, ours, undo)),
    ];
    let by_mount_utils = mount_utils::each(
        "FormatAndMount",
        "format and mount",
        prepare,
        |image, run| run(&[image.path(), &staging, Path::new("ext4")]),
        undo,
    );
    bench.compare(others.into_iter().chain(by_mount_utils));
}

/// Stages a device that has an ext4: probe, check, mount.
pub(super) fn stage_again(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let image = Image::with_filesystem(&place, "mkfs.ext4", 64);
    let staging = place.directory("staging");
    let device = image.path();
    let undo = || place::unmount(&staging);
    let bare =
        || mount(Some(device), &staging, Some("ext4"), MsFlags::empty(), None::<&str>).expect("mount(2)");
    let ours = || {
        let target = Target::new(&staging).expect("open");
        stage(device, &target, &StagePlan::new(Filesystem::Ext4)).expect("stage");
    };
    let others = [
        Contestant::bare("mount(2)", each(|| (), |()| bare(), |()| undo())),
        Contestant::ours("flow::block::stage", each(|| (), |()| ours(), |()| undo())),
    ];
    let by_mount_utils = mount_utils::each(
        "FormatAndMount",
        "format and mount",
        || (),
        |(), run| run(&[device, &staging, Path::new("ext4")]),
        |()| undo(),
    );
    bench.compare(others.into_iter().chain(by_mount_utils));
}

/// An ext4 that was formatted before: staged, published read-only, unpublished, unstaged.
pub(super) fn whole_life(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::with_filesystem(&place, "mkfs.ext4", 64);
    let staging = place.directory("staging");
    let target = place.path("target");
    let staging = staging.as_path();
    let target = target.as_path();
    let device = image.path();
    bench.compare([
        Contestant::bare("mount(2), umount2(2)", looped(|| bare(device, staging, target))),
        Contestant::ours("flow::block", looped(|| ours(device, staging, target))),
        Contestant::program("util-linux", looped(|| programs(device, staging, target))),
    ]);
}

fn bare(device: &Path, staging: &Path, target: &Path) {
    mount(Some(device), staging, Some("ext4"), MsFlags::empty(), None::<&str>).expect("mount(2)");
    std::fs::create_dir(target).expect("make a directory");
    bare_read_only(staging, target);
    place::unmount(target);
    std::fs::remove_dir(target).expect("remove a directory");
    place::unmount(staging);
}

fn ours(device: &Path, staging: &Path, target: &Path) {
    let staging = Target::new(staging).expect("open");
    let target = Target::new(target).expect("open");
    stage(device, &staging, &StagePlan::new(Filesystem::Ext4)).expect("stage");
    publish(staging.path(), &target, MountAttributes::RDONLY).expect("publish");
    unpublish(&target).expect("unpublish");
    unstage(&staging, Some(device)).expect("unstage");
}

/// The sequence of drivers that call programs: probe the device, mount, bind, remount, and undo.
fn programs(device: &Path, staging: &Path, target: &Path) {
    program("blkid", [Path::new("-p"), device]);
    program("mount", [Path::new("-t"), Path::new("ext4"), device, staging]);
    std::fs::create_dir(target).expect("make a directory");
    program("mount", [Path::new("--bind"), staging, target]);
    program("mount", [Path::new("-o"), Path::new("remount,bind,ro"), target]);
    program("umount", [target]);
    std::fs::remove_dir(target).expect("remove a directory");
    program("umount", [staging]);
}
