//! How much memory a format takes from a container's limit: the largest size of its file in memory.

#[path = "it/devices/mod.rs"]
mod devices;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::internal::{DeviceQuestions as _, Format, Probe};
use csi_mount::{Filesystem, LoopOptions};
use devices::{Image, MIB};

/// Returns how many bytes the files in memory take that this process has open (`memfd_create(2)`).
fn files_in_memory() -> u64 {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_in_memory =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|file| file.to_string_lossy().starts_with("/memfd:"));
    let files = descriptors.map(|descriptor| descriptor.path()).filter(is_in_memory);
    // A file can be closed by now. A block has 512 bytes (stat(2)).
    files.filter_map(|path| Some(fs::metadata(path).ok()?.blocks() * 512)).sum()
}

/// A log or inode tables of several hundred MiB are zeros, and do not stay in memory.
#[test]
fn zeros_that_mkfs_writes_take_little_memory() {
    let tables: &[&str] = &["-Elazy_itable_init=0"];
    for (filesystem, gibibytes, arguments) in
        [(Filesystem::Ext4, 20, &[][..]), (Filesystem::Ext4, 20, tables), (Filesystem::Xfs, 1024, &[])]
    {
        let image = Image::of_bytes(gibibytes * 1024 * MIB, &LoopOptions::new());
        let device = image.open();
        let Probe::Blank(proof) = device.probe() else { panic!("not blank") };
        let done = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(files_in_memory());
                }
                most
            });
            let format = Format::new(filesystem).arguments(arguments.iter().copied());
            let made = format.run(proof);
            done.store(true, Ordering::Relaxed);
            made.unwrap();
            watcher.join().unwrap()
        });
        let taken = most / MIB;
        println!("{filesystem} of {gibibytes} GiB {arguments:?}: {taken} MiB of memory at most");
        assert!((1..100).contains(&taken), "{filesystem} of {gibibytes} GiB {arguments:?}: {taken} MiB");
    }
}
