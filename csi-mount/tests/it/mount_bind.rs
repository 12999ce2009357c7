//! Bind mounts have their attributes in every namespace, are made once, and never bind the wrong thing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use csi_mount::internal::{Feature, PeerNamespace, mount_state, without_features};
use csi_mount::{Bind, Detach, ErrorKind, MountAttributes, MountState, Outcome, Target, Unmount, mounts};
use nix::libc;

use crate::mount_support::{layers, sandbox, source, target, write_error};

/// Each method of making a bind mount, from the newest kernel to the oldest.
const KERNELS: [&[Feature]; 3] = [
    &[],
    &[Feature::Statmount, Feature::MountSetattr],
    &[Feature::Statmount, Feature::MountSetattr, Feature::FsContext, Feature::Openat2, Feature::StatxMount],
];

const ALL: MountAttributes = MountAttributes::RDONLY
    .union(MountAttributes::NOSUID)
    .union(MountAttributes::NODEV)
    .union(MountAttributes::NOEXEC)
    .union(MountAttributes::NOATIME)
    .union(MountAttributes::NODIRATIME)
    .union(MountAttributes::NOSYMFOLLOW);

fn attributes_at(path: &Path) -> Option<MountAttributes> {
    mounts().unwrap().into_iter().rfind(|entry| entry.mount_point == path).map(|entry| entry.attributes)
}

#[test]
fn a_read_only_bind_is_read_only_where_it_is_received() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let target = target(sandbox, "target");
            let host = PeerNamespace::new();
            let bind = Bind::new(&source).attributes(MountAttributes::RDONLY);
            assert_eq!(without_features(kernel, || bind.at(&target)).unwrap(), Outcome::Mounted);

            assert_eq!(write_error(target.path()), Some(libc::EROFS));
            let path = target.path().to_owned();
            host.run(move || {
                assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "source");
                assert_eq!(write_error(&path), Some(libc::EROFS), "on the host, without {kernel:?}");
            });
            assert_eq!(write_error(&source), None, "the source stays writable");
        });
    }
}

#[test]
fn every_attribute_is_received() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let target = target(sandbox, "target");
            let script = source.join("script");
            fs::write(&script, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
            let host = PeerNamespace::new();
            without_features(kernel, || Bind::new(&source).attributes(ALL).at(&target)).unwrap();

            assert_eq!(attributes_at(target.path()), Some(ALL));
            let path = target.path().to_owned();
            host.run(move || {
                assert_eq!(attributes_at(&path), Some(ALL), "on the host, without {kernel:?}");
                let error = std::process::Command::new(path.join("script")).status().unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EACCES), "noexec");
            });
        });
    }
}

#[test]
fn a_bind_has_the_attributes_of_its_source_too() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let middle = target(sandbox, "middle");
            let target = target(sandbox, "target");
            without_features(kernel, || {
                Bind::new(&source).attributes(MountAttributes::NOSUID).at(&middle).unwrap();
                Bind::new(middle.path()).attributes(MountAttributes::RDONLY).at(&target).unwrap();
            });
            let both = MountAttributes::NOSUID | MountAttributes::RDONLY;
            assert_eq!(attributes_at(target.path()), Some(both));
        });
    }
}

#[test]
fn a_second_bind_finds_the_first() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            let target = target(sandbox, "target");
            without_features(kernel, || {
                let bind = Bind::new(&source).attributes(MountAttributes::RDONLY);
                assert_eq!(bind.at(&target).unwrap(), Outcome::Mounted);
                assert_eq!(bind.at(&target).unwrap(), Outcome::AlreadyMounted);
                assert_eq!(layers(target.path()), 1);

                let error = Bind::new(&source).at(&target).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AlreadyMounted);
                assert!(error.to_string().contains("rw was requested"), "{error}");
            });
        });
    }
}

#[test]
fn another_source_is_not_the_same() {
    sandbox(|sandbox| {
        let one = source(sandbox, "one");
        let two = source(sandbox, "two");
        let target = target(sandbox, "target");
        Bind::new(&one).at(&target).unwrap();
        let error = Bind::new(&two).at(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted);
        let text = error.to_string();
        assert!(text.contains("something other than") && text.contains("tmpfs from sandbox"), "{text}");
        assert_eq!(layers(target.path()), 1);
    });
}

#[test]
fn only_one_of_many_callers_mounts() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let source = source(sandbox, "source");
            for round in 0..20 {
                let target = target(sandbox, &format!("target{round}"));
                let mounted = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..4)
                        .map(|_| scope.spawn(|| without_features(kernel, || Bind::new(&source).at(&target))))
                        .collect();
                    let outcomes = threads.into_iter().map(|thread| {
                        thread.join().unwrap().unwrap_or_else(|error| panic!("without {kernel:?}: {error}"))
                    });
                    outcomes.filter(|outcome| *outcome == Outcome::Mounted).count()
                });
                assert_eq!((mounted, layers(target.path())), (1, 1), "without {kernel:?}");
            }
        });
    }
}

#[test]
fn files_and_device_nodes_are_bound_onto_files() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let target = Target::new(sandbox.join("device")).unwrap();
            target.create_file().unwrap();
            without_features(kernel, || {
                let bind = Bind::new("/dev/null");
                assert_eq!(bind.at(&target).unwrap(), Outcome::Mounted);
                assert_eq!(bind.at(&target).unwrap(), Outcome::AlreadyMounted);
                target.create_file().unwrap();
                assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
            });
        });
    }
}

#[test]
fn the_mounts_below_are_bound_on_request() {
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let below = target(&source, "below");
        csi_mount::Mount::new("tmpfs", "below").at(&below).unwrap();
        let one = target(sandbox, "one");
        let all = target(sandbox, "all");
        Bind::new(&source).at(&one).unwrap();
        assert_eq!(write_error(&one.path().join("below")), None);
        Bind::new(&source).recursive().attributes(MountAttributes::RDONLY).at(&all).unwrap();
        assert_eq!(write_error(&all.path().join("below")), Some(libc::EROFS));
        assert_eq!(layers(&one.path().join("below")), 0);
    });
}

#[test]
fn no_tree_of_mounts_is_half_read_only() {
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        csi_mount::Mount::new("tmpfs", "below").at(&target(&source, "below")).unwrap();
        let more = target(sandbox, "more");
        let bind = Bind::new(&source).recursive().attributes(MountAttributes::RDONLY);
        let error = without_features(&[Feature::MountSetattr], || bind.at(&more)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "no tree that is half read-only");
    });
}

#[test]
fn what_can_not_be_bound_is_refused() {
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let file = source.join("file");
        let inside = target(&source, "inside");
        let directory = target(sandbox, "directory");
        symlink(directory.path(), sandbox.join("link")).unwrap();
        let refused = |from: &Path, onto: &Path| {
            let error = Bind::new(from).at(&Target::new(onto).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        };
        assert!(refused(&source, inside.path()).contains("it is inside the source"));
        assert!(refused(inside.path(), &source).contains("it contains the source"));
        assert!(refused(&source, &source).contains("it is the same as the source"));
        assert!(refused(&file, directory.path()).contains("a regular file"));
        assert!(refused(&source, &sandbox.join("link")).contains("symbolic link"));
        assert!(refused(Path::new("relative"), directory.path()).contains("not absolute"));
        assert!(refused(Path::new(""), directory.path()).contains("empty"));

        let error = Bind::new("/no/such/source").at(&directory).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, Some(Path::new("/no/such/source"))));
        let absent = Target::new(sandbox.join("absent")).unwrap();
        assert_eq!(Bind::new(&source).at(&absent).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(mount_state(directory.path()).unwrap(), MountState::NotMounted);
    });
}

/// Whether a directory is inside another one is decided by what the kernel reports about both, or by
/// following `..` if this is not enough. Both methods agree for every pair of directories, across mounts and
/// through aliases.
#[test]
fn nesting_is_the_same_with_and_without_statmount() {
    sandbox(|sandbox| {
        let make = |path: &str| fs::create_dir_all(sandbox.join(path)).unwrap();
        ["a/b/c/d", "a/empty", "other", "alias", "alias of c", "ramfs"].into_iter().for_each(make);
        let mounted = |fs_type: &str, path: &str| {
            csi_mount::Mount::new(fs_type, "volume").at(&Target::new(sandbox.join(path)).unwrap()).unwrap();
        };
        // A filesystem in the tree, another one inside it, and one that does not count its directories.
        mounted("tmpfs", "a/b/c");
        ["a/b/c/d/e", "a/b/c/full/of"].into_iter().for_each(make);
        mounted("tmpfs", "a/b/c/d/e");
        make("a/b/c/d/e/f");
        mounted("ramfs", "ramfs");
        make("ramfs/x/y");
        let bound = |from: &str, onto: &str| {
            Bind::new(&sandbox.join(from)).at(&Target::new(sandbox.join(onto)).unwrap()).unwrap();
        };
        bound("a/b", "alias");
        bound("a/b/c/d", "alias of c");
        let all = [
            "a",
            "a/b",
            "a/b/c",
            "a/b/c/d",
            "a/b/c/d/e",
            "a/b/c/d/e/f",
            "a/b/c/full",
            "a/b/c/full/of",
            "a/empty",
            "other",
            "alias/c",
            "alias of c",
            "ramfs",
            "ramfs/x",
            "ramfs/x/y",
        ];
        let mut refused = 0;
        for (from, onto) in all.iter().flat_map(|from| all.iter().map(move |onto| (*from, *onto))) {
            let source = sandbox.join(from);
            let target = Target::new(sandbox.join(onto)).unwrap();
            // If something is mounted there, it is compared with the source, and nesting is not checked.
            if matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)) {
                continue;
            }
            let bind = || match Bind::new(&source).at(&target) {
                Ok(_) => {
                    // Through an alias the target can be inside its own source. Linux 5.10 then propagates
                    // the bind into itself, where it is busy.
                    Unmount::new().detach(Detach::IfBusy).at(&target).unwrap();
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            let at_once = bind();
            assert_eq!(at_once, without_features(&[Feature::Statmount], bind), "{from} at {onto}");
            refused += usize::from(at_once.is_some());
        }
        assert!(refused > all.len(), "more than those that are the same directory: {refused}");
    });
}
