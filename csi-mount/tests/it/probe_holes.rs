//! For a loop device over a file, the prober knows where the file has data, and reads all of that.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::internal::{DeviceQuestions as _, LoopDevice, Probe, probe_reads};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{BlockDevice, LoopCache, LoopOptions};
use nix::mount::{MsFlags, mount, umount};
use rustix::fs::FallocateFlags;

use crate::devices::{Image, MIB, run};

/// The limit for reads outside the data, if the holes are known exactly: only the places of signatures.
const NAMED: u64 = MIB / 2;

fn bytes_read(device: &BlockDevice) -> u64 {
    probe_reads(device).iter().map(|range| range.end - range.start).sum()
}

fn is_exact(device: &BlockDevice) -> bool {
    assert!(matches!(device.probe(), Probe::Blank(_)), "{}", device.probe());
    bytes_read(device) < NAMED
}

/// Returns the place of the unknown data that the probe reports.
#[track_caller]
fn place_found(device: &BlockDevice) -> u64 {
    match device.probe() {
        Probe::UnknownData { offset, .. } => offset,
        other => panic!("{other}"),
    }
}

/// Returns irregular places, in multiples of 4 KiB.
fn places(size: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % (size / 4096)) * 4096
    })
}

/// A file on a loop device, which is detached when this is dropped.
struct Attached(Option<LoopDevice>);

impl Attached {
    fn new(file: &Path, size: u64, cache: LoopCache) -> Self {
        File::create(file).unwrap().set_len(size).unwrap();
        Self(Some(LoopDevice::attach(file, &LoopOptions::new().cache(cache)).unwrap()))
    }

    fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }

    fn open(&self) -> BlockDevice {
        BlockDevice::open(self.path()).unwrap()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let detached = self.0.take().unwrap().detach();
        assert!(detached.is_ok() || std::thread::panicking(), "{detached:?}");
    }
}

/// Runs the closure with a directory on a filesystem of this kind, in a separate namespace.
fn on_filesystem(kind: &str, work: impl FnOnce(&Path) + Send) {
    private_mount_namespace(|| {
        let image = Image::new(400);
        let place = tempfile::tempdir().unwrap();
        let device = image.path().to_str().unwrap();
        let flags = MsFlags::empty();
        match kind {
            "tmpfs" => mount(Some("probe"), place.path(), Some(kind), flags, None::<&str>).unwrap(),
            _ => {
                let force = if kind == "ext4" { "-F" } else { "-f" };
                run(&format!("mkfs.{kind}"), &["-q", force, device]);
                mount(Some(device), place.path(), Some(kind), flags, None::<&str>).unwrap();
            }
        }
        work(place.path());
        // A detached loop device releases its file a moment later.
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = umount(place.path()) {
            assert!(error == nix::Error::EBUSY && Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn one_block_anywhere_is_found_on_filesystems_with_exact_holes() {
    for kind in ["ext4", "xfs", "btrfs", "tmpfs"] {
        on_filesystem(kind, |directory| {
            let size = 20 << 30;
            for (cache, count) in [(LoopCache::Buffered, 12), (LoopCache::Direct, 12)] {
                let file = directory.join("image");
                for place in places(size).take(count) {
                    let attached = Attached::new(&file, size, cache);
                    assert!(is_exact(&attached.open()), "{kind}");
                    let block = [7; 4096];
                    OpenOptions::new()
                        .write(true)
                        .open(attached.path())
                        .unwrap()
                        .write_all_at(&block, place)
                        .unwrap();
                    assert_eq!(place_found(&attached.open()), place, "{kind}, {cache:?}");
                    drop(attached);
                    fs::remove_file(&file).unwrap();
                }
            }
        });
    }
}

/// Data that is only in the device's page cache, or only in the page cache of its file, is also found.
#[test]
fn data_in_a_page_cache_is_found() {
    on_filesystem("ext4", |directory| {
        let file = directory.join("image");
        let size = 20 << 30;
        for place in places(size).take(8) {
            let attached = Attached::new(&file, size, LoopCache::Buffered);
            // It stays open, so that closing it does not write the data out.
            let through_device = OpenOptions::new().write(true).open(attached.path()).unwrap();
            through_device.write_all_at(b"x", place + 4000).unwrap();
            assert_eq!(place_found(&attached.open()), place + 4000);
            drop((through_device, attached));
            fs::remove_file(&file).unwrap();

            let attached = Attached::new(&file, size, LoopCache::Buffered);
            // The range is allocated, and so neither a hole nor data until it is written to.
            let beneath = OpenOptions::new().write(true).open(&file).unwrap();
            rustix::fs::fallocate(&beneath, FallocateFlags::empty(), place, 65_536).unwrap();
            assert!(matches!(attached.open().probe(), Probe::Blank(_)));
            beneath.write_all_at(b"x", place + 9000).unwrap();
            assert_eq!(place_found(&attached.open()), place + 9000);
            drop((beneath, attached));
            fs::remove_file(&file).unwrap();
        }
    });
}

#[test]
fn zeros_that_were_written_are_read_and_blank() {
    on_filesystem("ext4", |directory| {
        let attached = Attached::new(&directory.join("image"), 20 << 30, LoopCache::Buffered);
        let flags = nix::libc::O_DIRECT;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(directory.join("image")).unwrap();
        let memory = vec![0u8; (9 << 20) + 4096];
        let lead = memory.as_ptr().align_offset(4096);
        file.write_all_at(&memory[lead..lead + (8 << 20)], 5 << 30).unwrap();
        let device = attached.open();
        assert!(matches!(device.probe(), Probe::Blank(_)));
        let read = bytes_read(&device);
        assert!((8 << 20..(8 << 20) + NAMED).contains(&read), "{read}");
        drop(file);
        OpenOptions::new()
            .write(true)
            .open(directory.join("image"))
            .unwrap()
            .write_all_at(b"x", (5 << 30) + 5_000_000)
            .unwrap();
        assert_eq!(place_found(&device), (5 << 30) + 5_000_000);
    });
}

/// A device over a part of a file contains only that part.
#[test]
fn a_part_of_a_file_is_read_at_its_offset() {
    on_filesystem("ext4", |directory| {
        let file = directory.join("image");
        File::create(&file).unwrap().set_len(2 << 30).unwrap();
        let path = file.to_str().unwrap();
        let offset = 700 * MIB + 512;
        let size = 600 * MIB;
        let arguments =
            ["--find", "--show", "--offset", &offset.to_string(), "--sizelimit", &size.to_string(), path];
        let node = run("losetup", &arguments);
        let node = node.trim();
        let device = BlockDevice::open(node).unwrap();
        let beneath = OpenOptions::new().write(true).open(&file).unwrap();
        // Data around the part.
        for place in [0, offset - 1, offset + size, (2 << 30) - 1] {
            beneath.write_all_at(b"x", place).unwrap();
        }
        let blank = matches!(device.probe(), Probe::Blank(_));
        let read = bytes_read(&device);
        beneath.write_all_at(b"x", offset + 345 * MIB + 5).unwrap();
        let found = device.probe().to_string();
        drop(device);
        run("losetup", &["--detach", node]);
        assert!(blank, "what is around it counts");
        assert!(read < NAMED + MIB, "{read}");
        assert!(found.contains(&format!("byte {}", 345 * MIB + 5)), "{found}");
    });
}

/// If the file's path leads to another file or to none, the device is read like any other device.
#[test]
fn another_file_at_the_path_is_not_used_for_the_device() {
    on_filesystem("ext4", |directory| {
        let file = directory.join("image");
        let other = directory.join("other");
        let attached = Attached::new(&file, 1 << 30, LoopCache::Buffered);
        File::create(&other).unwrap().set_len(1 << 30).unwrap();
        assert!(is_exact(&attached.open()));
        mount(Some(&other), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        assert!(!is_exact(&attached.open()), "a file that is mounted over it");
        umount(&file).unwrap();

        fs::rename(&file, directory.join("renamed")).unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(is_exact(&attached.open()), "the kernel knows the new name");
        fs::remove_file(directory.join("renamed")).unwrap();
        assert!(!is_exact(&attached.open()), "a file without a name");
    });
}

#[test]
fn a_truncated_end_is_not_a_hole() {
    on_filesystem("ext4", |directory| {
        let file = directory.join("image");
        let attached = Attached::new(&file, 1 << 30, LoopCache::Direct);
        OpenOptions::new().write(true).open(&file).unwrap().set_len(512 << 20).unwrap();
        let device = attached.open();
        assert!(matches!(device.probe(), Probe::Unreadable { .. }), "{}", device.probe());
    });
}
