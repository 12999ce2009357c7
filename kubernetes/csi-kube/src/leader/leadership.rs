use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::election::Election;
use super::record;
use crate::error::{Error, Result};

/// What a leader holds. A task renews the Lease until the last clone is dropped or the leadership ends.
///
/// Check it before each action that only a leader is allowed to take:
///
/// ```
/// # struct Backend;
/// # impl Backend { async fn delete(&self, _: &str) -> csi_core::Result<()> { Ok(()) } }
/// async fn delete(leadership: &csi_kube::Leadership, backend: &Backend, id: &str) -> csi_core::Result<()> {
///     leadership.check()?;
///     backend.delete(id).await
/// }
/// ```
#[derive(Clone)]
pub struct Leadership {
    pub(super) state: Arc<State>,
    _renewal: Arc<AbortOnDropHandle<()>>,
}

pub(super) struct State {
    election: Election,
    term: u32,
    /// In nanoseconds of the election's clock.
    valid_until: AtomicU64,
    /// Once set, it stays set: what was seen as lost is not led again.
    is_over: AtomicBool,
    /// Another process can lead already, so all work must end.
    is_taken: AtomicBool,
    over: watch::Sender<bool>,
    /// The Lease as it was last written, once it is not renewed any more.
    last: watch::Sender<Option<Lease>>,
}

impl State {
    pub(super) fn is_leader(&self) -> bool {
        if self.is_over.load(Ordering::SeqCst) {
            return false;
        }
        if self.election.clock.now() < self.valid_until() {
            return true;
        }
        self.end();
        false
    }

    fn valid_until(&self) -> Duration {
        Duration::from_nanos(self.valid_until.load(Ordering::SeqCst))
    }

    fn extend(&self, since: Duration) {
        let until = since + self.election.timing.renew_deadline;
        self.valid_until.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.over.send_replace(true);
    }

    /// Waits until the leadership is over, asleep where possible.
    async fn ended(&self) {
        let mut over = self.over.subscribe();
        while self.is_leader() {
            let left = self.valid_until().saturating_sub(self.election.clock.now());
            tokio::select! {
                _ = over.wait_for(|over| *over) => {}
                () = sleep(left.max(Duration::from_millis(1))) => {}
            }
        }
    }
}

impl Leadership {
    pub(super) fn begin(election: Election, lease: Lease, since: Duration) -> Self {
        let state = Arc::new(State {
            term: record::term(&lease),
            election,
            valid_until: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            over: watch::Sender::new(false),
            last: watch::Sender::new(None),
        });
        state.extend(since);
        let renewal = tokio::spawn(renew(Arc::clone(&state), lease));
        Self { state, _renewal: Arc::new(AbortOnDropHandle::new(renewal)) }
    }

    /// Returns whether this process leads now, by its clock and without a request. Once false, it is false
    /// for ever: call [`Election::lead`] again, or better end the process.
    pub fn is_leader(&self) -> bool {
        self.state.is_leader()
    }

    /// Checks that this process leads now. Call it before each action, as late as possible.
    ///
    /// # Errors
    /// [`Error::NotLeading`]; in an answer to a CSI call that is UNAVAILABLE.
    pub fn check(&self) -> Result<()> {
        self.is_leader().then_some(()).ok_or(Error::NotLeading)
    }

    /// Waits until this process does not lead any more.
    pub async fn lost(&self) {
        self.state.ended().await;
    }

    /// Returns the number of this leadership. A later leader has a greater one, unless the Lease was deleted
    /// between. Storage that remembers the greatest number of a request, and refuses smaller ones, is also
    /// safe from a leader that sent a request before it was frozen.
    pub fn term(&self) -> u32 {
        self.state.term
    }

    /// Returns the name by which the Lease knows this process.
    pub fn identity(&self) -> &str {
        &self.state.election.identity
    }

    /// Gives the leadership up, so that another process can lead at once. Call it when nothing runs any more
    /// that only a leader is allowed to do. All clones end with it.
    ///
    /// # Errors
    /// [`Error::NotLeading`] when the leadership ended before; [`Error::Api`] and [`Error::TimedOut`], then
    /// the others wait for the lease duration.
    pub async fn resign(self) -> Result<()> {
        if !self.is_leader() {
            return Err(Error::NotLeading);
        }
        let State { election, last, .. } = &*self.state;
        self.state.end();
        // A renewal that is on its way is not cut short: it could be written after the release.
        let mut last = last.subscribe();
        let lease = last.wait_for(Option::is_some).await.ok().and_then(|lease| lease.clone());
        let released = record::released(lease.ok_or(Error::NotLeading)?);
        let params = PostParams::default();
        election.send("release", election.leases.replace(&election.name, &params, &released)).await.map(drop)
    }

    /// Returns how long running work can go on after the leadership has ended: half of the time until another process
    /// can lead. It is zero once another process has the Lease.
    pub fn time_to_finish(&self) -> Duration {
        if self.state.is_taken.load(Ordering::SeqCst) {
            return Duration::ZERO;
        }
        let end = self.state.valid_until() + self.state.election.timing.margin() / 2;
        end.saturating_sub(self.state.election.clock.now())
    }
}

/// Renews the Lease until the leadership is over.
async fn renew(state: Arc<State>, mut lease: Lease) {
    let Election { leases, name, timing, clock, .. } = &state.election;
    let mut pause = timing.retry;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = state.ended() => {}
        }
        if !state.is_leader() {
            break;
        }
        pause = timing.retry;
        let since = clock.now();
        let limit = state.valid_until().saturating_sub(since).min(timing.request());
        let next = record::renewed(lease.clone());
        let params = PostParams::default();
        match state.election.send_within(limit, "renew", leases.replace(name, &params, &next)).await {
            Ok(written) => {
                state.extend(since);
                lease = written;
            }
            Err(error) if error.is_conflict() || error.is_missing() => match reread(&state).await {
                Ok(Some(found)) => (lease, pause) = (found, Duration::from_millis(1)),
                Err(_) => {}
                Ok(None) => {
                    tracing::info!(lease = name, "the Lease is not this process's any more: {error}");
                    state.is_taken.store(true, Ordering::SeqCst);
                    state.end();
                }
            },
            Err(error) => {
                tracing::info!(lease = name, "the leadership is not renewed yet: {error}");
                pause = pause.max(error.retry_after().unwrap_or_default()).min(timing.request());
            }
        }
    }
    state.last.send_replace(Some(lease));
}

/// The Lease, if it still is that of this leadership: another client changed something else in it, or a renewal arrived
/// whose answer did not.
async fn reread(state: &State) -> Result<Option<Lease>> {
    let Election { leases, name, identity, .. } = &state.election;
    let found = state.election.send("read", leases.get_opt(name)).await?;
    Ok(found.filter(|lease| {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(identity) && record::term(lease) == state.term
    }))
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { election, term, .. } = &*self.state;
        let mut text = f.debug_struct("Leadership");
        text.field("lease", &election.name).field("term", term).field("is_leader", &self.is_leader());
        text.finish_non_exhaustive()
    }
}
