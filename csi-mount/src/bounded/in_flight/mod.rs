//! Queries that can hang: a child process asks, at most one per subject at a time, with a time limit.
//!
//! A child that waits for a dead filesystem cannot be killed until the filesystem answers. So that such
//! children do not pile up, the next query to the same mount waits while one is running, and fails at once
//! while one is stuck. Waiting in line behind queries that are answered does not prove that the filesystem is
//! dead. Only silence for the caller's whole limit does.
//!
//! The silence of a *foreign* subject, which the current volume does not depend on, is remembered. So one
//! question waits for it, and not each call of each volume. It is asked again when its stuck child has ended,
//! and otherwise after a pause, which no caller waits for.
//!
//! Invariant: at most one child process per [`Subject`], running, stuck or dead. The table belongs to the
//! process, as the children do.

mod queues;
mod subject;
mod unmounts;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use crate::sys::child::{Child, ChildCall, ChildReply, Open, Stuck};
use crate::sys::deadline::deadline;
use crate::sys::descriptor_copies;
use queues::Permit;
pub(crate) use queues::{reap_exited, reap_later, stuck_child, takes_next_turn};
pub(crate) use subject::{PathStart, Subject, TargetKey};
pub(crate) use unmounts::{FinishPolicy, has_finished_within, kill_unfinished, unmount};

/// How long resolving a path can take if the caller has no limit of its own.
pub(crate) const LOOKUP_TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for a filesystem or loop device that the current volume does not depend on.
pub(crate) const FOREIGN_TIME_LIMIT: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Neither this query nor those before it in line were answered in time.
    TimedOut(Duration),
    /// The filesystem answers, but too many other callers ask it too.
    QueueTooLong,
    /// An earlier query to the same mount is still not answered.
    Stuck,
    /// A foreign subject did not answer before, and was not asked.
    Silent,
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
            Unanswered::Silent => timed_out("it did not answer before, and was not asked again".into()),
            Unanswered::QueueTooLong => Self::new(
                io::ErrorKind::ResourceBusy,
                "the filesystem is slow, and too many other calls wait for it",
            ),
            Unanswered::Failed(error) => error,
        }
    }
}

/// Asks when the caller's turn comes.
///
/// The limit applies twice: to the time in line during which no query is answered, and to the answer itself.
pub(crate) fn ask(
    subject: Subject,
    question: ChildCall<'_>,
    limit: Duration,
) -> Result<(ChildReply, Option<OwnedFd>), Unanswered> {
    let permit = Permit::take(subject, limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(deadline(limit));
    finish_query(permit, child, answer, limit)
}

/// Whether a foreign subject is asked that did not answer before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Always,
    UnlessSilent,
}

/// As [`ask`], for something that the current volume does not depend on: within [`FOREIGN_TIME_LIMIT`], and its
/// silence is remembered.
pub(crate) fn ask_foreign(
    subject: Subject,
    question: ChildCall<'_>,
    repeat: Repeat,
) -> Result<(ChildReply, Option<OwnedFd>), Unanswered> {
    let limit = FOREIGN_TIME_LIMIT;
    let mut permit = Permit::take_unless_silent(subject, limit, repeat)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(deadline(limit));
    permit.is_silent = is_timeout(&answer);
    finish_query(permit, child, answer, limit)
}

/// As [`ask_foreign`], but without a child if the answer is known when the caller's turn comes: another caller
/// has asked in the meantime. Without this, callers that ask the same at once would ask one after the other.
/// `keep` runs before the next caller's turn.
pub(crate) fn ask_foreign_unless_known<T>(
    subject: Subject,
    question: ChildCall<'_>,
    repeat: Repeat,
    known: impl Fn() -> Option<T>,
    keep: impl FnOnce(&ChildReply),
) -> Result<Asked<T>, Unanswered> {
    let limit = FOREIGN_TIME_LIMIT;
    let mut permit = Permit::take_unless_silent(subject, limit, repeat)?;
    if let Some(known) = known() {
        permit.is_answered = true;
        return Ok(Asked::Known(known));
    }
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(deadline(limit)).map(|(answer, _)| answer);
    if let Ok(answer) = &answer {
        keep(answer);
    }
    permit.is_silent = is_timeout(&answer);
    finish_query(permit, child, answer, limit).map(Asked::Answered)
}

/// The result of [`ask_foreign_unless_known`].
pub(crate) enum Asked<T> {
    Known(T),
    Answered(ChildReply),
}

fn is_timeout<T>(answer: &io::Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
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

/// Waits until no other caller works on the subject. None if one still does after the limit.
pub(crate) fn wait_for_others(subject: Subject, limit: Duration) -> Option<Permit> {
    Permit::take(subject, limit).ok()
}

/// Opens a place (`O_PATH`) on a path along which a filesystem can need to be asked.
pub(crate) fn open(subject: Subject, place: Open<'_>, limit: Duration) -> io::Result<OwnedFd> {
    let (answer, fd) = ask(subject, ChildCall::Open(place), limit)?;
    fd.ok_or_else(|| io::Error::from_raw_os_error(answer.error as i32))
}

/// The threads that help the callers of [`ask_all`], in the whole process.
const MAX_HELPERS: usize = 15;
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Threads that help one caller, taken from those of the process.
struct Helpers(usize);

impl Helpers {
    /// As many as are wanted and free, possibly none.
    fn take(wanted: usize) -> Self {
        let mut taken = 0;
        let _ = HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| {
            taken = wanted.min(MAX_HELPERS - busy);
            Some(busy + taken)
        });
        Self(taken)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Asks several queries at the same time, so that all unanswered ones together cost one limit. When many callers
/// ask, they share the threads that help, and each caller still asks on its own thread.
pub(crate) fn ask_all<Q: Sync, A: Send>(questions: &[Q], ask: impl Fn(&Q) -> A + Sync) -> Vec<A> {
    let helpers = Helpers::take(questions.len().saturating_sub(1));
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
        let workers: Vec<_> = (0..helpers.0).map(|_| scope.spawn(work)).collect();
        let own = work();
        let join = |worker: ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        own.into_iter().chain(workers.into_iter().flat_map(join)).collect::<Vec<_>>()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Waits until no child keeps a mount busy by a descriptor: one it inherited, or that of a query it has answered. At
/// most `limit` for each kind.
pub(crate) fn wait_for_descriptors(limit: Duration) {
    descriptor_copies::wait_until_closed(limit);
    queues::wait_for_exits(limit);
}

/// The bytes of a path for a system call.
pub(crate) fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Into::into)
}
