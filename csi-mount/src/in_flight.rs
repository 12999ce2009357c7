//! Questions that may hang: one in flight for a mount, asked by a child process, answered or given up in time.
//!
//! A child that a dead filesystem holds can't be ended before the filesystem is. So that such children do not
//! pile up, the next question to the same mount waits in line while one is being asked, and is refused at once
//! while one is stuck.
//!
//! Invariant: at most one child process for each [`Subject`], running, stuck or dead. The table is of the
//! process, as children are.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::MountId;
use crate::sys::child::{Answer, Child, Open, Question, Stuck};

/// How long a path may take to be resolved, where the caller has no limit of its own.
pub(crate) const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The usage of a mounted filesystem.
    Usage(MountId),
    /// Unmounting it. Apart from its usage, since it is what frees those who wait for that.
    Unmount(MountId),
    /// Where a path leads that goes on in this mounted filesystem, which has to be asked.
    Lookup(MountId),
    /// Where a path leads, by the mount namespace or the directory that it starts at.
    Path(Start, PathBuf),
    /// A killed program that did not go.
    Program(i32),
}

/// Where a path starts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Start {
    /// At the root, in the namespace of this link.
    Namespace(PathBuf),
    /// At this file of this mount: its inode, whatever descriptor is open on it.
    Directory(MountId, u64),
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// There was none in time.
    Late(Duration),
    /// An earlier question to the same mount is not answered to this day.
    Stuck,
    /// The child could not be asked.
    Failed(io::Error),
}

impl From<Unanswered> for io::Error {
    fn from(unanswered: Unanswered) -> Self {
        let reason = match unanswered {
            Unanswered::Late(limit) => format!("the filesystem did not answer within {limit:?}"),
            Unanswered::Stuck => "the filesystem does not answer, an earlier call still waits for it".into(),
            Unanswered::Failed(error) => return error,
        };
        Self::new(io::ErrorKind::TimedOut, reason)
    }
}

enum Lane {
    Running,
    Stuck(Stuck),
}

static LANES: Mutex<BTreeMap<Subject, Lane>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

/// Asks the question when its turn comes, and gives up after the limit.
pub(crate) fn ask(
    subject: Subject,
    question: Question<'_>,
    limit: Duration,
) -> Result<(Answer, Option<OwnedFd>), Unanswered> {
    let deadline = Instant::now() + limit;
    let turn = Turn::take(subject, deadline, limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let answer = child.answer(deadline);
    if let Err(stuck) = child.end() {
        turn.keep(stuck);
    }
    answer.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Unanswered::Late(limit),
        _ => Unanswered::Failed(error),
    })
}

/// Opens a place (`O_PATH`) on the way to which a filesystem may have to be asked.
pub(crate) fn open(subject: Subject, place: Open<'_>) -> io::Result<OwnedFd> {
    let (answer, fd) = ask(subject, Question::Open(place), LOOKUP_LIMIT)?;
    fd.ok_or_else(|| io::Error::from_raw_os_error(answer.error as i32))
}

/// Looks at times whether this killed program has gone, so that it does not stay as a zombie.
pub(crate) fn leave(program: i32) {
    let stuck = Stuck::new(Pid::from_raw(program));
    lanes().insert(Subject::Program(program), Lane::Stuck(stuck));
}

/// The bytes of a path for a system call.
pub(crate) fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Into::into)
}

fn lanes() -> MutexGuard<'static, BTreeMap<Subject, Lane>> {
    LANES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to be the one in flight; given back when dropped.
struct Turn(Option<Subject>);

impl Turn {
    fn take(subject: Subject, deadline: Instant, limit: Duration) -> Result<Self, Unanswered> {
        let mut lanes = lanes();
        lanes.retain(|_, lane| !matches!(lane, Lane::Stuck(stuck) if stuck.is_gone()));
        loop {
            match lanes.get(&subject) {
                None => {
                    lanes.insert(subject.clone(), Lane::Running);
                    return Ok(Self(Some(subject)));
                }
                Some(Lane::Stuck(_)) => return Err(Unanswered::Stuck),
                Some(Lane::Running) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::Late(limit));
            }
            lanes = FREED.wait_timeout(lanes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The turn is not given back: the child is still on it.
    fn keep(mut self, stuck: Stuck) {
        if let Some(subject) = self.0.take() {
            lanes().insert(subject, Lane::Stuck(stuck));
            FREED.notify_all();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(subject) = self.0.take() {
            lanes().remove(&subject);
            FREED.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(number: u64) -> Subject {
        Subject::Usage(MountId(u64::MAX - number))
    }

    fn take(number: u64, limit: Duration) -> Result<Turn, Unanswered> {
        Turn::take(subject(number), Instant::now() + limit, limit)
    }

    #[test]
    fn the_second_waits_for_the_first_and_no_longer_than_it_may() {
        let turn = take(1, Duration::ZERO).unwrap();
        assert!(matches!(take(1, Duration::from_millis(5)), Err(Unanswered::Late(_))));
        assert!(take(2, Duration::ZERO).is_ok(), "another mount");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(1, Duration::from_secs(60)).is_ok());
            drop(turn);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "that the lane reaps it is what is tested")]
    fn while_one_is_stuck_the_next_is_refused_at_once_and_later_served() {
        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let turn = take(3, Duration::ZERO).unwrap();
        turn.keep(Stuck::new(Pid::from_raw(program.id() as i32)));
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
}
