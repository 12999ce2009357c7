use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use tokio::time::sleep;

use super::election::Election;
use super::leadership::Leadership;
use super::record::{self, Observed};
use super::timing::Timing;
use crate::error::Result;

impl Election {
    /// Waits until this process leads. It repeats failures without an end, and logs one as a warning when
    /// repeating it cannot help.
    pub async fn lead(&self) -> Leadership {
        let candidate = Self { identity: unique(&self.identity), ..self.clone() };
        candidate.stand().await
    }

    async fn stand(&self) -> Leadership {
        let mut observed = None;
        let mut holder = None;
        let mut logged = String::new();
        loop {
            match self.try_lead(&mut observed).await {
                Ok(Some(leadership)) => {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                    return leadership;
                }
                Ok(None) => logged.clear(),
                Err(error) => {
                    let text = error.to_string();
                    if text != logged {
                        tracing::warn!(lease = self.name, "cannot stand for election: {text}");
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
            sleep(self.standing().retry.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Asks once. `None`: another process leads, or was faster.
    async fn try_lead(&self, observed: &mut Option<Observed>) -> Result<Option<Leadership>> {
        let last = self.send("read", self.leases.get_opt(&self.name)).await?;
        let now = self.clock.now();
        Observed::update(observed, last.as_ref(), now);
        let is_free = |one: &Observed| one.is_free(self.standing().lease, now) || self.inherits(one.holder());
        if !observed.as_ref().is_some_and(is_free) {
            return Ok(None);
        }
        let is_new = last.is_none();
        let next = record::taken(last, &self.name, &self.identity, self.timing.lease);
        // The leadership counts from before the write, as the others can see the write before its answer.
        let since = self.clock.now();
        let params = PostParams::default();
        let written = if is_new {
            self.send("create", self.leases.create(&params, &next)).await
        } else {
            self.send("take over", self.leases.replace(&self.name, &params, &next)).await
        };
        match written {
            Ok(lease) if is_new => self.outwait(lease).await.map(Some),
            Ok(lease) => Ok(Some(Leadership::begin(self.clone(), lease, since))),
            Err(error) if error.is_conflict() || error.is_taken() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The durations while this process is a candidate. With `inherits_from`, a holder that is not a former leader is a
    /// sidecar, and has those of client-go.
    fn standing(&self) -> Timing {
        if self.inherits_from.is_some() { Timing::default() } else { self.timing }
    }

    fn inherits(&self, holder: Option<&str>) -> bool {
        let pair = holder.zip(self.inherits_from.as_deref());
        pair.is_some_and(|(holder, beginning)| holder.starts_with(beginning))
    }

    /// Keeps the Lease that this process has created, and leads after the lease duration. Somebody can have
    /// deleted an earlier Lease under a leader, which stops meanwhile. To wait before the creation would not
    /// do: a Lease can be created, led by and deleted again without being seen.
    async fn outwait(&self, mut lease: Lease) -> Result<Leadership> {
        let start = self.clock.now();
        let timing = self.standing();
        loop {
            sleep(timing.retry).await;
            let since = self.clock.now();
            let next = record::renewed(lease);
            let params = PostParams::default();
            lease = self.send("keep", self.leases.replace(&self.name, &params, &next)).await?;
            if since >= start + timing.lease {
                return Ok(Leadership::begin(self.clone(), lease, since));
            }
        }
    }
}

/// The standard library seeds each hash map with random numbers of the system.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn unique(beginning: &str) -> String {
    format!("{beginning}_{:016x}", random())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// There is no Lease, and then another process has created it.
    async fn faster(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let (code, reason) =
            if request.method() == Method::POST { (409, "AlreadyExists") } else { (404, "NotFound") };
        let status = json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason });
        let mut response = Response::new(Body::from(status.to_string().into_bytes()));
        *response.status_mut() = code.try_into().expect("a status");
        Ok(response)
    }

    /// It is no failure that somebody has to read about.
    #[tokio::test]
    async fn a_lease_that_another_process_creates_meanwhile_is_another_leaders() {
        let client = Client::new(tower::service_fn(faster), "driver");
        let election = Election::new(client, "lease");
        assert!(election.try_lead(&mut None).await.unwrap().is_none());
    }
}
