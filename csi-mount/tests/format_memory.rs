//! How much memory a format takes from a container's limit: the largest size of its file in memory.

mod devices;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::{Filesystem, Format, LoopOptions, Probe};
use devices::{Image, MIB};

/// Returns the shared memory of the machine, in KiB. It includes files in memory.
fn shared() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
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
        let (before, done) = (shared(), AtomicBool::new(false));
        let most = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(shared());
                }
                most
            });
            let format = Format::new(filesystem).arguments(arguments.iter().copied());
            let made = format.run(proof);
            done.store(true, Ordering::Relaxed);
            made.unwrap();
            watcher.join().unwrap()
        });
        let taken = most.saturating_sub(before) / 1024;
        println!("{filesystem} of {gibibytes} GiB {arguments:?}: {taken} MiB of memory at most");
        // The files in memory of other tests also count.
        assert!(taken < 160, "{filesystem} of {gibibytes} GiB {arguments:?}: {taken} MiB");
    }
}
