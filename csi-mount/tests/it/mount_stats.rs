//! Usage is what statfs reports, and a filesystem that never answers costs bounded time.

use std::time::Duration;

use csi_mount::internal::{stats, stats_within};
use csi_mount::{ErrorKind, Mount, MountOptions};

use crate::fuse_support::{bounded, fuse};
use crate::mount_support::with_target;

#[test]
fn usage_equals_statfs() {
    with_target(|target| {
        let options = MountOptions::parse(["size=1048576", "nr_inodes=100"]).unwrap();
        Mount::new("tmpfs", "volume").options(&options).at(target).unwrap();
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
    with_target(|target| {
        let _device = fuse(target);
        let error =
            bounded(Duration::from_secs(2), || stats_within(target.path(), Duration::from_millis(100)));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive);
        assert!(error.to_string().contains("did not answer within 100ms"), "{error}");
    });
}
