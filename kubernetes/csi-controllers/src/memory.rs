//! What this process remembers by key. One that has just started remembers nothing, and is only more careful.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::calls::Outcome;

pub(crate) struct Memory<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Memory<K, V> {
    pub(crate) fn set(&self, key: K, value: V) {
        self.all().insert(key, value);
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.all().get(key).cloned()
    }

    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        self.all().remove(key)
    }

    pub(crate) fn all(&self) -> MutexGuard<'_, HashMap<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the last call for a claim failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) code: Option<Code>,
    since: Instant,
}

impl Failure {
    /// How long a call that the driver can't do is not tried again.
    const INFEASIBLE_PAUSE: Duration = Duration::from_secs(300);

    pub(crate) fn new(outcome: Outcome, code: Option<Code>) -> Self {
        Self { outcome, code, since: Instant::now() }
    }

    /// Whether the call left nothing behind, so that another one can follow.
    pub(crate) fn is_final(&self) -> bool {
        self.outcome != Outcome::Unknown
    }

    /// How long the same call still waits.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let left = Self::INFEASIBLE_PAUSE.saturating_sub(self.since.elapsed());
        Some(left).filter(|left| self.outcome == Outcome::Infeasible && !left.is_zero())
    }
}
