//! The matrix of the crash tests: a step of a flow is killed before one of its system calls, and one of the
//! requests that an orchestrator can send next follows. Whichever request it is, the volume ends in the right
//! state and leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::{ErrorKind, MountEntry, MountId, Target, mounts};
use rustix::mount::UnmountFlags;

use crate::stepper::{self, End, Kill, Points, Programs};

pub(crate) mod sweep;

/// Runs the step that the words name: flow, step, the volume's source, staging path and target path.
pub(crate) type Job = fn(&[&str]) -> csi_mount::Result<()>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Stage,
    Publish,
    /// A change of a published volume: it grows, or gets new content.
    Change,
    Unpublish,
    Unstage,
}

/// The state of a volume between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Free,
    Staged,
    Published,
}

/// What follows the kill.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    Repeat,
    /// The step that undoes it: unpublish after publish, and publish after unpublish.
    Undo,
    /// The steps in the wrong order: unstage before unpublish, or unpublish where nothing is published.
    /// Unstage can be refused, and then the right order still succeeds.
    LowerFirst,
    /// The device, the directory or the daemon is gone, and the volume is taken down.
    Lose,
    /// The node reboots. The orchestrator sends the same step, and then starts from the first step.
    Reboot,
    /// The node reboots, and the pod is gone.
    RebootAndUndo,
}

pub(crate) const NEXT: [Next; 6] =
    [Next::Repeat, Next::Undo, Next::LowerFirst, Next::Lose, Next::Reboot, Next::RebootAndUndo];

impl Step {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Publish => "publish",
            Self::Change => "change",
            Self::Unpublish => "unpublish",
            Self::Unstage => "unstage",
        }
    }

    fn before(self) -> Level {
        match self {
            Self::Stage => Level::Free,
            Self::Publish | Self::Unstage => Level::Staged,
            Self::Change | Self::Unpublish => Level::Published,
        }
    }

    fn after(self) -> Level {
        match self {
            Self::Unstage => Level::Free,
            Self::Stage | Self::Unpublish => Level::Staged,
            Self::Publish | Self::Change => Level::Published,
        }
    }
}

/// The paths of a volume. Nothing else is in their directory, which is on the test's own tmpfs.
pub(crate) struct Place {
    pub(crate) staging: Target,
    pub(crate) target: Target,
}

impl Place {
    pub(crate) fn new(directory: &Path) -> Self {
        fs::create_dir(directory).unwrap();
        let target = |name| Target::new(directory.join(name)).unwrap();
        Self { staging: target("s"), target: target("t") }
    }

    pub(crate) fn file(&self, at: &Target) -> String {
        fs::read_to_string(at.path().join("file")).unwrap()
    }
}

pub(crate) trait Volume {
    /// The first word of its jobs.
    fn flow(&self) -> String;
    /// What the volume is made of, for its jobs: a device or a directory.
    fn source(&self) -> String {
        String::new()
    }
    fn place(&self) -> &Place;
    /// How many mounts are at the staging path and at the target.
    fn layers(&self, level: Level) -> (usize, usize);
    /// How many mounts that have lost their daemon can be beneath the one at the target.
    fn lost_beneath(&self) -> usize {
        0
    }
    /// Prepares the volume for the next point, if the last point changed more than a step does.
    fn renew(&mut self, _step: Step) {}
    /// Brings the volume to the state in which the step begins, and returns true, if the steps before do not
    /// lead to this state.
    fn prepare(&mut self, _step: Step) -> bool {
        false
    }
    /// What happens to the volume just before the step.
    fn before(&mut self, _step: Step) {}
    /// What happens to the volume, or is checked, just after the kill.
    fn killed(&mut self, _step: Step) {}
    /// Checks the content that is visible at this level. `after` was the last step.
    fn assert_content(&self, level: Level, after: Step);
    /// Its device, directory or daemon disappears.
    fn lose(&mut self) {}
    /// What was lost exists again.
    fn find(&mut self) {}
    /// The node reboots: nothing is mounted any more.
    fn reboot(&mut self) {}
    /// The steps that lead to the state after a killed step, if repeating this step is not enough.
    fn repeats(&self, step: Step) -> Vec<Step> {
        vec![step]
    }
    /// Checks that nothing uses its device, and no process serves it.
    fn assert_free(&self) {}
    /// Whether the next point uses a new volume. If so, this one is staged and published again here.
    fn is_used_once(&self) -> bool {
        false
    }
}

/// A step to be killed, and how.
pub(crate) struct Case<'a> {
    /// The name of the test that calls [`do_job`](crate::stepper::do_job).
    pub(crate) test: &'a str,
    pub(crate) job: Job,
    pub(crate) programs: Programs,
    pub(crate) kill: Kill<'a>,
    pub(crate) step: Step,
    /// The approximate number of points, unless the environment sets it.
    pub(crate) points: u64,
    /// The lowest plausible number of system calls. With fewer, the step no longer does its work.
    pub(crate) least_calls: u64,
}

impl Case<'_> {
    /// Kills the step at its points, and runs a continuation after each. Returns the number of points.
    pub(crate) fn run(&self, volume: &mut dyn Volume) -> u32 {
        let baseline: BTreeSet<MountId> = mounts().unwrap().iter().map(|entry| entry.id).collect();
        let name = format!("{} {}", volume.flow(), self.step.word());
        let mut points = Points::with_continuations(self.points, NEXT.len());
        loop {
            let call = points.call();
            let next = NEXT[points.continuation()];
            let _context = Context(format!("{name}: killed before call {call}, then {next:?}"));
            let mut walk = Walk { case: self, volume, baseline: &baseline };
            let end = walk.kill_before(call);
            if let End::Killed = end {
                walk.volume.killed(self.step);
            }
            walk.go_on(next);
            walk.assert_nothing_left();
            if walk.volume.is_used_once() {
                walk.go_up_to(Level::Published);
                walk.go_down();
                walk.assert_nothing_left();
            }
            if let Some(swept) = points.step(end) {
                let row: Vec<String> =
                    NEXT.iter().zip(&swept.killed).map(|(next, count)| format!("{next:?} {count}")).collect();
                let points = swept.points();
                println!("{name}: {} calls, {points} points: {}", swept.calls, row.join(", "));
                assert!(swept.calls >= self.least_calls, "{name}: only {} calls", swept.calls);
                assert!(points >= 3, "{name}: only {points} points");
                return points;
            }
        }
    }
}

/// Names the point if something fails there.
struct Context(String);

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// The steps of a volume at one point.
struct Walk<'a> {
    case: &'a Case<'a>,
    volume: &'a mut dyn Volume,
    /// The mounts that are not ours.
    baseline: &'a BTreeSet<MountId>,
}

impl Walk<'_> {
    fn words(&self, step: Step) -> [String; 5] {
        let path = |target: &Target| target.path().to_str().unwrap().to_owned();
        let place = self.volume.place();
        let staging = path(&place.staging);
        let target = path(&place.target);
        [self.volume.flow(), step.word().to_owned(), self.volume.source(), staging, target]
    }

    /// Brings the volume to the state in which the step begins, and has the step killed.
    fn kill_before(&mut self, call: u64) -> End {
        let step = self.case.step;
        self.volume.renew(step);
        if !self.volume.prepare(step) {
            self.go_up_to(step.before());
        }
        self.volume.before(step);
        let words = self.words(step);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stepper::Job { programs: self.case.programs, test: self.case.test, words: &words }
            .stop_before(call, self.case.kill)
    }

    fn go_on(&mut self, next: Next) {
        let step = self.case.step;
        match (next, step) {
            (Next::Repeat, _) => {
                self.volume.repeats(step).into_iter().for_each(|step| self.run(step));
                self.assert_is(step.after(), step);
            }
            (Next::Undo, Step::Unpublish | Step::Unstage) => {
                self.go_up_to(step.before());
                self.assert_is(step.before(), Step::Publish);
            }
            // The pod does not exist yet, or no longer exists.
            (Next::Undo, Step::Stage) => return self.run(Step::Unstage),
            (Next::Undo, _) => {}
            (Next::LowerFirst, Step::Stage | Step::Unstage) => self.run(Step::Unpublish),
            (Next::LowerFirst, _) => {
                // Whether this is refused or not, a volume that is still published can be unpublished and
                // then unstaged.
                let refused = self.once(Step::Unstage).err().filter(|error| error.kind() != ErrorKind::Busy);
                assert!(refused.is_none(), "unstage: {}", refused.unwrap());
            }
            (Next::Lose, _) => {
                self.volume.lose();
                self.go_down();
                self.volume.find();
            }
            (Next::Reboot, _) => {
                self.reboot();
                // This can be refused, because nothing is staged.
                drop(self.once(step));
                self.go_up_to(Level::Published);
            }
            (Next::RebootAndUndo, _) => self.reboot(),
        }
        self.go_down();
    }

    fn go_up_to(&mut self, level: Level) {
        for step in [Step::Stage, Step::Publish].into_iter().filter(|step| step.after() <= level) {
            self.run(step);
            self.volume.assert_content(step.after(), step);
            // After a reboot, publish alone can be enough.
            if step.after() == level {
                self.assert_is(level, step);
            }
        }
    }

    fn go_down(&mut self) {
        self.run(Step::Unpublish);
        self.run(Step::Unstage);
    }

    /// Repeats a step that is refused as busy, as an orchestrator does: a killed process can still exist.
    fn run(&mut self, step: Step) {
        let end = Instant::now() + Duration::from_secs(120);
        while let Err(error) = self.once(step) {
            assert!(error.kind() == ErrorKind::Busy && Instant::now() < end, "{}: {error}", step.word());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs on another thread. What it starts must not be a child of this thread, which waits for everything
    /// that it traces.
    fn once(&self, step: Step) -> csi_mount::Result<()> {
        let words = self.words(step);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let job = self.case.job;
        std::thread::scope(|scope| scope.spawn(|| job(&words)).join().unwrap())
    }

    fn assert_is(&self, level: Level, after: Step) {
        let place = self.volume.place();
        let layers = |at: &Target| self.mounts().iter().filter(|one| one.mount_point == at.path()).count();
        let found = (layers(&place.staging), layers(&place.target));
        let (staging, target) = self.volume.layers(level);
        let targets = target..=target * (1 + self.volume.lost_beneath());
        let is_right = found.0 == staging && targets.contains(&found.1);
        assert!(is_right, "mounts at staging and target after {}: {found:?}", after.word());
        self.volume.assert_content(level, after);
    }

    /// Removes every mount of ours, as a reboot does.
    fn reboot(&mut self) {
        for entry in self.mounts().iter().rev() {
            // An error means that it was removed together with another mount.
            let _ = rustix::mount::unmount(&entry.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        self.volume.reboot();
    }

    /// Checks that no mount, no file and no user is left. The staging directory belongs to the orchestrator,
    /// which removes it.
    fn assert_nothing_left(&self) {
        let place = self.volume.place();
        let left: Vec<PathBuf> = self.mounts().into_iter().map(|entry| entry.mount_point).collect();
        assert!(left.is_empty(), "mounts are left: {left:?}");
        if let Err(error) = fs::remove_dir(place.staging.path()) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "the staging directory: {error}");
        }
        let directory = place.target.path().parent().unwrap();
        let left: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "files are left: {left:?}");
        self.volume.assert_free();
    }

    /// Returns the mounts that were made for the volume, the oldest first.
    fn mounts(&self) -> Vec<MountEntry> {
        let directory = self.volume.place().target.path().parent().unwrap();
        let is_ours = |entry: &MountEntry| {
            let scratch = entry.mount_point.to_string_lossy().contains("/.csi-mount-");
            !self.baseline.contains(&entry.id) && (scratch || entry.mount_point.starts_with(directory))
        };
        mounts().unwrap().into_iter().filter(is_ours).collect()
    }
}
