//! A step of the FUSE flow that is killed before any of its system calls ends in the right state, whatever
//! comes next: see [`matrix`]. The daemon is also killed, while it starts and while it serves.
//!
//! Each test kills at the number of points that [`Points`](crate::stepper::Points) gives (together less than a
//! minute), and prints this number. `CSI_CRASH_STRIDE=1` makes it kill at every point.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::fuse::{self, FuseDaemon};
use csi_mount::internal::health;
use csi_mount::{MountAttributes, MountHealth, Target};
use nix::sys::signal::{Signal, kill};

use crate::fuse_support::{PATIENCE, answering_daemon, daemon_processes, lost_server, the_daemon};
use crate::matrix::sweep::{STEP_DIES, assert_points, kill_steps};
use crate::matrix::{Level, Place, Step, Volume};
use crate::mount_support::{eventually, layers, sandbox};
use crate::stepper::{Job, Kill, Programs, do_job};

const DAEMON_AT: &str = "CRASH_FUSE_DAEMON_AT";

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let ["fuse", step, "", staging, target] = words else { panic!("{words:?}") };
    let staging = Target::new(staging)?;
    let target = Target::new(target)?;
    match *step {
        "stage" => fuse::stage(&staging, &daemon(staging.path())).map(drop),
        "stage until it is there" => stage_until_it_is_there(&staging),
        "publish" => fuse::publish(staging.path(), &target, MountAttributes::empty()).map(drop),
        "unpublish" => fuse::unpublish(&target).map(drop),
        "unstage" => fuse::unstage(&staging).map(drop),
        other => panic!("{other}"),
    }
}

/// Repeats the stage until it succeeds, as an orchestrator does.
fn stage_until_it_is_there(staging: &Target) -> csi_mount::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let staged = fuse::stage(staging, &daemon(staging.path())).map(drop);
        if staged.is_ok() || Instant::now() >= end {
            return staged;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// This is not a test. It is the daemon, if this program was started as one. The daemon outlives the process
/// that started it.
#[test]
fn serve_as_daemon() {
    let Some(at) = std::env::var_os(DAEMON_AT).map(PathBuf::from) else { return };
    answering_daemon(&Target::new(at).unwrap(), None).join().unwrap();
    std::process::exit(0);
}

/// A shell starts the daemon with other output files, so that the daemon does not keep the job's output open.
fn daemon(staging: &Path) -> FuseDaemon {
    FuseDaemon::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash_fuse::serve_as_daemon", "--nocapture"])
        .env(DAEMON_AT, staging)
        .launcher(["sh", "-c", "exec \"$@\" >/dev/null 2>&1", "sh"])
        .ready_time_limit(PATIENCE)
}

/// A daemon that is in the middle of an `exec` has no environment at that moment, so one look is not enough.
fn kill_daemons(staging: &Path) {
    eventually("the daemon is gone", || {
        let found = daemon_processes(staging);
        for process in &found {
            // An error means that the process has already ended.
            let _ = kill(*process, Signal::SIGKILL);
        }
        found.is_empty()
    });
}

/// A FUSE filesystem that this program serves.
struct Served {
    place: Place,
    /// A step finds a mount whose daemon is gone.
    lost_daemon: bool,
    /// The daemon that serves the filesystem is killed, and the step is not.
    daemon_dies: bool,
}

impl Served {
    fn new(base: &Path) -> Self {
        Self { place: Place::new(&base.join("volume")), lost_daemon: false, daemon_dies: false }
    }
}

impl Volume for Served {
    fn flow(&self) -> String {
        "fuse".to_owned()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn layers(&self, level: Level) -> (usize, usize) {
        (usize::from(level > Level::Free), usize::from(level == Level::Published))
    }

    fn lost_beneath(&self) -> usize {
        1
    }

    fn prepare(&mut self, _step: Step) -> bool {
        if self.lost_daemon {
            lost_server(&self.place.staging);
        }
        self.lost_daemon
    }

    fn repeats(&self, step: Step) -> Vec<Step> {
        match step {
            Step::Publish if self.daemon_dies => vec![Step::Stage, Step::Publish],
            Step::Unpublish if self.daemon_dies => vec![Step::Unpublish, Step::Stage],
            step => vec![step],
        }
    }

    fn assert_content(&self, level: Level, _after: Step) {
        let assert_healthy = |at: &Target| {
            assert_eq!(health(at.path()).unwrap(), MountHealth::Healthy);
        };
        if level > Level::Free {
            assert_healthy(&self.place.staging);
            the_daemon(self.place.staging.path());
        }
        if level == Level::Published {
            assert_healthy(&self.place.target);
        }
    }

    fn lose(&mut self) {
        kill_daemons(self.place.staging.path());
    }

    fn reboot(&mut self) {
        kill_daemons(self.place.staging.path());
    }

    fn assert_free(&self) {
        assert!(daemon_processes(self.place.staging.path()).is_empty(), "a daemon is left");
    }
}

const STEPS: [(Step, u64, u64); 4] =
    [(Step::Stage, 24, 30), (Step::Publish, 24, 20), (Step::Unpublish, 24, 8), (Step::Unstage, 24, 30)];

#[test]
fn a_fuse_filesystem() {
    let test = "crash_fuse::a_fuse_filesystem";
    do_job(job);
    sandbox(|base| {
        let mut volume = Served::new(base);
        let mut points = kill_steps((test, job), &mut volume, STEP_DIES, &STEPS);
        volume.lost_daemon = true;
        points += kill_steps(
            (test, job),
            &mut volume,
            STEP_DIES,
            &[(Step::Stage, 24, 30), (Step::Unstage, 24, 30)],
        );
        assert_points(test, points, 60);
    });
}

/// First, only the process that makes the call is killed: the daemon while it starts, or the step, whose
/// daemon then continues. After that, both are killed.
#[test]
fn a_fuse_daemon_that_is_killed_while_it_starts() {
    let test = "crash_fuse::a_fuse_daemon_that_is_killed_while_it_starts";
    do_job(job);
    sandbox(|base| {
        let caller_dies = (Programs::Daemons, Kill::Caller);
        let mut volume = Served::new(base);
        let mut points = kill_steps((test, job), &mut volume, caller_dies, &[(Step::Stage, 24, 100)]);
        let both_die = (Programs::Daemons, Kill::Job);
        points += kill_steps((test, job), &mut volume, both_die, &[(Step::Stage, 24, 100)]);
        assert_points(test, points, 20);
    });
}

/// The daemon is killed during a step, and the step continues.
#[test]
fn a_fuse_daemon_that_is_killed_while_it_serves() {
    let test = "crash_fuse::a_fuse_daemon_that_is_killed_while_it_serves";
    do_job(job);
    sandbox(|base| {
        let mut volume = Served { daemon_dies: true, ..Served::new(base) };
        let staging = volume.place.staging.path().to_owned();
        let kill_it = || kill_daemons(&staging);
        let daemon_dies = (Programs::LetGo, Kill::Others(&kill_it));
        assert_points(test, kill_steps((test, job), &mut volume, daemon_dies, &STEPS), 50);
    });
}

/// A stage that was killed between fork and exec leaves a daemon that cannot be distinguished from any other
/// child process. So the next stage waits until it runs.
#[test]
fn a_fuse_daemon_that_is_about_to_run_is_waited_for() {
    let test = "crash_fuse::a_fuse_daemon_that_is_about_to_run_is_waited_for";
    do_job(job);
    sandbox(|base| {
        let staging = Target::new(base.join("s")).unwrap();
        let path = staging.path().to_str().unwrap();
        let job = Job { programs: Programs::LetGo, test, words: &["fuse", "stage", "", path, path] };
        std::thread::scope(|scope| {
            job.kill_before_exec(|| {
                let repeated = scope.spawn(|| job.run());
                std::thread::sleep(Duration::from_millis(500));
                assert!(!repeated.is_finished(), "it was not waited for");
            });
        });
        the_daemon(staging.path());
        assert_eq!(layers(staging.path()), 1);
        assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy);
        fuse::unstage(&staging).unwrap();
    });
}

/// Several processes stage at once when a driver is replaced while its predecessor is still working.
#[test]
fn processes_that_stage_one_fuse_filesystem_start_one_daemon() {
    let test = "crash_fuse::processes_that_stage_one_fuse_filesystem_start_one_daemon";
    do_job(job);
    sandbox(|base| {
        for round in 0..3 {
            let staging = Target::new(base.join(round.to_string())).unwrap();
            let path = staging.path().to_str().unwrap();
            let words = ["fuse", "stage until it is there", "", path, path];
            let stage = || Job { programs: Programs::LetGo, test, words: &words }.run();
            std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(stage)));
            the_daemon(staging.path());
            assert_eq!(layers(staging.path()), 1);
            assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy);
            fuse::unstage(&staging).unwrap();
            assert_eq!((daemon_processes(staging.path()).len(), layers(staging.path())), (0, 0));
        }
    });
}
