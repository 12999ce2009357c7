//! Bind mounts, and unmounting them.

use std::path::Path;

use csi_mount::{Bind, MountAttributes, Target};
use nix::mount::{MsFlags, mount};

use crate::place::{self, Place};
use crate::{Bench, Contestant, each, mount_utils, program};

const NONE: Option<&str> = None;

fn bare(source: &Path, target: &Path, flags: MsFlags) {
    mount(Some(source), target, NONE, MsFlags::MS_BIND | flags, NONE).expect("mount(2)");
}

/// The sequence of mount(8) and of other drivers: bind, then remount the bind. (If the target is shared, the
/// propagated copy of such a bind stays writable on the host; with this toolkit it does not. It is the
/// minimum of two calls that comes close.)
pub(crate) fn bare_read_only(source: &Path, target: &Path) {
    bare(source, target, MsFlags::empty());
    bare(source, target, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
}

pub(crate) fn by_sys_mount(source: &Path, target: &Path, flags: sys_mount::MountFlags) {
    let made = sys_mount::Mount::builder().fstype("none").flags(flags | sys_mount::MountFlags::BIND);
    made.mount(source, target).expect("sys-mount");
}

fn ours(source: &Path, target: &Path, attributes: MountAttributes) {
    let target = Target::new(target).expect("open the target");
    Bind::new(source).attributes(attributes).at(&target).expect("bind");
}

/// Mounts on the same target repeatedly. Unmounting is not measured.
pub(super) fn binds<'a>(
    target: &'a Path,
    work: impl Fn() + 'a,
) -> impl FnMut(u64) -> std::time::Duration + 'a {
    each(|| (), move |()| work(), move |()| place::unmount(target))
}

pub(super) fn read_only(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let source = place.directory("volume");
    let target = place.target();
    let source = source.as_path();
    let target = target.as_path();
    let by_mount_utils = mount_utils::each(
        "Mount",
        "bind read-only",
        || (),
        |(), run| run(&[source, target]),
        |()| place::unmount(target),
    );
    let others = [
        Contestant::bare("mount(2) twice", binds(target, || bare_read_only(source, target))),
        Contestant::ours("Bind", binds(target, || ours(source, target, MountAttributes::RDONLY))),
        Contestant::program(
            "mount(8) twice",
            binds(target, || {
                program("mount", [Path::new("--bind"), source, target]);
                program("mount", [Path::new("-o"), Path::new("remount,bind,ro"), target]);
            }),
        ),
        Contestant::other(
            "sys-mount",
            binds(target, || {
                by_sys_mount(source, target, sys_mount::MountFlags::empty());
                by_sys_mount(source, target, sys_mount::MountFlags::REMOUNT | sys_mount::MountFlags::RDONLY);
            }),
        ),
    ];
    bench.compare(others.into_iter().chain(by_mount_utils));
}

pub(super) fn plain(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let source = place.directory("volume");
    let target = place.target();
    let source = source.as_path();
    let target = target.as_path();
    bench.compare([
        Contestant::bare("mount(2)", binds(target, || bare(source, target, MsFlags::empty()))),
        Contestant::ours("Bind", binds(target, || ours(source, target, MountAttributes::empty()))),
        Contestant::program(
            "mount(8)",
            binds(target, || program("mount", [Path::new("--bind"), source, target])),
        ),
        Contestant::other(
            "sys-mount",
            binds(target, || by_sys_mount(source, target, sys_mount::MountFlags::empty())),
        ),
    ]);
}

/// The number of mounts below the source.
const BELOW: usize = 10;

pub(super) fn recursive(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let source = place.directory("volume");
    let target = place.target();
    let inner = place.directory("inner");
    // Private: unmounting a bind of a shared tree also unmounts what is mounted below the tree.
    mount(Some("volume"), &source, Some("tmpfs"), MsFlags::empty(), NONE).expect("mount a tmpfs");
    mount(NONE, &source, NONE, MsFlags::MS_PRIVATE, NONE).expect("make it private");
    let names: Vec<String> = (0..BELOW).map(|at| at.to_string()).collect();
    for name in &names {
        place::bind(&inner, &place.directory(&format!("volume/{name}")));
    }
    let undo = |()| nix::mount::umount2(&target, nix::mount::MntFlags::MNT_DETACH).expect("unmount");
    let by_hand = |()| {
        bare(&source, &target, MsFlags::MS_REC);
        let remount = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        bare(&source, &target, remount);
        names.iter().for_each(|name| bare(&source, &target.join(name), remount));
    };
    let by_us = |()| {
        let target = Target::new(&target).expect("open the target");
        let bind = Bind::new(&source).recursive().attributes(MountAttributes::RDONLY);
        bind.at(&target).expect("bind");
    };
    let by_program = |()| {
        program("mount", [Path::new("--rbind"), &source, &target]);
        program("mount", [Path::new("-o"), Path::new("remount,bind,ro=recursive"), &target]);
    };
    bench.compare([
        Contestant::bare("mount(2), once and for each", each(|| (), by_hand, undo)),
        Contestant::ours("Bind", each(|| (), by_us, undo)),
        Contestant::program("mount(8) twice", each(|| (), by_program, undo)),
    ]);
}

pub(super) fn unmount(bench: &mut Bench<'_>, mounts: usize) {
    let place = Place::with_mounts(mounts);
    let source = place.directory("volume");
    let target = place.target();
    let prepare = || place::bind(&source, &target);
    let by_mount_utils = mount_utils::each("Unmount", "unmount", prepare, |(), run| run(&[&target]), |()| ());
    let others = [
        Contestant::bare("umount2(2)", each(prepare, |()| place::unmount(&target), |()| ())),
        Contestant::ours(
            "unmount",
            each(
                prepare,
                |()| csi_mount::unmount(&Target::new(&target).expect("open the target")).expect("unmount"),
                drop,
            ),
        ),
        Contestant::program("umount(8)", each(prepare, |()| program("umount", [&target]), |()| ())),
        Contestant::other(
            "sys-mount",
            each(
                prepare,
                |()| sys_mount::unmount(&target, sys_mount::UnmountFlags::empty()).expect("unmount"),
                |()| (),
            ),
        ),
    ];
    bench.compare(others.into_iter().chain(by_mount_utils));
}
