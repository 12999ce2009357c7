//! Which processes count as the daemon of a FUSE filesystem, and which place is theirs.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::fuse::{
    Recovered, identity_at, is_lost, publish, recover, stage, unpublish, unstage, unstage_within,
};
use csi_mount::internal::health;
use csi_mount::{ErrorKind, MountAttributes, MountHealth, Outcome, Target};
use nix::unistd::Pid;

use crate::fuse_process::{daemon, in_place, itself, kill, processes};
use crate::fuse_support;
use crate::mount_support::{eventually, layers};

/// Any process can have the mark. Without a proof it is neither killed nor waited for, and says nothing.
#[test]
fn a_forged_mark_costs_nothing() {
    const MARK: &str = "CSI_MOUNT_FUSE_AT";
    in_place(|staging, _| {
        staging.create_dir().unwrap();
        let elsewhere = Target::new(staging.path().parent().unwrap().join("elsewhere")).unwrap();
        elsewhere.create_dir().unwrap();
        let sleep = |change: fn(&mut Command) -> &mut Command| {
            let mut sleep = Command::new("sleep");
            change(sleep.arg("600").env(MARK, staging.path())).spawn().unwrap()
        };
        let mut forged = vec![
            sleep(|sleep| sleep),
            sleep(|sleep| sleep.env("CSI_MOUNT_FUSE_START", "1").env("CSI_MOUNT_FUSE_SERVES", "volume-2")),
            sleep(|sleep| sleep.uid(65534)),
            // A file with the name of ours, which anybody can make.
            sleep(|sleep| {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                sleep.stderr(rustix::fs::memfd_create("csi-mount-fuse-output", flags).unwrap())
            }),
            // A daemon of another mount.
            itself("serve", elsewhere.path()).env(MARK, staging.path()).stdin(Stdio::null()).spawn().unwrap(),
        ];
        eventually("they run", || processes(staging).len() == forged.len());
        eventually("it mounts", || layers(elsewhere.path()) == 1);

        assert_eq!(identity_at(staging.path()), None);
        let served = daemon("serve", staging).identity("volume-1");
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        assert_eq!(identity_at(staging.path()).unwrap(), "volume-1");
        fuse_support::bounded(Duration::from_secs(5), || unstage(staging)).unwrap();
        assert!(forged.iter_mut().all(|process| process.try_wait().unwrap().is_none()), "one was killed");

        csi_mount::unmount(&elsewhere).unwrap();
        for mut process in forged {
            // The daemon has ended with its mount.
            let _ = process.kill();
            process.wait().unwrap();
        }
    });
}

/// The daemons of earlier versions have no file that proves what they are. They hold the device of the mount.
#[test]
fn a_daemon_of_an_earlier_version_is_known_by_its_device() {
    in_place(|staging, _| {
        staging.create_dir().unwrap();
        let mut earlier = itself("serve", staging.path())
            .env("CSI_MOUNT_FUSE_AT", staging.path())
            .env("CSI_MOUNT_FUSE_SERVES", "volume-1")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it serves", || matches!(health(staging.path()), Ok(MountHealth::Healthy)));
        assert_eq!(identity_at(staging.path()).unwrap(), "volume-1");
        let served = daemon("serve", staging).identity("volume-1");
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        unstage(staging).unwrap();
        assert!(earlier.try_wait().unwrap().is_some(), "it was waited for");
    });
}

/// A daemon that has closed its device and its output still has data to send.
#[test]
fn a_daemon_without_its_device_is_waited_for() {
    in_place(|staging, _| {
        staging.create_dir().unwrap();
        let mut earlier = itself("stubborn", staging.path())
            .env("CSI_MOUNT_FUSE_AT", staging.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it serves", || matches!(health(staging.path()), Ok(MountHealth::Healthy)));
        let start = Instant::now();
        unstage_within(staging, Duration::from_millis(300)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(300), "it had its time");
        assert!(!earlier.wait().unwrap().success(), "killed");
    });
}

/// The mount table has the path without symbolic links.
#[test]
fn a_staging_path_through_a_symbolic_link_is_the_same_place() {
    in_place(|staging, pod| {
        let parent = staging.path().parent().unwrap();
        std::os::unix::fs::symlink(parent, parent.join("link")).unwrap();
        let through = &Target::new(parent.join("link/staging")).unwrap();
        let served = daemon("serve", through);
        stage(through, &served).unwrap();
        publish(through.path(), pod, MountAttributes::empty()).unwrap();
        let error = unstage(through).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        processes(through).into_iter().for_each(kill);
        eventually("the mount is lost", || is_lost(through.path()).unwrap());
        let targets = vec![pod.path().to_owned()];
        assert_eq!(recover(through, &served).unwrap(), Recovered::Restarted { targets });
        unpublish(pod).unwrap();
        unstage(through).unwrap();
        assert!(processes(through).is_empty());
    });
}

/// A program can write over its environment, or execute another one without it.
#[test]
fn a_daemon_that_has_lost_its_mark_is_known_and_ended() {
    in_place(|staging, _| {
        let served = daemon("nameless", staging);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        let is_it = |pid: &i32| {
            let file = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let at = staging.path().as_os_str().as_encoded_bytes();
            !file.is_empty() && environment.windows(at.len()).any(|part| part == at)
        };
        let all = || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            pids.filter(is_it).collect::<Vec<i32>>()
        };
        assert_eq!(all().len(), 1);
        unstage_within(staging, Duration::from_millis(300)).unwrap();
        assert_eq!(all(), Vec::<i32>::new(), "it was killed");
    });
}

/// A helper process does not serve the mount, also if it has the device.
#[test]
fn a_daemon_that_was_killed_is_started_again_though_its_helper_lives() {
    for mode in ["helped", "helped with the device"] {
        in_place(|staging, target| {
            stage(staging, &daemon(mode, staging).restart_when_lost()).unwrap();
            publish(staging.path(), target, MountAttributes::empty()).unwrap();
            eventually("its helper runs", || processes(staging).len() == 2);
            let name = |process: &Pid| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
            let all = processes(staging);
            let first = all.into_iter().find(|process| name(process).trim() != "sleep").unwrap();
            kill(first);
            eventually("the next one serves", || {
                !processes(staging).contains(&first)
                    && health(target.path()).is_ok_and(|health| health == MountHealth::Healthy)
            });
            unpublish(target).unwrap();
            unstage_within(staging, Duration::from_millis(300)).unwrap();
        });
    }
}
