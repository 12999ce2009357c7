//! A filesystem whose daemon does not answer costs bounded time, one helper process and no thread.

#[path = "it/devices/mod.rs"]
mod devices;
#[path = "it/fuse_support/mod.rs"]
mod fuse_support;
#[path = "it/measure/mod.rs"]
mod measure;
#[path = "it/mount_support/mod.rs"]
mod mount_support;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::fuse::identity_at;
use csi_mount::internal::{
    DeviceQuestions as _, Feature, health_within, mount_state, stats_within, without_features,
};
use csi_mount::{
    Bind, BlockDevice, Detach, ErrorKind, Mount, MountHealth, MountOptions, MountState, Outcome, Root,
    Target, Unmount, Unmounted, unmount,
};
use devices::{Image, refused};
use fuse_support::{Fate, FileServer, LateEnd, PATIENCE, SilentDaemon, answer_init, bounded, fuse};
use measure::{measure, measure_until, rounds};
use mount_support::{sandbox, target, with_target};

/// The tests count the children of the process, so they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Long enough for a child process to ask, also on a machine that has other work.
const MOMENT: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);
const BOUND: Duration = Duration::from_secs(10);

fn forced() -> Unmount {
    // Long enough for a child process on a busy machine. Only a filesystem that does not answer makes the
    // call wait that long.
    Unmount::new().detach(Detach::IfUnresponsive).answer_time_limit(SECOND)
}

#[test]
fn each_call_returns_with_the_right_outcome() {
    let _alone = alone();
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let publish = target(sandbox, "publish");
        let daemon = SilentDaemon::mount(&staging);
        let state = |target: &Target| bounded(SECOND, || mount_state(target.path())).unwrap();
        assert!(matches!(state(&staging), MountState::Mounted(_)));
        let bound = || bounded(BOUND, || Bind::new(staging.path()).at(&publish));
        assert_eq!(bound().unwrap(), Outcome::Mounted, "a bind of its root asks nothing of it");
        let error = bound().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "what is there is not taken for done: {error}");
        assert!(error.to_string().contains("unmount it and mount it again"), "{error}");

        for target in [&staging, &publish] {
            let found = bounded(BOUND, || health_within(target.path(), MOMENT)).unwrap();
            assert_eq!(found, MountHealth::Unresponsive);
            refused(bounded(BOUND, || stats_within(target.path(), MOMENT)), ErrorKind::Unresponsive);
        }
        // An earlier child process is stuck, so no call waits again.
        let error = bounded(SECOND, || stats_within(publish.path(), BOUND)).unwrap_err();
        assert!(error.to_string().contains("an earlier call still waits"), "{error}");

        // The helper process is stuck in the mount that it queried, and this makes the mount busy.
        let error = refused(bounded(BOUND, || unmount(&staging)), ErrorKind::Busy);
        assert!(error.to_string().contains("does not answer; allow to detach it"), "{error}");
        let unpublished = bounded(BOUND, || forced().at(&publish)).unwrap();
        assert_eq!(unpublished, Unmounted::Detached, "it was all that a bind of what others use may be");
        assert_eq!(state(&publish), MountState::NotMounted);
        let found = bounded(BOUND, || health_within(staging.path(), MOMENT)).unwrap();
        assert_eq!(found, MountHealth::Unresponsive, "what waits there has not been given up");
        let unstaged = bounded(BOUND, || forced().at(&staging)).unwrap();
        assert_eq!(unstaged, Unmounted::Unmounted { layers: 1 });
        assert!(daemon.taken() >= 2);
    });
}

/// Files that the helper process kept open would be busy for as long as the filesystem does not answer.
#[test]
fn a_helper_that_is_stuck_has_none_of_our_files() {
    let _alone = alone();
    for kernel in [&[][..], &[Feature::CloseRange]] {
        sandbox(|sandbox| {
            let staging = target(sandbox, "staging");
            let daemon = SilentDaemon::mount(&staging);
            settle(0);
            let _ours = File::open("/dev/null").unwrap();
            without_features(kernel, || stats_within(staging.path(), MOMENT).unwrap_err());
            let [helper] = *measure::child_processes() else { panic!("one helper") };
            let files: Vec<_> = fs::read_dir(format!("/proc/{helper}/fd"))
                .unwrap()
                .map(|entry| fs::read_link(entry.unwrap().path()).unwrap())
                .collect();
            // The unmount comes before the check, so that the helper process ends even if it has these files.
            let ended = forced().at(&staging);
            let is_needed =
                |file: &PathBuf| file == staging.path() || file.to_str().unwrap().starts_with("socket:");
            assert!(files.iter().all(is_needed), "without {kernel:?}: {files:?}");
            ended.unwrap();
            daemon.taken();
            settle(0);
        });
    }
}

/// An overlay with a layer on this filesystem stands for a mount that waits for its server.
#[test]
fn a_mount_that_waits_for_it_is_abandoned() {
    let _alone = alone();
    for kernel in [&[][..], &[Feature::FsContext]] {
        sandbox(|sandbox| without_features(kernel, || mount_that_waits(sandbox)));
    }
}

fn mount_that_waits(sandbox: &Path) {
    let staging = target(sandbox, "staging");
    let publish = target(sandbox, "publish");
    let daemon = SilentDaemon::mount(&staging);
    settle(0);
    let before = measure();
    let layers = format!("{}/lower:{}", staging.path().display(), sandbox.display());
    let options = MountOptions::new().with_option("lowerdir", &layers).unwrap();
    let mount = || Mount::new("overlay", "volume").options(&options).time_limit(MOMENT).at(&publish);
    // On a machine that has other work, a process can be given up before it has asked the daemon.
    let end = Instant::now() + PATIENCE;
    loop {
        let late = refused(bounded(SECOND, mount), ErrorKind::Unresponsive);
        if late.to_string().contains("still waits") {
            break;
        }
        assert!(Instant::now() < end, "no process waits: {late}");
    }
    let start = Instant::now();
    for _ in 0..100 {
        let error = bounded(SECOND, mount).unwrap_err();
        assert!(error.to_string().contains("still waits"), "{error}");
    }
    let took = start.elapsed();
    let after = measure_until(|found| found.has_no_more_than(&before));
    println!("100 mounts in {took:?}: before {before}; after {after}");
    assert!(after.has_no_more_than(&before));
    assert_eq!(after.children, 1, "one process waits; it can't be killed, since the daemon has its request");
    assert_eq!(mount_state(publish.path()).unwrap(), MountState::NotMounted);
    // This ends the connection, and with it the wait.
    let _ = bounded(BOUND, || forced().at(&staging)).unwrap();
    daemon.taken();
    settle(0);
    assert_eq!(mount_state(publish.path()).unwrap(), MountState::NotMounted, "what comes late is nowhere");
}

#[test]
fn a_path_through_it_is_abandoned() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for kernel in [&[][..], &[Feature::CachedLookup]] {
            scope.spawn(|| sandbox(|sandbox| ways_through(sandbox, kernel)));
        }
    });
    settle(0);
}

fn ways_through(sandbox: &Path, kernel: &[Feature]) {
    let staging = target(sandbox, "staging");
    let publish = target(sandbox, "publish");
    let daemon = SilentDaemon::mount(&staging);
    let below = staging.path().join("volume");
    let root = Root::open(staging.path()).unwrap();
    let given_up = |limit, call: &dyn Fn() -> csi_mount::Result<()>| {
        let error = without_features(kernel, || bounded(limit, call)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "without {kernel:?}: {error}");
    };
    let bind = || Bind::new(&below).at(&publish).map(drop);
    std::thread::scope(|scope| {
        scope.spawn(|| given_up(BOUND, &bind));
        scope.spawn(|| given_up(BOUND, &|| mount_state(staging.path().join("other")).map(drop)));
        scope.spawn(|| given_up(BOUND, &|| root.target("directory/target").map(drop)));
    });
    assert_eq!(mount_state(publish.path()).unwrap(), MountState::NotMounted);
    // The child process that took this path is stuck, so the next call fails immediately.
    given_up(SECOND, &bind);
    given_up(SECOND, &|| Target::new(below.join("target")).map(drop));
    drop(root);
    bounded(BOUND, || forced().at(&staging)).unwrap();
    assert!(daemon.taken() >= 1);
}

/// However many descriptors of the directory and names in it are used, all of them wait for one filesystem.
/// So one helper process is enough.
#[test]
fn many_paths_into_it_take_turns() {
    let _alone = alone();
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let daemon = SilentDaemon::mount(&staging);
        settle(0);
        // The kernel has the directory in memory, but not the names in it.
        let inside = &|index: u32| staging.path().join(format!("pod{index}"));
        let targets: Vec<_> = (0..16).map(|index| Target::new(inside(index % 4)).unwrap()).collect();
        let refused = |result: csi_mount::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unresponsive);
        };
        let ask_all = || {
            std::thread::scope(|scope| {
                targets.iter().for_each(|target| drop(scope.spawn(|| refused(target.mounted().map(drop)))));
                (0..16).for_each(|index| {
                    drop(scope.spawn(move || refused(mount_state(inside(index).join("x")).map(drop))));
                });
            });
        };
        bounded(BOUND, ask_all);
        assert_eq!(measure::children(), 1, "one helper for all");
        drop(targets);
        bounded(BOUND, || forced().at(&staging)).unwrap();
        assert_eq!(daemon.taken(), 2, "one way into it, and its health before the force");
        settle(0);
    });
}

/// Waits until the helper processes that can end have ended.
fn settle(children: usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        // Any query reaps the helper processes that have ended.
        csi_mount::internal::stats("/").unwrap();
        if measure::children() <= children {
            return;
        }
        assert!(Instant::now() < end, "{} children are left", measure::children());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_thousand_calls_leave_one_helper_process_and_no_thread() {
    let _alone = alone();
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let publish = target(sandbox, "publish");
        let daemon = SilentDaemon::mount(&staging);
        settle(0);
        let before = measure();
        let calls = rounds(1000);
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        for call in 0..calls {
            let start = Instant::now();
            match call % 6 {
                0 => assert!(stats_within(staging.path(), MOMENT).is_err()),
                1 => assert_eq!(health_within(staging.path(), MOMENT).unwrap(), MountHealth::Unresponsive),
                2 => assert!(mount_state(staging.path()).unwrap().mount_point().is_some()),
                3 => assert!(matches!(Bind::new(staging.path()).at(&publish), Ok(Outcome::Mounted))),
                4 => assert_eq!(unmount(&publish).unwrap(), Unmounted::Unmounted { layers: 1 }),
                _ => assert!(mount_state(staging.path()).unwrap().mount_point().is_some()),
            }
            slowest = slowest.max(start.elapsed());
        }
        let took = start.elapsed();
        // On a busy machine, a helper process that has answered takes a while to end.
        settle(1);
        let after = measure_until(|found| found.has_no_more_than(&before));
        println!("{calls} calls in {took:?}, the slowest {slowest:?}: before {before}; after {after}");
        assert!(slowest < BOUND);
        assert_eq!(after.children, 1, "one helper waits for the daemon");
        assert!(after.has_no_more_than(&before), "before {before}; after {after}");
        unmount(&publish).unwrap();
        assert_eq!(bounded(BOUND, || forced().at(&staging)).unwrap(), Unmounted::Unmounted { layers: 1 });
        println!("the daemon took {} requests", daemon.taken());
        settle(0);
    });
}

#[test]
fn many_callers_wait_no_longer_than_one() {
    let _alone = alone();
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let daemon = SilentDaemon::mount(&staging);
        let ask_all = || {
            std::thread::scope(|scope| {
                for _ in 0..64 {
                    scope.spawn(|| {
                        refused(stats_within(staging.path(), 5 * MOMENT), ErrorKind::Unresponsive);
                    });
                }
            });
        };
        bounded(BOUND, ask_all);
        assert_eq!(measure::children(), 1);
        forced().at(&staging).unwrap();
        assert_eq!(daemon.taken(), 1, "one was asked for all");
        settle(0);
    });
}

#[test]
fn many_forced_unmounts_take_turns() {
    let _alone = alone();
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let daemon = SilentDaemon::mount(&staging);
        settle(0);
        stats_within(staging.path(), MOMENT).unwrap_err();
        let before = measure();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    most = most.max(measure::children());
                }
                most
            });
            // The kernel takes a while for an unmount when all processors are busy.
            let unmount = || bounded(BOUND, || forced().at(&staging));
            let unmounts: Vec<_> = (0..32).map(|_| scope.spawn(unmount)).collect();
            let outcomes: Vec<_> = unmounts.into_iter().map(ScopedJoinHandle::join).collect();
            // This comes before anything can panic, because the scope waits for the watcher.
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            for outcome in outcomes {
                outcome.unwrap().unwrap();
            }
            watcher.join().unwrap()
        });
        assert_eq!(mount_state(staging.path()).unwrap(), MountState::NotMounted);
        assert!(most <= 2, "one asks for its usage and one unmounts, not {most}");
        daemon.taken();
        settle(0);
        let after = measure_until(|found| found.has_no_more_than(&before));
        println!("32 forced unmounts at once, at most {most} children: before {before}; after {after}");
        assert!(after.has_no_more_than(&before));
    });
}

/// What the filesystem has not written before the unmount is written during it. So the unmount is done only
/// when the filesystem has finished.
#[test]
fn an_unmount_is_done_when_the_filesystem_has_finished() {
    let _alone = alone();
    let image = Image::new(8);
    with_target(|target| {
        let late = LateEnd::mount(target, image.path());
        settle(0);
        let unmount = Unmount::new().answer_time_limit(MOMENT).finish_time_limit(2 * MOMENT);
        // The calling thread ends, as those of a thread pool do.
        let first = std::thread::scope(|scope| scope.spawn(|| bounded(BOUND, || unmount.at(target))).join());
        for outcome in [first.unwrap(), unmount.at(target), unmount.at(target)] {
            let error = refused(outcome, ErrorKind::Unresponsive);
            assert!(error.to_string().contains("still has data to write"), "{error}");
        }
        assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
        assert_eq!(measure::children(), 1, "the one that unmounts, and no other");
        late.let_go();
        assert_eq!(unmount.finish_time_limit(BOUND).at(target).unwrap(), Unmounted::NotMounted);
        settle(0);

        // An unmount that is allowed to detach waits just as long, and not longer.
        let late = LateEnd::mount(target, image.path());
        let start = Instant::now();
        let forced = forced().answer_time_limit(MOMENT).finish_time_limit(3 * MOMENT);
        assert_eq!(bounded(BOUND, || forced.at(target)).unwrap(), Unmounted::Detached);
        assert!(start.elapsed() >= 3 * MOMENT, "{:?}", start.elapsed());
        late.let_go();
        settle(0);
    });
}

/// If an earlier unmount was left unfinished, a repeated call that is allowed to detach gives it up.
#[test]
fn an_unfinished_unmount_is_abandoned_on_request() {
    let _alone = alone();
    let image = Image::new(8);
    with_target(|target| {
        let late = LateEnd::mount(target, image.path());
        let plain = Unmount::new().answer_time_limit(MOMENT).finish_time_limit(MOMENT);
        plain.at(target).unwrap_err();
        let forced = forced().finish_time_limit(MOMENT);
        assert_eq!(bounded(BOUND, || forced.at(target)).unwrap(), Unmounted::Detached);
        assert_eq!(bounded(BOUND, || plain.at(target)).unwrap(), Unmounted::NotMounted, "it is given up");
        late.let_go();
        settle(0);
    });
}

#[test]
fn a_daemon_that_never_starts_leaves_no_helper_at_all() {
    let _alone = alone();
    with_target(|target| {
        let device: File = fuse(target);
        settle(0);
        for _ in 0..5 {
            refused(stats_within(target.path(), MOMENT), ErrorKind::Unresponsive);
        }
        // A process that waits for a request that was not taken can be killed.
        settle(0);
        answer_init(&device);
        unmount(target).unwrap();
    });
}

const HOLDER: &str = "holds_a_file_in_its_exec";
const HELD: &str = "HANG_TEST_HELD";
const IS_OPEN: &str = "the file is open";

/// This is not a test. It is a process with an open file, which executes a program when its input ends.
#[test]
fn holds_a_file_in_its_exec() {
    let Some(path) = std::env::var_os(HELD) else { return };
    let _file = File::options().read(true).write(true).open(path).unwrap();
    println!("{IS_OPEN}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    panic!("{}", Command::new("sleep").arg("60").exec());
}

/// The kernel closes files in an `exec`, and this one waits for the daemon. What `/proc` shows of such a process waits
/// with it, also for those that look for the users of other volumes.
#[test]
fn a_process_that_is_stuck_in_an_exec_delays_nobody() {
    let _alone = alone();
    sandbox(|sandbox| {
        let share = target(sandbox, "share");
        let mut server = FileServer::mount(&share);
        let image = Image::new(16);
        let mut holder = Command::new(std::env::current_exe().unwrap());
        holder.args(["--exact", HOLDER, "--nocapture"]).env(HELD, share.path().join("file"));
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = holder.spawn().unwrap();
        let mut printed = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(printed.any(|line| line.unwrap().contains(IS_OPEN)), "it ended");
        server.meets(Fate::Suspended);
        drop(process.stdin.take());
        let statm = format!("/proc/{}/statm", process.id());
        let code = || fs::read_to_string(&statm).unwrap().split(' ').nth(3).map(str::to_owned);
        let comm = format!("/proc/{}/comm", process.id());
        let end = Instant::now() + 3 * BOUND;
        // Linux 7.2 waits at a moment when the process has its former code.
        let is_without_code = loop {
            if code().as_deref() == Some("0") {
                sleep(SECOND);
                if code().as_deref() == Some("0") {
                    break true;
                }
            }
            if fs::read_to_string(&comm).unwrap() == "sleep\n" {
                println!("not tested: this kernel does not hold the exec up");
                return end_with(server, process, &share);
            }
            if Instant::now() >= end {
                break false;
            }
            sleep(Duration::from_millis(1));
        };

        let (done, ended) = std::sync::mpsc::channel();
        let silent = &server;
        let checks = || {
            let device = BlockDevice::open(image.path()).unwrap();
            // Other tests have silent loop devices, which take part of the limit.
            assert!(bounded(BOUND, || device.users()).unwrap().is_empty());
            let identity = || identity_at(share.path());
            assert_eq!(bounded(2 * BOUND, identity), None, "it is waited for, because it could be a daemon");
            assert_eq!(bounded(BOUND / 2, identity), None, "it is known to be stuck");
        };
        let checked = std::thread::scope(|scope| {
            // Without this, a fault would hold up everybody on this machine who reads `/proc`.
            scope.spawn(move || {
                if ended.recv_timeout(3 * BOUND).is_err() {
                    silent.continues();
                }
            });
            let checked = catch_unwind(AssertUnwindSafe(checks));
            let _ = done.send(());
            checked
        });
        let is_stuck = code().as_deref() == Some("0");
        let name = fs::read_to_string(&comm).unwrap();
        // The tests that follow count the children.
        end_with(server, process, &share);
        if let Err(panic) = checked {
            resume_unwind(panic);
        }
        assert_eq!(is_stuck, is_without_code, "it was stuck all the time");
        assert_ne!(name, "sleep\n", "it was stuck all the time");
    });
}

fn end_with(mut server: FileServer, mut process: Child, share: &Target) {
    server.meets(Fate::Killed);
    process.kill().unwrap();
    process.wait().unwrap();
    unmount(share).unwrap();
}
