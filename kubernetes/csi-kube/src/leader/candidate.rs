use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use tokio::time::sleep;

use super::election::Election;
use super::leadership::Leadership;
use super::record::{self, Observed};
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
                    if !error.is_transient() && text != logged {
                        tracing::warn!(lease = self.name, "cannot stand for election: {text}");
                    } else {
                        tracing::debug!(lease = self.name, "{text}");
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
        let written = if is_new {
            self.send("create", self.leases.create(&params, &next)).await
        } else {
            self.send("take over", self.leases.replace(&self.name, &params, &next)).await
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
            let next = record::renewed(lease);
            let params = PostParams::default();
            lease = self.send("keep", self.leases.replace(&self.name, &params, &next)).await?;
            if since >= start + self.timing.lease {
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
