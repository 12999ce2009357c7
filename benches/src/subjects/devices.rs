//! Probing a device, formatting it, and loop devices.

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::path::Path;

use csi_mount::internal::{DeviceQuestions as _, LoopDevice, Probe};
use csi_mount::{BlockDevice, Filesystem, LoopOptions, internal};
use rustix::fs::{Mode, OFlags};

use crate::place::{Image, Place};
use crate::{Bench, Contestant, each, looped, mount_utils, program};

/// The ranges of a device that the prober reads, and nothing else. Each is read as the prober does it: with
/// O_DIRECT, into newly allocated memory.
fn bare_reads(device: &Path, reads: &[Range<u64>]) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let device = rustix::fs::open(device, flags, Mode::empty()).expect("open");
    for range in reads {
        let length = (range.end - range.start) as usize;
        let mut memory = vec![0; length + ALIGN];
        let lead = memory.as_ptr().align_offset(ALIGN);
        let mut done = 0;
        while done < length {
            let at = range.start + done as u64;
            let count = rustix::io::pread(device.as_fd(), &mut memory[lead + done..lead + length], at);
            done += count.expect("read");
        }
    }
}

const ALIGN: usize = 4096;

fn probe(bench: &mut Bench<'_>, image: &Image, check: fn(&Probe<'_>) -> bool) {
    let reads = internal::probe_reads(&image.open());
    let ours = || {
        let device = BlockDevice::open(image.path()).expect("open");
        let found = device.probe();
        assert!(check(&found), "{found}");
    };
    // blkid exits with 2 if it finds nothing, which is not a failure here.
    let blkid = || {
        let mut blkid = std::process::Command::new("blkid");
        blkid.arg("-p").arg(image.path()).output().expect("blkid");
    };
    let others = [
        Contestant::bare("the same reads", looped(|| bare_reads(image.path(), &reads))),
        Contestant::ours("probe", looped(ours)),
        Contestant::program("blkid(8)", looped(blkid)),
    ];
    let by_mount_utils = mount_utils::looped("GetDiskFormat", "disk format", vec![image.path()]);
    bench.compare(others.into_iter().chain(by_mount_utils));
}

pub(super) fn probe_blank(bench: &mut Bench<'_>, mebibytes: usize) {
    let place = Place::new();
    let image = Image::new(&place, "image", mebibytes as u64);
    probe(bench, &image, |found| matches!(found, Probe::Blank(_)));
}

/// A file without holes must be read to know its content: 4,096 places, and 4 MiB at both ends.
pub(super) fn probe_zeros(bench: &mut Bench<'_>, mebibytes: usize) {
    let place = Place::new();
    let image = Image::new(&place, "image", mebibytes as u64);
    let mut file = File::options().write(true).open(image.file()).expect("open the image");
    let zeros = vec![0; 1 << 20];
    (0..mebibytes).for_each(|_| file.write_all(&zeros).expect("write zeros"));
    file.sync_all().expect("write out");
    probe(bench, &image, |found| matches!(found, Probe::Blank(_)));
}

pub(super) fn probe_ext4(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::with_filesystem(&place, "mkfs.ext4", 64);
    probe(bench, &image, |found| found.filesystem() == Some(Filesystem::Ext4));
}

pub(super) fn probe_xfs(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::with_filesystem(&place, "mkfs.xfs", 300);
    probe(bench, &image, |found| found.filesystem() == Some(Filesystem::Xfs));
}

pub(super) fn probe_random(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let image = Image::new(&place, "image", 64);
    image.scramble();
    probe(bench, &image, |found| matches!(found, Probe::UnknownData { .. }));
}

fn image_file(place: &Place) -> std::path::PathBuf {
    let path = place.path("image");
    File::create(&path).and_then(|file| file.set_len(64 << 20)).expect("make an image");
    path
}

fn attach_by_program(file: &Path) -> String {
    let mut losetup = std::process::Command::new("losetup");
    let output = losetup.args(["--find", "--show"]).arg(file).output().expect("losetup");
    assert!(output.status.success(), "losetup: {}", output.status);
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn attach(file: &Path) -> LoopDevice {
    LoopDevice::attach(file, &LoopOptions::new()).expect("attach")
}

pub(super) fn loop_attach(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let file = image_file(&place);
    let detach = |device: LoopDevice| device.detach().expect("detach");
    bench.compare([
        Contestant::ours("LoopDevice::attach", each(|| (), |()| attach(&file), detach)),
        Contestant::program(
            "losetup(8)",
            each(|| (), |()| attach_by_program(&file), |node| program("losetup", ["--detach", &node])),
        ),
    ]);
}

pub(super) fn loop_detach(bench: &mut Bench<'_>, _: usize) {
    let place = Place::new();
    let file = image_file(&place);
    bench.compare([
        Contestant::ours(
            "LoopDevice::detach",
            each(|| attach(&file), |device| device.detach().expect("detach"), |()| ()),
        ),
        Contestant::program(
            "losetup(8)",
            each(|| attach_by_program(&file), |node| program("losetup", ["--detach", &node]), |()| ()),
        ),
    ]);
}
