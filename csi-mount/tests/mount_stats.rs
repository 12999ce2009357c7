//! Usage is what statfs reports, and a filesystem that never answers costs bounded time.

mod fuse_support;
mod mount_support;

use std::io::Read;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use csi_mount::{
    Detach, ErrorKind, Mount, MountOptions, MountState, Target, Unmount, Unmounted, mount_state, stats,
    stats_within, unmount,
};
use fuse_support::{PATIENCE, answer_init, bounded, fuse};
use mount_support::{sandbox, target};

#[test]
fn usage_equals_statfs() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let options = MountOptions::parse(["size=1048576", "nr_inodes=100"]).unwrap();
        Mount::new("tmpfs", "volume").options(&options).at(&target).unwrap();
        let empty = stats(target.path()).unwrap();
        assert_eq!(empty.bytes.total, 1 << 20);
        std::fs::write(target.path().join("file"), vec![1; 65536]).unwrap();
        let filled = stats(target.path()).unwrap();
        assert_eq!(filled.bytes.used, empty.bytes.used + 65536);
        assert_eq!(filled.bytes.available, empty.bytes.available - 65536);
        let before = empty.inodes.unwrap();
        let after = filled.inodes.unwrap();
        assert_eq!((after.total, after.used), (100, before.used + 1));

        let known = rustix::fs::statfs(target.path()).unwrap();
        assert_eq!(filled.bytes.total, known.f_blocks * known.f_bsize as u64);
    });
}

#[test]
fn a_missing_path_is_not_found() {
    assert_eq!(stats("/no/such/path").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(stats("relative").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_daemon_that_never_starts_to_answer_is_unresponsive() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let _device = fuse(&target);
        let error =
            bounded(Duration::from_secs(2), || stats_within(target.path(), Duration::from_millis(100)));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive);
        assert!(error.to_string().contains("did not answer within 100ms"), "{error}");
    });
}

/// Asks until the daemon has a request, which it keeps. On a machine that has other work, a child process can
/// be given up before it has asked.
fn ask_until<T>(kept: &JoinHandle<T>, target: &Target) {
    let end = Instant::now() + PATIENCE;
    while !kept.is_finished() {
        let error =
            bounded(Duration::from_secs(2), || stats_within(target.path(), Duration::from_millis(100)));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unresponsive);
        assert!(Instant::now() < end, "no request reaches the daemon");
    }
}

#[test]
fn a_request_that_is_never_answered_costs_bounded_time() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let device = fuse(&target);
        answer_init(&device);
        // The request is taken and kept: the child can't even be killed while this descriptor is open.
        let kept = std::thread::spawn({
            let mut device = device.try_clone().unwrap();
            move || device.read(&mut [0; 8192]).unwrap()
        });
        ask_until(&kept, &target);
        assert!(kept.join().unwrap() > 0, "the request reached the daemon");

        bounded(Duration::from_secs(1), || {
            assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
            assert!(matches!(target.state().unwrap(), MountState::Mounted(_)));
            assert!(target.create_dir().is_ok());
        });
    });
}

#[test]
fn a_filesystem_that_keeps_requests_is_unmounted_by_force_on_request() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let device = fuse(&target);
        answer_init(&device);
        let kept = std::thread::spawn({
            let mut device = device.try_clone().unwrap();
            move || device.read(&mut [0; 8192]).unwrap()
        });
        // A child process waits for the daemon, and makes the mount busy.
        ask_until(&kept, &target);
        kept.join().unwrap();
        assert_eq!(unmount(&target).unwrap_err().kind(), ErrorKind::Busy);
        let forced =
            Unmount::new().detach(Detach::IfUnresponsive).answer_time_limit(Duration::from_millis(100));
        let unmounted = bounded(Duration::from_secs(10), || forced.at(&target)).unwrap();
        assert_eq!(unmounted, Unmounted::Unmounted { layers: 1 });
        assert_eq!(target.state().unwrap(), MountState::NotMounted);
    });
}

#[test]
fn a_mount_whose_daemon_is_gone_is_recognized_and_unmounted() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let device = fuse(&target);
        answer_init(&device);
        let in_use = hold(target.path());
        drop(device);
        assert_eq!(stats(target.path()).unwrap_err().kind(), ErrorKind::Unresponsive, "ENOTCONN");
        assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
        let unmounted = Unmount::new().detach(Detach::IfUnresponsive).at(&target).unwrap();
        assert_eq!(unmounted, Unmounted::Detached, "somebody still has it open");
        assert_eq!(target.state().unwrap(), MountState::NotMounted);
        drop(in_use);
    });
}

/// Holds the root of a mount open without a request to its filesystem.
fn hold(path: &Path) -> rustix::fd::OwnedFd {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}
