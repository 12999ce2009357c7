//! The callers and the child of each subject: one at a time.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::{Repeat, Subject, Unanswered};
use crate::sys::child::Stuck;
use crate::sys::deadline::deadline;

/// How often a child that is about to exit is polled.
pub(super) const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest wait in line behind queries that are answered one by one, in addition to the caller's limit.
const QUEUE_TIME_LIMIT: Duration = Duration::from_secs(30);

/// How long a silent foreign subject is not asked again; it doubles each time up to the second.
const SILENCE_LIMITS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(600)];
/// A silent subject that nothing asks about for this long most likely no longer exists.
const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The callers that ask about one subject. It is in the table as long as it has a caller or a child, or is
/// remembered as silent.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) state: QueueState,
    waiting: usize,
    /// How many queries were answered since the queue was put into the table.
    answers: u64,
    silence: Option<Silence>,
}

/// That a foreign subject did not answer, and from when on it is to be asked again.
#[derive(Clone, Copy)]
struct Silence {
    pause: Duration,
    ask_from: Instant,
}

impl Silence {
    fn after(earlier: Option<Self>) -> Self {
        let [shortest, longest] = SILENCE_LIMITS;
        let pause = earlier.map_or(shortest, |earlier| (earlier.pause * 2).min(longest));
        Self { pause, ask_from: Instant::now() + pause }
    }

    fn is_stale(self) -> bool {
        self.ask_from.elapsed() > STALE_AFTER
    }
}

#[derive(Default)]
pub(super) enum QueueState {
    #[default]
    Free,
    Running,
    /// Its child has answered and is about to exit, which can take a moment on a busy machine.
    Exiting(Stuck),
    Stuck(Stuck),
}

static QUEUES: Mutex<BTreeMap<Subject, Queue>> = Mutex::new(BTreeMap::new());
static QUEUE_FREED: Condvar = Condvar::new();

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

/// Whether a silent subject is to be asked again now. Only one caller gets this answer, and asks without a
/// wait for others: in another thread, or at the end of its own work.
pub(crate) fn takes_next_turn(subject: &Subject) -> bool {
    let mut queues = queues();
    let Some(queue) = queues.get_mut(subject) else { return false };
    let now = Instant::now();
    let Some(silence) = queue.silence.as_mut().filter(|silence| now >= silence.ask_from) else {
        return false;
    };
    silence.ask_from = now + silence.pause;
    true
}

/// Registers a killed program to be reaped later, so that it does not stay a zombie.
pub(crate) fn reap_later(program: i32) {
    let stuck = Stuck::new(Pid::from_raw(program));
    queues().entry(Subject::Program(program)).or_default().state = QueueState::Stuck(stuck);
}

/// Waits until the children that have answered have exited; at most this long.
pub(super) fn wait_for_exits(limit: Duration) {
    let deadline = Instant::now() + limit;
    let is_exiting = || {
        let mut queues = queues();
        remove_unused(&mut queues);
        queues.values().any(|queue| matches!(queue.state, QueueState::Exiting(_)))
    };
    while is_exiting() && Instant::now() < deadline {
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
}

/// Reaps children that have exited since, so that they do not stay zombies.
pub(crate) fn reap_exited() {
    remove_unused(&mut queues());
}

pub(super) fn remove_unused(queues: &mut BTreeMap<Subject, Queue>) {
    queues.retain(|_, queue| {
        queue.update();
        queue.is_in_use()
    });
}

pub(super) fn queues() -> MutexGuard<'static, BTreeMap<Subject, Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run the one query; released when dropped.
pub(crate) struct Permit {
    subject: Subject,
    pub(super) is_answered: bool,
    /// Whether a foreign subject did not answer, which is remembered.
    pub(super) is_silent: bool,
    stuck: Option<Stuck>,
}

impl Permit {
    pub(super) fn take(subject: Subject, limit: Duration) -> Result<Self, Unanswered> {
        Self::take_unless_silent(subject, limit, Repeat::Always)
    }

    pub(super) fn take_unless_silent(
        subject: Subject,
        limit: Duration,
        repeat: Repeat,
    ) -> Result<Self, Unanswered> {
        let start = Instant::now();
        let mut end = deadline(limit);
        let mut queues = queues();
        remove_unused(&mut queues);
        let mut answers = queues.get(&subject).map_or(0, |queue| queue.answers);
        loop {
            let queue = queues.entry(subject.clone()).or_default();
            queue.update();
            if repeat == Repeat::UnlessSilent && queue.silence.is_some() {
                return Err(Unanswered::Silent);
            }
            // Nothing signals the exit of a child, so it is polled.
            let mut pause = Duration::MAX;
            match queue.state {
                QueueState::Free => {
                    queue.state = QueueState::Running;
                    return Ok(Self { subject, is_answered: false, is_silent: false, stuck: None });
                }
                QueueState::Stuck(_) => return Err(Unanswered::Stuck),
                QueueState::Exiting(_) => pause = EXIT_POLL_INTERVAL,
                QueueState::Running => {}
            }
            if queue.answers != answers {
                answers = queue.answers;
                end = deadline(limit);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::TimedOut(limit));
            }
            if start.elapsed() > QUEUE_TIME_LIMIT.saturating_add(limit) {
                return Err(Unanswered::QueueTooLong);
            }
            queue.waiting += 1;
            queues =
                QUEUE_FREED.wait_timeout(queues, left.min(pause)).unwrap_or_else(PoisonError::into_inner).0;
            queues.entry(subject.clone()).or_default().waiting -= 1;
        }
    }

    /// Keeps the subject taken, because the child still works on it.
    pub(super) fn keep_taken(mut self, stuck: Stuck) {
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
            if self.is_answered {
                queue.silence = None;
            } else if self.is_silent {
                queue.silence = Some(Silence::after(queue.silence));
            }
            // All waiters share one condition variable; notify only if somebody waits for this subject.
            if queue.waiting > 0 {
                QUEUE_FREED.notify_all();
            }
            if !queue.is_in_use() {
                queues.remove(&self.subject);
            }
        }
    }
}

impl Queue {
    /// Frees the queue if the child that it waits for has exited. If that child could not be killed before,
    /// its call has ended now: the subject is no longer silent.
    fn update(&mut self) {
        match self.state {
            QueueState::Stuck(child) if child.is_gone() => {
                self.state = QueueState::Free;
                self.silence = None;
            }
            QueueState::Exiting(child) if child.is_gone() => self.state = QueueState::Free,
            _ => {}
        }
        self.silence = self.silence.filter(|silence| !silence.is_stale());
    }

    fn is_in_use(&self) -> bool {
        self.waiting > 0 || self.silence.is_some() || !matches!(self.state, QueueState::Free)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::{Asked, ask_foreign_unless_known};
    use super::*;
    use crate::sys::child::{ChildCall, ChildReply};
    use crate::sys::ids::MountId;

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
        let known = Mutex::new(None);
        let children = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let question = ChildCall::Usage(std::os::fd::AsFd::as_fd(&root));
                    let keep = |answer: &ChildReply| *known.lock().unwrap() = Some(answer.blocks);
                    let known = || *known.lock().unwrap();
                    match ask_foreign_unless_known(subject(6), question, Repeat::Always, known, keep) {
                        Ok(Asked::Answered(_)) => _ = children.fetch_add(1, Ordering::SeqCst),
                        Ok(Asked::Known(blocks)) => assert!(blocks > 0),
                        Err(failed) => panic!("{failed:?}"),
                    }
                });
            }
        });
        assert_eq!(children.into_inner(), 1);
    }

    fn is_silent(number: u64) -> bool {
        let once = Permit::take_unless_silent(subject(number), Duration::ZERO, Repeat::UnlessSilent);
        matches!(once, Err(Unanswered::Silent))
    }

    /// The answer, or the end of a call that could not be killed, shows that it is not silent any more.
    #[test]
    #[expect(clippy::zombie_processes, reason = "that the queue reaps it is what is tested")]
    fn silence_is_remembered_until_it_changes() {
        let silent = |stuck: Option<Stuck>| {
            let mut permit = take(7, Duration::ZERO).unwrap();
            permit.is_silent = true;
            match stuck {
                Some(stuck) => permit.keep_taken(stuck),
                None => drop(permit),
            }
        };
        assert!(!is_silent(7));
        silent(None);
        assert!(is_silent(7) && is_silent(7));
        assert!(!takes_next_turn(&subject(7)), "its pause has begun");
        let mut permit = take(7, Duration::ZERO).expect("one that depends on it asks");
        permit.is_answered = true;
        drop(permit);
        assert!(!is_silent(7));

        let mut program = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        silent(Some(Stuck::new(Pid::from_raw(program.id() as i32))));
        assert!(is_silent(7));
        program.kill().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while is_silent(7) {
            assert!(Instant::now() < end, "its call has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!queues().contains_key(&subject(7)), "it is not kept");
    }

    #[test]
    fn the_next_turn_of_a_silent_subject_is_given_once() {
        let mut permit = take(8, Duration::ZERO).unwrap();
        permit.is_silent = true;
        drop(permit);
        queues().get_mut(&subject(8)).unwrap().silence.as_mut().unwrap().ask_from = Instant::now();
        assert!(takes_next_turn(&subject(8)) && !takes_next_turn(&subject(8)));
        assert!(is_silent(8), "nobody waits for the next answer");
        queues().remove(&subject(8));
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
