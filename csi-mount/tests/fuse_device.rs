//! FUSE filesystems that the driver mounts: the daemon inherits the device, and the next daemon can continue the
//! mount. The daemon is this test program, started again (`fuse_process`).

mod flow_support;
mod fuse_process;
mod fuse_support;

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;
use std::time::Duration;

use csi_mount::internal::flow::fuse::{FuseDaemon, is_lost, publish, stage, unpublish, unstage};
use csi_mount::{ErrorKind, MountAttributes, MountHealth, MountOptions, Outcome, Target, health};
use flow_support::{eventually, layers};
use fuse_process::{daemon, in_place, itself, kill, processes, the_process};
use fuse_support::bounded;

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
        let missing = FuseDaemon::new("/no/such/program").arg_device(options());
        assert_eq!(stage(staging, &missing).unwrap_err().kind(), ErrorKind::MissingTool);
        assert_eq!(layers(staging.path()), 0);
    });
}

/// Linux 6.9 sends requests again that a daemon had received.
fn sends_again() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 9)
}

/// Whether the only daemon continues the mount of an earlier one. The id of a mount does not show that: a new mount
/// can get the id of the last one.
fn continues(staging: &Target) -> Option<bool> {
    let [daemon] = processes(staging)[..] else { return None };
    let environment = fs::read(format!("/proc/{daemon}/environ")).ok()?;
    Some(environment.split(|byte| *byte == 0).any(|variable| variable == b"CSI_MOUNT_FUSE_CONTINUES=1"))
}

/// The error of a lookup, which an empty filesystem answers with ENOSYS.
fn look_up(pod: &Path) -> IoErrorKind {
    fs::metadata(pod.join("file")).unwrap_err().kind()
}

#[test]
fn the_next_daemon_continues_the_mount_and_answers_what_the_last_one_had_received() {
    in_place(|staging, pod| {
        let served = with_device("continued", staging).continue_when_lost();
        stage(staging, &served).unwrap();
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        let first = the_process(staging);
        let path = pod.path().to_owned();
        let user = std::thread::spawn(move || look_up(&path));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!user.is_finished(), "nobody answers it");
        kill(first);
        let seen = user.join().unwrap();
        eventually("the next one runs", || {
            let found = processes(staging);
            found.len() == 1 && found[0] != first && !is_lost(staging.path()).unwrap()
        });
        let is_continued = continues(staging).unwrap();
        assert_eq!(is_continued, sends_again(), "the same mount, or a new one on an older kernel");
        assert_eq!(seen == IoErrorKind::Unsupported, is_continued, "{seen}");
        eventually("the target works", || {
            health(pod.path()).is_ok_and(|health| health == MountHealth::Healthy)
        });
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}

/// The device is not kept for a daemon that is of no use: its users would wait for ever.
#[test]
fn a_daemon_that_dies_again_soon_loses_the_mount() {
    in_place(|staging, pod| {
        let served = with_device("serve", staging).continue_when_lost();
        stage(staging, &served).unwrap();
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        for _ in 0..2 {
            let last = the_process(staging);
            kill(last);
            eventually("the next one serves the target", || {
                processes(staging).iter().any(|found| *found != last)
                    && health(pod.path()).is_ok_and(|health| health == MountHealth::Healthy)
            });
        }
        assert_eq!(continues(staging), Some(false), "it is a new mount");
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}

/// It takes the device from the daemon that runs.
#[test]
fn a_later_process_continues_the_mount_too() {
    in_place(|staging, pod| {
        let output = itself("stage with device", staging.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let served = with_device("serve", staging).continue_when_lost();
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        let first = the_process(staging);
        // The thread that watches has opened it when it has looked at the daemon once.
        std::thread::sleep(Duration::from_millis(200));
        kill(first);
        eventually("the next one runs", || {
            let found = processes(staging);
            found.len() == 1 && found[0] != first && !is_lost(staging.path()).unwrap()
        });
        assert_eq!(continues(staging), Some(sends_again()));
        eventually("the target works", || {
            health(pod.path()).is_ok_and(|health| health == MountHealth::Healthy)
        });
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}
