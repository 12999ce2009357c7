//! FUSE filesystems: the daemon is started and found again, a lost daemon is replaced, and its end is
//! noticed. The daemon is this test program, started again (`fuse_process`).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::fuse::{
    FuseDaemon, Recovered, identity_at, is_lost, publish, recover, stage, unpublish, unstage, unstage_within,
};
use csi_mount::internal::{Feature, STATS_TIME_LIMIT, health, stats, without_features};
use csi_mount::{ErrorKind, Mount, MountAttributes, MountHealth, Outcome, OwnedPath, Removed, Target};
use rustix::fs::{FlockOperation, flock};

use crate::fuse_process::{
    AT, MODE, daemon, in_place, itself, kill, left_by_killed_stage, processes, test_name, the_process,
};
use crate::fuse_support;
use crate::fuse_support::answer_init;
use crate::mount_support::{eventually, layers, sandbox};

/// What is served is known from marks in the daemon's own environment, so any process can find it.
#[test]
fn only_a_daemon_with_the_same_identity_is_accepted() {
    sandbox(|place| {
        let staging = Target::new(place.join("staging")).unwrap();
        let asked = |serves: &str| stage(&staging, &daemon("serve", &staging).identity(serves));
        assert_eq!(asked("volume-1 rw").unwrap(), Outcome::Mounted);
        assert_eq!(asked("volume-1 rw").unwrap(), Outcome::AlreadyMounted);
        assert_eq!(identity_at(staging.path()).unwrap(), "volume-1 rw");
        let error = asked("volume-2 rw").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        assert!(error.to_string().contains("volume-1 rw, not volume-2 rw"), "{error}");
        unstage(&staging).unwrap();

        // A foreign mount: no daemon of this path serves it.
        let foreign = fuse_support::answering_daemon(&staging, None);
        let error = asked("volume-1 rw").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        let launched = daemon("serve", &staging).identity("volume-1 rw").launcher(["setsid"]);
        assert_eq!(
            stage(&staging, &launched).unwrap(),
            Outcome::AlreadyMounted,
            "its daemon may be out of sight"
        );
        csi_mount::unmount(&staging).unwrap();
        foreign.join().unwrap();
    });
}

#[test]
fn a_daemon_is_started_once_and_ends_with_the_volume() {
    in_place(|staging, pod| {
        let served = daemon("serve", staging).secret("from-the-pipe");
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        let found = the_process(staging);
        assert_eq!(layers(staging.path()), 1);
        assert_eq!(staging.mounted().unwrap().unwrap().source, "from-the-pipe");
        let arguments = fs::read_to_string(format!("/proc/{found}/cmdline")).unwrap();
        assert!(!arguments.contains("from-the-pipe"));
        let group = nix::unistd::getpgid(Some(found)).unwrap();
        assert_ne!(group, nix::unistd::getpgrp(), "a signal to our group is not for it");

        assert_eq!(publish(staging.path(), pod, MountAttributes::RDONLY).unwrap(), Outcome::Mounted);
        assert!(stats(pod.path()).is_ok());
        let error = unstage(staging).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("/pod"), "{error}");
        assert_eq!(health(pod.path()).unwrap(), MountHealth::Healthy, "nothing was done");
        assert_eq!(unpublish(pod).unwrap(), Removed::Removed);
        unstage(staging).unwrap();
        unstage(staging).unwrap();
        assert!(staging.path().exists());
    });
}

/// Where it can be limited, `fuse_memory.rs` tests it.
#[test]
fn a_memory_limit_is_never_left_out() {
    in_place(|staging, _| {
        let served = daemon("serve", staging).memory_limit(64 << 20);
        let error = stage(staging, &served.clone().launcher(["setsid"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(processes(staging).is_empty() && !staging.path().exists());
        match stage(staging, &served) {
            Ok(_) => {
                let process = the_process(staging);
                let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
                assert!(groups.contains("/csi-fuse-"), "{groups}");
                unstage(staging).unwrap();
            }
            Err(error) => {
                let expected = [ErrorKind::Unsupported, ErrorKind::PermissionDenied];
                assert!(expected.contains(&error.kind()), "{error}");
                println!("{error}");
                assert!(processes(staging).is_empty() && !staging.path().exists());
            }
        }
    });
}

#[test]
fn many_callers_start_one_daemon() {
    in_place(|staging, _| {
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let stage_it =
                || stage(&Target::new(staging.path()).unwrap(), &daemon("serve", staging)).unwrap();
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(stage_it)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Mounted).count(), 1);
        the_process(staging);
        assert_eq!(layers(staging.path()), 1);
        unstage(staging).unwrap();
    });
}

#[test]
fn a_lost_filesystem_is_recovered_with_its_targets() {
    in_place(|staging, pod| {
        let served = daemon("serve", staging);
        assert_eq!(recover(staging, &served).unwrap(), Recovered::NotLost, "it is not staged");
        stage(staging, &served).unwrap();
        publish(staging.path(), pod, MountAttributes::RDONLY).unwrap();
        assert_eq!(recover(staging, &served).unwrap(), Recovered::NotLost);
        kill(the_process(staging));
        eventually("the mount is lost", || is_lost(staging.path()).unwrap());
        assert!(is_lost(pod.path()).unwrap());

        // A start that fails changes nothing: it can be repeated.
        let error = recover(staging, &daemon("fail", staging)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ToolFailed, "{error}");
        assert!(is_lost(staging.path()).unwrap());

        stage(staging, &served).unwrap();
        assert!(is_lost(pod.path()).unwrap(), "a stage binds no target");
        kill(the_process(staging));
        eventually("the mount is lost", || is_lost(staging.path()).unwrap());
        unpublish(pod).unwrap();
        publish_lost(staging, &served, pod);
        let targets = vec![pod.path().to_owned()];
        assert_eq!(recover(staging, &served).unwrap(), Recovered::Restarted { targets });
        assert_eq!((layers(staging.path()), layers(pod.path())), (1, 2));
        assert_healthy_and_read_only(pod);
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}

/// A container with `HostToContainer`. What is unmounted on the host stays there, and what is mounted in its place does not
/// come.
struct Receiver {
    container: Child,
    answers: BufReader<ChildStdout>,
}

impl Receiver {
    fn of(pod: &Target) -> Self {
        let inside = pod.path().with_file_name("inside");
        fs::create_dir(&inside).unwrap();
        let script = "mount --bind \"$1\" \"$2\"; while read -r line; do stat -f -c seen \"$2\" 2>&1; done";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "slave", "sh", "-c", script, "sh"]);
        let unshare = unshare.args([pod.path(), &inside]).env("LC_ALL", "C");
        let mut container = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(container.stdout.take().unwrap());
        Self { container, answers }
    }

    /// What a user of the volume sees there.
    fn looks(&mut self) -> String {
        writeln!(self.container.stdin.as_mut().unwrap()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.container.kill().unwrap();
        self.container.wait().unwrap();
    }
}

#[test]
fn who_receives_the_mounts_of_a_target_has_the_next_filesystem() {
    for owner in [None, Some(csi_mount::Owner::new("fuse.example.org", "vol-1"))] {
        in_place(|staging, pod| {
            let owned = |target: &Target| match &owner {
                Some(owner) => OwnedPath::new(target.path(), owner.clone()).target().unwrap(),
                None => Target::new(target.path()).unwrap(),
            };
            let staging = &owned(staging);
            let pod = &owned(pod);
            let served = daemon("serve", staging);
            stage(staging, &served).unwrap();
            publish(staging.path(), pod, MountAttributes::RDONLY).unwrap();
            let mut receiver = Receiver::of(pod);
            assert_eq!(receiver.looks(), "seen\n");
            for _ in 0..3 {
                kill(the_process(staging));
                eventually("the mount is lost", || is_lost(pod.path()).unwrap());
                let seen = receiver.looks();
                assert!(seen.contains("not connected"), "{seen}");
                let targets = vec![pod.path().to_owned()];
                assert_eq!(recover(staging, &served).unwrap(), Recovered::Restarted { targets });
                assert_eq!(receiver.looks(), "seen\n");
                assert_healthy_and_read_only(pod);
                assert_eq!((layers(staging.path()), layers(pod.path())), (1, 2), "they don't pile up");
                let again = publish(staging.path(), pod, MountAttributes::RDONLY);
                assert_eq!(again.unwrap(), Outcome::AlreadyMounted);
            }
            drop(receiver);
            unpublish(pod).unwrap();
            unstage(staging).unwrap();
        });
    }
}

/// Such binds are of a driver that was built on an older version. What is put on top of one comes to all.
#[test]
fn targets_that_share_their_mounts_are_mounted_anew() {
    in_place(|staging, pod| {
        let served = daemon("serve", staging);
        stage(staging, &served).unwrap();
        let pods =
            [Target::new(pod.path()).unwrap(), Target::new(pod.path().with_file_name("second")).unwrap()];
        for pod in &pods {
            pod.create_dir().unwrap();
            rustix::mount::mount_bind(staging.path(), pod.path()).unwrap();
        }
        kill(the_process(staging));
        eventually("the mount is lost", || is_lost(staging.path()).unwrap());
        recover(staging, &served).unwrap();
        assert_eq!(layers(staging.path()), 1);
        assert_eq!(layers(pods[0].path()), 1);
        for pod in &pods {
            assert_eq!(health(pod.path()).unwrap(), MountHealth::Healthy);
            unpublish(pod).unwrap();
        }
        unstage(staging).unwrap();
    });
}

fn assert_healthy_and_read_only(pod: &Target) {
    assert_eq!(health(pod.path()).unwrap(), MountHealth::Healthy);
    assert!(pod.mounted().unwrap().unwrap().attributes.contains(MountAttributes::RDONLY));
}

/// Stages, publishes read-only, and kills the daemon.
fn publish_lost(staging: &Target, served: &FuseDaemon, pod: &Target) {
    stage(staging, served).unwrap();
    publish(staging.path(), pod, MountAttributes::RDONLY).unwrap();
    kill(the_process(staging));
    eventually("the mount is lost", || is_lost(staging.path()).unwrap());
}

/// With an owner, a target is found even if the process was killed after it had staged again.
#[test]
fn marked_targets_of_an_interrupted_recovery_are_bound_again() {
    in_place(|staging, pod| {
        let owned = |target: &Target| {
            let owner = csi_mount::Owner::new("fuse.example.org", "vol-1");
            OwnedPath::new(target.path(), owner).target().unwrap()
        };
        let staging = &owned(staging);
        let pod = &owned(pod);
        let served = daemon("serve", staging);
        publish_lost(staging, &served, pod);
        stage(staging, &served).unwrap();
        kill(the_process(staging));
        eventually("the mount is lost", || is_lost(staging.path()).unwrap());
        recover(staging, &daemon("fail", staging)).unwrap_err();
        let targets = vec![pod.path().to_owned()];
        assert_eq!(recover(staging, &served).unwrap(), Recovered::Restarted { targets });
        assert_healthy_and_read_only(pod);
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
    });
}

#[test]
fn a_daemon_that_dies_is_started_again_on_request() {
    started_again_when_it_dies(|daemon| daemon);
}

/// A launcher can end long before its daemon is there. The wait for that does not delay a restart.
#[test]
fn a_daemon_with_a_launcher_is_started_again_at_once() {
    const LIMIT: Duration = Duration::from_secs(600);
    started_again_when_it_dies(|daemon| daemon.launcher(["setsid", "--fork"]).ready_time_limit(LIMIT));
}

fn started_again_when_it_dies(change: fn(FuseDaemon) -> FuseDaemon) {
    in_place(|staging, pod| {
        let served = change(daemon("serve", staging).restart_when_lost());
        stage(staging, &served).unwrap();
        publish(staging.path(), pod, MountAttributes::empty()).unwrap();
        for _ in 0..2 {
            let died = the_process(staging);
            kill(died);
            eventually("another one serves both places", || {
                let is_healthy = |at: &Target| matches!(health(at.path()), Ok(MountHealth::Healthy));
                processes(staging) != [died] && is_healthy(staging) && is_healthy(pod)
            });
        }
        unpublish(pod).unwrap();
        unstage(staging).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        assert!(processes(staging).is_empty() && layers(staging.path()) == 0, "it was unstaged");
    });
}

/// As while a plugin is replaced: the old process still watches the daemon when the new one finds it.
#[test]
fn a_daemon_is_started_again_after_the_process_that_watched_it_has_ended() {
    in_place(|staging, _| {
        let mut old = itself("stage and stay", staging.path());
        let mut old = old.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(old.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("staged")));
        let served = daemon("serve", staging).restart_when_lost();
        assert_eq!(stage(staging, &served).unwrap(), Outcome::AlreadyMounted);
        let died = the_process(staging);
        drop(old.stdin.take());
        old.wait().unwrap();
        kill(died);
        eventually("another one serves it", || {
            processes(staging) != [died] && matches!(health(staging.path()), Ok(MountHealth::Healthy))
        });
        unstage(staging).unwrap();
    });
}

/// Collects what is logged.
struct Log;

static LINES: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "csi_mount::fuse_daemon"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message;
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    LINES.lock().unwrap().push(format!("{value:?}"));
                }
            }
        }
        event.record(&mut Message);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The daemon prints all the time, also while no process reads that, and does not end by it.
#[test]
fn the_output_of_a_daemon_that_an_earlier_process_started_is_logged() {
    // Another test of this process can have set it.
    let _ = tracing::subscriber::set_global_default(Log);
    in_place(|staging, _| {
        assert!(itself("stage chatty", staging.path()).status().unwrap().success());
        let started = the_process(staging);
        let last = || {
            let end = format!(" of {}", test_name(staging.path()));
            let lines = LINES.lock().unwrap();
            let lines = lines.iter().rev().filter_map(|line| line.strip_suffix(&end)?.strip_prefix("chat "));
            lines.map(|number| number.parse::<u64>().unwrap()).next()
        };
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(last(), None, "no process reads it");
        assert_eq!(stage(staging, &daemon("chatty", staging)).unwrap(), Outcome::AlreadyMounted);
        eventually("old lines and new ones are logged", || last().is_some_and(|number| number > 20));
        assert_eq!(the_process(staging), started);
        unstage(staging).unwrap();
    });
}

/// The newest kernels return another error here than for a daemon that was lost later.
#[test]
fn a_daemon_that_ended_before_its_first_answer_is_replaced() {
    in_place(|staging, _| {
        staging.create_dir().unwrap();
        drop(fuse_support::fuse(staging));
        assert!(is_lost(staging.path()).unwrap(), "{:?}", health(staging.path()));
        assert_eq!(stage(staging, &daemon("serve", staging)).unwrap(), Outcome::Mounted);
        assert_eq!(layers(staging.path()), 1);
        unstage(staging).unwrap();
    });
}

#[test]
fn a_daemon_can_go_into_the_background_or_have_a_launcher() {
    in_place(|staging, _| {
        // A launcher that passes no environment on. Its own arguments set the daemon's mode and path.
        let launched = daemon("serve", staging).launcher([
            "/usr/bin/env".to_owned(),
            "-i".to_owned(),
            format!("{MODE}=serve"),
            format!("{AT}={}", staging.path().display()),
        ]);
        for served in [daemon("background", staging), launched] {
            assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
            the_process(staging);
            unstage(staging).unwrap();
            assert!(processes(staging).is_empty());
        }
    });
}

#[test]
fn a_daemon_that_does_not_start_leaves_nothing() {
    in_place(|staging, _| {
        let error = stage(staging, &daemon("fail", staging).secret("me:hunter2")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ToolFailed, "{error}");
        assert!(error.to_string().contains("exit status: 3: "), "{error}");
        assert!(error.to_string().contains("no bucket | can't log in as ***"), "{error}");
        let error = stage(staging, &daemon("leave", staging)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ToolFailed, "{error}");
        // In the last mode, the mount does not answer for a while after its daemon was killed. This happens
        // on a slow machine.
        for mode in ["idle", "silent", "held"] {
            let late = daemon(mode, staging).ready_time_limit(Duration::from_millis(1500));
            let error = stage(staging, &late).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unresponsive, "{mode}: {error}");
            assert!(processes(staging).is_empty(), "{mode}");
            assert_eq!(layers(staging.path()), 0, "{mode}");
        }
        assert!(!staging.path().exists());
        let none = FuseDaemon::new("no-such-daemon");
        assert_eq!(stage(staging, &none).unwrap_err().kind(), ErrorKind::MissingTool);
    });
}

#[test]
fn a_daemon_of_an_interrupted_stage_is_ended() {
    in_place(|staging, _| {
        let left = left_by_killed_stage("stage idle", staging);
        assert_eq!(stage(staging, &daemon("serve", staging)).unwrap(), Outcome::Mounted);
        assert_ne!(the_process(staging), left, "killed");
        unstage(staging).unwrap();
    });
}

/// A child of a killed stage holds this lock until the child runs the daemon.
#[test]
fn while_the_parent_directory_is_locked_no_daemon_is_started() {
    in_place(|staging, _| {
        let parent = File::open(staging.path().parent().unwrap()).unwrap();
        flock(&parent, FlockOperation::LockExclusive).unwrap();
        let hurried = daemon("serve", staging).ready_time_limit(Duration::from_millis(200));
        let error = stage(staging, &hurried).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("parent directory locked"), "{error}");
        assert!(!staging.path().exists() && processes(staging).is_empty());
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| stage(staging, &daemon("serve", staging)));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!patient.is_finished() && processes(staging).is_empty());
            flock(&parent, FlockOperation::Unlock).unwrap();
            assert_eq!(patient.join().unwrap().unwrap(), Outcome::Mounted);
        });
        // The lock is free again, even though the daemon runs.
        flock(&parent, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(parent);
        unstage(staging).unwrap();
    });
}

/// Processes that stage one place at the same time would otherwise each kill the daemon of the other until
/// one of them mounts quickly enough.
#[test]
fn a_daemon_that_another_process_starts_is_waited_for() {
    in_place(|staging, _| {
        let mut starter = itself("stage late", staging.path()).spawn().unwrap();
        eventually("it runs", || !processes(staging).is_empty());
        let started = the_process(staging);
        assert_eq!(stage(staging, &daemon("serve", staging)).unwrap(), Outcome::AlreadyMounted);
        assert!(starter.wait().unwrap().success());
        assert_eq!((the_process(staging), layers(staging.path())), (started, 1));
        unstage(staging).unwrap();
    });
}

#[test]
fn a_failed_start_of_another_process_is_waited_for() {
    in_place(|staging, _| {
        let hurried = daemon("idle", staging).ready_time_limit(Duration::from_secs(4));
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| stage(staging, &hurried));
            eventually("it runs", || !processes(staging).is_empty());
            let ended = itself("stage late", staging.path()).status().unwrap();
            assert!(ended.success(), "{ended}");
            let error = failing.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        });
        the_process(staging);
        assert_eq!(layers(staging.path()), 1);
        assert_eq!(stage(staging, &daemon("serve", staging)).unwrap(), Outcome::AlreadyMounted);
        unstage(staging).unwrap();
    });
}

/// A daemon that a killed stage left can make its mount as late as during unstage.
#[test]
fn a_daemon_that_mounts_while_it_is_waited_for_leaves_no_mount() {
    in_place(|staging, _| {
        left_by_killed_stage("stage told", staging);
        assert_eq!(layers(staging.path()), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // By then it is waited for. If it is not, nothing else is asserted.
                std::thread::sleep(Duration::from_millis(500));
                fs::write(staging.path().with_file_name("mount now"), "").unwrap();
            });
            unstage_within(staging, Duration::from_secs(2)).unwrap();
        });
        assert_eq!(layers(staging.path()), 0);
        assert!(processes(staging).is_empty(), "killed");
    });
}

#[test]
fn a_mount_that_does_not_answer_is_queried_once() {
    in_place(|staging, _| {
        staging.create_dir().unwrap();
        let device = fuse_support::fuse(staging);
        answer_init(&device);
        let refused = || stage(staging, &daemon("serve", staging)).unwrap_err();
        let error = fuse_support::bounded(2 * STATS_TIME_LIMIT, refused);
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        drop(device);
        unstage(staging).unwrap();
    });
}

#[test]
fn a_daemon_that_does_not_end_is_killed() {
    for kernel in [&[][..], &[Feature::ProcessDescriptor]] {
        in_place(|staging, _| {
            stage(staging, &daemon("stubborn", staging)).unwrap();
            let start = Instant::now();
            without_features(kernel, || unstage_within(staging, Duration::from_millis(300))).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(300), "it had its time");
            assert!(processes(staging).is_empty());
        });
    }
}

#[test]
fn another_mount_at_the_target_is_refused_and_stays() {
    sandbox(|place| {
        let staging = Target::new(place.join("staging")).unwrap();
        staging.create_dir().unwrap();
        Mount::new("tmpfs", "foreign").at(&staging).unwrap();
        let error = stage(&staging, &daemon("serve", &staging)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        assert_eq!(layers(staging.path()), 1);
        assert!(processes(&staging).is_empty());
    });
}
