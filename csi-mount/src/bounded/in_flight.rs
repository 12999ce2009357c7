//! Queries that can hang: a child process asks, at most one per subject at a time, with a time limit.
//!
//! A child that waits for a dead filesystem cannot be killed until the filesystem answers. So that such
//! children do not pile up, the next query to the same mount waits while one is running, and fails at once
//! while one is stuck. Waiting in line behind queries that are answered does not prove that the filesystem is
//! dead. Only silence for the caller's whole limit does.
//!
//! Invariant: at most one child process per [`Subject`], running, stuck or dead. The table belongs to the
//! process, as the children do.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::bounded::place_key::PlaceKey;
use crate::sys::child::{Answer, Child, Open, Question, Stuck};
use crate::{DeviceNumber, MountId};

/// How long resolving a path can take if the caller has no limit of its own.
pub(crate) const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for a filesystem or loop device that the current volume does not depend on.
pub(crate) const FOREIGN_LIMIT: Duration = Duration::from_secs(2);

/// How often a child that is about to exit is polled.
const LEAVING: Duration = Duration::from_millis(5);

/// The longest wait in line behind queries that are answered one by one, in addition to the caller's limit.
const LINE_LIMIT: Duration = Duration::from_secs(30);

/// What a query is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The usage of a mounted filesystem.
    Usage(MountId),
    /// One unmount call. Separate from the usage, because an unmount releases the callers that wait for the
    /// usage.
    Unmount(MountId),
    /// All steps of an unmount, one after the other.
    Unmounting(MountId),
    /// The lookup of a path that continues in this mounted filesystem, which must be asked.
    Lookup(MountId),
    /// The lookup of a path, by the mount namespace or the directory where it starts.
    Path(Start, PathBuf),
    /// Mounting from a source.
    Mount(String),
    /// A killed program that has not exited.
    Program(i32),
    /// Whether the filesystem of this mount is frozen.
    Frozen(MountId),
    /// What a loop device is attached to, by its device number and its disk sequence number.
    LoopDevice(DeviceNumber, Option<u64>),
    /// An unmount at a place that has left the tree but not finished, by the pid of its child: data is still
    /// to be written.
    Ending(PlaceKey, i32),
}

/// Where a path starts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Start {
    /// At the root directory, in the mount namespace with this link.
    Namespace(PathBuf),
    /// At this file of this mount: its inode, whatever descriptor is open on it.
    Directory(MountId, u64),
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Neither this query nor those before it in line were answered in time.
    Late(Duration),
    /// The filesystem answers, but too many other callers ask it too.
    Crowded,
    /// An earlier query to the same mount is still not answered.
    Stuck,
    /// The child process could not be started, or failed.
    Failed(io::Error),
}

impl From<Unanswered> for io::Error {
    fn from(unanswered: Unanswered) -> Self {
        let silent = |reason: String| Self::new(io::ErrorKind::TimedOut, reason);
        match unanswered {
            Unanswered::Late(limit) => silent(format!("the filesystem did not answer within {limit:?}")),
            Unanswered::Stuck => {
                silent("the filesystem does not answer, an earlier call still waits for it".into())
            }
            Unanswered::Crowded => {
                Self::new(io::ErrorKind::ResourceBusy, "the filesystem is slow, and others are asking it")
            }
            Unanswered::Failed(error) => error,
        }
    }
}

/// The callers that ask about one subject. It is in the table as long as it has a caller or a child.
#[derive(Default)]
struct Lane {
    now: Now,
    waiting: usize,
    /// How many queries were answered since the lane was put into the table.
    answers: u64,
}

#[derive(Default)]
enum Now {
    #[default]
    Free,
    Running,
    /// Its child has answered and is about to exit, which can take a moment on a busy machine.
    Leaving(Stuck),
    Stuck(Stuck),
}

static LANES: Mutex<BTreeMap<Subject, Lane>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

/// Asks when the caller's turn comes.
///
/// The limit applies twice: to the time in line during which no query is answered, and to the answer itself.
pub(crate) fn ask(
    subject: Subject,
    question: Question<'_>,
    limit: Duration,
) -> Result<(Answer, Option<OwnedFd>), Unanswered> {
    let permit = Permit::take(subject, limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(Instant::now() + limit);
    settle(permit, child, answer, limit)
}

fn settle<T>(
    mut permit: Permit,
    child: Child,
    answer: io::Result<T>,
    limit: Duration,
) -> Result<T, Unanswered> {
    permit.is_answered = answer.is_ok();
    if let Err(stuck) = child.end() {
        permit.keep(stuck);
    }
    answer.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Unanswered::Late(limit),
        _ => Unanswered::Failed(error),
    })
}

/// How long an unmount can take in total after the mount has left the tree, and what happens then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub(crate) limit: Duration,
    /// Whether the child is killed. Otherwise it continues, and [`is_ended_within`] reports when it has
    /// finished.
    pub(crate) is_killed: bool,
}

/// As [`ask`], for an unmount at a place.
///
/// The mount leaves the tree at once, which `is_off` reports. After that the child waits until all data is
/// written.
pub(crate) fn unmount(
    (mount, place): (MountId, PlaceKey),
    question: Question<'_>,
    limit: Duration,
    ending: Ending,
    is_off: impl FnOnce() -> bool,
) -> Result<Answer, Unanswered> {
    let is_late = |answer: &io::Result<_>| matches!(answer, Err(error) if io::Error::kind(error) == io::ErrorKind::TimedOut);
    let permit = Permit::take(Subject::Unmount(mount), limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let start = Instant::now();
    let mut answer = child.answer(start + limit);
    if is_late(&answer) && is_off() {
        answer = child.answer(start + ending.limit);
        if is_late(&answer) && !ending.is_killed {
            let child = child.leave();
            lanes().entry(Subject::Ending(place, child.number())).or_default().now = Now::Stuck(child);
            return Err(Unanswered::Late(limit));
        }
    }
    settle(permit, child, answer.map(|(answer, _)| answer), limit)
}

/// Waits up to the limit for unfinished unmounts at a place. Returns whether all have finished.
pub(crate) fn is_ended_within(place: &PlaceKey, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while !endings(&mut lanes(), place).is_empty() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LEAVING);
    }
    true
}

/// Kills the children of unfinished unmounts at a place.
pub(crate) fn give_up_endings(place: &PlaceKey) {
    let mut lanes = lanes();
    let children = endings(&mut lanes, place);
    // After its lane is removed, no other thread reaps the child, so its pid is not reused meanwhile.
    for child in &children {
        lanes.remove(&Subject::Ending(place.clone(), child.number()));
    }
    drop(lanes);
    for child in children {
        if child.end().is_err() {
            leave(child.number());
        }
    }
}

fn endings(lanes: &mut BTreeMap<Subject, Lane>, place: &PlaceKey) -> Vec<Stuck> {
    sweep(lanes);
    let of_place = lanes.iter().filter_map(|(subject, lane)| match (subject, &lane.now) {
        (Subject::Ending(at, _), Now::Stuck(child)) if at == place => Some(*child),
        _ => None,
    });
    of_place.collect()
}

/// Waits until no other caller works on the subject. None if one still does after the limit.
pub(crate) fn wait_for_others(subject: Subject, limit: Duration) -> Option<Permit> {
    Permit::take(subject, limit).ok()
}

/// Opens a place (`O_PATH`) on a path along which a filesystem can need to be asked.
pub(crate) fn open(subject: Subject, place: Open<'_>, limit: Duration) -> io::Result<OwnedFd> {
    let (answer, fd) = ask(subject, Question::Open(place), limit)?;
    fd.ok_or_else(|| io::Error::from_raw_os_error(answer.error as i32))
}

/// Asks several queries at the same time, so that all unanswered ones together cost one limit.
pub(crate) fn together<Q: Sync, A: Send>(questions: &[Q], ask: impl Fn(&Q) -> A + Sync) -> Vec<A> {
    /// How many children ask at once.
    const AT_ONCE: usize = 16;
    if let [question] = questions {
        return vec![ask(question)];
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(question) = questions.get(index) else { return answers };
            answers.push((index, ask(question)));
        }
    };
    let mut answers = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..questions.len().min(AT_ONCE)).map(|_| scope.spawn(work)).collect();
        let join = |worker: ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Registers a killed program to be reaped later, so that it does not stay a zombie.
pub(crate) fn leave(program: i32) {
    let stuck = Stuck::new(Pid::from_raw(program));
    lanes().entry(Subject::Program(program)).or_default().now = Now::Stuck(stuck);
}

/// The bytes of a path for a system call.
pub(crate) fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Into::into)
}

/// The pid of the child that still waits for an answer about the subject.
pub(crate) fn stuck_child(subject: &Subject) -> Option<i32> {
    let mut lanes = lanes();
    let lane = lanes.get_mut(subject)?;
    lane.look();
    match lane.now {
        Now::Stuck(child) => Some(child.number()),
        _ => None,
    }
}

/// Reaps children that have exited since, so that they do not stay zombies.
pub(crate) fn collect() {
    sweep(&mut lanes());
}

fn sweep(lanes: &mut BTreeMap<Subject, Lane>) {
    lanes.retain(|_, lane| {
        lane.look();
        lane.is_in_use()
    });
}

fn lanes() -> MutexGuard<'static, BTreeMap<Subject, Lane>> {
    LANES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run the one query; released when dropped.
pub(crate) struct Permit {
    subject: Subject,
    is_answered: bool,
    stuck: Option<Stuck>,
}

impl Permit {
    fn take(subject: Subject, limit: Duration) -> Result<Self, Unanswered> {
        let start = Instant::now();
        let mut deadline = start + limit;
        let mut lanes = lanes();
        sweep(&mut lanes);
        let mut answers = lanes.get(&subject).map_or(0, |lane| lane.answers);
        loop {
            let lane = lanes.entry(subject.clone()).or_default();
            lane.look();
            // Nothing signals the exit of a child, so it is polled.
            let mut pause = Duration::MAX;
            match lane.now {
                Now::Free => {
                    lane.now = Now::Running;
                    return Ok(Self { subject, is_answered: false, stuck: None });
                }
                Now::Stuck(_) => return Err(Unanswered::Stuck),
                Now::Leaving(_) => pause = LEAVING,
                Now::Running => {}
            }
            if lane.answers != answers {
                answers = lane.answers;
                deadline = Instant::now() + limit;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::Late(limit));
            }
            if start.elapsed() > LINE_LIMIT + limit {
                return Err(Unanswered::Crowded);
            }
            lane.waiting += 1;
            lanes = FREED.wait_timeout(lanes, left.min(pause)).unwrap_or_else(PoisonError::into_inner).0;
            lanes.entry(subject.clone()).or_default().waiting -= 1;
        }
    }

    /// Keeps the subject taken, because the child still works on it.
    fn keep(mut self, stuck: Stuck) {
        self.stuck = Some(stuck);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut lanes = lanes();
        if let Some(lane) = lanes.get_mut(&self.subject) {
            lane.now = match self.stuck {
                None => Now::Free,
                Some(child) if self.is_answered => Now::Leaving(child),
                Some(child) => Now::Stuck(child),
            };
            lane.answers += u64::from(self.is_answered);
            if !lane.is_in_use() {
                lanes.remove(&self.subject);
            }
        }
        FREED.notify_all();
    }
}

impl Lane {
    /// Frees the lane if the child that it waits for has exited.
    fn look(&mut self) {
        if matches!(self.now, Now::Stuck(child) | Now::Leaving(child) if child.is_gone()) {
            self.now = Now::Free;
        }
    }

    fn is_in_use(&self) -> bool {
        self.waiting > 0 || !matches!(self.now, Now::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(number: u64) -> Subject {
        Subject::Usage(MountId(u64::MAX - number))
    }

    fn take(number: u64, limit: Duration) -> Result<Permit, Unanswered> {
        Permit::take(subject(number), limit)
    }

    #[test]
    fn the_second_waits_for_the_first_and_no_longer_than_it_may() {
        let permit = take(1, Duration::ZERO).unwrap();
        assert!(matches!(take(1, Duration::from_millis(5)), Err(Unanswered::Late(_))));
        assert!(take(2, Duration::ZERO).is_ok(), "another mount");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(1, Duration::from_secs(60)).is_ok());
            drop(permit);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn a_line_that_moves_is_no_silence() {
        let mut permit = take(4, Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let last = scope.spawn(|| take(4, Duration::from_secs(1)).is_ok());
            let end = Instant::now() + Duration::from_millis(1200);
            while Instant::now() < end {
                permit.is_answered = true;
                permit = pass_on(permit);
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(permit);
            assert!(
                last.join().unwrap(),
                "it was in line for longer than its limit, and others were answered"
            );
        });
        assert!(!lanes().contains_key(&subject(4)), "an empty lane is not kept");
    }

    /// Gives the turn to a caller that came later, before those that wait already.
    fn pass_on(permit: Permit) -> Permit {
        let subject = permit.subject.clone();
        let mut lanes = lanes();
        let lane = lanes.get_mut(&subject).unwrap();
        lane.answers += u64::from(permit.is_answered);
        drop(lanes);
        FREED.notify_all();
        permit
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "that the lane reaps it is what is tested")]
    fn while_one_is_stuck_the_next_is_refused_at_once_and_later_served() {
        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let permit = take(3, Duration::ZERO).unwrap();
        permit.keep(Stuck::new(Pid::from_raw(program.id() as i32)));
        let start = Instant::now();
        assert!(matches!(take(3, Duration::from_secs(60)), Err(Unanswered::Stuck)));
        assert!(start.elapsed() < Duration::from_secs(30));
        program.kill().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while take(3, Duration::ZERO).is_err() {
            assert!(Instant::now() < end, "the lane is never free again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "that the lane reaps it is what is tested")]
    fn who_has_answered_is_waited_for_until_it_is_gone() {
        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let mut permit = take(5, Duration::ZERO).unwrap();
        permit.is_answered = true;
        permit.keep(Stuck::new(Pid::from_raw(program.id() as i32)));
        assert!(matches!(take(5, Duration::from_millis(20)), Err(Unanswered::Late(_))));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take(5, Duration::from_secs(60)).is_ok());
            program.kill().unwrap();
            assert!(next.join().unwrap());
        });
    }
}
