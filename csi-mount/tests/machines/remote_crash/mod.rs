//! An attach or a detach of a remote disk that is killed before one of its system calls, and everything that can
//! come next. Whatever it is, the disk is the right one, and nothing is left at the end.
//!
//! The points are the calls whose effect can outlive the process. A kill before any other call leaves what the kill
//! before the next of these leaves. A run takes a sample of the points: `CSI_CRASH_POINTS` sets its size, and
//! `CSI_CRASH_STRIDE=1` takes all of them.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, stage, unstage};
use csi_mount::remote::{RemoteDisks, RemoteTarget};
use csi_mount::{BlockDevice, Filesystem, Target};

use crate::stepper::{End, Job, Points, Programs, do_job};

const NAME: &str = "pvc";
const OTHER: &str = "other";
const MIB: u64 = 1 << 20;
/// A place that the filesystems of these tests leave alone, and the length of the marks.
const MARK: (u64, usize) = (299 * MIB, 5);
/// How long a login, a logout, a connect or a disconnect that the killed process began can keep the next step.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// What comes after the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Continuation {
    Attach,
    Detach,
    /// An attach, and a mount of the filesystem that the volume has.
    Stage,
    /// An attach of another volume of the target, which must not suffer from the detach that follows.
    AttachOther,
}

const CONTINUATIONS: [Continuation; 4] =
    [Continuation::Attach, Continuation::Detach, Continuation::Stage, Continuation::AttachOther];

/// A target with two volumes, and the transport's view of this machine.
pub(crate) struct Site<'s> {
    /// The name of the test that calls [`kill_each`].
    pub(crate) test: &'s str,
    /// Writes to a volume on the target: its index, the offset, the bytes.
    pub(crate) write: &'s dyn Fn(usize, u64, &[u8]),
    /// The volume with this index, in the test's process and in that of the job.
    pub(crate) target: fn(usize) -> RemoteTarget,
    /// How many connections work, and how many an attached volume has.
    pub(crate) live: fn() -> usize,
    pub(crate) paths: usize,
    /// Checks that the kernel, and the programs of the node, know nothing of the target.
    pub(crate) assert_nothing_left: fn(),
}

/// Runs the step if this process is the one that is killed. Call it before anything else.
pub(crate) fn run_step(target: fn(usize) -> RemoteTarget) {
    do_job(|words| {
        let [step, directory] = words else { panic!("{words:?}") };
        let disks = RemoteDisks::new(*directory);
        match *step {
            "attach" => disks.attach(NAME, target(0)).map(drop),
            "detach" => disks.detach(NAME).map(drop),
            other => panic!("{other}"),
        }
    });
}

fn assert_marked(device: &BlockDevice, mark: &[u8]) {
    let mut bytes = vec![0; MARK.1];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut bytes, MARK.0).unwrap();
    assert_eq!(bytes, mark, "{}", device.path().display());
}

/// What remains to be repeated, as an orchestrator does: what the killed process began can still be running.
fn repeated<T>(what: &str, mut step: impl FnMut() -> csi_mount::Result<T>) -> T {
    let end = Instant::now() + SETTLE_LIMIT;
    loop {
        match step() {
            Ok(done) => return done,
            Err(error) => {
                println!("repeated: {what}: {error}");
                assert!(Instant::now() < end, "{what}: {error}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A node whose attachments are killed.
struct Node<'s> {
    site: &'s Site<'s>,
    directory: tempfile::TempDir,
    disks: RemoteDisks,
}

impl Node<'_> {
    fn records(&self) -> std::path::PathBuf {
        self.directory.path().join("remote")
    }

    fn attach(&self, name: &str, index: usize) -> BlockDevice {
        let device = repeated("attach", || self.disks.attach(name, (self.site.target)(index)));
        assert_marked(&device, if index == 0 { b"right" } else { b"other" });
        device
    }

    fn stage(&self, plan: impl FnOnce(StagePlan) -> StagePlan, use_it: impl FnOnce(&Path)) {
        let target = (self.site.target)(0);
        let device = repeated("attach", || self.disks.attach(NAME, target.clone()));
        let staging = Target::new(self.directory.path().join("staging")).unwrap();
        let plan = plan(StagePlan::new(Filesystem::Ext4).expect(target.expected()));
        stage(device.path(), &staging, &plan).unwrap();
        use_it(staging.path());
        unstage(&staging, Some(device.path())).unwrap();
    }

    fn detach(&self, name: &str) {
        repeated("detach", || self.disks.detach(name));
    }

    fn assert_nothing_left(&self) {
        (self.site.assert_nothing_left)();
        let entries = fs::read_dir(self.records()).unwrap().flatten();
        let mut left: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        left.retain(|name| !name.starts_with(".lock-"));
        assert!(left.is_empty(), "{left:?}");
    }

    /// Goes on after a kill, up to the detach of both volumes.
    fn go_on(&self, continuation: Continuation) {
        match continuation {
            Continuation::Detach => {}
            Continuation::Attach => {
                drop(self.attach(NAME, 0));
                assert_eq!((self.site.live)(), self.site.paths);
                assert_marked(&self.disks.device(NAME).unwrap().expect("it is attached"), b"right");
            }
            Continuation::Stage => self.stage(StagePlan::never_format, |staging| {
                assert_eq!(fs::read_to_string(staging.join("file")).unwrap(), "content");
            }),
            Continuation::AttachOther => {
                drop(self.attach(OTHER, 1));
                self.detach(NAME);
                assert_marked(&self.disks.device(OTHER).unwrap().expect("it is attached"), b"other");
                assert_eq!((self.site.live)(), self.site.paths);
                self.detach(OTHER);
            }
        }
        self.detach(NAME);
        self.assert_nothing_left();
    }
}

/// Kills a step (`attach`, `detach`) at its points, and continues each in one of the ways.
pub(crate) fn kill_each(site: &Site<'_>, step: &str) {
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(directory.path().join("remote"));
    let node = Node { site, directory, disks };
    node.stage(std::convert::identity, |staging| fs::write(staging.join("file"), "content").unwrap());
    node.detach(NAME);
    node.assert_nothing_left();
    (site.write)(0, MARK.0, b"right");
    (site.write)(1, MARK.0, b"other");

    let records = node.records();
    let words = [step, records.to_str().unwrap()];
    let job = Job { programs: Programs::Followed, test: site.test, words: &words };
    let mut points = Points::with_continuations(200, CONTINUATIONS.len());
    loop {
        if step == "detach" {
            drop(node.attach(NAME, 0));
        }
        let call = points.call();
        let continuation = CONTINUATIONS[points.continuation()];
        let start = Instant::now();
        let end = job.kill_before_change(call);
        match end {
            End::Killed => {
                println!(
                    "{step}: killed before the change {call} after {:?}, {continuation:?}",
                    start.elapsed()
                );
                node.go_on(continuation);
            }
            End::Finished { .. } => {
                assert_eq!((site.live)(), if step == "attach" { site.paths } else { 0 });
                node.go_on(Continuation::Detach);
            }
        }
        if let Some(swept) = points.step(end) {
            let count = swept.points();
            println!("{step}: killed at {count} points of {} changes", swept.calls);
            assert!(count > 8 && swept.killed.iter().all(|count| *count > 0), "{:?}", swept.killed);
            return;
        }
    }
}
