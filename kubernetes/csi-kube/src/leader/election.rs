use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use super::timing::{BootClock, Clock, Timing};
use crate::error::{Error, Result};
use crate::request::send_within;

/// An election of one leader among the processes that use one Lease.
///
/// The rule is client-go's, so processes of both can stand for the same Lease. Times that another machine
/// wrote are never compared with this machine's clock. A process that sees no change of the Lease for the
/// lease duration takes the leadership over. A leader stops before: when the renew deadline has passed since
/// it *sent* the last renewal that succeeded. [`Leadership::check`](super::Leadership::check) asks the clock each time, so a process
/// that was frozen finds out before it acts. Every write has the version that was read, so a write that
/// arrives late changes nothing.
///
/// Two rules are stricter than client-go's. A process that creates the Lease waits for the lease duration before
/// it leads, because somebody can have deleted an earlier one under a leader: the first start in a cluster takes
/// that long, unless the Lease is created with the driver. And each call of [`lead`](Self::lead) has an identity
/// of its own, with a random end.
///
/// An action that was begun before the end, and that the storage performs later, is beyond an election.
/// [`Leadership::term`](super::Leadership::term) is a number for storage that can refuse it.
///
/// [`run`](Self::run) is the whole `main` of a driver. Needs the rules
/// [`rules::LEADER_ELECTION`](crate::rules::LEADER_ELECTION).
#[derive(Clone)]
pub struct Election {
    pub(super) leases: Api<Lease>,
    pub(super) name: String,
    pub(super) identity: String,
    /// The beginning of the identities of former holders that work no more.
    pub(super) inherits_from: Option<String>,
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
            inherits_from: None,
            timing: Timing::default(),
            clock: Arc::new(BootClock),
        }
    }

    /// Sets the beginning of the identity, for example the pod's name. A random end is added.
    #[must_use]
    pub fn identity(mut self, beginning: &str) -> Self {
        self.identity = beginning.to_owned();
        self
    }

    /// Takes the Lease over at once from a holder whose identity begins with this text. The identity of this process then
    /// begins with it too.
    ///
    /// Use it for the second Lease of a process that already leads by a first one, under the same text in all processes:
    /// who leads by the first Lease knows that the former holder of the second one has stopped. For any other holder the
    /// process waits with the default durations; [`timing`](Self::timing) applies once it leads.
    #[must_use]
    pub fn inherits_from(mut self, beginning: &str) -> Self {
        self.identity = format!("{beginning}{}", self.identity);
        self.inherits_from = Some(beginning.to_owned());
        self
    }

    /// Sets the durations.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Replaces the clock, for the tests of this crate.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
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
