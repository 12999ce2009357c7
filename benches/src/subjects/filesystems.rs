//! Mounting filesystems, reading their usage, and growing them.

use std::path::Path;

use csi_mount::internal::{grow_mounted, grow_unmounted};
use csi_mount::{CheckLimits, Filesystem, Mount, Target};
use nix::mount::{MsFlags, mount};

use super::bind::binds;
use crate::place::{self, Image, Place};
use crate::{Bench, Contestant, each, looped, mount_utils, program};

fn mounting(bench: &mut Bench<'_>, place: &Place, fs_type: &'static str, source: &Path) {
    let target = place.target();
    let target = target.as_path();
    let bare =
        || mount(Some(source), target, Some(fs_type), MsFlags::empty(), None::<&str>).expect("mount(2)");
    let ours = || {
        let target = Target::new(target).expect("open the target");
        Mount::new(fs_type, source).at(&target).expect("mount");
    };
    let by_program = || program("mount", [Path::new("-t"), Path::new(fs_type), source, target]);
    let by_sys_mount = || {
        let made = sys_mount::Mount::builder().fstype(fs_type).mount(source, target);
        made.expect("sys-mount");
    };
    bench.compare([
        Contestant::bare("mount(2)", binds(target, bare)),
        Contestant::ours("Mount", binds(target, ours)),
        Contestant::program("mount(8)", binds(target, by_program)),
        Contestant::other("sys-mount", binds(target, by_sys_mount)),
    ]);
}

pub(super) fn tmpfs(bench: &mut Bench<'_>, mounts: usize) {
    mounting(bench, &Place::with_mounts(mounts), "tmpfs", Path::new("volume"));
}

pub(super) fn ext4(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::with_filesystem(&place, "mkfs.ext4", 64);
    mounting(bench, &place, "ext4", image.path());
}

pub(super) fn stats(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let path = place.directory("volume");
    bench.compare([
        Contestant::bare("statvfs(3)", looped(|| rustix::fs::statvfs(&path).expect("statvfs"))),
        Contestant::ours("stats", looped(|| csi_mount::internal::stats(&path).expect("stats"))),
        Contestant::program("df(1)", looped(|| program("df", [&path]))),
    ]);
}

/// Gives the image a filesystem of 64 MiB on a device of 128 MiB.
fn too_small(image: &Image) {
    image.resize(64);
    program("mkfs.ext4", [Path::new("-q"), Path::new("-F"), image.path()]);
    image.resize(128);
}

pub(super) fn grow_ext4(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::new(&place, "image", 64);
    let prepare = || too_small(&image);
    let by_us = |()| grow_unmounted(&image.open(), Filesystem::Ext4, CheckLimits::default()).expect("grow");
    // resize2fs refuses a filesystem that was not checked, as this toolkit does.
    let by_programs = |()| {
        program("e2fsck", [Path::new("-f"), Path::new("-p"), image.path()]);
        program("resize2fs", [image.path()]);
    };
    bench.compare([
        Contestant::ours("grow_unmounted", each(prepare, by_us, drop)),
        Contestant::program("e2fsck, resize2fs", each(prepare, by_programs, |()| ())),
    ]);
}

pub(super) fn grow_xfs(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let image = Image::new(&place, "image", 300);
    let at = place.directory("mounted");
    let prepare = || {
        image.resize(300);
        program("mkfs.xfs", [Path::new("-q"), Path::new("-f"), image.path()]);
        mount(Some(image.path()), &at, Some("xfs"), MsFlags::empty(), None::<&str>).expect("mount");
        image.resize(400);
    };
    let by_us = |()| grow_mounted(&image.open(), Filesystem::Xfs, &at).expect("grow");
    let others = [
        Contestant::ours("grow_mounted", each(prepare, by_us, |_| place::unmount(&at))),
        Contestant::program(
            "xfs_growfs",
            each(prepare, |()| program("xfs_growfs", [&at]), |()| place::unmount(&at)),
        ),
    ];
    let by_mount_utils = mount_utils::each(
        "Resize",
        "resize",
        prepare,
        |(), run| run(&[image.path(), &at]),
        |()| place::unmount(&at),
    );
    bench.compare(others.into_iter().chain(by_mount_utils));
}
