//! Keys that wait for their step: one step at a time for a key, so many at a time in all, and a growing pause after
//! a failure.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::error::{Error, Result};
use crate::metrics::QueueMetrics;

/// The pause after the first failure of a key; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What follows a step that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until the key is added again.
    Done,
    /// The step again after this time, as after a success.
    After(Duration),
    /// The step again after the pause that grows, as after a failure that was reported already.
    Again,
}

/// The sender's side of a queue.
pub(crate) struct Queue<K> {
    sender: mpsc::UnboundedSender<ScheduleRequest<K>>,
    metrics: QueueMetrics,
}

/// The receiver's side of a queue, for its one [`Steps::run`].
pub(crate) struct Steps<K> {
    added: mpsc::UnboundedReceiver<ScheduleRequest<K>>,
    queue: Queue<K>,
    workers: usize,
}

/// A queue of which so many keys are at work at once.
pub(crate) fn queue<K>(workers: usize, metrics: QueueMetrics) -> (Queue<K>, Steps<K>) {
    let (sender, added) = mpsc::unbounded_channel();
    let queue = Queue { sender, metrics };
    (queue.clone(), Steps { added, queue, workers })
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), metrics: self.metrics.clone() }
    }
}

impl<K: Hash> Queue<K> {
    /// Adds a key for its step as soon as a worker is free. A key that waits already is not added twice; one that is
    /// at work has its step again afterwards.
    pub(crate) fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    pub(crate) fn add_after(&self, message: K, pause: Duration) {
        let run_at = Instant::now() + pause;
        self.metrics.added(&message, run_at);
        // Nobody receives once the process stops.
        let _ = self.sender.send(ScheduleRequest { message, run_at });
    }
}

impl<K: Clone + Eq + Hash + fmt::Display + Send + 'static> Steps<K> {
    /// Runs the step of each key that is due, without an end.
    pub(crate) async fn run<F>(self, step: impl Fn(K) -> F)
    where
        F: Future<Output = Result<Next>> + Send + 'static,
    {
        let mut due = std::pin::pin!(scheduler(UnboundedReceiverStream::new(self.added)));
        let mut running: HashSet<K> = HashSet::new();
        let mut failures: HashMap<K, u32> = HashMap::new();
        let mut steps = JoinSet::new();
        loop {
            let is_full = running.len() >= self.workers;
            let mut free = due.as_mut().hold_unless(|key| !running.contains(key));
            tokio::select! {
                key = free.next(), if !is_full => {
                    let Some(key) = key else { break };
                    running.insert(key.clone());
                    self.queue.metrics.begun(&key);
                    let work = step(key.clone());
                    steps.spawn(async move { (key, work.await) });
                }
                Some(ended) = steps.join_next() => {
                    let (key, outcome) = match ended {
                        Ok(ended) => ended,
                        Err(error) => std::panic::resume_unwind(error.into_panic()),
                    };
                    running.remove(&key);
                    self.queue.metrics.ended(&key);
                    finish(&self.queue, &mut failures, key, outcome);
                }
            }
        }
    }
}

fn finish<K>(queue: &Queue<K>, failures: &mut HashMap<K, u32>, key: K, outcome: Result<Next>)
where
    K: Clone + Eq + Hash + fmt::Display,
{
    if matches!(outcome, Ok(Next::Again) | Err(_)) {
        queue.metrics.repeated();
    }
    match outcome {
        Ok(Next::Done) => drop(failures.remove(&key)),
        Ok(Next::After(pause)) => {
            failures.remove(&key);
            queue.add_after(key, pause);
        }
        Ok(Next::Again) => queue.add_after(key.clone(), pause(failures.entry(key).or_default())),
        // The step decided by a cache that is behind, and has caught up by then.
        Err(Error::Api(error)) if error.is_conflict() => queue.add_after(key, FIRST_PAUSE),
        Err(error) => {
            let pause = pause(failures.entry(key.clone()).or_default());
            tracing::info!(%key, "again in {pause:?}: {error}");
            queue.add_after(key, pause);
        }
    }
}

fn pause(failures: &mut u32) -> Duration {
    let pause = FIRST_PAUSE * 2_u32.pow((*failures).min(9));
    *failures += 1;
    pause.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test(start_paused = true)]
    async fn metrics_say_what_waits_and_works() {
        let metrics = Metrics::new("d");
        let (sender, steps) = queue(2, metrics.queues.add("q"));
        for (key, millis) in
            [("long", 0), ("fails", 1000), ("works", 2000), ("works", 3000), ("due", 5500), ("later", 60_000)]
        {
            sender.add_after(key, Duration::from_millis(millis));
        }
        // At 6 s "works" has had its step, and "fails" its first one. "works" waited from 2 to 3 s, and the second step of
        // "fails" from 4 to 5 s: it is at work, as "long" is.
        let step = async |key| {
            sleep(Duration::from_secs(if key == "long" { 60 } else { 2 })).await;
            Ok(if key == "fails" { Next::Again } else { Next::Done })
        };
        tokio::select! {
            () = sleep(Duration::from_secs(6)) => {}
            () = steps.run(step) => unreachable!("it has no end"),
        }
        let mut text = String::new();
        metrics.write(&mut text).unwrap();
        for line in [
            "workqueue_depth{name=\"q\"} 1",
            "workqueue_adds_total{name=\"q\"} 6",
            "workqueue_retries_total{name=\"q\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"q\"} 2.0",
            "workqueue_queue_duration_seconds_count{name=\"q\"} 4",
            "workqueue_work_duration_seconds_sum{name=\"q\"} 4.0",
            "workqueue_work_duration_seconds_count{name=\"q\"} 2",
            "workqueue_unfinished_work_seconds{name=\"q\"} 7.0",
            "workqueue_longest_running_processor_seconds{name=\"q\"} 6.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
