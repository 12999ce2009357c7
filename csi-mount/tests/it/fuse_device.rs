//! FUSE filesystems that the driver mounts: the daemon inherits the device. The daemon is this test program, started
//! again (`fuse_process`).

use std::fs;
use std::time::Duration;

use csi_mount::internal::flow::fuse::{FuseDaemon, is_lost, publish, stage, unpublish, unstage};
use csi_mount::internal::health;
use csi_mount::{ErrorKind, MountAttributes, MountHealth, MountOptions, Outcome, Target};

use crate::fuse_process::{daemon, in_place, kill, the_process};
use crate::fuse_support::bounded;
use crate::mount_support::{eventually, layers};

fn options() -> MountOptions {
    MountOptions::parse(["allow_other", "default_permissions", "nosuid", "nodev", "noexec"]).unwrap()
}

fn with_device(mode: &str, staging: &Target) -> FuseDaemon {
    daemon(mode, staging).arg_device(options())
}

#[test]
fn a_daemon_gets_the_device_of_a_mount_with_these_options() {
    in_place(|staging, pod| {
        let served = with_device("serve", staging);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(" - fuse ")).unwrap();
        for option in ["nosuid", "nodev", "noexec", "allow_other", "default_permissions"] {
            assert!(line.contains(option), "{option}: {line}");
        }
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        kill(the_process(staging));
        eventually("no process keeps the device", || is_lost(pod.path()).unwrap());
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        assert_eq!(health(pod.path()).unwrap(), MountHealth::Healthy);
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}

#[test]
fn a_daemon_that_does_not_serve_its_device_is_an_error_and_nothing_stays_mounted() {
    in_place(|staging, _| {
        for (mode, kind) in [("fail", ErrorKind::ToolFailed), ("leave", ErrorKind::ToolFailed)] {
            let failed = || stage(staging, &with_device(mode, staging)).unwrap_err();
            let error = bounded(Duration::from_secs(20), failed);
            assert_eq!(error.kind(), kind, "{mode}: {error}");
            assert_eq!(layers(staging.path()), 0);
        }
        let limit = Duration::from_millis(300);
        let error = stage(staging, &with_device("idle", staging).ready_time_limit(limit)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        assert!(
            error.to_string().ends_with("its output is in the log of the driver on this node"),
            "{error}"
        );
        let missing = FuseDaemon::new("/no/such/program").arg_device(options());
        assert_eq!(stage(staging, &missing).unwrap_err().kind(), ErrorKind::MissingTool);
        assert_eq!(layers(staging.path()), 0);
    });
}

/// The pauses are 1, 2 and 4 seconds: no failed attempt begins others.
#[test]
fn a_daemon_that_can_not_be_started_again_is_tried_by_one_thread() {
    in_place(|staging, _| {
        stage(staging, &with_device("once", staging).restart_when_lost()).unwrap();
        kill(the_process(staging));
        let starts = || {
            let text = fs::read_to_string(staging.path().with_file_name("starts")).unwrap();
            text.lines().map(|line| line.parse().unwrap()).collect::<Vec<u64>>()
        };
        eventually("three attempts have failed", || starts().len() > 3);
        let pauses: Vec<u64> = starts()[1..4].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses[0] >= 1500 && pauses[1] >= 3500, "{pauses:?}");
        unstage(staging).unwrap();
    });
}
