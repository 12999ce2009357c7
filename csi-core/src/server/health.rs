//! The plugin's health for queries other than the CSI socket's own Probe.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::{Identity, Readiness};

/// A probe that takes longer has failed, so that the query does not wait forever.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    Serving,
    /// Healthy, but not ready yet.
    Starting,
    /// Unhealthy, and why.
    Failed(String),
}

pub(super) async fn ask(identity: &Arc<dyn Identity>) -> Health {
    let identity = Arc::clone(identity);
    // The probe runs on a task of its own, so that a panic in it fails one query and not the task that
    // asks.
    let mut probe = tokio::spawn(async move { identity.probe().await });
    match tokio::time::timeout(PROBE_TIMEOUT, &mut probe).await {
        Ok(Ok(Ok(Readiness::Ready))) => Health::Serving,
        Ok(Ok(Ok(Readiness::Starting))) => Health::Starting,
        Ok(Ok(Err(error))) => Health::Failed(error.to_string()),
        Ok(Err(_)) => Health::Failed("the probe panicked; the log has the place".to_owned()),
        Err(_) => {
            probe.abort();
            Health::Failed(format!("the probe took more than {PROBE_TIMEOUT:?}"))
        }
    }
}
