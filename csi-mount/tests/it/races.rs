//! Many callers at one target never stack mounts and never remove those of others, and no attacker leads a
//! call out of a root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use csi_mount::internal::{Feature, mount_state, without_features};
use csi_mount::{
    Bind, ErrorKind, Mount, MountAttributes, MountEntry, Outcome, Root, Target, Unmounted, mounts, unmount,
};
use rustix::fs::{RenameFlags, renameat_with};

use crate::measure;
use crate::mount_support::{sandbox, source, target};
use crate::stepper::{Job, Programs, do_job};

const THREADS: usize = 64;

/// How often each outcome occurred.
#[derive(Debug, Default)]
struct Tally {
    mounted: AtomicU64,
    found: AtomicU64,
    unmounted: AtomicU64,
    busy: AtomicU64,
}

impl Tally {
    fn publish(&self, source: &Path, target: &Target) {
        let bind = Bind::new(source).attributes(MountAttributes::RDONLY);
        match bind.at(target) {
            Ok(Outcome::Mounted) => self.mounted.fetch_add(1, Ordering::Relaxed),
            Ok(Outcome::AlreadyMounted) => self.found.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Busy => self.busy.fetch_add(1, Ordering::Relaxed),
            Err(error) => panic!("publish: {error}"),
        };
    }

    fn unpublish(&self, target: &Target) {
        match unmount(target) {
            Ok(Unmounted::Unmounted { layers }) => {
                self.unmounted.fetch_add(layers.into(), Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.busy.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("unpublish: {error}"),
        }
    }
}

#[test]
fn many_publish_and_unpublish_one_target() {
    let rounds = measure::rounds(1600) / THREADS as u32;
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let shared = target(sandbox, "target");
        // Each thread's own target, which no other thread uses.
        let own: Vec<_> = (0..THREADS).map(|index| target(sandbox, &format!("own{index}"))).collect();
        own.iter().for_each(|own| assert_eq!(Bind::new(&source).at(own).unwrap(), Outcome::Mounted));
        let ids = || {
            own.iter()
                .map(|own| mount_state(own.path()).unwrap().mount_point().unwrap().id)
                .collect::<Vec<_>>()
        };
        let before = (ids(), mounts().unwrap().len());
        let tally = Tally::default();
        let is_done = AtomicBool::new(false);
        let start = Instant::now();
        let mut polls = 0_u64;
        let mut most = 0;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..rounds {
                            tally.publish(&source, &shared);
                            tally.unpublish(&shared);
                        }
                    })
                })
                .collect();
            let watcher = scope.spawn(|| watch(shared.path(), &is_done));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            is_done.store(true, Ordering::Relaxed);
            (polls, most) = watcher.join().unwrap();
        });
        println!(
            "{THREADS} threads, {rounds} rounds each in {:?}: {tally:?}; at most {most} in {polls} polls",
            start.elapsed()
        );
        assert!(most <= 1, "stacked");
        unmount(&shared).unwrap();
        assert_eq!((ids(), mounts().unwrap().len()), before, "another's mount is gone");
        assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "source");
    });
}

/// Returns how often the mount table was read, and the most layers that were seen at once at a path. Runs
/// until `is_done` is set.
fn watch(path: &Path, is_done: &AtomicBool) -> (u64, usize) {
    let mut polls = 0_u64;
    let mut most = 0;
    while !is_done.load(Ordering::Relaxed) {
        // A table that changes during every read says nothing.
        if let Ok(mounts) = mounts() {
            polls += 1;
            most = most.max(layers(&mounts, path));
        }
    }
    (polls, most)
}

/// Returns how many mounts are stacked at a path. A read of the table can list both a mount that was removed
/// and one that was added during the read, but neither is the parent of the other.
fn layers(mounts: &[MountEntry], path: &Path) -> usize {
    let there: Vec<_> = mounts.iter().filter(|entry| entry.mount_point == path).collect();
    let is_on_another = |entry: &&&MountEntry| there.iter().any(|other| other.id == entry.parent);
    there.iter().filter(is_on_another).count() + usize::from(!there.is_empty())
}

fn publish_and_unpublish_often(words: &[&str]) -> csi_mount::Result<()> {
    let [source, target, rounds] = words else { panic!("{words:?}") };
    let target = Target::new(target)?;
    let tally = Tally::default();
    for _ in 0..rounds.parse::<u32>().unwrap() {
        tally.publish(Path::new(source), &target);
        tally.unpublish(&target);
    }
    Ok(())
}

/// Several processes work at one target when a driver is replaced while its predecessor is still working.
/// They share no lock except the kernel's.
#[test]
fn many_processes_publish_and_unpublish_one_target() {
    const PROCESSES: u32 = 6;
    do_job(publish_and_unpublish_often);
    let rounds = (measure::rounds(1200) / PROCESSES).to_string();
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let shared = target(sandbox, "target");
        let before = mounts().unwrap().len();
        let is_done = AtomicBool::new(false);
        let words = [source.to_str().unwrap(), shared.path().to_str().unwrap(), &rounds];
        let test = "races::many_processes_publish_and_unpublish_one_target";
        let (polls, most) = std::thread::scope(|scope| {
            let job = || Job { programs: Programs::Followed, test, words: &words }.run();
            let jobs: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(job)).collect();
            let watcher = scope.spawn(|| watch(shared.path(), &is_done));
            let ended: Vec<_> = jobs.into_iter().map(ScopedJoinHandle::join).collect();
            is_done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(Result::unwrap);
            watcher.join().unwrap()
        });
        println!("{PROCESSES} processes, {rounds} rounds each; at most {most} in {polls} polls");
        assert!(most <= 1, "stacked");
        unmount(&shared).unwrap();
        assert_eq!(mounts().unwrap().len(), before);
    });
}

/// Returns everything below a directory, and every mount that is not below the attacked root.
fn outside(directory: &Path, root: &Path) -> (BTreeMap<PathBuf, Option<Vec<u8>>>, Vec<String>) {
    let mut files = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let is_directory = entry.file_type().unwrap().is_dir();
            files.insert(entry.path(), if is_directory { None } else { fs::read(entry.path()).ok() });
            left.extend(is_directory.then(|| entry.path()));
        }
    }
    let others = mounts().unwrap().into_iter().filter(|entry| !entry.mount_point.starts_with(root));
    (files, others.map(|entry| format!("{entry:?}")).collect())
}

/// Returns the device and inode of each file that the attacker aims at. They are checked after each attempt,
/// so that an escape that is undone later also counts.
fn marks(victim: &Path) -> [Option<(u64, u64)>; 2] {
    let mark = |name| fs::symlink_metadata(victim.join(name)).map(|found| (found.dev(), found.ino())).ok();
    ["volume/target", "mounted"].map(mark)
}

/// Exchanges a name in a directory with its link until `is_done` is set, with short pauses.
fn attack(directory: &OwnedFd, name: &str, is_done: &AtomicBool) -> u64 {
    let link = format!("{name}-link");
    let mut swaps = 0;
    while !is_done.load(Ordering::Relaxed) {
        // A directory with a mount on it can't be renamed.
        swaps += u64::from(renameat_with(directory, name, directory, &link, RenameFlags::EXCHANGE).is_ok());
        if swaps % 4 == 0 {
            std::thread::sleep(Duration::from_micros(swaps % 300));
        }
    }
    swaps
}

/// One attempt at a target that can be anywhere at this moment. Returns true if every call succeeds.
fn publish_and_unpublish(root: &Root, source: &Path) -> bool {
    let path = Path::new("uid/volume/target");
    let publish = || -> csi_mount::Result<()> {
        let target = root.target(path)?;
        target.create_dir()?;
        Bind::new(source).attributes(MountAttributes::RDONLY).at(&target)?;
        Ok(())
    };
    let published = publish().is_ok();
    let unpublish = || -> csi_mount::Result<()> {
        let target = root.target(path)?;
        unmount(&target)?;
        target.remove()?;
        Ok(())
    };
    unpublish().is_ok() && published
}

#[test]
fn swapped_path_components_gain_nothing() {
    let seconds = measure::rounds(2);
    for kernel in [&[][..], &[Feature::Openat2, Feature::StatxMount]] {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let pods = sandbox.join("pods");
            let victim = sandbox.join("victim");
            for directory in ["pods/uid/volume", "victim/volume", "victim/volume/target"] {
                fs::create_dir_all(sandbox.join(directory)).unwrap();
            }
            let mounted = target(&victim, "mounted");
            Mount::new("tmpfs", "victim").at(&mounted).unwrap();
            fs::write(victim.join("volume/file"), "data").unwrap();
            symlink("../victim", pods.join("uid-link")).unwrap();
            symlink("../../victim/volume", pods.join("uid/volume-link")).unwrap();
            symlink("../../../victim/mounted", pods.join("uid/volume/target-link")).unwrap();
            fs::create_dir(pods.join("uid/volume/target")).unwrap();
            let before = outside(&victim, &pods);
            let marked = marks(&victim);

            let root = Root::open(&pods).unwrap();
            let is_done = AtomicBool::new(false);
            let mut tries = 0_u64;
            let mut went_well = 0_u64;
            let swaps: Vec<u64> = std::thread::scope(|scope| {
                let attackers =
                    [("", "uid"), ("uid", "volume"), ("uid/volume", "target")].map(|(path, name)| {
                        // Opened before the first exchange, so that the attack itself stays in the root.
                        let directory: OwnedFd = File::open(pods.join(path)).unwrap().into();
                        let is_done = &is_done;
                        move || attack(&directory, name, is_done)
                    });
                let attackers = attackers.map(|attack| scope.spawn(attack));
                let begun = Instant::now();
                // On a busy machine a try can be rare, and an attacker's turn too.
                let is_over = |tries: u64, went_well: u64| {
                    let has_both = went_well > 0 && tries > went_well;
                    let least =
                        if has_both { Duration::from_secs(seconds.into()) } else { Duration::from_secs(120) };
                    begun.elapsed() > least
                };
                without_features(kernel, || {
                    while !is_over(tries, went_well) && marks(&victim) == marked {
                        tries += 1;
                        went_well += u64::from(publish_and_unpublish(&root, &source));
                    }
                });
                is_done.store(true, Ordering::Relaxed);
                attackers.into_iter().map(|attacker| attacker.join().unwrap()).collect()
            });
            println!("{seconds} s without {kernel:?}: {swaps:?} swaps, {tries} tries, {went_well} went well");
            assert_eq!(marks(&victim), marked, "after {tries} tries");
            assert_eq!(outside(&victim, &pods), before);
            assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "source");
            assert!(went_well > 0 && tries > went_well && swaps.iter().all(|swaps| *swaps > 0));
        });
    }
}
