//! A directory on btrfs is a subvolume that holds so much and no more, with both kinds of btrfs's quotas. Needs root.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use csi_mount::internal::enable_simple_quotas;
use csi_mount::{DirectoryLimit, ErrorKind, KernelVersion, Mount, Removed, Target, unmount};
use rustix::thread::CapabilitySet;

use crate::devices::{Image, refused, run};
use crate::quota_support::{
    Disk, KIB, MIB, as_workload, assert_full, assert_refused, create, directories, in_memory, without, write,
};
use crate::stepper::{End, Job, Programs, do_job};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotas {
    Off,
    Full,
    Simple,
}

fn on_btrfs(quotas: Quotas, test: impl Fn(&Disk) + Sync) {
    in_memory(|base| {
        let disk = Disk::format(base, "btrfs", &["-q"]);
        disk.mount(&[]);
        match quotas {
            Quotas::Off => {}
            Quotas::Full => {
                run("btrfs", &["quota", "enable", disk.at.to_str().unwrap()]);
                run("btrfs", &["quota", "rescan", "-w", disk.at.to_str().unwrap()]);
                commit(&disk.at);
            }
            Quotas::Simple => enable_simple_quotas(&disk.at).unwrap(),
        }
        test(&disk);
        disk.unmount();
    });
}

/// Also wakes the thread that ends removed subvolumes.
fn commit(at: &Path) {
    run("btrfs", &["filesystem", "sync", at.to_str().unwrap()]);
}

/// The quota groups of a filesystem, as its kernel has them.
fn groups(disk: &Disk) -> BTreeSet<String> {
    let device = disk.image.path().file_name().unwrap();
    let filesystems = fs::read_dir("/sys/fs/btrfs").unwrap().map(|entry| entry.unwrap().path());
    let ours = filesystems.into_iter().find(|path| path.join("devices").join(device).exists()).unwrap();
    let entries = fs::read_dir(ours.join("qgroups")).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("0_")).collect()
}

fn assert_groups_become(disk: &Disk, expected: &BTreeSet<String>) {
    let end = Instant::now() + Duration::from_secs(120);
    while groups(disk) != *expected {
        assert!(Instant::now() < end, "{:?} instead of {expected:?}", groups(disk));
        commit(&disk.at);
        if KernelVersion::running().unwrap() < KernelVersion::new(6, 11) {
            // What docs/quotas.md advises there. It fails until the subvolume is gone from the disk.
            let _ = Command::new("btrfs").args(["qgroup", "clear-stale"]).arg(&disk.at).output().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn used(volume: &Path) -> u64 {
    commit(volume);
    directories().usage(volume).unwrap().unwrap().bytes.used
}

fn holds_its_size(disk: &Disk) {
    let one = disk.path("one");
    let other = disk.path("other");
    let made = create(&one, 4 * MIB).unwrap();
    assert_eq!((made.bytes, made.inodes), (4 * MIB, 0));
    create(&other, 4 * MIB).unwrap();
    as_workload(|| fs::create_dir(one.join("below"))).unwrap();
    write(&one.join("fits"), 3 * MIB).unwrap();
    assert_full("btrfs", write(&one.join("too-much"), 2 * MIB));
    assert_full("btrfs", write(&one.join("below/too-much"), 2 * MIB));
    write(&other.join("file"), 3 * MIB).unwrap();
    write(&disk.path("outside"), 8 * MIB).unwrap();
    for from in [disk.path("outside"), other.join("file")] {
        for result in [fs::rename(&from, one.join("in")), fs::hard_link(&from, one.join("in"))] {
            assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::CrossesDevices);
        }
    }

    assert!((3 * MIB..3 * MIB + 256 * KIB).contains(&used(&other)), "{}", used(&other));
    let usage = directories().usage(&other).unwrap().unwrap();
    assert_eq!((usage.bytes.total, usage.bytes.used + usage.bytes.available), (4 * MIB, 4 * MIB));
    assert_eq!(usage.inodes, None);
    let shown = rustix::fs::statvfs(&other).unwrap();
    assert_eq!(shown.f_blocks * shown.f_frsize, 320 * MIB, "statfs shows the disk");
    assert_eq!(directories().usage(&disk.at).unwrap(), None);

    // A full volume can be emptied and used again.
    as_workload(|| fs::remove_dir_all(one.join("below"))).unwrap();
    as_workload(|| fs::remove_file(one.join("too-much"))).unwrap();
    as_workload(|| fs::remove_file(one.join("fits"))).unwrap();
    commit(&one);
    write(&one.join("fits"), 3 * MIB).unwrap();
}

fn grows_and_shrinks(disk: &Disk) {
    let volume = disk.path("volume");
    create(&volume, 2 * MIB).unwrap();
    assert_full("btrfs", write(&volume.join("file"), 3 * MIB));
    directories().set_limit(&volume, DirectoryLimit::new(8 * MIB)).unwrap();
    write(&volume.join("file"), 5 * MIB).unwrap();
    assert_eq!(create(&volume, MIB).unwrap().bytes, 8 * MIB, "a repeat changes nothing");
    refused(directories().set_limit(&volume, DirectoryLimit::new(4 * MIB)), ErrorKind::OutOfRange);
    assert_eq!(directories().limit(&volume).unwrap().unwrap().bytes, 8 * MIB);
    directories().set_limit(&volume, DirectoryLimit::new(6 * MIB)).unwrap();
    assert_full("btrfs", write(&volume.join("more"), 2 * MIB));
}

fn outlives_a_mount_and_goes_whole(disk: &Disk) {
    let before = groups(disk);
    let volume = disk.path("volume");
    create(&volume, 4 * MIB).unwrap();
    let with_volume = groups(disk);
    assert_eq!(with_volume.len(), before.len() + 1);
    disk.unmount();
    disk.mount(&[]);
    assert_eq!(create(&volume, MIB).unwrap().bytes, 4 * MIB);
    assert_full("btrfs", write(&volume.join("file"), 5 * MIB));
    as_workload(|| fs::remove_file(volume.join("file"))).unwrap();
    commit(&disk.at);
    write(&volume.join("file"), KIB).unwrap();

    let inner = Target::new(volume.join("mounted")).unwrap();
    inner.create_dir().unwrap();
    Mount::new("tmpfs", "test").at(&inner).unwrap();
    assert_eq!(directories().remove_tree(&volume).unwrap_err().kind(), ErrorKind::Busy);
    assert!(volume.join("file").exists() && inner.is_directory().unwrap());
    unmount(&inner).unwrap();
    // It keeps the volume's directory open, and the kernel the group for so long.
    drop(inner);

    // A workload makes subvolumes of its own, which have their own groups: what docs/quotas.md warns of.
    let nested = volume.join("nested");
    as_workload(|| run("btrfs", &["-q", "subvolume", "create", nested.to_str().unwrap()]));
    write(&nested.join("file"), 6 * MIB).unwrap();
    fs::create_dir(nested.join("other")).unwrap();
    write(&nested.join("other/file"), KIB).unwrap();
    let snapshot = volume.join("snapshot");
    let paths = [nested.to_str().unwrap(), snapshot.to_str().unwrap()];
    run("btrfs", &[&["-q", "subvolume", "snapshot", "-r"], &paths[..]].concat());
    let other = snapshot.join("other");
    let refused = directories().remove_tree(&other).unwrap_err();
    assert!(refused.to_string().contains("Read-only"), "{refused}");
    assert!(other.join("file").exists());
    assert_eq!(directories().remove_tree(&volume).unwrap(), Removed::Removed);
    assert!(!volume.exists());
    assert_groups_become(disk, &before);
    create(&volume, MIB).unwrap();
    assert_eq!(groups(disk).intersection(&with_volume).count(), before.len(), "no id is given twice");
}

#[test]
fn full_quotas_hold_volumes_to_their_sizes() {
    on_btrfs(Quotas::Full, holds_its_size);
}

#[test]
fn simple_quotas_hold_volumes_to_their_sizes() {
    on_btrfs(Quotas::Simple, holds_its_size);
}

#[test]
fn a_limit_of_full_quotas_grows_and_shrinks() {
    on_btrfs(Quotas::Full, grows_and_shrinks);
}

#[test]
fn a_limit_of_simple_quotas_grows_and_shrinks() {
    on_btrfs(Quotas::Simple, grows_and_shrinks);
}

#[test]
fn a_removal_leaves_nothing_with_full_quotas() {
    on_btrfs(Quotas::Full, outlives_a_mount_and_goes_whole);
}

#[test]
fn a_removal_leaves_nothing_with_simple_quotas() {
    on_btrfs(Quotas::Simple, outlives_a_mount_and_goes_whole);
}

/// What a copy with shared blocks counts for: why a driver with snapshots or clones needs full quotas.
#[test]
fn shared_blocks_count_for_the_writer_alone_with_simple_quotas() {
    for quotas in [Quotas::Full, Quotas::Simple] {
        on_btrfs(quotas, |disk| {
            let one = disk.path("one");
            let copy = disk.path("copy");
            create(&one, 4 * MIB).unwrap();
            create(&copy, 4 * MIB).unwrap();
            write(&one.join("file"), 3 * MIB).unwrap();
            Target::new(&one).unwrap().copy_tree(&Target::new(&copy).unwrap()).unwrap();
            assert_eq!(used(&copy) > 3 * MIB, quotas == Quotas::Full, "{}", used(&copy));
            assert!(used(&one) > 3 * MIB);
        });
    }
}

#[test]
fn a_btrfs_that_enforces_nothing_says_why() {
    on_btrfs(Quotas::Off, |disk| {
        let at = disk.at.to_str().unwrap();
        assert_refused(&disk.at, &["switched off", "btrfs quota enable"]);
        run("btrfs", &["quota", "enable", at]);
        run("btrfs", &["quota", "rescan", "-w", at]);
        commit(&disk.at);
        let volume = disk.path("old");
        create(&volume, 2 * MIB).unwrap();
        without(CapabilitySet::SYS_ADMIN, || {
            assert_refused(&disk.at, &["not allowed", "CAP_SYS_ADMIN"]);
            assert_eq!(directories().usage(&volume).unwrap(), None);
        });

        // Blocks that two subvolumes share can't be added to a group without a scan.
        write(&disk.path("file"), MIB).unwrap();
        run("cp", &["--reflink=always", disk.path("file").to_str().unwrap(), volume.to_str().unwrap()]);
        commit(&disk.at);
        run("btrfs", &["qgroup", "create", "1/1", at]);
        run("btrfs", &["qgroup", "assign", "--no-rescan", "0/5", "1/1", at]);
        commit(&disk.at);
        let refused = create(&disk.path("volume"), MIB).unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::Busy,
            "it passes, and then the volume gets its limit: {refused}"
        );
        assert!(refused.to_string().contains("btrfs quota rescan"), "{refused}");
        assert!(!disk.path("volume").exists());
        assert_eq!(directories().usage(&volume).unwrap(), None);
        assert_eq!(directories().limit(&volume).unwrap().unwrap().bytes, 2 * MIB);
        run("btrfs", &["quota", "rescan", "-w", at]);
        commit(&disk.at);
        assert_eq!(directories().usage(&volume).unwrap().unwrap().bytes.total, 2 * MIB);

        run("btrfs", &["quota", "disable", at]);
        assert_eq!(directories().limit(&volume).unwrap(), None);
        assert_eq!(directories().usage(&volume).unwrap(), None);
    });
}

#[test]
fn what_is_not_counted_is_not_limited() {
    on_btrfs(Quotas::Full, |disk| {
        // From before the quotas, and a subvolume of a person.
        let old = disk.path("old");
        fs::create_dir(&old).unwrap();
        let filled = disk.path("filled");
        run("btrfs", &["-q", "subvolume", "create", filled.to_str().unwrap()]);
        write(&filled.join("file"), KIB).unwrap();
        for path in [&old, &filled] {
            let error = refused(create(path, MIB), ErrorKind::Unsupported);
            assert!(error.to_string().contains("made without a limit"), "{error}");
            refused(directories().set_limit(path, DirectoryLimit::new(MIB)), ErrorKind::Unsupported);
            assert_eq!(
                (directories().limit(path).unwrap(), directories().usage(path).unwrap()),
                (None, None)
            );
        }
        assert!(fs::metadata(&old).unwrap().ino() != 256, "it stays a directory");

        let volume = disk.path("volume");
        let error = refused(create(&volume, DirectoryLimit::new(MIB).inodes(10)), ErrorKind::Unsupported);
        assert!(error.to_string().contains("number of inodes"), "{error}");
        assert!(!volume.exists());
        create(&volume, MIB).unwrap();
        let error = directories().set_limit(&volume, DirectoryLimit::new(MIB).inodes(10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

        assert_refused(&volume, &["whose limit would not count", "btrfs qgroup limit none"]);
        let below = volume.join("below");
        fs::create_dir(&below).unwrap();
        assert_eq!(directories().limit(&below).unwrap(), None, "it is not a volume");
        assert_eq!(directories().usage(&below).unwrap(), None);
    });
}

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let path = Path::new(words[1]);
    match words[0] {
        "create" => create(path, 2 * MIB).map(drop),
        "remove" => Target::new(path)?.remove_tree().map(drop),
        other => panic!("{other}"),
    }
}

/// Kills a step before each of its changes, and then makes the volume again, or removes it.
fn killed_at_each_change(test: &str, step: &str) {
    on_btrfs(Quotas::Full, |disk| {
        let neighbour = disk.path("neighbour");
        create(&neighbour, 2 * MIB).unwrap();
        let before = groups(disk);
        let volume = disk.path("volume");
        let words = [step, volume.to_str().unwrap()];
        for point in 2.. {
            if step == "remove" {
                create(&volume, 2 * MIB).unwrap();
                write(&volume.join("file"), MIB).unwrap();
            }
            let end = Job { programs: Programs::Followed, test, words: &words }.kill_before_change(point / 2);
            if point % 2 == 0 {
                assert_eq!(create(&volume, 2 * MIB).unwrap().bytes, 2 * MIB);
                assert_full("btrfs", write(&volume.join("file"), 3 * MIB));
            }
            directories().remove_tree(&volume).unwrap();
            assert!(!volume.exists());
            if let End::Finished { calls } = end {
                assert!(calls > 3, "{step} has {calls} changes");
                println!("{step}: killed before each of {calls} changes");
                break;
            }
        }
        assert_groups_become(disk, &before);
        assert_eq!(directories().limit(&neighbour).unwrap().unwrap().bytes, 2 * MIB);
    });
}

#[test]
fn a_creation_that_is_killed_is_continued_or_removed() {
    do_job(job);
    killed_at_each_change("quotas_btrfs::a_creation_that_is_killed_is_continued_or_removed", "create");
}

#[test]
fn a_removal_that_is_killed_is_continued_or_undone() {
    do_job(job);
    killed_at_each_change("quotas_btrfs::a_removal_that_is_killed_is_continued_or_undone", "remove");
}

/// What the device has when the call returns: it is copied while the filesystem is mounted.
#[test]
fn a_loss_of_power_loses_no_limit() {
    on_btrfs(Quotas::Full, |disk| {
        let volume = disk.path("volume");
        create(&volume, 2 * MIB).unwrap();
        let created = Image::copy_of(&disk.image.file());
        directories().set_limit(&volume, DirectoryLimit::new(6 * MIB)).unwrap();
        let changed = Image::copy_of(&disk.image.file());
        disk.unmount();
        for (image, bytes) in [(created, 2 * MIB), (changed, 6 * MIB)] {
            let copy = Disk { image, fs_type: "btrfs", at: disk.at.clone() };
            copy.mount(&[]);
            assert_eq!(directories().limit(&volume).unwrap().unwrap().bytes, bytes);
            copy.unmount();
        }
        disk.mount(&[]);
    });
}
