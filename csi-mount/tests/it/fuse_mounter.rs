//! FUSE daemons of a mounter: another process, which is no root and has no capability. The driver mounts and hands the
//! device over. Driver, mounter and daemon are killed. Mounter and daemon are this test program, started again
//! (`fuse_process`).

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::fuse::{
    FuseDaemon, Mounter, is_lost, publish, resume, stage, unpublish, unstage,
};
use csi_mount::internal::health;
use csi_mount::{ErrorKind, MountAttributes, MountHealth, Outcome, Target, UNMOUNT_TIME_LIMIT};
use nix::unistd::Pid;

use crate::fuse_process;
use crate::fuse_process::{LIMIT, MOUNTER, in_mounter, itself, kill, processes, the_process};
use crate::fuse_support::{PATIENCE, bounded};
use crate::mount_support::{eventually, layers};
use crate::mounter_pod::{Pod, USER, with_directory};

/// Runs a test with a place, a target, a mounter's directory, and its pod.
fn with_pod(test: impl FnOnce(&Target, &Target, &Path, Pod<'_>, Mounter) + Send) {
    with_directory(|staging, target, directory| {
        test(staging, target, directory, Pod::start(directory, staging), Mounter::at(directory));
    });
}

fn bring_up(staging: &Target, target: &Target, daemon: &FuseDaemon) {
    stage(staging, daemon).unwrap();
    publish(staging.path(), target, MountAttributes::empty()).unwrap();
}

fn end(staging: &Target, pod: &Target, mounter: &Mounter) {
    unpublish(pod).unwrap();
    unstage(staging).unwrap();
    mounter.end(staging.path(), UNMOUNT_TIME_LIMIT).unwrap();
}

fn status(process: Pid, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

fn is_healthy(place: &Target) -> bool {
    health(place.path()).is_ok_and(|health| health == MountHealth::Healthy)
}

/// The files with credentials.
fn credentials(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.is_dir())
        .flat_map(|path| fs::read_dir(path).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect()
}

#[test]
fn a_daemon_without_any_privilege_serves_what_the_driver_mounts() {
    with_pod(|staging, target, directory, pod, mounter| {
        let served = |key: &str| {
            in_mounter("serve", staging, &mounter).arg_credential("--skip=", "key", key).identity("volume 1")
        };
        assert_eq!(stage(staging, &served("hunter2")).unwrap(), Outcome::Mounted);
        let daemon = the_process(staging);
        assert_eq!(status(daemon, "Uid:"), USER.to_string());
        assert_eq!(status(daemon, "CapEff:"), "0000000000000000");
        publish(staging.path(), target, MountAttributes::empty()).unwrap();
        assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy);

        // The credential is in one file, which a second stage replaces.
        let files = credentials(directory);
        assert_eq!(fs::read_to_string(&files[0]).unwrap(), "hunter2");
        assert_eq!(files[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let told =
            ["cmdline", "environ"].map(|file| fs::read(format!("/proc/{daemon}/{file}")).unwrap()).concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains(files[0].to_str().unwrap()) && !told.contains("hunter2"), "{told}");
        assert_eq!(stage(staging, &served("hunter3")).unwrap(), Outcome::AlreadyMounted);
        assert_eq!(fs::read_to_string(&files[0]).unwrap(), "hunter3");
        let error = stage(staging, &served("hunter3").identity("volume 2")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyMounted, "{error}");
        assert_eq!(the_process(staging), daemon, "it is the same daemon");
        let open = || fs::read_dir(format!("/proc/{}/fd", pod.child.id())).unwrap().count();
        let before = open();
        for _ in 0..20 {
            stage(staging, &served("hunter3")).unwrap();
        }
        eventually("it closes what the driver has closed", || open() < before + 5);

        end(staging, target, &mounter);
        assert!(processes(staging).is_empty() && credentials(directory).is_empty());
        mounter.end(staging.path(), Duration::ZERO).unwrap();
    });
}

/// The files of a pod outlive its container.
#[test]
fn the_credentials_of_a_killed_mounter_are_removed() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        let served = in_mounter("serve", staging, &mounter).arg_credential("--skip=", "key", "hunter2");
        stage(staging, &served).unwrap();
        pod.kill();
        assert_eq!(credentials(directory).len(), 1);
        let _next = Pod::start(directory, staging);
        end(staging, target, &mounter);
        assert!(credentials(directory).is_empty(), "after an unstage");
    });
    // While no mounter runs, an unstage can't remove them. The first process of a container knows that all earlier ones
    // have ended.
    with_directory(|staging, _, directory| {
        fs::create_dir(directory.join("csi-fuse-0123456789abcdef")).unwrap();
        fs::set_permissions(directory.join("csi-fuse-0123456789abcdef"), fs::Permissions::from_mode(0o700))
            .unwrap();
        fs::write(directory.join("csi-fuse-0123456789abcdef/key"), "hunter2").unwrap();
        let mounter = itself("mounter", directory);
        let mut first = Command::new("unshare");
        first.args(["--pid", "--fork", "--kill-child"]).arg(mounter.get_program()).args(mounter.get_args());
        first
            .envs(mounter.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .env("TMPDIR", directory);
        let child = first.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let _pod = Pod { child, staging };
        let socket = directory.join("mounter.sock");
        eventually("the mounter serves", || UnixStream::connect(&socket).is_ok());
        assert!(credentials(directory).is_empty(), "at the start of a container");
    });
}

/// The backend is a file of the keys that it accepts.
#[test]
fn credentials_can_be_revoked_once_they_are_replaced() {
    with_directory(|staging, target, directory| {
        let accept = |keys: &str| {
            let next = staging.path().with_file_name("next");
            fs::write(&next, keys).unwrap();
            fs::rename(next, staging.path().with_file_name("accepted")).unwrap();
        };
        let _pod = Pod::start(directory, staging);
        let mounter = Mounter::at(directory);
        let served = |key: &str| {
            let daemon = in_mounter("authorized", staging, &mounter);
            daemon.arg_credential("--skip=", "key", key).identity("volume 1")
        };
        accept("first");
        bring_up(staging, target, &served("first"));
        let daemon = the_process(staging);
        let asked = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = Instant::now() + PATIENCE;
                while !is_over.load(Ordering::SeqCst) && Instant::now() < end {
                    fs::metadata(target.path()).unwrap();
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
            for (before, key) in [("first", "second"), ("second", "third")] {
                let earlier = asked.load(Ordering::SeqCst);
                eventually("it is asked meanwhile", || asked.load(Ordering::SeqCst) > earlier);
                accept(&format!("{before}\n{key}"));
                assert_eq!(stage(staging, &served(key)).unwrap(), Outcome::AlreadyMounted);
                // The request before this one can have read the older key.
                fs::metadata(target.path()).unwrap();
                accept(key);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(the_process(staging), daemon, "it is the same daemon");
        accept("none of these");
        let error = fs::metadata(target.path()).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::PermissionDenied);
        end(staging, target, &mounter);
    });
}

#[test]
fn a_failed_start_returns_the_last_lines_and_leaves_nothing() {
    with_directory(|staging, _, directory| {
        let mounter = Mounter::at(directory);
        let error = stage(staging, &in_mounter("serve", staging, &mounter)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(layers(staging.path()), 0, "nothing is mounted without a mounter");
        let _pod = Pod::start(directory, staging);
        let failing = in_mounter("fail", staging, &mounter).secret("hunter2");
        let error = bounded(Duration::from_secs(20), || stage(staging, &failing).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::ToolFailed, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no bucket | can't log in as ***"),
            "{text}"
        );
        let limit = Duration::from_millis(300);
        let idle = in_mounter("idle", staging, &mounter).ready_time_limit(limit);
        assert_eq!(stage(staging, &idle).unwrap_err().kind(), ErrorKind::Unresponsive);
        let options = csi_mount::MountOptions::new();
        let missing = FuseDaemon::new("/no/such/program").arg_device(options).mounter(mounter.clone());
        assert_eq!(stage(staging, &missing).unwrap_err().kind(), ErrorKind::MissingTool);
        let mounting = fuse_process::daemon("serve", staging).mounter(mounter.clone());
        assert_eq!(stage(staging, &mounting).unwrap_err().kind(), ErrorKind::InvalidInput);
        let alone = fuse_process::daemon("serve", staging).continue_when_lost();
        assert_eq!(stage(staging, &alone).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(layers(staging.path()), 0);
        assert!(processes(staging).is_empty() && credentials(directory).is_empty());
    });
}

/// It has no users who could wait for the next one.
#[test]
fn a_program_that_fails_at_its_first_start_is_started_once() {
    with_pod(|staging, _, _, _pod, mounter| {
        let starts = staging.path().with_file_name("starts");
        fs::write(&starts, "").unwrap();
        fs::set_permissions(&starts, fs::Permissions::from_mode(0o666)).unwrap();
        let failing = in_mounter("fails", staging, &mounter).continue_when_lost();
        let error = stage(staging, &failing).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(fs::read_to_string(starts).unwrap().lines().count(), 1);
    });
}

/// What a daemon was given once it can print for ever.
#[test]
fn credentials_that_were_replaced_are_hidden() {
    with_pod(|staging, target, _, _pod, mounter| {
        let served = |key: &str| {
            in_mounter("leaky", staging, &mounter).arg_credential("--skip=", "key", key).identity("volume 1")
        };
        let keys = ["hunter2-the-first", "hunter2-the-second", "hunter2-the-third"];
        for key in keys {
            let _ = stage(staging, &served(key)).unwrap();
            // It reads its key, and prints none.
            let _ = fs::metadata(staging.path().join("file"));
        }
        fs::write(staging.path().with_file_name("tell"), "").unwrap();
        let _ = fs::metadata(staging.path().join("file"));
        eventually("the driver knows the last lines", || mounter.last_end(staging.path()).is_some());
        let end = mounter.last_end(staging.path()).unwrap();
        assert!(end.contains("was given") && end.contains("***") && !end.contains("the-"), "{end}");
        super::fuse_mounter::end(staging, target, &mounter);
    });
}

/// An unmount is not the end of what a program has to store. What comes meanwhile, the driver's start and a stage at the
/// same place, waits for it.
#[test]
fn a_daemon_that_stores_after_the_unmount_is_waited_for() {
    with_pod(|staging, target, directory, _pod, mounter| {
        let _ = stage(staging, &in_mounter("late to store", staging, &mounter)).unwrap();
        let first = the_process(staging);
        // A driver in another pod does not see the daemon, and its unstage does not wait for it.
        csi_mount::unmount(staging).unwrap();
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| mounter.end(staging.path(), PATIENCE));
            let resumed = scope.spawn(|| resume(&Mounter::at(directory), PATIENCE));
            let next = in_mounter("serve", staging, &mounter).unmount_time_limit(PATIENCE);
            let staged = scope.spawn(move || stage(staging, &next));
            std::thread::sleep(Duration::from_millis(500));
            assert!(processes(staging).contains(&first), "it was killed");
            // The daemon, which is no root, can write into it from its first moment.
            let ready = staging.path().with_file_name("ready");
            fs::create_dir(&ready).unwrap();
            fs::set_permissions(&ready, fs::Permissions::from_mode(0o777)).unwrap();
            fs::rename(&ready, staging.path().with_file_name("backend")).unwrap();
            ended.join().unwrap().unwrap();
            resumed.join().unwrap().unwrap();
            assert_eq!(staged.join().unwrap().unwrap(), Outcome::Mounted);
        });
        assert!(staging.path().with_file_name("backend/stored").exists());
        assert!(is_healthy(staging) && the_process(staging) != first);
        end(staging, target, &mounter);
    });
}

/// The mounter is no root: the environment of such a program is not readable for it.
#[test]
fn a_daemon_whose_environment_is_not_readable_is_ended() {
    with_pod(|staging, target, _, _pod, mounter| {
        let _ = stage(staging, &in_mounter("hidden stubborn", staging, &mounter)).unwrap();
        csi_mount::unmount(staging).unwrap();
        assert_eq!(processes(staging).len(), 1, "it does not end by itself");
        mounter.end(staging.path(), Duration::ZERO).unwrap();
        assert!(processes(staging).is_empty());
        end(staging, target, &mounter);
    });
}

/// The daemons of a mounter are other users' programs.
#[test]
fn only_root_is_served() {
    with_directory(|staging, _, directory| {
        let _pod = Pod::start(directory, staging);
        let output = itself("ask", directory).uid(USER).gid(USER).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("no mounter answers"), "{output:?}");
    });
}

#[test]
fn a_mount_whose_daemon_can_not_be_continued_is_lost_at_once_and_staged_again() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        let served = in_mounter("serve", staging, &mounter);
        for round in 0..2 {
            assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
            publish(staging.path(), target, MountAttributes::empty()).unwrap();
            if round == 0 {
                kill(the_process(staging));
            } else {
                pod.kill();
            }
            eventually("no process keeps the device", || is_lost(target.path()).unwrap());
            let reason = ["its daemon ended with signal: 9", "the pod of its daemon has ended"][round];
            eventually("the driver knows why", || {
                mounter.last_end(staging.path()).is_some_and(|end| end.starts_with(reason))
            });
        }
        let _pod = Pod::start(directory, staging);
        assert_eq!(stage(staging, &served).unwrap(), Outcome::Mounted);
        assert_eq!(mounter.last_end(staging.path()), None, "it runs");
        publish(staging.path(), target, MountAttributes::empty()).unwrap();
        end(staging, target, &mounter);
    });
}

/// The mounter keeps the device until then.
#[test]
fn a_helper_of_a_killed_daemon_keeps_no_user_waiting() {
    with_pod(|staging, target, _, _pod, mounter| {
        bring_up(staging, target, &in_mounter("helped", staging, &mounter));
        eventually("its helper runs", || processes(staging).len() == 2);
        let is_helper = |process: &Pid| status(*process, "Name:") == "sleep";
        kill(processes(staging).into_iter().find(|process| !is_helper(process)).unwrap());
        eventually("its users get an error", || is_lost(target.path()).unwrap());
        end(staging, target, &mounter);
    });
}

/// In a pod without privilege no control group can be made.
#[test]
fn a_daemon_over_its_memory_limit_ends_alone() {
    with_pod(|staging, target, _, mut pod, mounter| {
        let other = Target::new(staging.path().with_file_name("other")).unwrap();
        stage(&other, &in_mounter("serve", &other, &mounter).memory_limit(LIMIT)).unwrap();
        let neighbour = the_process(&other);
        let greedy = in_mounter("greedy when asked", staging, &mounter).memory_limit(LIMIT);
        assert_eq!(stage(staging, &greedy).unwrap(), Outcome::Mounted);
        publish(staging.path(), target, MountAttributes::empty()).unwrap();
        // Its answer can come after its end.
        let _ = fs::metadata(target.path().join("file"));
        let reason = format!("with a limit of {LIMIT} bytes for the private memory of each process");
        eventually("the driver knows why", || {
            let end = mounter.last_end(staging.path()).unwrap_or_default();
            end.contains("SIGABRT") && end.contains(&reason) && end.contains("memory allocation of")
        });
        let running: Vec<bool> = mounter.daemons().iter().map(|daemon| daemon.is_running).collect();
        assert_eq!(running, [true, false], "of the other volume, and of this one");
        assert!(is_healthy(&other) && pod.child.try_wait().unwrap().is_none());
        assert_eq!(the_process(&other), neighbour);
        end(staging, target, &mounter);
        unstage(&other).unwrap();
        mounter.end(other.path(), UNMOUNT_TIME_LIMIT).unwrap();
    });
}

/// A control group for memory, as a container has it. The processes in it have ended when it is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` if this process can make none.
    fn make(limit: u64) -> Option<Self> {
        let table = csi_mount::mounts().unwrap();
        let of_memory = table.iter().find_map(|entry| match entry.fs_type.as_str() {
            "cgroup" if entry.super_options.has_flag("memory") => Some((entry, "memory.limit_in_bytes")),
            "cgroup2" => {
                // As systemd does it. An emulated machine has no systemd.
                fs::write(entry.mount_point.join("cgroup.subtree_control"), "+memory").ok()?;
                Some((entry, "memory.max"))
            }
            _ => None,
        });
        let (entry, file) = of_memory?;
        let group = Self(entry.mount_point.join(format!("csi-test-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(file), limit.to_string()).unwrap();
        Some(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        eventually("its processes have ended", || fs::remove_dir(&self.0).is_ok());
    }
}

/// Kubernetes limits the container, and the daemon has no limit of its own.
#[test]
fn a_daemon_that_uses_up_the_memory_of_its_container_says_so() {
    let Some(container) = ControlGroup::make(256 << 20) else {
        println!("NOT RUN: no control group with a memory limit can be made here");
        return;
    };
    with_pod(|staging, target, _, mut pod, mounter| {
        fs::write(container.0.join("cgroup.procs"), pod.child.id().to_string()).unwrap();
        bring_up(staging, target, &in_mounter("greedy when asked", staging, &mounter));
        // Its answer can come after its end.
        let _ = fs::metadata(target.path().join("file"));
        eventually("the driver knows why", || {
            let end = mounter.last_end(staging.path()).unwrap_or_default();
            end.contains("killed: the memory of its container was used up")
        });
        assert!(pod.child.try_wait().unwrap().is_none());
        end(staging, target, &mounter);
        // One that is killed in another way is not.
        stage(staging, &in_mounter("serve", staging, &mounter)).unwrap();
        kill(the_process(staging));
        eventually("the driver knows why", || mounter.last_end(staging.path()).is_some());
        assert!(!mounter.last_end(staging.path()).unwrap().contains("memory"));
        unstage(staging).unwrap();
        pod.kill();
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

/// Waits for another daemon than this one, which continues its mount. On an older kernel it is a new mount.
fn await_next(staging: &Target, target: &Target, last: Pid) {
    eventually("the next daemon serves the target", || {
        let found = processes(staging);
        found.len() == 1 && found[0] != last && !is_lost(staging.path()).unwrap() && is_healthy(target)
    });
    assert_eq!(continues(staging), Some(sends_again()), "the same mount, or a new one on an older kernel");
}

/// The error of a lookup, which an empty filesystem answers with ENOSYS.
fn look_up(pod: &Path) -> IoErrorKind {
    fs::metadata(pod.join("file")).unwrap_err().kind()
}

/// What a user was answered, in bounded time.
fn answer(user: JoinHandle<IoErrorKind>) -> IoErrorKind {
    eventually("the user is answered", || user.is_finished());
    user.join().unwrap()
}

#[test]
fn the_next_daemon_answers_what_the_killed_one_had_received() {
    with_pod(|staging, target, _, _pod, mounter| {
        bring_up(staging, target, &in_mounter("continued", staging, &mounter).continue_when_lost());
        let first = the_process(staging);
        let path = target.path().to_owned();
        let user = std::thread::spawn(move || look_up(&path));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!user.is_finished(), "nobody answers it");
        kill(first);
        let seen = answer(user);
        await_next(staging, target, first);
        assert_eq!(seen == IoErrorKind::Unsupported, sends_again(), "{seen}");
        end(staging, target, &mounter);
    });
}

/// The device is not kept for a daemon that is of no use: its users would wait for ever.
#[test]
fn a_daemon_that_dies_again_soon_loses_the_mount() {
    with_pod(|staging, target, _, _pod, mounter| {
        bring_up(staging, target, &in_mounter("serve", staging, &mounter).continue_when_lost());
        let mut continued = 0;
        loop {
            let last = the_process(staging);
            kill(last);
            eventually("the next one serves the target", || {
                processes(staging).iter().any(|found| *found != last) && is_healthy(target)
            });
            the_process(staging);
            if continues(staging) == Some(false) {
                break;
            }
            continued += 1;
        }
        assert_eq!(continued, if sends_again() { 3 } else { 0 }, "then it is a new mount");
        let daemons = mounter.daemons();
        assert!(
            matches!(daemons[..], [ref one] if one.is_running && one.restarts == continued + 1),
            "{daemons:?}"
        );
        end(staging, target, &mounter);
    });
}

/// The mounter is the parent of the daemon: in a container, both end together. Only the driver has the device then.
#[test]
fn the_next_mounter_continues_the_mount_with_the_drivers_device() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        bring_up(staging, target, &in_mounter("serve", staging, &mounter).continue_when_lost());
        let first = the_process(staging);
        pod.kill();
        let path = target.path().to_owned();
        let user = std::thread::spawn(move || look_up(&path));
        let _next = Pod::start(directory, staging);
        let seen = answer(user);
        await_next(staging, target, first);
        assert_eq!(seen == IoErrorKind::Unsupported, sends_again(), "{seen}");
        end(staging, target, &mounter);
    });
}

/// The next driver gets the devices from the mounter, and then keeps them as the first one did.
#[test]
fn the_next_driver_resumes_what_an_earlier_one_started() {
    with_directory(|staging, target, directory| {
        let mut pod = Pod::start(directory, staging);
        let output = itself("stage in mounter", staging.path()).env(MOUNTER, directory).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let first = the_process(staging);
        if !sends_again() {
            Mounter::at(directory).end(staging.path(), Duration::ZERO).unwrap();
            unstage(staging).unwrap();
            return;
        }
        // Without a driver the mounter alone keeps the device.
        publish(staging.path(), target, MountAttributes::empty()).unwrap();
        kill(first);
        await_next(staging, target, first);
        let second = the_process(staging);
        let mounter = Mounter::at(directory);
        resume(&mounter, UNMOUNT_TIME_LIMIT).unwrap();
        resume(&mounter, UNMOUNT_TIME_LIMIT).unwrap();
        pod.kill();
        let _next = Pod::start(directory, staging);
        await_next(staging, target, second);
        end(staging, target, &mounter);
    });
}

/// With no mounter, users wait for a bounded time.
#[test]
fn without_a_next_mounter_users_get_an_error_in_time() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        let served = in_mounter("serve", staging, &mounter).continue_when_lost();
        bring_up(staging, target, &served.continue_time_limit(Duration::from_secs(2)));
        pod.kill();
        let seen = bounded(PATIENCE, || look_up(target.path()));
        assert!(matches!(seen, IoErrorKind::NotConnected | IoErrorKind::ConnectionAborted), "{seen}");
        let _next = Pod::start(directory, staging);
        // The driver's own attempts go on.
        eventually("the volume is staged again", || is_healthy(target));
        end(staging, target, &mounter);
    });
}

/// The thread that starts a dead daemon again knows the credentials of its own time only.
#[test]
fn a_stage_between_two_attempts_to_restart_keeps_its_credentials() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        let served = |key: &str| {
            let daemon = in_mounter("serve", staging, &mounter).restart_when_lost();
            daemon.arg_credential("--skip=", "key", key)
        };
        bring_up(staging, target, &served("first"));
        pod.kill();
        eventually("it is lost", || mounter.last_end(staging.path()).is_some());
        let _next = Pod::start(directory, staging);
        stage(staging, &served("second")).unwrap();
        let file = credentials(directory).remove(0);
        // The next attempt is one second after the daemon's end.
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            assert_eq!(fs::read_to_string(&file).unwrap(), "second");
            std::thread::sleep(Duration::from_millis(50));
        }
        end(staging, target, &mounter);
    });
}

#[test]
fn a_daemon_without_a_mount_is_ended_when_the_driver_starts() {
    with_pod(|staging, _, directory, _pod, mounter| {
        stage(staging, &in_mounter("stubborn", staging, &mounter)).unwrap();
        csi_mount::unmount(staging).unwrap();
        assert_eq!(processes(staging).len(), 1, "it does not end by itself");
        resume(&Mounter::at(directory), Duration::ZERO).unwrap();
        assert!(processes(staging).is_empty());
    });
}

#[test]
fn a_mounter_that_is_to_end_waits_for_its_daemons_and_takes_no_others() {
    with_pod(|staging, target, _, mut pod, mounter| {
        bring_up(staging, target, &in_mounter("serve", staging, &mounter));
        pod.drain(600);
        let other = Target::new(staging.path().with_file_name("other")).unwrap();
        eventually("it takes no other volume", || {
            let refused = stage(&other, &in_mounter("serve", &other, &mounter));
            // Temporary, as while no mounter answers; a caller acts on a path that is in use.
            let is_ending = refused.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            if refused.is_ok() {
                unstage(&other).unwrap();
            }
            is_ending
        });
        assert!(is_healthy(target) && pod.child.try_wait().unwrap().is_none());
        end(staging, target, &mounter);
        assert!(pod.child.wait().unwrap().success());
    });
}

/// As in a pod that is replaced before its volumes are unmounted.
#[test]
fn a_mounter_that_can_not_wait_leaves_its_mounts_to_the_next_one() {
    with_pod(|staging, target, directory, mut pod, mounter| {
        bring_up(staging, target, &in_mounter("serve", staging, &mounter).continue_when_lost());
        let first = the_process(staging);
        let begun = Instant::now();
        pod.drain(0);
        assert!(pod.child.wait().unwrap().success());
        assert!(begun.elapsed() < Duration::from_secs(120));
        let _next = Pod::start(directory, staging);
        await_next(staging, target, first);
        end(staging, target, &mounter);
    });
}
