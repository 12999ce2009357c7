//! A volume's files are given to a group: by changing the files, without leaving the volume, or by a mount
//! that shows the group.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::internal::{Feature, mount_state, without_features};
use csi_mount::{
    Bind, ErrorKind, GroupChange, GroupOutcome, Host, IdMap, Mount, MountAttributes, Outcome, unmount,
};
use rustix::fs::{Mode, RenameFlags, mkdirat, openat, renameat_with};

use crate::devices::{Image, refused, run};
use crate::measure::rounds;
use crate::mount_support::{sandbox, source, target, unmount_watched};

const GROUP: u32 = 2000;

fn group_and_mode(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().unwrap();
    (found.gid(), found.mode() & 0o7777)
}

fn give(path: &Path) -> GroupOutcome {
    Host::kernel().directories().set_volume_ownership(path, GROUP, GroupChange::OnRootMismatch).unwrap()
}

fn checked(files: u64) -> GroupOutcome {
    GroupOutcome::Checked { files, changed: files, failed: 0 }
}

fn file(path: PathBuf, mode: u32) -> PathBuf {
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// kubernetes/kubernetes#69699: the change was repeated for every pod, and took hours.
#[test]
fn files_are_given_once_and_as_the_kubelet_does() {
    sandbox(|sandbox| {
        let volume = sandbox.join("volume");
        let outside = file(sandbox.join("outside"), 0o600);
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::set_permissions(volume.join("a"), Permissions::from_mode(0o700)).unwrap();
        let plain = file(volume.join("a/plain"), 0o600);
        let program = file(volume.join("a/b/program"), 0o4755);
        symlink(&outside, volume.join("a/link")).unwrap();
        symlink("..", volume.join("a/b/up")).unwrap();
        let below = target(&volume, "mounted");
        Mount::new("tmpfs", "another's").at(&below).unwrap();
        let others = file(below.path().join("file"), 0o600);

        assert_eq!(give(&volume), GroupOutcome::Checked { files: 7, changed: 7, failed: 0 });
        assert_eq!(group_and_mode(&plain), (GROUP, 0o660));
        assert_eq!(group_and_mode(&program), (GROUP, 0o4775), "what was there besides stays");
        assert_eq!(group_and_mode(&volume.join("a")), (GROUP, 0o2770));
        assert_eq!(group_and_mode(&volume.join("a/link")).0, GROUP, "the link itself");
        assert_eq!(group_and_mode(&outside), (0, 0o600), "and not what it leads to");
        assert_eq!(group_and_mode(&others), (0, 0o600), "another mount is not entered");
        assert_eq!(give(&volume), GroupOutcome::AlreadyDone);

        // The state after an interruption: the root is changed last.
        chown(&volume, None, Some(0)).unwrap();
        chown(&plain, None, Some(0)).unwrap();
        assert_eq!(give(&volume), GroupOutcome::Checked { files: 7, changed: 2, failed: 0 });
        fs::set_permissions(&volume, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(
            give(&volume),
            GroupOutcome::Checked { files: 7, changed: 1, failed: 0 },
            "without its setgid bit"
        );
        let added = file(volume.join("added"), 0o600);
        assert_eq!(give(&volume), GroupOutcome::AlreadyDone);
        let always =
            Host::kernel().directories().set_volume_ownership(&volume, GROUP, GroupChange::Always).unwrap();
        assert_eq!(always, GroupOutcome::Checked { files: 8, changed: 1, failed: 0 });
        assert_eq!(group_and_mode(&added).0, GROUP);
    });
}

#[test]
fn the_deepest_tree_takes_no_more_descriptors() {
    const DEPTH: u64 = 3000;
    sandbox(|sandbox| {
        let volume = sandbox.join("volume");
        fs::create_dir(&volume).unwrap();
        let mut here: OwnedFd = File::open(&volume).unwrap().into();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        for _ in 1..DEPTH {
            mkdirat(&here, "d", Mode::RWXU).unwrap();
            mkdirat(&here, "beside", Mode::RWXU).unwrap();
            here = openat(&here, "d", flags, Mode::empty()).unwrap();
        }
        assert_eq!(give(&volume), checked(2 * DEPTH - 1));
        assert_eq!(rustix::fs::fstat(&here).unwrap().st_gid, GROUP);
        // 2,000 entries are more than one read of the directory returns.
        let wide = sandbox.join("wide");
        (0..2000).for_each(|index| fs::create_dir_all(wide.join(format!("{index}/below"))).unwrap());
        assert_eq!(give(&wide), checked(4001));
    });
}

#[test]
fn swapped_directories_lead_nowhere_else() {
    sandbox(|sandbox| {
        let volume = sandbox.join("volume");
        let victim = sandbox.join("victim");
        fs::create_dir_all(victim.join("directory")).unwrap();
        let secret = file(victim.join("directory/file"), 0o600);
        for index in 0..50 {
            fs::create_dir_all(volume.join(format!("directory/{index}"))).unwrap();
        }
        symlink("../victim/directory", volume.join("link")).unwrap();
        let held: OwnedFd = File::open(&volume).unwrap().into();
        let is_done = AtomicBool::new(false);
        let (swaps, walks) = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| {
                let mut swaps = 0_u32;
                while !is_done.load(Ordering::Relaxed) {
                    let exchanged = renameat_with(&held, "directory", &held, "link", RenameFlags::EXCHANGE);
                    swaps += u32::from(exchanged.is_ok());
                }
                swaps
            });
            let walks = (0..rounds(300))
                .filter(|_| {
                    Host::kernel()
                        .directories()
                        .set_volume_ownership(&volume, GROUP, GroupChange::Always)
                        .is_ok()
                })
                .count();
            is_done.store(true, Ordering::Relaxed);
            (attacker.join().unwrap(), walks)
        });
        println!("{swaps} swaps, {walks} of {} walks went well", rounds(300));
        assert!(swaps > 0 && walks > 0);
        assert_eq!(group_and_mode(&secret), (0, 0o600));
        assert_eq!(group_and_mode(&victim.join("directory")).0, 0);
    });
}

/// One immutable file kept a volume from every pod with an `fsGroup`.
#[test]
fn a_file_that_cannot_be_changed_keeps_nobody_from_the_volume() {
    sandbox(|sandbox| {
        let image = Image::new(64);
        let disk = target(sandbox, "disk");
        run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
        Mount::new("ext4", image.path()).at(&disk).unwrap();
        let volume = disk.path().join("volume");
        fs::create_dir_all(volume.join("a")).unwrap();
        let fixed = file(volume.join("a/fixed"), 0o600);
        let plain = file(volume.join("a/plain"), 0o600);
        run("chattr", &["+i", fixed.to_str().unwrap()]);
        let outcome = give(&volume);
        run("chattr", &["-i", fixed.to_str().unwrap()]);
        assert_eq!(outcome, GroupOutcome::Checked { files: 4, changed: 3, failed: 1 });
        assert_eq!((group_and_mode(&plain), group_and_mode(&fixed).0), ((GROUP, 0o660), 0));
        assert_eq!(group_and_mode(&volume), (GROUP, 0o2775));
        assert_eq!(give(&volume), GroupOutcome::AlreadyDone);
        unmount_watched(&disk);
    });
}

#[test]
fn a_filesystem_with_a_server_is_refused() {
    sandbox(|sandbox| {
        let at = target(sandbox, "read-only");
        Bind::new(&source(sandbox, "source")).attributes(MountAttributes::RDONLY).at(&at).unwrap();
        let refused = |path: &Path| {
            Host::kernel()
                .directories()
                .set_volume_ownership(path, GROUP, GroupChange::Always)
                .unwrap_err()
                .kind()
        };
        assert_eq!(refused(at.path()), ErrorKind::ReadOnly);
        assert_eq!(refused(&sandbox.join("absent")), ErrorKind::NotFound);
        assert_eq!(refused(&file(sandbox.join("file"), 0o600)), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_bind_shows_files_as_a_groups_and_the_disk_keeps_its_own() {
    sandbox(|sandbox| {
        // Not the tmpfs: the kernel maps its owners only since Linux 6.3.
        let image = Image::new(64);
        let disk = target(sandbox, "disk");
        run("mkfs.ext4", &["-q", image.path().to_str().unwrap()]);
        Mount::new("ext4", image.path()).at(&disk).unwrap();
        let source = source(disk.path(), "source");
        let at = target(sandbox, "target");
        let map = || IdMap::new().group(0, GROUP).unwrap();
        let bind = || Bind::new(&source).attributes(MountAttributes::NODEV).id_map(map());
        assert_eq!(bind().at(&at).unwrap(), Outcome::Mounted);
        assert_eq!(bind().at(&at).unwrap(), Outcome::AlreadyMounted);
        let seen = |name: &str| group_and_mode(&at.path().join(name)).0;
        assert_eq!((seen("."), seen("file")), (GROUP, GROUP));
        assert_eq!(group_and_mode(&source.join("file")).0, 0, "nothing on the disk has changed");
        fs::write(at.path().join("new"), "by the workload").unwrap();
        chown(at.path().join("new"), None, Some(GROUP)).unwrap();
        assert_eq!(group_and_mode(&source.join("new")).0, 0, "what the group writes is the disk's own");
        chown(source.join("new"), None, Some(GROUP)).unwrap();
        assert_eq!(seen("new"), 0, "the two have changed places");

        for other in [IdMap::new(), IdMap::new().group(0, 3000).unwrap()] {
            let other = Bind::new(&source).attributes(MountAttributes::NODEV).id_map(other);
            refused(other.at(&at), ErrorKind::AlreadyMounted);
        }
        unmount(&at).unwrap();
        unmount(&disk).unwrap();
    });
}

#[test]
fn a_missing_support_for_id_maps_is_reported() {
    sandbox(|sandbox| {
        let at = target(sandbox, "target");
        let map = || IdMap::new().group(0, GROUP).unwrap();
        let error = refused(Bind::new("/proc/sys").id_map(map()).at(&at), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(said.contains("does not support it"), "{said}");
        let source = source(sandbox, "source");
        let old = || Bind::new(&source).id_map(map()).at(&at).unwrap_err();
        for feature in [Feature::MountSetattr, Feature::FsContext] {
            let error = without_features(&[feature], old);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("Linux 5.12"), "{error}");
        }
        assert!(mount_state(at.path()).unwrap().mount_point().is_none());
    });
}
