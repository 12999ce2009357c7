//! Failures that users of mounts reported for other drivers, and that must not happen here. Each test names
//! the issues that report its failure.
//!
//! docs/field-failures.md has the whole list, including the failures that are tested in other files.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::internal::{Feature, PeerNamespace, health, mount_state, stats, without_features};
use csi_mount::{
    Bind, Detach, ErrorKind, Mount, MountAttributes, MountHealth, MountOptions, MountState, Outcome, Target,
    Unmount, Unmounted, mounts, unmount,
};
use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use crate::fuse_support::{answer_init, answering_daemon, fuse};
use crate::mount_support::{layers, sandbox, source, target, with_target};

/// Keeps the mount there in use, without a request to its filesystem.
fn hold(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn unless_it_lives() -> Unmount {
    Unmount::new().detach(Detach::IfUnresponsive)
}

/// spiffe/spiffe-csi#331, topolvm/topolvm#1225: each publish added a mount, and the propagated mounts
/// multiplied, until 13 mounts were 49,153. A driver for secrets in Rust: a repeated publish put a second
/// tmpfs over the first.
#[test]
fn publishing_again_and_again_is_one_mount() {
    sandbox(|sandbox| {
        let source = source(sandbox, "source");
        let bound = target(sandbox, "bound");
        let memory = target(sandbox, "m");
        let peer = PeerNamespace::new();
        let before = mounts().unwrap().len();
        for round in 0..100 {
            let expected = if round == 0 { Outcome::Mounted } else { Outcome::AlreadyMounted };
            let bind = Bind::new(&source).attributes(MountAttributes::RDONLY);
            assert_eq!(bind.at(&bound).unwrap(), expected);
            assert_eq!(Mount::new("tmpfs", "secrets").at(&memory).unwrap(), expected);
            fs::write(memory.path().join("token"), round.to_string()).unwrap();
        }
        assert_eq!(mounts().unwrap().len(), before + 2);
        let paths = [bound.path().to_owned(), memory.path().to_owned()];
        let there = paths.clone();
        assert_eq!(peer.run(move || there.map(|path| layers(&path))), [1, 1]);
        for target in [&bound, &memory] {
            assert_eq!(unmount(target).unwrap(), Unmounted::Unmounted { layers: 1 });
        }
        assert_eq!(peer.run(move || paths.map(|path| layers(&path))), [0, 0]);
        assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0, "a secret lies below the mount");
    });
}

/// moosefs/moosefs-csi#34: unpublish returned OK, and the volume was still mounted.
#[test]
fn unpublish_is_not_done_while_a_layer_is_left() {
    with_target(|target| {
        Mount::new("tmpfs", "lower").at(target).unwrap();
        let in_use = hold(target.path());
        // A driver without checks does this.
        rustix::mount::mount("upper", target.path(), "tmpfs", MountFlags::empty(), c"").unwrap();
        for _ in 0..2 {
            assert_eq!(unmount(target).unwrap_err().kind(), ErrorKind::Busy);
            assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
            assert_eq!(target.remove().unwrap_err().kind(), ErrorKind::Busy);
        }
        drop(in_use);
        assert_eq!(unmount(target).unwrap(), Unmounted::Unmounted { layers: 1 });
        assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
    });
}

/// kubernetes-sigs/blob-csi-driver#117, ceph/ceph-csi#2634: the daemon restarted, and pods got ENOTCONN.
#[test]
fn a_mount_whose_daemon_was_restarted_is_mounted_again() {
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let publish = target(sandbox, "publish");
        let device = fuse(&staging);
        answer_init(&device);
        Bind::new(staging.path()).at(&publish).unwrap();
        let pod = hold(publish.path());
        drop(device);
        for target in [&publish, &staging] {
            assert_eq!(health(target.path()).unwrap(), MountHealth::Dead(libc::ENOTCONN));
            unless_it_lives().at(target).unwrap();
            assert_eq!(health(target.path()).unwrap(), MountHealth::NotMounted);
        }
        let daemon = answering_daemon(&staging, None);
        assert_eq!(Bind::new(staging.path()).at(&publish).unwrap(), Outcome::Mounted);
        assert_eq!(health(publish.path()).unwrap(), MountHealth::Healthy);
        drop(pod);
        for target in [&publish, &staging] {
            assert_eq!(unmount(target).unwrap(), Unmounted::Unmounted { layers: 1 });
        }
        daemon.join().unwrap();
    });
}

/// seaweedfs/seaweedfs-csi-driver#307: the mount of a dead daemon was busy forever.
#[test]
fn a_busy_mount_is_detached_when_its_daemon_is_dead_and_not_when_it_lives() {
    sandbox(|sandbox| {
        let dead = target(sandbox, "dead");
        let living = target(sandbox, "living");
        let device = fuse(&dead);
        answer_init(&device);
        let daemon = answering_daemon(&living, None);
        let in_use = [hold(dead.path()), hold(living.path())];
        drop(device);
        assert_eq!(stats(dead.path()).unwrap_err().kind(), ErrorKind::Unresponsive, "ENOTCONN");
        assert_eq!(unmount(&dead).unwrap_err().kind(), ErrorKind::Busy, "nobody asked for more");
        assert_eq!(unless_it_lives().at(&dead).unwrap(), Unmounted::Detached);
        assert_eq!(unless_it_lives().at(&living).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(health(living.path()).unwrap(), MountHealth::Healthy);
        drop(in_use);
        unmount(&living).unwrap();
        daemon.join().unwrap();
    });
}

/// kubernetes/kubernetes#101398: the SMB server was down, and EHOSTDOWN was not recognized as a broken mount.
#[test]
fn a_server_that_is_down_is_a_broken_mount() {
    for number in [libc::EHOSTDOWN, libc::ESTALE, libc::EIO] {
        with_target(|target| {
            let daemon = answering_daemon(target, Some(number));
            assert_eq!(health(target.path()).unwrap(), MountHealth::Dead(number));
            assert!(stats(target.path()).is_err());
            assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
            let in_use = hold(target.path());
            assert_eq!(unless_it_lives().at(target).unwrap(), Unmounted::Detached);
            assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
            drop(in_use);
            daemon.join().unwrap();
        });
    }
}

/// ceph/ceph-csi#2295: the SELinux context was dropped without an error.
#[test]
fn an_selinux_context_is_in_force_or_refused() {
    let context = "system_u:object_r:container_file_t:s0:c1,c2";
    with_target(|target| {
        let options = MountOptions::parse([format!("context=\"{context}\"")]).unwrap();
        match Mount::new("tmpfs", "volume").options(&options).at(target) {
            Ok(_) => {
                let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
                let line = table.lines().find(|line| line.contains(target.path().to_str().unwrap())).unwrap();
                assert!(line.contains(context), "it is not in force: {line}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
                assert!(
                    error.to_string().contains("context") && !error.to_string().contains(context),
                    "{error}"
                );
                assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
            }
        }
    });
}

/// kubernetes/kubernetes#101791: the mount table changed while it was read. A mount was missed, and the disk
/// was attached to two nodes.
#[test]
fn a_table_that_changes_while_it_is_read_hides_no_mount() {
    sandbox(|sandbox| {
        let stable = target(sandbox, "stable");
        let source = source(sandbox, "source");
        let others: Vec<_> = (0..40).map(|index| target(sandbox, &format!("other{index}"))).collect();
        Mount::new("tmpfs", "volume").at(&stable).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for other in &others {
                        Bind::new(&source).at(other).unwrap();
                    }
                    for other in &others {
                        unmount(other).unwrap();
                    }
                }
            });
            let mut read = 0;
            for round in 0..2000 {
                // A table that differs at every read is an error: it is then unknown what is mounted.
                if let Ok(table) = mounts() {
                    read += 1;
                    assert!(table.iter().any(|entry| entry.mount_point == stable.path()), "{round}");
                }
            }
            for features in [&[][..], &[Feature::StatxMount, Feature::Statmount]] {
                without_features(features, || {
                    for _ in 0..500 {
                        let state = mount_state(stable.path());
                        assert!(
                            !matches!(state, Ok(MountState::NotMounted | MountState::Absent)),
                            "{state:?}"
                        );
                    }
                });
            }
            is_done.store(true, Ordering::Relaxed);
            println!("the table was read {read} times of 2000");
        });
    });
}

/// kubernetes/kubernetes#101791 as well: a table that can't be read at all is not an empty table.
#[test]
fn a_table_that_can_not_be_read_is_an_error() {
    with_target(|target| {
        Mount::new("tmpfs", "volume").at(target).unwrap();
        let proc = Target::new("/proc").unwrap();
        rustix::mount::mount("hidden", proc.path(), "tmpfs", MountFlags::empty(), c"").unwrap();
        mounts().unwrap_err();
        let state = mount_state(target.path()).unwrap();
        assert!(matches!(state, MountState::Mounted(_)), "whether it is mounted is asked of no table");
        without_features(&[Feature::StatxMount, Feature::Statmount, Feature::Openat2], || {
            let error = mount_state(target.path()).unwrap_err();
            assert!(error.to_string().contains("mount /proc into the container"), "{error}");
            unmount(target).unwrap_err();
        });
        rustix::mount::unmount("/proc", rustix::mount::UnmountFlags::empty()).unwrap();
        assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
    });
}
