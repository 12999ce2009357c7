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
pub(crate) const LOOKUP_TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for a filesystem or loop device that the current volume does not depend on.
pub(crate) const FOREIGN_TIME_LIMIT: Duration = Duration::from_secs(2);

/// How often a child that is about to exit is polled.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest wait in line behind queries that are answered one by one, in addition to the caller's limit.
const QUEUE_TIME_LIMIT: Duration = Duration::from_secs(30);

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
    Path(PathStart, PathBuf),
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
    FinishingUnmount(PlaceKey, i32),
}

/// Where a path starts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathStart {
    /// At the root directory, in the mount namespace with this link.
    Namespace(PathBuf),
    /// At this file of this mount: its inode, whatever descriptor is open on it.
    Directory(MountId, u64),
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Neither this query nor those before it in line were answered in time.
    TimedOut(Duration),
    /// The filesystem answers, but too many other callers ask it too.
    QueueTooLong,
    /// An earlier query to the same mount is still not answered.
    Stuck,
    /// The child process could not be started, or failed.
    Failed(io::Error),
}

impl From<Unanswered> for io::Error {
    fn from(unanswered: Unanswered) -> Self {
        let timed_out = |reason: String| Self::new(io::ErrorKind::TimedOut, reason);
        match unanswered {
            Unanswered::TimedOut(limit) => {
                timed_out(format!("the filesystem did not answer within {limit:?}"))
            }
            Unanswered::Stuck => {
                timed_out("the filesystem does not answer; an earlier call still waits for it".into())
            }
            Unanswered::QueueTooLong => Self::new(
                io::ErrorKind::ResourceBusy,
                "the filesystem is slow, and too many other calls wait for it",
            ),
            Unanswered::Failed(error) => error,
        }
    }
}

/// The callers that ask about one subject. It is in the table as long as it has a caller or a child.
#[derive(Default)]
struct Queue {
    state: QueueState,
    waiting: usize,
    /// How many queries were answered since the queue was put into the table.
    answers: u64,
}

#[derive(Default)]
enum QueueState {
    #[default]
    Free,
    Running,
    /// Its child has answered and is about to exit, which can take a moment on a busy machine.
    Exiting(Stuck),
    Stuck(Stuck),
}

static QUEUES: Mutex<BTreeMap<Subject, Queue>> = Mutex::new(BTreeMap::new());
static QUEUE_FREED: Condvar = Condvar::new();

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
    finish_query(permit, child, answer, limit)
}

/// As [`ask`], but without a child if the answer is known when the caller's turn comes: another caller has
/// asked in the meantime. Without this, callers that ask the same at once would ask one after the other.
/// `keep` runs before the next caller's turn.
pub(crate) fn ask_unless_known<T>(
    subject: Subject,
    question: Question<'_>,
    limit: Duration,
    known: impl Fn() -> Option<T>,
    keep: impl FnOnce(&Answer),
) -> Result<Asked<T>, Unanswered> {
    let mut permit = Permit::take(subject, limit)?;
    if let Some(known) = known() {
        permit.is_answered = true;
        return Ok(Asked::Known(known));
    }
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(Instant::now() + limit).map(|(answer, _)| answer);
    if let Ok(answer) = &answer {
        keep(answer);
    }
    finish_query(permit, child, answer, limit).map(Asked::Answered)
}

/// The result of [`ask_unless_known`].
pub(crate) enum Asked<T> {
    Known(T),
    Answered(Answer),
}

fn finish_query<T>(
    mut permit: Permit,
    child: Child,
    answer: io::Result<T>,
    limit: Duration,
) -> Result<T, Unanswered> {
    permit.is_answered = answer.is_ok();
    if let Err(stuck) = child.end() {
        // A child that has answered is in no system call: it only waits for a processor to exit on.
        if !permit.is_answered {
            warn_stuck(stuck);
        }
        permit.keep_taken(stuck);
    }
    answer.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Unanswered::TimedOut(limit),
        _ => Unanswered::Failed(error),
    })
}

fn warn_stuck(child: Stuck) {
    tracing::warn!(child = child.number(), "a killed child process does not exit");
}

/// How long an unmount can take in total after the mount has left the tree, and what happens then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishPolicy {
    pub(crate) limit: Duration,
    /// Whether the child is killed. Otherwise it continues, and [`has_finished_within`] reports when it has
    /// finished.
    pub(crate) kills_child: bool,
}

/// As [`ask`], for an unmount at a place.
///
/// The mount leaves the tree at once, which `is_detached_now` reports. After that the child waits until all
/// data is written.
pub(crate) fn unmount(
    (mount, place): (MountId, PlaceKey),
    question: Question<'_>,
    limit: Duration,
    policy: FinishPolicy,
    is_detached_now: impl FnOnce() -> bool,
) -> Result<Answer, Unanswered> {
    let is_timeout = |answer: &io::Result<_>| {
        answer.as_ref().is_err_and(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut)
    };
    let permit = Permit::take(Subject::Unmount(mount), limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let start = Instant::now();
    let mut answer = child.answer(start + limit);
    if is_timeout(&answer) && is_detached_now() {
        answer = child.answer(start + policy.limit);
        if is_timeout(&answer) && !policy.kills_child {
            let child = child.abandon();
            queues().entry(Subject::FinishingUnmount(place, child.number())).or_default().state =
                QueueState::Stuck(child);
            return Err(Unanswered::TimedOut(limit));
        }
    }
    finish_query(permit, child, answer.map(|(answer, _)| answer), limit)
}

/// Waits up to the limit for unfinished unmounts at a place. Returns whether all have finished.
pub(crate) fn has_finished_within(place: &PlaceKey, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while !unfinished_unmounts(&mut queues(), place).is_empty() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    true
}

/// Kills the children of unfinished unmounts at a place.
pub(crate) fn kill_unfinished(place: &PlaceKey) {
    let mut queues = queues();
    let children = unfinished_unmounts(&mut queues, place);
    // After its queue is removed, no other thread reaps the child, so its pid is not reused meanwhile.
    for child in &children {
        queues.remove(&Subject::FinishingUnmount(place.clone(), child.number()));
    }
    drop(queues);
    for child in children {
        if let Err(stuck) = child.end() {
            warn_stuck(stuck);
            reap_later(child.number());
        }
    }
}

fn unfinished_unmounts(queues: &mut BTreeMap<Subject, Queue>, place: &PlaceKey) -> Vec<Stuck> {
    remove_unused(queues);
    let of_place = queues.iter().filter_map(|(subject, queue)| match (subject, &queue.state) {
        (Subject::FinishingUnmount(at, _), QueueState::Stuck(child)) if at == place => Some(*child),
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
pub(crate) fn ask_all<Q: Sync, A: Send>(questions: &[Q], ask: impl Fn(&Q) -> A + Sync) -> Vec<A> {
    /// How many children ask at once.
    const MAX_CHILDREN: usize = 16;
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
        let workers: Vec<_> = (0..questions.len().min(MAX_CHILDREN)).map(|_| scope.spawn(work)).collect();
        let join = |worker: ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Registers a killed program to be reaped later, so that it does not stay a zombie.
pub(crate) fn reap_later(program: i32) {
    let stuck = Stuck::new(Pid::from_raw(program));
    queues().entry(Subject::Program(program)).or_default().state = QueueState::Stuck(stuck);
}

/// The bytes of a path for a system call.
pub(crate) fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Into::into)
}

/// The pid of the child that still waits for an answer about the subject.
pub(crate) fn stuck_child(subject: &Subject) -> Option<i32> {
    let mut queues = queues();
    let queue = queues.get_mut(subject)?;
    queue.update();
    match queue.state {
        QueueState::Stuck(child) => Some(child.number()),
        _ => None,
    }
}

/// Reaps children that have exited since, so that they do not stay zombies.
pub(crate) fn reap_exited() {
    remove_unused(&mut queues());
}

fn remove_unused(queues: &mut BTreeMap<Subject, Queue>) {
    queues.retain(|_, queue| {
        queue.update();
        queue.is_in_use()
    });
}

fn queues() -> MutexGuard<'static, BTreeMap<Subject, Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut queues = queues();
        remove_unused(&mut queues);
        let mut answers = queues.get(&subject).map_or(0, |queue| queue.answers);
        loop {
            let queue = queues.entry(subject.clone()).or_default();
            queue.update();
            // Nothing signals the exit of a child, so it is polled.
            let mut pause = Duration::MAX;
            match queue.state {
                QueueState::Free => {
                    queue.state = QueueState::Running;
                    return Ok(Self { subject, is_answered: false, stuck: None });
                }
                QueueState::Stuck(_) => return Err(Unanswered::Stuck),
                QueueState::Exiting(_) => pause = EXIT_POLL_INTERVAL,
                QueueState::Running => {}
            }
            if queue.answers != answers {
                answers = queue.answers;
                deadline = Instant::now() + limit;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::TimedOut(limit));
            }
            if start.elapsed() > QUEUE_TIME_LIMIT + limit {
                return Err(Unanswered::QueueTooLong);
            }
            queue.waiting += 1;
            queues =
                QUEUE_FREED.wait_timeout(queues, left.min(pause)).unwrap_or_else(PoisonError::into_inner).0;
            queues.entry(subject.clone()).or_default().waiting -= 1;
        }
    }

    /// Keeps the subject taken, because the child still works on it.
    fn keep_taken(mut self, stuck: Stuck) {
        self.stuck = Some(stuck);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queues = queues();
        if let Some(queue) = queues.get_mut(&self.subject) {
            queue.state = match self.stuck {
                None => QueueState::Free,
                Some(child) if self.is_answered => QueueState::Exiting(child),
                Some(child) => QueueState::Stuck(child),
            };
            queue.answers += u64::from(self.is_answered);
            if !queue.is_in_use() {
                queues.remove(&self.subject);
            }
        }
        QUEUE_FREED.notify_all();
    }
}

impl Queue {
    /// Frees the queue if the child that it waits for has exited.
    fn update(&mut self) {
        if matches!(self.state, QueueState::Stuck(child) | QueueState::Exiting(child) if child.is_gone()) {
            self.state = QueueState::Free;
        }
    }

    fn is_in_use(&self) -> bool {
        self.waiting > 0 || !matches!(self.state, QueueState::Free)
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
    fn a_second_query_waits_for_the_first_up_to_its_limit() {
        let permit = take(1, Duration::ZERO).unwrap();
        assert!(matches!(take(1, Duration::from_millis(5)), Err(Unanswered::TimedOut(_))));
        assert!(take(2, Duration::ZERO).is_ok(), "another mount");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(1, Duration::from_secs(60)).is_ok());
            drop(permit);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn callers_that_ask_the_same_at_once_share_one_answer() {
        let root = std::fs::File::open("/").unwrap();
        let (known, children) = (Mutex::new(None), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let question = Question::Usage(std::os::fd::AsFd::as_fd(&root));
                    let limit = Duration::from_secs(60);
                    let keep = |answer: &Answer| *known.lock().unwrap() = Some(answer.blocks);
                    match ask_unless_known(subject(6), question, limit, || *known.lock().unwrap(), keep) {
                        Ok(Asked::Answered(_)) => _ = children.fetch_add(1, Ordering::SeqCst),
                        Ok(Asked::Known(blocks)) => assert!(blocks > 0),
                        Err(failed) => panic!("{failed:?}"),
                    }
                });
            }
        });
        assert_eq!(children.into_inner(), 1);
    }

    #[test]
    fn a_query_in_a_moving_queue_does_not_time_out() {
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
        assert!(!queues().contains_key(&subject(4)), "an empty queue is not kept");
    }

    /// Gives the turn to a caller that came later, before those that wait already.
    fn pass_on(permit: Permit) -> Permit {
        let subject = permit.subject.clone();
        let mut queues = queues();
        let queue = queues.get_mut(&subject).unwrap();
        queue.answers += u64::from(permit.is_answered);
        drop(queues);
        QUEUE_FREED.notify_all();
        permit
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "that the queue reaps it is what is tested")]
    fn a_query_fails_at_once_while_another_is_stuck() {
        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let permit = take(3, Duration::ZERO).unwrap();
        permit.keep_taken(Stuck::new(Pid::from_raw(program.id() as i32)));
        let start = Instant::now();
        assert!(matches!(take(3, Duration::from_secs(60)), Err(Unanswered::Stuck)));
        assert!(start.elapsed() < Duration::from_secs(30));
        program.kill().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while take(3, Duration::ZERO).is_err() {
            assert!(Instant::now() < end, "the queue is never free again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "that the queue reaps it is what is tested")]
    fn a_child_that_has_answered_is_waited_for_until_it_exits() {
        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let mut permit = take(5, Duration::ZERO).unwrap();
        permit.is_answered = true;
        permit.keep_taken(Stuck::new(Pid::from_raw(program.id() as i32)));
        assert!(matches!(take(5, Duration::from_millis(20)), Err(Unanswered::TimedOut(_))));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take(5, Duration::from_secs(60)).is_ok());
            program.kill().unwrap();
            assert!(next.join().unwrap());
        });
    }
}
