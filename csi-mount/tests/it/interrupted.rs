//! A format that was interrupted: it is started again, and data that was written in the meantime is never
//! formatted over.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;

use csi_mount::internal::flow::block::{
    FilesystemOrigin, StagePlan, publish_device, stage, unpublish, unstage,
};
use csi_mount::internal::{DeviceQuestions as _, Format, LoopDevice, Probe, probe_reads};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceAccess, Error, ErrorKind, Filesystem, LoopOptions, Luks, LuksKey, LuksPbkdf, Mount,
    MountOptions, Result, Target, unmount,
};

use crate::devices::{Image, MIB, is_zero, refused};
use crate::stepper::{End, Job, Programs, do_job};

const DATA: &[u8] = b"somebody's data, which nobody may write over";

/// What is created, and the size of its device in MiB.
const MADE: [(&str, u64); 4] = [("ext4", 64), ("xfs", 300), ("btrfs", 120), ("luks", 40)];

fn make(device: &BlockDevice, made: &str) -> Result<()> {
    let proof = match device.probe() {
        Probe::Blank(proof) => proof,
        Probe::Interrupted(format) => format.into_proof(),
        other => return Err(Error::new(ErrorKind::NotBlank, "format", other.to_string())),
    };
    match made {
        "luks" => {
            let luks = Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 });
            csi_mount::internal::encrypt(&luks, proof, &LuksKey::new("key").unwrap())
        }
        filesystem => Format::new(filesystem.parse()?).run(proof),
    }
}

fn is_made(image: &Image, made: &str) -> bool {
    match image.open().probe() {
        Probe::Container(found) => made == "luks" && found.name == "crypto_LUKS",
        found => found.filesystem().is_some_and(|found| found.name() == made),
    }
}

fn is_interrupted(image: &Image) -> bool {
    matches!(image.open().probe(), Probe::Interrupted(_))
}

fn job(words: &[&str]) -> Result<()> {
    let [made, device] = words else { panic!("{words:?}") };
    make(&BlockDevice::open(device)?, made)
}

/// Returns a device whose format was killed before one of its last writes, when nearly everything was written.
fn killed(test: &str, made: &str, mebibytes: u64) -> Image {
    let run = |write| {
        let image = Image::new(mebibytes);
        let words = [made, image.path().to_str().unwrap()];
        let end = Job { programs: Programs::Followed, test, words: &words }.kill_before_write(write);
        (image, end)
    };
    let (finished, end) = run(u64::MAX);
    let End::Finished { calls: writes } = end else { panic!("{made} was killed") };
    let written = finished.nonzero_blocks().count();
    // The number of writes varies from one run to the next. The very last ones remove the record.
    for write in (1..writes).rev() {
        let (image, _) = run(write);
        if is_interrupted(&image) && image.nonzero_blocks().count() >= written / 2 {
            println!("{made}: killed before write {write} of {writes}");
            return image;
        }
    }
    panic!("{made} is nowhere interrupted");
}

/// Returns a device whose format failed on a full disk. The record and some other blocks are written: the
/// record of LUKS headers has 0.5 MiB.
fn failed(made: &str, mebibytes: u64) -> Image {
    failed_after(made, mebibytes, if made == "luks" { 700 } else { 100 })
}

/// Returns a device whose format failed after this many KiB were written.
fn failed_after(made: &str, mebibytes: u64, kibibytes: u32) -> Image {
    let directory = tempfile::tempdir().unwrap();
    let place = Target::new(directory.path().join("full")).unwrap();
    place.create_dir().unwrap();
    let room = format!("size={kibibytes}k");
    Mount::new("tmpfs", "full").options(&MountOptions::parse([&*room]).unwrap()).at(&place).unwrap();
    let file = place.path().join("image");
    File::create(&file).unwrap().set_len(mebibytes * MIB).unwrap();
    let disk = LoopDevice::attach(&file, &LoopOptions::new()).unwrap();
    let error = make(&BlockDevice::open(disk.path()).unwrap(), made).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{made}: {error}");
    // The content that the format left, on a disk with enough space.
    let image = Image::new(mebibytes);
    let device = fs::OpenOptions::new().write(true).open(image.path()).unwrap();
    let content = fs::read(&file).unwrap();
    for (index, block) in content.chunks(4096).enumerate() {
        if !is_zero(block) {
            std::os::unix::fs::FileExt::write_all_at(&device, block, index as u64 * 4096).unwrap();
        }
    }
    device.sync_all().unwrap();
    disk.detach().unwrap();
    unmount(&place).unwrap();
    assert!(is_interrupted(&image), "{made}: {}", image.open().probe());
    image
}

/// Returns places all over a device of this size.
fn places(size: u64) -> Vec<u64> {
    const KIB: u64 = 1024;
    let from_the_start = [
        0,
        100,
        511,
        512,
        KIB,
        KIB + 56,
        2 * KIB,
        4095,
        4096,
        8 * KIB,
        16 * KIB,
        20 * KIB,
        32 * KIB,
        64 * KIB,
        64 * KIB + 64,
        68 * KIB,
        0x11000,
        100 * KIB,
        148 * KIB,
        220 * KIB,
        264 * KIB,
        512 * KIB,
        MIB,
        MIB + 512,
        2 * MIB,
        3 * MIB,
        4 * MIB,
        4 * MIB + 4096,
        8 * MIB,
        12 * MIB,
        16 * MIB,
        16 * MIB - 8 * KIB,
        24 * MIB,
    ];
    let from_the_end = [512, 4096, 8 * KIB, 64 * KIB, 128 * KIB, MIB, 3 * MIB];
    let parts = [size / 2, size / 3, size / 5 * 4].map(|place| place / 512 * 512);
    from_the_start.into_iter().chain(from_the_end.map(|place| size - place)).chain(parts).collect()
}

/// Writes data to copies of an interrupted format, one place in each copy, and tries to format each copy.
fn nothing_is_formatted_over(made: &str, interrupted: &Image) -> (usize, usize) {
    let size = interrupted.open().size().unwrap();
    let blocks: Vec<u64> = interrupted.nonzero_blocks().map(|(place, _)| place).collect();
    let own = blocks.iter().step_by((blocks.len() / 8).max(1)).copied();
    let mut tried = 0;
    let mut in_its_blocks = 0;
    for place in places(size).into_iter().chain(own) {
        let image = Image::with_content_of(interrupted, size);
        image.write(place, DATA);
        let before = image.content();
        let is_read = probe_reads(&image.open()).iter().any(|range| range.contains(&place));
        match make(&image.open(), made) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotBlank, "{made}, data at {place}: {error}");
                assert_eq!(image.content(), before, "{made}, data at {place}: it was written to");
            }
            // At a place that is neither read nor written.
            Ok(()) => {
                assert!(!is_read && !blocks.contains(&(place / 4096 * 4096)), "{made}, data at {place}");
            }
        }
        assert_eq!(image.read(place, DATA.len()), DATA, "{made}, data at {place}");
        tried += 1;
        in_its_blocks += usize::from(blocks.contains(&(place / 4096 * 4096)));
    }
    let again = Image::with_content_of(interrupted, size);
    make(&again.open(), made).unwrap();
    assert!(is_made(&again, made), "{made}: without data it is begun again");
    (tried, in_its_blocks)
}

#[test]
fn data_that_came_after_a_killed_format_is_kept() {
    const TEST: &str = "interrupted::data_that_came_after_a_killed_format_is_kept";
    do_job(job);
    for (made, mebibytes) in MADE {
        let (tried, own) = nothing_is_formatted_over(made, &killed(TEST, made, mebibytes));
        println!("{made}, killed: data at {tried} places, {own} of them in its own blocks, all kept");
        assert!(tried >= 30 && own >= 5, "{made}: {tried} places, {own}");
    }
}

#[test]
fn data_that_came_after_a_failed_format_is_kept() {
    private_mount_namespace(|| {
        for (made, mebibytes) in MADE {
            let (tried, own) = nothing_is_formatted_over(made, &failed(made, mebibytes));
            println!("{made}, failed: data at {tried} places, {own} of them in its own blocks, all kept");
            assert!(tried >= 30 && own >= 5, "{made}: {tried} places, {own}");
        }
    });
}

/// Whichever write fails on a full disk, the format starts again, even before the manifest is complete.
#[test]
fn a_format_that_failed_at_any_write_starts_again() {
    private_mount_namespace(|| {
        for (made, mebibytes) in MADE {
            for kibibytes in [4, 8, 12, 40, 72, 76, 100] {
                let image = failed_after(made, mebibytes, kibibytes);
                make(&image.open(), made).unwrap();
                assert!(is_made(&image, made), "{made}, {kibibytes} KiB");
                assert_no_record(&image);
            }
        }
    });
}

fn staging(image: &Image) -> Target {
    Target::new(image.directory().join("staging")).unwrap()
}

/// The format is started again on another node, as another filesystem, on a device that has grown.
#[test]
fn the_next_stage_starts_an_interrupted_format_again() {
    private_mount_namespace(|| {
        let image = failed("ext4", 200);
        let device = image.open();
        let Probe::Interrupted(format) = device.probe() else { panic!("{}", device.probe()) };
        assert_eq!(format.filesystem(), Some(Filesystem::Ext4));
        image.grow_to(320);
        let plan = StagePlan::new(Filesystem::Xfs);
        let read_only = plan.clone().options(MountOptions::new().read_only());
        refused(stage(image.path(), &staging(&image), &read_only), ErrorKind::ReadOnly);
        assert_eq!(stage(image.path(), &staging(&image), &plan).unwrap().origin, FilesystemOrigin::Formatted);
        unstage(&staging(&image), None).unwrap();
        assert_no_record(&image);
    });
}

fn assert_no_record(image: &Image) {
    for magic in [&b"\x89csi-mount begun"[..], b"\x89csi-mount list\n"] {
        assert_eq!(image.sectors_that_start_with(magic), 0, "a record is left");
    }
}

/// A copy of a whole disk, with the record, inside another disk does not allow a format.
#[test]
fn a_record_inside_another_disk_does_not_allow_a_format() {
    private_mount_namespace(|| {
        for (made, mebibytes) in [("ext4", 32), ("btrfs", 120)] {
            let inner = failed(made, mebibytes);
            let outer = Image::new(2 * mebibytes);
            for (place, block) in inner.nonzero_blocks() {
                outer.write(MIB + place, &block);
            }
            let before = outer.content();
            assert_eq!(make(&outer.open(), made).unwrap_err().kind(), ErrorKind::NotBlank);
            assert_eq!(outer.content(), before);
        }
    });
}

/// A pod gets a blank device or, if the device has other data, that data without the record.
#[test]
fn a_device_published_for_writing_has_no_record() {
    private_mount_namespace(|| {
        for (made, mebibytes) in MADE {
            let image = failed(made, mebibytes);
            let raw = Target::new(image.directory().join("raw")).unwrap();
            publish_device(image.path(), &raw, DeviceAccess::ReadWrite).unwrap();
            assert!(image.is_zero(), "{made}");
            image.write(3 * MIB, DATA);
            unpublish(&raw).unwrap();
            assert_eq!(make(&image.open(), made).unwrap_err().kind(), ErrorKind::NotBlank);

            let image = failed(made, mebibytes);
            image.write(3 * MIB, DATA);
            publish_device(image.path(), &raw, DeviceAccess::ReadWrite).unwrap();
            assert_no_record(&image);
            assert_eq!(image.read(3 * MIB, DATA.len()), DATA, "{made}");
            unpublish(&raw).unwrap();
            // Without that data it is not formatted either: what is left has no record.
            image.write(3 * MIB, &[0; DATA.len()]);
            assert_eq!(make(&image.open(), made).unwrap_err().kind(), ErrorKind::NotBlank, "{made}");
        }
    });
}

/// While a process holds the device, the record cannot be removed, and data that a pod wrote would be
/// formatted over.
#[test]
fn a_device_whose_record_stays_is_not_published_for_writing() {
    private_mount_namespace(|| {
        let image = failed("ext4", 64);
        let raw = Target::new(image.directory().join("raw")).unwrap();
        let exclusive = nix::libc::O_EXCL;
        let held = fs::OpenOptions::new().read(true).custom_flags(exclusive).open(image.path()).unwrap();
        refused(publish_device(image.path(), &raw, DeviceAccess::ReadWrite), ErrorKind::Busy);
        assert!(!raw.path().exists() && is_interrupted(&image));
        drop(held);
        image.is_let_go("held by nobody");
        publish_device(image.path(), &raw, DeviceAccess::ReadWrite).unwrap();
        // A device without a record can be published while a process holds it.
        let held = fs::OpenOptions::new().read(true).custom_flags(exclusive).open(image.path()).unwrap();
        let other = Target::new(image.directory().join("other")).unwrap();
        publish_device(image.path(), &other, DeviceAccess::ReadWrite).unwrap();
        drop(held);
        unpublish(&raw).unwrap();
        unpublish(&other).unwrap();
    });
}
