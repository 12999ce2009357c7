//! The removal of a directory never leaves its own mount.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use csi_mount::{Bind, ErrorKind, Mount, MountAttributes, Removed, Target, unmount};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::devices::{EndOfWork, Image, refused, run};
use crate::measure;
use crate::mount_support::{sandbox, unmount_watched};

fn tree(at: &Path) {
    fs::create_dir_all(at.join("a/b/c")).unwrap();
    for file in ["one", "a/two", "a/b/c/three"] {
        fs::write(at.join(file), "data").unwrap();
    }
}

#[test]
fn everything_in_it_is_removed_and_links_are_not_followed() {
    sandbox(|place| {
        let volume = place.join("volume");
        let other = place.join("other");
        tree(&volume);
        tree(&other);
        symlink(&other, volume.join("a/link")).unwrap();
        let target = Target::new(&volume).unwrap();
        assert_eq!(target.remove_tree().unwrap(), Removed::Removed);
        assert!(!volume.exists());
        assert_eq!(fs::read(other.join("a/b/c/three")).unwrap(), b"data");
        assert_eq!(target.remove_tree().unwrap(), Removed::WasAbsent);
    });
}

#[test]
fn nothing_is_removed_while_anything_is_mounted_below() {
    sandbox(|place| {
        let volume = place.join("volume");
        let other = place.join("other");
        let alias = place.join("alias");
        tree(&volume);
        tree(&other);
        symlink(place, &alias).unwrap();
        let inner = Target::new(volume.join("a/b")).unwrap();
        Bind::new(&other).attributes(MountAttributes::empty()).at(&inner).unwrap();
        // This also works through a path that is not in the mount table.
        for path in [volume.clone(), alias.join("volume")] {
            let error = refused(Target::new(&path).unwrap().remove_tree(), ErrorKind::Busy);
            assert!(error.to_string().contains("volume/a/b"), "{error}");
        }
        for kept in [volume.join("one"), volume.join("a/two"), other.join("one"), other.join("a/two")] {
            assert_eq!(fs::read(&kept).unwrap(), b"data", "{}", kept.display());
        }
        unmount(&inner).unwrap();
        Target::new(&volume).unwrap().remove_tree().unwrap();
        assert!(other.join("one").exists());
    });
}

#[test]
fn a_mount_a_file_and_a_link_are_refused() {
    sandbox(|place| {
        let mounted = Target::new(place.join("mounted")).unwrap();
        mounted.create_dir().unwrap();
        Mount::new("tmpfs", "inner").at(&mounted).unwrap();
        assert_eq!(mounted.remove_tree().unwrap_err().kind(), ErrorKind::Busy);
        fs::write(place.join("file"), "data").unwrap();
        fs::create_dir(place.join("directory")).unwrap();
        symlink(place.join("directory"), place.join("link")).unwrap();
        for name in ["file", "link"] {
            let error = Target::new(place.join(name)).unwrap().remove_tree().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
        }
        assert!(place.join("directory").exists());
    });
}

#[test]
fn a_mount_that_comes_and_goes_is_never_entered() {
    sandbox(|place| {
        let volume = place.join("volume");
        let other = place.join("other");
        tree(&volume);
        tree(&other);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let inner = Target::new(volume.join("a")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    if Bind::new(&other).at(&inner).is_ok() {
                        drop(unmount(&inner));
                    }
                    drop(fs::create_dir_all(volume.join("a/b")));
                }
            });
            let _end = EndOfWork(&stop);
            for _ in 0..300 {
                drop(Target::new(&volume).unwrap().remove_tree());
                assert!(other.join("one").exists() && other.join("a/b/c/three").exists());
                drop(fs::create_dir_all(volume.join("a/b/c")));
            }
        });
    });
}

/// Makes a chain of directories that is deeper than a path can name, with other entries in each of them.
fn chain(at: &Path, depth: usize) -> OwnedFd {
    fs::create_dir(at).unwrap();
    let mut here: OwnedFd = fs::File::open(at).unwrap().into();
    for _ in 0..depth {
        for name in ["d", "beside"] {
            mkdirat(&here, name, Mode::RWXU).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(openat(&here, "file", flags, Mode::RWXU).unwrap());
        here = openat(&here, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
    here
}

#[test]
fn the_deepest_tree_takes_few_descriptors_and_little_stack() {
    sandbox(|place| {
        let volume = place.join("volume");
        drop(chain(&volume, 5000));
        let limits = getrlimit(Resource::Nofile);
        // The limit applies to the whole process. The other tests in it have few files open.
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limits }).unwrap();
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let removed = small.spawn(move || Target::new(&volume).unwrap().remove_tree()).unwrap().join();
        setrlimit(Resource::Nofile, limits).unwrap();
        assert_eq!(removed.unwrap().unwrap(), Removed::Removed);
    });
}

#[test]
fn nothing_outside_is_removed_when_a_directory_is_moved_away() {
    sandbox(|place| {
        let volume = place.join("volume");
        let other = place.join("other");
        let made = place.join("made");
        tree(&other);
        let wanted = measure::rounds(100);
        let rounds = std::sync::atomic::AtomicU32::new(0);
        let is_over = || rounds.load(std::sync::atomic::Ordering::Relaxed) >= wanted;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Moves a directory from below those that are kept open to a place outside the tree.
                let deep = volume.join(["d"; 20].join("/"));
                while !is_over() {
                    if fs::rename(&deep, other.join("moved")).is_ok() {
                        drop(fs::rename(other.join("moved"), &deep));
                    }
                }
            });
            scope.spawn(|| {
                while !is_over() {
                    if !volume.exists() {
                        drop(chain(&made, 40));
                        fs::rename(&made, &volume).unwrap();
                    }
                    drop(Target::new(&volume).unwrap().remove_tree());
                    rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        });
        for kept in ["one", "a/two", "a/b/c/three"] {
            assert_eq!(fs::read(other.join(kept)).unwrap(), b"data", "{kept}");
        }
    });
}

/// Runs the closure with an ext4, on which files can be immutable.
fn on_ext4(test: impl FnOnce(&Path) + Send) {
    sandbox(|place| {
        let image = Image::new(64);
        let disk = Target::new(place.join("disk")).unwrap();
        run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
        disk.create_dir().unwrap();
        Mount::new("ext4", image.path()).at(&disk).unwrap();
        test(disk.path());
        unmount_watched(&disk);
    });
}

/// One immutable file kept a volume from ever being deleted.
#[test]
fn immutable_and_append_only_files_are_removed() {
    on_ext4(|disk| {
        let volume = disk.join("volume");
        tree(&volume);
        for (attribute, name) in [("+i", "one"), ("+a", "a/two"), ("+i", "a/b/c"), ("+a", "a"), ("+i", "")] {
            run("chattr", &[attribute, volume.join(name).to_str().unwrap()]);
        }
        run("chattr", &["+a", disk.to_str().unwrap()]);
        let target = Target::new(&volume).unwrap();
        let refused = target.remove_tree();
        run("chattr", &["-a", disk.to_str().unwrap()]);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied, "only its own are changed");
        assert!(volume.exists());
        assert_eq!(target.remove_tree().unwrap(), Removed::Removed);
        assert!(!volume.exists());
    });
}

/// The first file that could not be removed ended the removal, and said nothing about the others.
#[test]
fn the_first_file_that_cannot_be_removed_is_named_with_their_number() {
    on_ext4(|disk| {
        let volume = disk.join("volume");
        // Below the directories that stay open, too.
        let deep = volume.join(["d"; 20].join("/"));
        tree(&volume);
        tree(&deep);
        for name in ["one", "a/two"] {
            for at in [&volume, &deep] {
                // A second name outside the tree: its attributes are not taken away.
                let other = disk.join(format!("{}-{}", name.len(), at.components().count()));
                fs::hard_link(at.join(name), &other).unwrap();
                run("chattr", &["+i", other.to_str().unwrap()]);
            }
        }
        let target = Target::new(&volume).unwrap();
        for _ in 0..2 {
            let error = refused(target.remove_tree(), ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.contains("the first of 4 files that failed"), "{text}");
            let named = ["/one", "/two"].iter().any(|name| text.contains(name));
            assert!(named, "{text}");
        }
        let left = ["one", "a/two"].into_iter().flat_map(|name| [volume.join(name), deep.join(name)]);
        assert!(left.into_iter().all(|path| path.exists()));
        assert!(!volume.join("a/b").exists() && !deep.join("a/b").exists(), "all others are removed");
        for entry in fs::read_dir(disk).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                run("chattr", &["-i", entry.path().to_str().unwrap()]);
            }
        }
        assert_eq!(target.remove_tree().unwrap(), Removed::Removed);
    });
}

/// What is far below a directory with such a file was left, and only the next removal went a step further.
#[test]
fn a_file_that_cannot_be_removed_keeps_no_deep_directory() {
    on_ext4(|disk| {
        let volume = disk.join("volume");
        drop(chain(&volume, 3000));
        let kept = volume.join("kept");
        fs::write(&kept, "").unwrap();
        fs::hard_link(&kept, disk.join("other")).unwrap();
        run("chattr", &["+i", kept.to_str().unwrap()]);
        let target = Target::new(&volume).unwrap();
        let error = refused(target.remove_tree(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("no other file failed"), "{error}");
        let left: Vec<_> = fs::read_dir(&volume).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
        run("chattr", &["-i", kept.to_str().unwrap()]);
        assert_eq!(target.remove_tree().unwrap(), Removed::Removed);
    });
}
