//! What the metrics say of the queues, by the names and meanings of client-go's `workqueue`.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::{Histograms, Labels, histograms, registered};

/// The seconds in the histograms of client-go.
const BUCKETS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0];

type Seconds = Family<Labels<1>, Gauge<f64, AtomicU64>>;

#[derive(Clone)]
struct Families {
    depth: Family<Labels<1>, Gauge>,
    adds: Family<Labels<1>, Counter>,
    waited: Histograms<1>,
    worked: Histograms<1>,
    unfinished: Seconds,
    longest: Seconds,
    retries: Family<Labels<1>, Counter>,
}

/// The metrics of all queues.
#[derive(Clone)]
pub(crate) struct Queues {
    families: Families,
    all: Arc<Mutex<Vec<QueueMetrics>>>,
}

/// The metrics of one queue. Clones share them.
#[derive(Clone)]
pub(crate) struct QueueMetrics {
    families: Families,
    labels: Labels<1>,
    keys: Arc<Mutex<Keys>>,
    hasher: RandomState,
}

/// Keys by their hash, which takes less memory. Two keys with one hash would be counted as one.
#[derive(Default)]
struct Keys {
    /// When they are due.
    waiting: HashMap<u64, Instant>,
    /// When their steps began.
    at_work: HashMap<u64, Instant>,
}

impl Queues {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let buckets = || Histogram::new(BUCKETS);
        let waited = "How long keys waited after they were due";
        let unfinished = "How long the steps at work have taken so far, in all";
        let longest = "How long the longest step at work has taken so far";
        let families = Families {
            depth: registered(registry, "workqueue_depth", "Keys that are due and wait"),
            adds: registered(registry, "workqueue_adds", "Keys that were added"),
            waited: histograms(registry, "workqueue_queue_duration_seconds", waited, buckets),
            worked: histograms(registry, "workqueue_work_duration_seconds", "How long steps took", buckets),
            unfinished: registered(registry, "workqueue_unfinished_work_seconds", unfinished),
            longest: registered(registry, "workqueue_longest_running_processor_seconds", longest),
            retries: registered(registry, "workqueue_retries", "Steps that are done again"),
        };
        Self { families, all: Arc::default() }
    }

    /// The metrics of a new queue.
    pub(crate) fn add(&self, name: &str) -> QueueMetrics {
        let families = self.families.clone();
        let labels = [("name", name.to_owned())];
        // They are shown before they count.
        drop(families.adds.get_or_create(&labels));
        drop(families.retries.get_or_create(&labels));
        drop(families.waited.get_or_create(&labels));
        drop(families.worked.get_or_create(&labels));
        let queue = QueueMetrics { families, labels, keys: Arc::default(), hasher: RandomState::new() };
        lock(&self.all).push(queue.clone());
        queue
    }

    /// Sets what depends on the time.
    pub(super) fn refresh(&self) {
        lock(&self.all).iter().for_each(QueueMetrics::refresh);
    }
}

impl QueueMetrics {
    pub(crate) fn added(&self, key: &impl Hash, due: Instant) {
        let mut keys = lock(&self.keys);
        let waiting = keys.waiting.entry(self.hasher.hash_one(key)).or_insert_with(|| {
            self.families.adds.get_or_create(&self.labels).inc();
            due
        });
        *waiting = due.min(*waiting);
    }

    pub(crate) fn begun(&self, key: &impl Hash) {
        let hash = self.hasher.hash_one(key);
        let mut keys = lock(&self.keys);
        if let Some(due) = keys.waiting.remove(&hash) {
            self.families.waited.get_or_create(&self.labels).observe(due.elapsed().as_secs_f64());
        }
        keys.at_work.insert(hash, Instant::now());
    }

    pub(crate) fn ended(&self, key: &impl Hash) {
        if let Some(begun) = lock(&self.keys).at_work.remove(&self.hasher.hash_one(key)) {
            self.families.worked.get_or_create(&self.labels).observe(begun.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn repeated(&self) {
        self.families.retries.get_or_create(&self.labels).inc();
    }

    fn refresh(&self) {
        let keys = lock(&self.keys);
        let now = Instant::now();
        let depth = keys.waiting.values().filter(|due| **due <= now).count();
        self.families.depth.get_or_create(&self.labels).set(i64::try_from(depth).unwrap_or(i64::MAX));
        let times = keys.at_work.values().map(|begun| (now - *begun).as_secs_f64());
        self.families.unfinished.get_or_create(&self.labels).set(times.clone().sum());
        self.families.longest.get_or_create(&self.labels).set(times.fold(0.0, f64::max));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
