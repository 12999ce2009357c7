//! A format needs a proof, formats the right device, tolerates no other user, and its result can be mounted.

use std::fs;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use csi_mount::internal::{CheckPolicy, CheckReport, DeviceQuestions as _, Format, Probe, check};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, CheckLimits, DeviceAccess, DeviceNumber, ErrorKind, Filesystem, LoopOptions, MkfsOptions,
    MkfsProfile, Mount, Target, unmount,
};
use rustix::fs::{FileType, FlockOperation};

use crate::devices;
use crate::devices::{Image, MIB, refused};

fn format(image: &Image, format: &Format) -> csi_mount::Result<()> {
    let device = image.open();
    match device.probe() {
        Probe::Blank(proof) => format.run(proof),
        other => panic!("{other}"),
    }
}

#[test]
fn a_formatted_device_mounts_and_keeps_its_files() {
    for filesystem in Filesystem::ALL {
        private_mount_namespace(move || {
            let image = Image::new(320);
            format(&image, &Format::new(filesystem).label("data")).unwrap();
            let device = image.open();
            let Probe::Filesystem(signature) = device.probe() else { panic!("{filesystem}") };
            assert_eq!(
                (signature.filesystem(), signature.label.as_deref()),
                (Some(filesystem), Some("data"))
            );
            assert_eq!(
                check(&device, filesystem, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap(),
                CheckReport::Clean
            );

            let target = Target::new(image.directory().join("at")).unwrap();
            target.create_dir().unwrap();
            let mount = || Mount::new(filesystem.name(), image.path()).at(&target).unwrap();
            mount();
            fs::write(target.path().join("file"), "kept").unwrap();
            let busy =
                check(&device, filesystem, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy, "a mounted filesystem is not checked");
            unmount(&target).unwrap();
            mount();
            assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "kept");
            unmount(&target).unwrap();
        });
    }
}

#[test]
fn the_image_stays_sparse() {
    use std::os::unix::fs::MetadataExt as _;
    let image = Image::new(1024);
    format(&image, &Format::new(Filesystem::Ext4)).unwrap();
    let allocated = fs::metadata(image.file()).unwrap().blocks() * 512;
    assert!(allocated < 64 * MIB, "{allocated} bytes");
}

#[test]
fn the_minimum_size_is_enough_and_less_is_refused() {
    for filesystem in Filesystem::ALL {
        private_mount_namespace(move || {
            let image = Image::of_bytes(filesystem.min_size(), &LoopOptions::new());
            format(&image, &Format::new(filesystem)).unwrap();
            let target = Target::new(image.directory().join("at")).unwrap();
            target.create_dir().unwrap();
            Mount::new(filesystem.name(), image.path()).at(&target).unwrap();
            fs::write(target.path().join("file"), "room").unwrap();
            unmount(&target).unwrap();

            let less = Image::of_bytes(filesystem.min_size() - 4096, &LoopOptions::new());
            refused(format(&less, &Format::new(filesystem)), ErrorKind::OutOfRange);
            assert!(less.is_zero(), "it was written to");
        });
    }
}

#[test]
fn more_arguments_reach_mkfs_and_no_other_device() {
    let image = Image::new(64);
    let arguments = ["-b", "1024", "-E", "stride=4", "-Estripe_width=8"];
    format(&image, &Format::new(Filesystem::Ext4).arguments(arguments)).unwrap();
    let dump = devices::run("dumpe2fs", &["-h", image.path().to_str().unwrap()]);
    assert!(dump.lines().any(|line| line.starts_with("Block size:") && line.ends_with("1024")), "{dump}");
    assert!(dump.contains("RAID stride:") && dump.contains("RAID stripe width:"), "{dump}");

    let image = Image::new(64);
    let other = Image::new(64);
    let before = other.content();
    let smuggled = Format::new(Filesystem::Ext4).arguments(["-F", other.path().to_str().unwrap()]);
    assert_eq!(format(&image, &smuggled).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(other.content(), before);
}

#[test]
fn the_layout_is_the_chosen_one() {
    let small = MkfsOptions::new().block_size(1024).inode_size(512);
    let image = Image::new(64);
    let chosen = small.bytes_per_inode(4096).reserved_percent(10);
    format(&image, &Format::new(Filesystem::Ext4).mkfs_options(chosen).unwrap()).unwrap();
    let dump = devices::run("dumpe2fs", &["-h", image.path().to_str().unwrap()]);
    let number = |name: &str| -> u64 {
        let line =
            dump.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {dump}"));
        line.trim().parse().unwrap()
    };
    assert_eq!((number("Block size:"), number("Inode size:")), (1024, 512));
    assert_eq!(number("Inode count:"), 64 * MIB / 4096);
    assert_eq!(number("Reserved block count:"), number("Block count:") / 10);

    let image = Image::new(320);
    format(&image, &Format::new(Filesystem::Xfs).mkfs_options(small).unwrap()).unwrap();
    let dump = devices::run(
        "xfs_db",
        &["-r", "-c", "sb 0", "-c", "p blocksize inodesize", image.path().to_str().unwrap()],
    );
    assert_eq!(
        dump.split_whitespace().collect::<Vec<_>>(),
        ["blocksize", "=", "1024", "inodesize", "=", "512"]
    );
}

#[test]
fn the_output_of_mkfs_is_in_the_error() {
    let image = Image::new(64);
    let error =
        format(&image, &Format::new(Filesystem::Ext4).arguments(["-O", "no-such-feature"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ToolFailed);
    let text = error.to_string();
    assert!(text.contains("no-such-feature") && text.contains("mkfs.ext4"), "{text}");
    assert!(text.contains(image.path().to_str().unwrap()), "{text}");
}

/// The path leads to one disk when the proof is made, and to another one when `mkfs` would open it.
#[test]
fn another_disk_at_the_path_is_noticed() {
    let image = Image::new(64);
    let other = Image::new(64);
    let node = image.directory().join("node");
    let put = |device: DeviceNumber| {
        let _ = fs::remove_file(&node);
        let directory = rustix::fs::CWD;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(
            directory,
            &node,
            FileType::BlockDevice,
            mode,
            rustix::fs::makedev(device.major, device.minor),
        )
        .unwrap();
    };
    put(image.loop_device().number());
    let device = BlockDevice::open(&node).unwrap();
    device.verify().unwrap();
    let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
    put(other.loop_device().number());
    let before = (image.content(), other.content());
    refused(Format::new(Filesystem::Ext4).run(proof), ErrorKind::WrongDevice);
    assert_eq!((image.content(), other.content()), before);
    assert_eq!(device.verify().unwrap_err().kind(), ErrorKind::WrongDevice);
    fs::remove_file(&node).unwrap();
    assert_eq!(device.verify().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_device_locked_by_another_program_is_refused() {
    let image = Image::new(64);
    let lock = File::open(image.path()).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    refused(format(&image, &Format::new(Filesystem::Ext4)), ErrorKind::Busy);
    drop(lock);
    format(&image, &Format::new(Filesystem::Ext4)).unwrap();
}

#[test]
fn a_device_in_use_is_refused() {
    let image = Image::new(64);
    let _held = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(image.path()).unwrap();
    refused(format(&image, &Format::new(Filesystem::Ext4)), ErrorKind::Busy);
}

#[test]
fn a_read_only_device_is_refused_as_read_only() {
    let image = Image::with(64, &LoopOptions::new().access(DeviceAccess::ReadOnly));
    refused(format(&image, &Format::new(Filesystem::Ext4)), ErrorKind::ReadOnly);
}

#[test]
fn damage_is_reported_and_preened() {
    let image = Image::new(64);
    format(&image, &Format::new(Filesystem::Ext4).arguments(["-O", "^metadata_csum,^64bit"])).unwrap();
    let device = image.open();
    assert_eq!(
        check(&device, Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap(),
        CheckReport::Clean
    );
    // A wrong link count of the root directory, whose inode is number 2. Preen repairs this.
    let dump = devices::run("dumpe2fs", &[image.path().to_str().unwrap()]);
    let table = dump.lines().find_map(|line| line.trim().strip_prefix("Inode table at ")).unwrap();
    let table: u64 = table.split('-').next().unwrap().parse().unwrap();
    let links = (table * block_size(&dump)) + 256 + 26;
    image.write(links, &[9, 0]);
    let looked =
        check(&device, Filesystem::Ext4, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap_err();
    assert_eq!(looked.kind(), ErrorKind::Damaged, "{looked}");
    assert_eq!(
        check(&device, Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap(),
        CheckReport::Repaired
    );
    assert_eq!(
        check(&device, Filesystem::Ext4, CheckPolicy::ReportOnly, CheckLimits::default()).unwrap(),
        CheckReport::Clean
    );
    let unsupported =
        check(&device, Filesystem::Xfs, CheckPolicy::Preen, CheckLimits::default()).unwrap_err();
    assert_eq!(unsupported.kind(), ErrorKind::Unsupported);
}

fn block_size(dump: &str) -> u64 {
    let line = dump.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
    line.trim().parse().unwrap()
}

/// `mkfs` has no device to which it could write anything, whether it fails or is killed.
#[test]
fn an_mkfs_that_fails_leaves_the_device_as_it_was() {
    for filesystem in Filesystem::ALL {
        let image = Image::new(320);
        let wrong = Format::new(filesystem).arguments([match filesystem {
            Filesystem::Ext4 => "-Ono-such-feature",
            Filesystem::Xfs => "-bsize=7",
            _ => "-n7",
        }]);
        assert_eq!(format(&image, &wrong).unwrap_err().kind(), ErrorKind::ToolFailed);
        let ended = Format::new(filesystem).time_limit(Duration::from_micros(1));
        // On a busy machine the program can end before anything looks at the time.
        let is_ended = (0..20).any(|_| {
            let image = Image::new(320);
            match format(&image, &ended) {
                Ok(_) => false,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{filesystem}: {error}");
                    assert!(image.is_zero(), "{filesystem}");
                    format(&image, &Format::new(filesystem)).unwrap();
                    true
                }
            }
        });
        assert!(is_ended, "{filesystem}: the time limit never ended it");
        assert!(image.is_zero(), "{filesystem}");
        format(&image, &Format::new(filesystem)).unwrap();
    }
}

/// Each block is read before it is written: on a large device the prober does not read all of them.
#[test]
fn a_block_that_is_not_zero_is_not_overwritten() {
    for filesystem in Filesystem::ALL {
        let made = Image::new(1024);
        format(&made, &Format::new(filesystem)).unwrap();
        let places: Vec<u64> = made.nonzero_blocks().map(|(place, _)| place).collect();
        // Two places in the log or the journal, which are zeros.
        let more = [512 * MIB + 8 * 4096, 520 * MIB];
        let more = more.into_iter().filter(|_| filesystem != Filesystem::Btrfs);
        for place in places.iter().step_by((places.len() / 6).max(1)).copied().chain(more) {
            let image = Image::new(1024);
            let device = image.open();
            let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
            // The data is written after the proof, as if it were where the prober does not look.
            image.write(place, b"somebody's");
            let before = image.content();
            let error = Format::new(filesystem).run(proof).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotBlank, "{filesystem}, data at {place}: {error}");
            assert_eq!(image.content(), before, "{filesystem}, data at {place}");
        }
    }
}

/// The result is the same as when `mkfs` gets the device: sectors and stripes, for both sector sizes.
#[test]
fn an_image_in_memory_equals_a_format_of_the_device() {
    for filesystem in Filesystem::ALL {
        let (program, uuid, quiet): (_, &[&str], &[&str]) = match filesystem {
            Filesystem::Ext4 => (
                "mkfs.ext4",
                &["-U", UUID, "-Ehash_seed=11111111-2222-4333-8444-666666666666"],
                &["-q", "-m0"],
            ),
            Filesystem::Xfs => {
                ("mkfs.xfs", &["-m", "uuid=11111111-2222-4333-8444-555555555555"], &["-q", "-K"])
            }
            // mkfs.btrfs refuses a UUID that another disk has.
            _ => ("mkfs.btrfs", &[], &["-q", "-K"]),
        };
        for (sector, mebibytes) in [(512, 320), (512, 2048), (4096, 320), (4096, 2048)] {
            let disk = || Image::with(mebibytes, &LoopOptions::new().sector_size(sector));
            let ours = disk();
            let bare = disk();
            let made = Format::new(filesystem).profile(MkfsProfile::Mkfs).arguments(uuid.iter().copied());
            format(&ours, &made).unwrap();
            devices::run(program, &[uuid, quiet, &[bare.path().to_str().unwrap()]].concat());
            let ours = shape(filesystem, &ours);
            let bare = shape(filesystem, &bare);
            let differences: Vec<_> = ours.iter().zip(&bare).filter(|(ours, bare)| ours != bare).collect();
            assert!(
                differences.is_empty() && ours.len() == bare.len(),
                "{filesystem}, {mebibytes} MiB, sectors of {sector} bytes: {differences:?}"
            );
            assert!(ours.len() > 20, "{ours:?}");
        }
    }
}

const UUID: &str = "11111111-2222-4333-8444-555555555555";

/// Returns what the filesystem's own program reports, without times, random numbers and checksums over them.
fn shape(filesystem: Filesystem, image: &Image) -> Vec<String> {
    let path = image.path().to_str().unwrap();
    let text = match filesystem {
        Filesystem::Ext4 => devices::run("dumpe2fs", &[path]),
        Filesystem::Xfs => {
            let show = ["-r", "-c", "sb 0", "-c", "print", "-c", "agf 1", "-c", "print", path];
            devices::run("xfs_db", &show)
        }
        _ => devices::run("btrfs", &["inspect-internal", "dump-super", path]),
    };
    let changes = [
        "reated",
        "time:",
        "checked:",
        "hecksum:",
        "csum 0x",
        "csum\t\t\t0x",
        "uuid",
        "fsid",
        "lsn",
        "crc = ",
        path,
    ];
    let lines = text.lines().filter(|line| !changes.iter().any(|change| line.contains(change)));
    lines.map(str::to_owned).collect()
}
