//! Unmounts in a child process, which can continue after the mount has left the tree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::queues::{EXIT_POLL_INTERVAL, Permit, Queue, QueueState, queues, reap_later, remove_unused};
use super::{Subject, Unanswered, finish_query, is_timeout, warn_stuck};
use crate::bounded::in_flight::TargetKey;
use crate::sys::child::{Child, ChildCall, ChildReply, Stuck};
use crate::sys::deadline::deadline;
use crate::sys::ids::MountId;

/// How long an unmount can take in total after the mount has left the tree, and what happens then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishPolicy {
    pub(crate) limit: Duration,
    /// Whether the child is killed. Otherwise it continues, and [`has_finished_within`] reports when it has
    /// finished.
    pub(crate) kills_child: bool,
}

/// As [`ask`](super::ask), for an unmount at a place.
///
/// The mount leaves the tree at once, which `is_detached_now` reports. After that the child waits until all
/// data is written.
pub(crate) fn unmount(
    (mount, place): (MountId, TargetKey),
    question: ChildCall<'_>,
    limit: Duration,
    policy: FinishPolicy,
    is_detached_now: impl FnOnce() -> bool,
) -> Result<ChildReply, Unanswered> {
    let permit = Permit::take(Subject::Unmount(mount), limit)?;
    let child = Child::start(question).map_err(Unanswered::Failed)?;
    let finish = deadline(policy.limit);
    let mut answer = child.answer(deadline(limit));
    if is_timeout(&answer) && is_detached_now() {
        answer = child.answer(finish);
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
pub(crate) fn has_finished_within(place: &TargetKey, limit: Duration) -> bool {
    let end = deadline(limit);
    while !unfinished_unmounts(&mut queues(), place).is_empty() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    true
}

pub(crate) fn kill_unfinished(place: &TargetKey) {
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

fn unfinished_unmounts(queues: &mut BTreeMap<Subject, Queue>, place: &TargetKey) -> Vec<Stuck> {
    remove_unused(queues);
    let of_place = queues.iter().filter_map(|(subject, queue)| match (subject, &queue.state) {
        (Subject::FinishingUnmount(at, _), QueueState::Stuck(child)) if at == place => Some(*child),
        _ => None,
    });
    of_place.collect()
}
