//! A volume's whole life on a node.

use std::path::Path;

use csi_mount::flow::block::{StagePlan, publish, stage, unpublish, unstage};
use csi_mount::{Filesystem, MountAttributes, Target};
use nix::mount::{MsFlags, mount};

use super::bind::bare_read_only;
use crate::place::{self, Image, Place};
use crate::{Bench, Contestant, looped, program};

/// An ext4 that was formatted before: staged, published read-only, unpublished, unstaged.
pub(super) fn whole_life(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::with_filesystem(&place, "mkfs.ext4", 64);
    let (staging, target) = (place.directory("staging"), place.path("target"));
    let (staging, target, device) = (staging.as_path(), target.as_path(), image.path());
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
    let (staging, target) = (Target::new(staging).expect("open"), Target::new(target).expect("open"));
    stage(device, &staging, &StagePlan::new(Filesystem::Ext4)).expect("stage");
    publish(staging.path(), &target, MountAttributes::RDONLY).expect("publish");
    unpublish(&target).expect("unpublish");
    unstage(&staging, Some(device)).expect("unstage");
}

/// As drivers do it that call programs: look what is on the device, mount, bind, remount, and back.
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
