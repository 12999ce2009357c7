//! A target is never visible without its attributes, at any moment or in any namespace.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use csi_mount::internal::{Feature, PeerNamespace, without_features};
use csi_mount::{Bind, MountAttributes};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::measure;
use crate::mount_support::{sandbox, source, target, unmount_watched};

const KERNELS: [&[Feature]; 3] = [
    &[],
    &[Feature::MountSetattr, Feature::Statmount],
    &[Feature::MountSetattr, Feature::FsContext, Feature::Statmount],
];

/// What a watcher has seen so far, and whether it must stop.
#[derive(Debug, Default)]
struct Watch {
    seen: AtomicU64,
    bare: AtomicU64,
    is_done: AtomicBool,
}

impl Watch {
    /// The file exists only through the bind, and one call returns the flags of the mount that leads to it.
    fn poll(&self, file: &PathBuf) {
        let wanted = StatVfsMountFlags::RDONLY
            | StatVfsMountFlags::NOSUID
            | StatVfsMountFlags::NODEV
            | StatVfsMountFlags::NOEXEC;
        while !self.is_done.load(Ordering::Relaxed) {
            let Ok(found) = statvfs(file) else { continue };
            let counter = if found.f_flag.contains(wanted) { &self.seen } else { &self.bare };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed) + self.bare.load(Ordering::Relaxed)
    }
}

/// Ends the watchers when it is dropped.
struct Stop<'a>([&'a Watch; 2]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|watch| watch.is_done.store(true, Ordering::Relaxed));
    }
}

#[test]
fn the_target_is_never_visible_without_its_mount() {
    let rounds = measure::rounds(100);
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let target = target(sandbox, "target");
            let peer = PeerNamespace::new();
            let there = Arc::new(Watch::default());
            let here = Watch::default();
            let file = target.path().join("file");
            let watcher = peer.start({
                let there = there.clone();
                let file = file.clone();
                move || there.poll(&file)
            });
            std::thread::scope(|scope| {
                scope.spawn(|| here.poll(&file));
                // The watchers end however the test ends.
                let _stop = Stop([&there, &here]);
                for _ in 0..rounds {
                    let before = there.seen();
                    let attributes = MountAttributes::RDONLY
                        | MountAttributes::NOSUID
                        | MountAttributes::NODEV
                        | MountAttributes::NOEXEC;
                    let bind = Bind::new(&source).attributes(attributes);
                    without_features(kernel, || bind.at(&target)).unwrap();
                    let deadline = Instant::now() + Duration::from_secs(120);
                    while there.seen() == before {
                        assert!(Instant::now() < deadline, "the peer never met the mount");
                        std::thread::yield_now();
                    }
                    unmount_watched(&target);
                }
            });
            watcher();
            let counts = [&there, &here]
                .map(|watch| (watch.seen.load(Ordering::Relaxed), watch.bare.load(Ordering::Relaxed)));
            println!(
                "{rounds} publishes without {kernel:?}: (seen, bare) there {:?}, here {:?}",
                counts[0], counts[1]
            );
            assert_eq!((counts[0].1, counts[1].1), (0, 0));
        });
    }
}
