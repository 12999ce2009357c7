use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::sleep;

use super::record::{self, Observed};
use super::{BootClock, Clock, Leadership, Timing};
use crate::request::send_within;
use crate::{Error, Result};

/// An election of one leader among the processes that use one Lease.
///
/// The rule is client-go's, so processes of both can stand for the same Lease. Times that another machine
/// wrote are never compared with this machine's clock. A process that sees no change of the Lease for the
/// lease duration takes the leadership over. A leader stops before: when the renew deadline has passed since
/// it *sent* the last renewal that succeeded. [`Leadership::check`] asks the clock each time, so a process
/// that was frozen finds out before it acts. Every write has the version that was read, so a write that
/// arrives late changes nothing.
///
/// Two rules are stricter than client-go's. A process that creates the Lease waits for the lease duration before
/// it leads, because somebody can have deleted an earlier one under a leader: the first start in a cluster takes
/// that long, unless the Lease is created with the driver. And each call of [`lead`](Self::lead) has an identity
/// of its own, with a random end.
///
/// An action that was begun before the end, and that the storage performs later, is beyond an election.
/// [`Leadership::term`] is a number for storage that can refuse it.
///
/// [`run`](Self::run) is the whole `main` of a driver. Needs the rules
/// [`rules::LEADER_ELECTION`](crate::rules::LEADER_ELECTION).
#[derive(Clone)]
pub struct Election {
    pub(super) leases: Api<Lease>,
    pub(super) name: String,
    pub(super) identity: String,
    pub(super) timing: Timing,
    pub(super) clock: Arc<dyn Clock>,
}

impl Election {
    /// An election by the Lease with this name, in the client's namespace: in a pod the pod's own. The
    /// identity is the host name, which in a pod is the pod's name, with a random end.
    pub fn new(client: Client, lease: impl Into<String>) -> Self {
        let namespace = client.default_namespace().to_owned();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            leases: Api::namespaced(client, &namespace),
            name: lease.into(),
            identity: host.trim().to_owned(),
            timing: Timing::default(),
            clock: Arc::new(BootClock::new()),
        }
    }

    /// Sets the beginning of the identity, for example the pod's name. A random end is added.
    #[must_use]
    pub fn identity(mut self, beginning: &str) -> Self {
        self.identity = beginning.to_owned();
        self
    }

    /// Sets the durations.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Replaces the clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Waits until this process leads. It repeats failures without an end, and logs one as a warning when
    /// repeating it cannot help.
    pub async fn lead(&self) -> Leadership {
        let candidate = Self { identity: unique(&self.identity), ..self.clone() };
        candidate.stand().await
    }

    async fn stand(&self) -> Leadership {
        let mut observed = None;
        let (mut holder, mut logged) = (None, String::new());
        loop {
            match self.try_lead(&mut observed).await {
                Ok(Some(leadership)) => {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                    return leadership;
                }
                Ok(None) => logged.clear(),
                Err(error) => {
                    let text = error.to_string();
                    match !error.is_transient() && text != logged {
                        true => tracing::warn!(lease = self.name, "cannot stand for election: {text}"),
                        false => tracing::debug!(lease = self.name, "{text}"),
                    }
                    logged = text;
                }
            }
            let now = observed.as_ref().and_then(Observed::holder).map(str::to_owned);
            if now != holder {
                tracing::info!(lease = self.name, holder = now, "waiting for the leadership");
                holder = now;
            }
            // With jitter, so that the processes do not ask at the same moments.
            let jitter = f64::from(u16::try_from(random() % 200).unwrap_or_default()) / 1000.0;
            sleep(self.timing.retry.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Asks once. `None`: another process leads, or was faster.
    async fn try_lead(&self, observed: &mut Option<Observed>) -> Result<Option<Leadership>> {
        let last = self.send("read", self.leases.get_opt(&self.name)).await?;
        let now = self.clock.now();
        Observed::update(observed, last.as_ref(), now);
        if !observed.as_ref().is_some_and(|one| one.is_free(self.timing.lease, now)) {
            return Ok(None);
        }
        let is_new = last.is_none();
        let next = record::taken(last, &self.name, &self.identity, self.timing.lease);
        // The leadership counts from before the write, as the others can see the write before its answer.
        let since = self.clock.now();
        let params = PostParams::default();
        let written = match is_new {
            true => self.send("create", self.leases.create(&params, &next)).await,
            false => self.send("take over", self.leases.replace(&self.name, &params, &next)).await,
        };
        match written {
            Ok(lease) if is_new => self.outwait(lease).await.map(Some),
            Ok(lease) => Ok(Some(Leadership::begin(self.clone(), lease, since))),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the Lease that this process has created, and leads after the lease duration. Somebody can have
    /// deleted an earlier Lease under a leader, which stops meanwhile. To wait before the creation would not
    /// do: a Lease can be created, led by and deleted again without being seen.
    async fn outwait(&self, mut lease: Lease) -> Result<Leadership> {
        let start = self.clock.now();
        loop {
            sleep(self.timing.retry).await;
            let since = self.clock.now();
            let (next, params) = (record::renewed(lease), PostParams::default());
            lease = self.send("keep", self.leases.replace(&self.name, &params, &next)).await?;
            if since >= start + self.timing.lease {
                return Ok(Leadership::begin(self.clone(), lease, since));
            }
        }
    }

    pub(super) async fn send<T>(
        &self,
        action: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T> {
        self.send_within(self.timing.request(), action, request).await
    }

    pub(super) async fn send_within<T>(
        &self,
        limit: Duration,
        action: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        send_within(limit, &format!("{action} lease {}", self.name), request).await
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Election");
        text.field("lease", &self.name).field("identity", &self.identity).field("timing", &self.timing);
        text.finish_non_exhaustive()
    }
}

/// The standard library seeds each hash map with random numbers of the system.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn unique(beginning: &str) -> String {
    format!("{beginning}_{:016x}", random())
}
