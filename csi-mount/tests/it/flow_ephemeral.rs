//! A volume with known content: the content exists from the first moment, is replaced as a whole, is never
//! stacked, and is gone at the end.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::ephemeral::{Change, Content, EphemeralPlan, publish, unpublish};
use csi_mount::internal::{Feature, mount_state, without_features};
use csi_mount::{ErrorKind, KernelVersion, Mount, MountAttributes, MountState, Removed, Target};

use crate::measure::rounds;
use crate::mount_support::{layers, mount_count, sandbox};

fn plan() -> EphemeralPlan {
    EphemeralPlan::new("v1").attributes(MountAttributes::RDONLY)
}

fn one_file(text: &str) -> Content {
    Content::new().file("file", text).unwrap()
}

fn read(target: &Target, file: &str) -> String {
    fs::read_to_string(target.path().join(file)).unwrap()
}

/// Returns the names that do not begin with a dot.
fn names(directory: &Path) -> Vec<String> {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

fn round(place: &Path) {
    let target = Target::new(place.join("target")).unwrap();
    let before = mount_count();
    let first = one_file("1").file_with_mode("dir/key", "k", 0o400).unwrap().file("dir/sub/x", "x").unwrap();
    assert_eq!(publish(&target, &first, &plan()).unwrap(), Change::Written);
    assert_eq!((read(&target, "file"), read(&target, "dir/key")), ("1".into(), "k".into()));
    assert_eq!(fs::metadata(target.path().join("dir/key")).unwrap().permissions().mode() & 0o7777, 0o400);
    assert_eq!(fs::metadata(target.path().join("file")).unwrap().permissions().mode() & 0o7777, 0o644);
    let refused = fs::write(target.path().join("new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let mount = mount_state(target.path()).unwrap();
    assert_eq!(publish(&target, &first, &plan()).unwrap(), Change::Unchanged);
    let second = one_file("2").file("other", "o").unwrap();
    assert_eq!(publish(&target, &second, &plan()).unwrap(), Change::Written);
    assert_eq!(mount_state(target.path()).unwrap(), mount, "in place");
    assert_eq!((layers(target.path()), mount_count()), (1, before + 1));
    assert_eq!(names(target.path()), ["file", "other"]);
    assert_eq!(read(&target, "file"), "2");
    let hidden = fs::read_dir(target.path()).unwrap().count() - 2;
    assert_eq!(hidden, 3, "two versions and the link to the newer");
    assert_eq!(publish(&target, &second, &plan()).unwrap(), Change::Unchanged);
    assert_eq!(fs::read_dir(target.path()).unwrap().count() - 2, 2, "the older one has gone");

    assert!(fs::write(target.path().join("new"), "x").is_err(), "still read-only");

    assert_eq!(unpublish(&target).unwrap(), Removed::Removed);
    assert_eq!(unpublish(&target).unwrap(), Removed::WasAbsent);
    assert_eq!((target.path().exists(), mount_count()), (false, before));
}

#[test]
fn content_is_written_changed_in_place_and_removed() {
    sandbox(round);
}

#[test]
fn content_is_written_changed_and_removed_on_older_kernels() {
    for lacking in
        [&[Feature::MountSetattr][..], &[Feature::MountSetattr, Feature::FsContext, Feature::Statmount]]
    {
        sandbox(|place| without_features(lacking, || round(place)));
    }
}

#[test]
fn unchanged_content_is_not_written() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        publish(&target, &one_file("1"), &plan()).unwrap();
        let inode = || fs::metadata(target.path().join("file")).unwrap().ino();
        let first = inode();
        publish(&target, &one_file("1"), &plan()).unwrap();
        assert_eq!(inode(), first);
        let stricter = Content::new().file_with_mode("file", "1", 0o600).unwrap();
        assert_eq!(publish(&target, &stricter, &plan()).unwrap(), Change::Written, "another mode");
        assert_ne!(inode(), first);
        assert_eq!(publish(&target, &Content::new(), &plan()).unwrap(), Change::Written, "no file at all");
        assert!(names(target.path()).is_empty());
    });
}

/// A reader that keeps the directory of one version sees only that version, and a name always leads to a
/// complete file.
#[test]
fn a_reader_never_sees_a_mixture() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        let version = |number: u64| {
            let text = format!("{number:04}").repeat(1024);
            Content::new().file("a", text.clone()).unwrap().file("b", text).unwrap()
        };
        publish(&target, &version(0), &plan()).unwrap();
        let is_over = AtomicBool::new(false);
        let reads = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // The reader follows the link to the version, like a program that needs files of one version.
            let reader = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let version =
                        fs::read_link(target.path().join("..data")).expect("the link is always there");
                    let version = target.path().join(version);
                    let both =
                        fs::read(version.join("a")).and_then(|a| Ok((a, fs::read(version.join("b"))?)));
                    // After two more publishes this version is gone.
                    let Ok((a, b)) = both else { continue };
                    assert_eq!(a.len(), 4096, "a whole file");
                    assert_eq!(a, b, "of one version");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut numbers = 1..=u64::from(rounds(500));
            let published =
                numbers.try_for_each(|number| publish(&target, &version(number), &plan()).map(drop));
            // Before anything can panic: the scope waits for the reader.
            is_over.store(true, Ordering::Relaxed);
            published.unwrap();
            reader.join().unwrap();
        });
        println!("{} versions, {} reads, none of them mixed", rounds(500), reads.load(Ordering::Relaxed));
        assert!(reads.load(Ordering::Relaxed) > 0);
    });
}

/// A reader that has resolved the path to a version can still read this version after it was replaced.
#[test]
fn the_version_before_stays_until_the_next_publish() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        publish(&target, &one_file("1"), &plan()).unwrap();
        let first = target.path().join(fs::read_link(target.path().join("..data")).unwrap());
        publish(&target, &one_file("2"), &plan()).unwrap();
        assert_eq!((fs::read(first.join("file")).unwrap(), read(&target, "file")), (b"1".into(), "2".into()));
        publish(&target, &one_file("2"), &plan()).unwrap();
        assert!(!first.exists());
    });
}

#[test]
fn many_publishers_mount_once() {
    sandbox(|place| {
        let target = place.join("target");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let target = &target;
                scope.spawn(move || {
                    let target = Target::new(target).unwrap();
                    let content = one_file(&number.to_string());
                    let begun = Instant::now();
                    for _ in 0..20 {
                        // On a slow machine a publish can wait behind the others for longer than its limit.
                        while let Err(error) = publish(&target, &content, &plan()) {
                            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                            assert!(begun.elapsed() < Duration::from_secs(120), "{error}");
                        }
                    }
                });
            }
        });
        assert_eq!(layers(&target), 1);
        assert!(fs::read_dir(&target).unwrap().count() <= 4, "one file, two versions, the link to one");
        assert_eq!(fs::read(target.join("file")).unwrap().len(), 1);
    });
}

#[test]
fn another_volume_at_the_target_is_refused_and_stays() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        publish(&target, &one_file("1"), &plan()).unwrap();
        for other in [EphemeralPlan::new("v1"), EphemeralPlan::new("v2").attributes(MountAttributes::RDONLY)]
        {
            let error = publish(&target, &one_file("2"), &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        }
        assert_eq!((read(&target, "file"), layers(target.path())), ("1".into(), 1));

        let foreign = Target::new(place.join("foreign")).unwrap();
        foreign.create_dir().unwrap();
        Mount::new("tmpfs", "foreign").at(&foreign).unwrap();
        assert_eq!(publish(&foreign, &one_file("1"), &plan()).unwrap_err().kind(), ErrorKind::AlreadyMounted);
        assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 0);
    });
}

#[test]
fn too_much_is_refused_and_the_old_version_stays() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        let plan = EphemeralPlan::new("v1").size(64 << 10);
        let too_large = Content::new().file("file", vec![0; 40 << 10]).unwrap();
        assert_eq!(publish(&target, &too_large, &plan).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert!(!target.path().exists(), "what a refused publish made is gone");

        publish(&target, &one_file("1"), &plan).unwrap();
        // The workload writes its own file to the volume.
        fs::write(target.path().join("mine"), vec![0; 48 << 10]).unwrap();
        let large = Content::new().file("file", vec![0; 24 << 10]).unwrap();
        assert_eq!(publish(&target, &large, &plan).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(read(&target, "file"), "1");
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 4, "no half version is left");
        assert_eq!(publish(&target, &one_file("2"), &plan).unwrap(), Change::Written);
        assert_eq!((read(&target, "file"), target.path().join("mine").exists()), ("2".into(), true));
    });
}

/// If a writer was killed at any point, the next publish completes or removes what it left.
#[test]
fn the_next_publish_repairs_an_interrupted_one() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        let plan = EphemeralPlan::new("v1");
        publish(&target, &one_file("1"), &plan).unwrap();
        let at = |name: &str| target.path().join(name);
        fs::create_dir(at("..17.000000001")).unwrap();
        fs::write(at("..17.000000001/half"), "").unwrap();
        std::os::unix::fs::symlink("..17.000000001", at("..data_tmp")).unwrap();
        std::os::unix::fs::symlink("..data/half", at("half")).unwrap();
        fs::remove_file(at("file")).unwrap();
        assert_eq!(publish(&target, &one_file("1"), &plan).unwrap(), Change::Unchanged);
        assert_eq!((names(target.path()), read(&target, "file")), (vec!["file".to_owned()], "1".into()));
        assert!(!at("..17.000000001").exists());
    });
}

#[test]
fn a_workload_with_write_access_cannot_redirect_the_driver() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        let outside = place.join("outside");
        let plan = EphemeralPlan::new("v1");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "kept").unwrap();
        publish(&target, &one_file("1"), &plan).unwrap();
        for name in ["..data", "..17.1", "file"] {
            let _ = fs::remove_file(target.path().join(name));
            std::os::unix::fs::symlink(&outside, target.path().join(name)).unwrap();
        }
        assert_eq!(publish(&target, &one_file("1"), &plan).unwrap(), Change::Written);
        assert_eq!((read(&target, "file"), names(target.path())), ("1".into(), vec!["file".to_owned()]));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "kept");
    });
}

#[test]
fn files_belong_to_the_group_and_are_not_swapped() {
    sandbox(|place| {
        let target = Target::new(place.join("target")).unwrap();
        let content = Content::new().file_with_mode("dir/key", "k", 0o440).unwrap();
        publish(&target, &content, &plan().group(4711)).unwrap();
        for name in ["dir", "dir/key", "."] {
            assert_eq!(fs::metadata(target.path().join(name)).unwrap().gid(), 4711, "{name}");
        }
        let entry = target.mounted().unwrap().unwrap();
        assert_eq!(entry.source, "content:v1");
        assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
        if KernelVersion::running().unwrap() >= KernelVersion::new(6, 4) {
            assert!(entry.super_options.has_flag("noswap"), "{:?}", entry.super_options);
        }
    });
}

#[test]
fn without_noswap_support_the_volume_is_still_published() {
    sandbox(|place| {
        without_features(&[Feature::NoSwap], || {
            let target = Target::new(place.join("target")).unwrap();
            publish(&target, &Content::new().file("key", "k").unwrap(), &plan()).unwrap();
            assert_eq!(fs::read_to_string(target.path().join("key")).unwrap(), "k");
            assert!(!target.mounted().unwrap().unwrap().super_options.has_flag("noswap"));
        });
    });
}
