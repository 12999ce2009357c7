//! Directories with limits that are made and removed at one moment, by processes that are killed before any of their
//! steps, and before a loss of power.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csi_mount::internal::set_first_project_ids;
use csi_mount::{DirectoryLimit, Removed, Target};

use crate::devices;
use crate::devices::Image;
use crate::quota_support::{
    Disk, MIB, OURS, assert_full, create, directories, has_limit, in_memory, inherits, on_each, project,
    projects, write,
};
use crate::stepper::{End, Job, Programs, do_job};

/// How many project ids the processes try first that make 200 volumes.
const FEW_IDS: u32 = 208;

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let path = Path::new(words[1]);
    match words[0] {
        "create" => create(path, 2 * MIB).map(drop),
        "remove" => Target::new(path)?.remove_tree().map(drop),
        "many" => create_many(path),
        other => panic!("{other}"),
    }
}

/// 100 volumes by four threads, two of them in the same directory.
fn create_many(parent: &Path) -> csi_mount::Result<()> {
    set_first_project_ids(FEW_IDS);
    std::thread::scope(|scope| {
        let create = |thread: u32| {
            let mut numbers = (0..25).map(|number| parent.join(format!("{}/{thread}-{number}", thread % 2)));
            numbers.try_for_each(|volume| create(&volume, MIB).map(drop))
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || create(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

#[test]
fn ids_that_are_chosen_in_parallel_are_distinct() {
    do_job(job);
    on_each(|disk| {
        let parents = [disk.path("one"), disk.path("other")];
        let folders = parents.iter().flat_map(|parent| ["0", "1"].map(|folder| parent.join(folder)));
        let folders: Vec<_> = folders.collect();
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        // Two processes, four parent directories, each with its lock, and hardly more ids than volumes.
        std::thread::scope(|scope| {
            let test = "quotas_crash::ids_that_are_chosen_in_parallel_are_distinct";
            for parent in &parents {
                scope.spawn(move || {
                    let words = ["many", parent.to_str().unwrap()];
                    Job { programs: Programs::Followed, test, words: &words }.run();
                });
            }
        });
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let made: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        let ids: BTreeSet<u32> = projects(&made).into_iter().collect();
        assert_eq!((made.len(), ids.len()), (200, 200));
        assert!(ids.iter().all(|id| OURS.contains(id)));
    });
}

/// Whatever is made with this id is limited by its own limit, and nothing else has the id.
fn assert_whole(disk: &Disk, volume: &Path, neighbour: &Path) {
    let id = project(volume);
    assert!(inherits(volume) && OURS.contains(&id) && id != project(neighbour));
    assert_eq!(directories().limit(volume).unwrap(), Some(DirectoryLimit::new(2 * MIB)));
    assert_full(disk.fs_type, write(&volume.join("file"), 3 * MIB));
    fs::remove_file(volume.join("file")).unwrap();
    write(&volume.join("file"), MIB).unwrap();
}

fn killed_at_each_step(test: &str, step: &str, go_on: &(dyn Fn(&Disk, &Path, &Path) + Sync)) {
    on_each(|disk| {
        let neighbour = disk.path("neighbour");
        create(&neighbour, 2 * MIB).unwrap();
        let volume = disk.path("volume");
        let words = [step, volume.to_str().unwrap()];
        for change in 1.. {
            if step == "remove" {
                create(&volume, 2 * MIB).unwrap();
                write(&volume.join("file"), MIB).unwrap();
            }
            let end = Job { programs: Programs::Followed, test, words: &words }.kill_before_change(change);
            let id = volume.exists().then(|| project(&volume)).filter(|id| *id != 0);
            go_on(disk, &volume, &neighbour);
            directories().remove_tree(&volume).unwrap();
            assert!(id.is_none_or(|id| !has_limit(disk, id)), "{step} leaves a limit before change {change}");
            if let End::Finished { calls } = end {
                assert!(calls > 3, "{step} has {calls} changes");
                println!("{step} on {}: killed before each of {calls} changes", disk.fs_type);
                break;
            }
        }
        assert_eq!(directories().limit(&neighbour).unwrap(), Some(DirectoryLimit::new(2 * MIB)));
    });
}

#[test]
fn a_creation_that_is_killed_is_continued() {
    do_job(job);
    killed_at_each_step(
        "quotas_crash::a_creation_that_is_killed_is_continued",
        "create",
        &|disk, volume, neighbour| {
            create(volume, 2 * MIB).unwrap();
            assert_whole(disk, volume, neighbour);
        },
    );
}

#[test]
fn a_creation_that_is_killed_is_removed() {
    do_job(job);
    killed_at_each_step("quotas_crash::a_creation_that_is_killed_is_removed", "create", &|_, volume, _| {
        let removed = directories().remove_tree(volume).unwrap();
        assert!(matches!(removed, Removed::Removed | Removed::WasAbsent));
    });
}

#[test]
fn a_removal_that_is_killed_is_continued() {
    do_job(job);
    killed_at_each_step("quotas_crash::a_removal_that_is_killed_is_continued", "remove", &|_, volume, _| {
        directories().remove_tree(volume).unwrap();
        assert!(!volume.exists());
    });
}

#[test]
fn after_a_removal_that_is_killed_the_volume_is_made_again() {
    do_job(job);
    let test = "quotas_crash::after_a_removal_that_is_killed_the_volume_is_made_again";
    killed_at_each_step(test, "remove", &|disk, volume, neighbour| {
        create(volume, 2 * MIB).unwrap();
        assert_whole(disk, volume, neighbour);
    });
}

/// Another process that had chosen the same id, and was killed before it saw that.
#[test]
fn an_id_that_was_claimed_twice_is_given_to_one() {
    on_each(|disk| {
        let first = disk.path("first");
        let second = disk.path("second");
        create(&first, 2 * MIB).unwrap();
        fs::create_dir(&second).unwrap();
        devices::run("chattr", &["-p", &project(&first).to_string(), second.to_str().unwrap()]);
        assert_eq!(directories().limit(&second).unwrap(), None);
        create(&second, 2 * MIB).unwrap();
        assert_whole(disk, &second, &first);
        assert_whole(disk, &first, &second);
    });
}

/// What the device has when the call returns: it is copied while the filesystem is mounted.
#[test]
fn a_loss_of_power_loses_no_limit() {
    in_memory(|base| {
        for fs_type in ["ext4", "xfs"] {
            let disk = Disk::with_quotas(base, fs_type);
            let limit_after_a_loss = || {
                let image = Image::copy_of(&disk.image.file());
                let copy = Disk { image, fs_type, at: base.join("copy") };
                copy.mount(if fs_type == "xfs" { &["prjquota", "nouuid"] } else { &["prjquota"] });
                let limit = directories().limit(&copy.path("volume")).unwrap();
                copy.unmount();
                limit
            };
            let limit = DirectoryLimit::new(2 * MIB);
            create(&disk.path("volume"), limit).unwrap();
            assert_eq!(limit_after_a_loss(), Some(limit), "{fs_type}");
            let limit = DirectoryLimit::new(6 * MIB);
            directories().set_limit(&disk.path("volume"), limit).unwrap();
            assert_eq!(limit_after_a_loss(), Some(limit), "{fs_type}");
            disk.unmount();
        }
    });
}
