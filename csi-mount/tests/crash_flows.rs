//! Killed before any system call, a step of the shared, FUSE and ephemeral flows that is repeated by a new process comes
//! to the right end.
//!
//! Each test kills at so many points as [`Points`] says (in CI a matter of seconds), and prints how many there were. An
//! ext4 on a loop device stands for what a server shares, and a FUSE filesystem without its daemon for a server that is
//! gone: this needs no client of NFS.

mod devices;
mod flow_support;
mod fuse_support;
mod stepper;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::flow::ephemeral::{self, Content, EphemeralPlan};
use csi_mount::flow::fuse::{self, FuseDaemon};
use csi_mount::flow::shared::{self, SharedSource};
use csi_mount::{DeviceUse, ErrorKind, MountAttributes, MountHealth, Outcome, Target, health, mounts};
use devices::{Image, run};
use flow_support::{eventually, layers, on_tmpfs};
use fuse_support::answering_daemon;
use stepper::{End, Job, Points, Programs, do_job};

const DAEMON_AT: &str = "CRASH_FLOWS_DAEMON_AT";

fn job(words: &[&str]) -> csi_mount::Result<()> {
    let [step, source, staging, target] = words else { panic!("{words:?}") };
    let (staging, target) = (Target::new(staging)?, Target::new(target)?);
    let shared = SharedSource::new("ext4", *source);
    match *step {
        "shared stage" => shared::stage(&staging, &shared).map(drop),
        "shared publish" => shared::publish(staging.path(), &target, MountAttributes::RDONLY).map(drop),
        "shared publish directly" => {
            shared::publish_directly(&target, &shared, MountAttributes::RDONLY).map(drop)
        }
        "shared unpublish" => shared::unpublish(&target).map(drop),
        "shared unstage" => shared::unstage(&staging).map(drop),
        "fuse stage" => fuse::stage(&staging, &daemon(staging.path())).map(drop),
        "fuse stage until it is there" => stage_until_it_is_there(&staging),
        "fuse publish" => fuse::publish(staging.path(), &target, MountAttributes::empty()).map(drop),
        "fuse unpublish" => fuse::unpublish(&target).map(drop),
        "fuse unstage" => fuse::unstage(&staging).map(drop),
        "ephemeral publish" => ephemeral::publish(&target, &content("new"), &plan()).map(drop),
        "ephemeral unpublish" => ephemeral::unpublish(&target).map(drop),
        other => panic!("{other}"),
    }
}

/// As an orchestrator does it.
fn stage_until_it_is_there(staging: &Target) -> csi_mount::Result<()> {
    for _ in 0..20 {
        if fuse::stage(staging, &daemon(staging.path())).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    fuse::stage(staging, &daemon(staging.path())).map(drop)
}

/// No test: the daemon, when this program is started as one. It outlives who started it.
#[test]
fn serve_as_daemon() {
    let Some(at) = std::env::var_os(DAEMON_AT).map(PathBuf::from) else { return };
    answering_daemon(&Target::new(at).unwrap(), None).join().unwrap();
    std::process::exit(0);
}

/// Through a shell, so that it does not hold the output of the job.
fn daemon(staging: &Path) -> FuseDaemon {
    FuseDaemon::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve_as_daemon", "--nocapture"])
        .env(DAEMON_AT, staging)
        .launcher(["sh", "-c", "exec \"$@\" >/dev/null 2>&1", "sh"])
}

fn plan() -> EphemeralPlan {
    EphemeralPlan::new("volume").attributes(MountAttributes::RDONLY)
}

/// Both files say which version it is.
fn content(version: &str) -> Content {
    Content::new().file("a", version).unwrap().file("below/b", version).unwrap()
}

/// Where a volume is, made anew for each point.
struct Place {
    source: String,
    staging: Target,
    target: Target,
}

impl Place {
    fn publish_ephemeral(&self, version: &str) {
        ephemeral::publish(&self.target, &content(version), &plan()).unwrap();
    }

    /// The version, which all files have.
    fn version(&self) -> String {
        // By one way in, as the kubelet's own volumes are read.
        let data = self.target.path().join(fs::read_link(self.target.path().join("..data")).unwrap());
        let read = |name| fs::read_to_string(data.join(name)).unwrap();
        assert_eq!(read("a"), read("below/b"), "two versions at once");
        read("a")
    }

    fn file(&self, at: &Target) -> String {
        fs::read_to_string(at.path().join("file")).unwrap()
    }

    fn assert_layers(&self, at_staging: usize, at_target: usize) {
        assert_eq!((layers(self.staging.path()), layers(self.target.path())), (at_staging, at_target));
    }

    fn stage_fuse(&self) {
        assert_eq!(fuse::stage(&self.staging, &daemon(self.staging.path())).unwrap(), Outcome::Mounted);
    }
}

/// How many processes serve a place.
fn daemons(staging: &Target) -> usize {
    let mark = format!("CSI_MOUNT_FUSE_AT={}", staging.path().display());
    let all = fs::read_dir("/proc").unwrap().flatten();
    let is_marked = |path: PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all.filter(|entry| is_marked(entry.path())).count()
}

/// A step, and what is to be before it and after it.
struct Step<'a> {
    test: &'a str,
    name: &'a str,
    stride: u64,
    source: &'a str,
    prepare: fn(&Place),
    /// After the kill, before anything is mended.
    killed: fn(&Place),
    expected: fn(&Place),
}

/// Does it again while it is busy: a child of another test that does not run its program yet has our files for a moment,
/// which is long on a busy machine.
fn while_busy<T>(undo: impl Fn() -> csi_mount::Result<T>) {
    let end = Instant::now() + Duration::from_secs(30);
    while let Err(error) = undo() {
        assert!(error.kind() == ErrorKind::Busy && Instant::now() < end, "{error}");
    }
}

/// Kills the step at its points, each time at a new place, and repeats it.
fn at_every_point(step: &Step<'_>) {
    do_job(job);
    on_tmpfs(|base| {
        let baseline = mounts().unwrap().len();
        let mut points = Points::new(step.stride);
        loop {
            let call = points.call();
            let place = base.join(call.to_string());
            fs::create_dir(&place).unwrap();
            let target = |name: &str| Target::new(place.join(name)).unwrap();
            let (staging, pod) = (target("s"), target("t"));
            let place = Place { source: step.source.to_owned(), staging, target: pod };
            // On another thread: what it starts is no child of this one, which waits for all that it traces.
            std::thread::scope(|scope| scope.spawn(|| (step.prepare)(&place)).join().unwrap());
            let path = |target: &Target| target.path().to_str().unwrap().to_owned();
            let words = [step.name, &*place.source, &*path(&place.staging), &*path(&place.target)];
            let job = Job { programs: Programs::LetGo, test: step.test, words: &words };
            let end = job.kill_before(call);
            if let End::Killed = end {
                (step.killed)(&place);
                job.run();
            }
            (step.expected)(&place);
            while_busy(|| fuse::unpublish(&place.target));
            while_busy(|| fuse::unstage(&place.staging));
            assert_eq!(daemons(&place.staging), 0, "killed before call {call}: a daemon is left");
            assert_eq!(mounts().unwrap().len(), baseline, "killed before call {call}: a mount is left");
            if !points.next(step.name, end) {
                return;
            }
        }
    });
}

/// What a server would share: an ext4 with a file in it.
fn with_shared(run_with: impl FnOnce(&str)) {
    do_job(job);
    let image = Image::new(8);
    let source = image.path().to_str().unwrap().to_owned();
    run("mkfs.ext4", &["-q", &source]);
    on_tmpfs(|base| {
        let staging = Target::new(base.join("s")).unwrap();
        shared::stage(&staging, &SharedSource::new("ext4", &*source)).unwrap();
        fs::write(staging.path().join("file"), "shared").unwrap();
        shared::unstage(&staging).unwrap();
    });
    run_with(&source);
    // What was killed last may still be on its way out.
    eventually("the device is free", || image.open().in_use().unwrap() == DeviceUse::Free);
}

fn stage_shared(place: &Place) {
    shared::stage(&place.staging, &SharedSource::new("ext4", &*place.source)).unwrap();
}

#[test]
fn a_shared_filesystem() {
    let test = "a_shared_filesystem";
    with_shared(|source| {
        let step = |name, stride, prepare, expected| {
            at_every_point(&Step { test, name, stride, source, prepare, killed: |_| (), expected });
        };
        step(
            "shared stage",
            13,
            |_| (),
            |place| {
                place.assert_layers(1, 0);
                assert_eq!(place.file(&place.staging), "shared");
            },
        );
        step("shared publish", 13, stage_shared, |place| {
            place.assert_layers(1, 1);
            assert_eq!(place.file(&place.target), "shared");
            assert!(fs::write(place.target.path().join("file"), "x").is_err(), "it is writable");
        });
        step(
            "shared publish directly",
            13,
            |_| (),
            |place| {
                place.assert_layers(0, 1);
                assert_eq!(place.file(&place.target), "shared");
            },
        );
        step(
            "shared unpublish",
            11,
            |place| {
                stage_shared(place);
                shared::publish(place.staging.path(), &place.target, MountAttributes::empty()).unwrap();
            },
            |place| {
                place.assert_layers(1, 0);
                assert!(!place.target.path().exists());
                assert_eq!(place.file(&place.staging), "shared");
            },
        );
        step("shared unstage", 11, stage_shared, |place| place.assert_layers(0, 0));
    });
}

/// A mount at the staging directory whose server is gone.
fn lose_server(place: &Place) {
    place.staging.create_dir().unwrap();
    let device = fuse_support::fuse(&place.staging);
    fuse_support::answer_init(&device);
    drop(device);
    assert!(matches!(health(place.staging.path()).unwrap(), MountHealth::Dead(_)));
}

#[test]
fn a_shared_filesystem_whose_server_was_lost() {
    let test = "a_shared_filesystem_whose_server_was_lost";
    with_shared(|source| {
        let step = |name, expected| {
            let (stride, prepare) = (13, lose_server as fn(&Place));
            at_every_point(&Step { test, name, stride, source, prepare, killed: |_| (), expected });
        };
        step("shared stage", |place| {
            place.assert_layers(1, 0);
            assert_eq!(place.file(&place.staging), "shared");
        });
        step("shared unstage", |place| place.assert_layers(0, 0));
    });
}

#[test]
fn a_fuse_filesystem() {
    let test = "a_fuse_filesystem";
    do_job(job);
    let step = |name, stride, prepare, expected| {
        at_every_point(&Step { test, name, stride, source: "", prepare, killed: |_| (), expected });
    };
    let staged: fn(&Place) = |place| {
        place.assert_layers(1, 0);
        assert_eq!(health(place.staging.path()).unwrap(), MountHealth::Healthy);
        assert_eq!(daemons(&place.staging), 1);
    };
    step("fuse stage", 17, |_| (), staged);
    // Its daemon was killed; the mount is there.
    step("fuse stage", 17, lose_server, staged);
    step("fuse publish", 13, Place::stage_fuse, |place| {
        place.assert_layers(1, 1);
        assert_eq!(health(place.target.path()).unwrap(), MountHealth::Healthy);
    });
    step(
        "fuse unpublish",
        11,
        |place| {
            place.stage_fuse();
            fuse::publish(place.staging.path(), &place.target, MountAttributes::empty()).unwrap();
        },
        |place| {
            place.assert_layers(1, 0);
            assert!(!place.target.path().exists());
            assert_eq!(daemons(&place.staging), 1, "what is staged is served");
        },
    );
    step("fuse unstage", 31, Place::stage_fuse, |place| {
        place.assert_layers(0, 0);
        eventually("the daemon ends", || daemons(&place.staging) == 0);
    });
}

/// A stage that was killed between fork and exec has left a daemon that nothing tells from another child.
#[test]
fn a_fuse_daemon_that_does_not_run_yet_is_waited_for() {
    let test = "a_fuse_daemon_that_does_not_run_yet_is_waited_for";
    do_job(job);
    on_tmpfs(|base| {
        let staging = Target::new(base.join("s")).unwrap();
        let path = staging.path().to_str().unwrap();
        let job = Job { programs: Programs::LetGo, test, words: &["fuse stage", "", path, path] };
        std::thread::scope(|scope| {
            job.kill_before_exec(|| {
                let repeated = scope.spawn(|| job.run());
                std::thread::sleep(Duration::from_millis(500));
                assert!(!repeated.is_finished(), "it was not waited for");
            });
        });
        assert_eq!((daemons(&staging), layers(staging.path())), (1, 1));
        assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy);
        fuse::unstage(&staging).unwrap();
    });
}

/// As when a driver is replaced while its predecessor is still at work.
#[test]
fn processes_that_stage_one_fuse_filesystem_come_to_one_daemon() {
    let test = "processes_that_stage_one_fuse_filesystem_come_to_one_daemon";
    do_job(job);
    on_tmpfs(|base| {
        for round in 0..3 {
            let staging = Target::new(base.join(round.to_string())).unwrap();
            let path = staging.path().to_str().unwrap();
            let words = ["fuse stage until it is there", "", path, path];
            let stage = || Job { programs: Programs::LetGo, test, words: &words }.run();
            std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(stage)));
            assert_eq!((daemons(&staging), layers(staging.path())), (1, 1));
            assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy);
            fuse::unstage(&staging).unwrap();
            assert_eq!((daemons(&staging), layers(staging.path())), (0, 0));
        }
    });
}

#[test]
fn an_ephemeral_volume() {
    let test = "an_ephemeral_volume";
    do_job(job);
    let step = |name, stride, prepare, killed, expected| {
        at_every_point(&Step { test, name, stride, source: "", prepare, killed, expected });
    };
    let whole: fn(&Place) = |place| {
        place.assert_layers(0, 1);
        assert_eq!(place.version(), "new");
    };
    step(
        "ephemeral publish",
        13,
        |_| (),
        |place| {
            // Nobody sees it before it has its content.
            if layers(place.target.path()) > 0 {
                assert_eq!(place.version(), "new");
            }
        },
        whole,
    );
    step(
        "ephemeral publish",
        13,
        |place| place.publish_ephemeral("old"),
        |place| assert!(["old", "new"].contains(&&*place.version())),
        whole,
    );
    step(
        "ephemeral unpublish",
        5,
        |place| place.publish_ephemeral("old"),
        |_| (),
        |place| {
            place.assert_layers(0, 0);
            assert!(!place.target.path().exists());
        },
    );
}
