//! The health of volumes, as the driver's controller sees it: what external-health-monitor does.
//!
//! A driver of spec v1.13 (GET_VOLUME_HEALTH) has its conditions written to `status.healthStatus` of the claim, which
//! Kubernetes 1.37 keeps behind its gate CSIVolumeHealth. Events tell the same to people. For a driver of v1.12
//! (VOLUME_CONDITION) there are events only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use csi_kube::Severity;
use csi_proto::ControllerCapability;
use csi_proto::v1::{self, VolumeHealthErrorType};
use k8s_openapi::api::core::v1::VolumeHealthCondition;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::context::Context;
use crate::error::Result;
use crate::objects::{Claim, Key, Kind as _, Volume, now};

/// The pause between two lists, and between two rounds of calls for each volume.
const LIST_PERIOD: Duration = Duration::from_secs(300);
const ROUND_PERIOD: Duration = Duration::from_secs(60);

/// So many conditions Kubernetes takes.
const MAX_CONDITIONS: usize = 16;

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let driver = &context.driver;
    if !driver.reports_health() {
        return;
    }
    let has_status = driver.can(ControllerCapability::GetVolumeHealth);
    let lists = if has_status {
        driver.can(ControllerCapability::ListVolumeHealth)
    } else {
        driver.can(ControllerCapability::ListVolumes)
    };
    let period = if lists { LIST_PERIOD } else { ROUND_PERIOD };
    let mut monitor = Monitor { context: Arc::clone(context), has_status, lists, reported: HashMap::new() };
    tasks.spawn(async move {
        monitor.context.synced().await;
        loop {
            if let Err(error) = monitor.look().await {
                tracing::info!("the health of volumes is not known: {error}");
            }
            sleep(period).await;
        }
    });
}

struct Monitor {
    context: Arc<Context>,
    /// The driver has the calls of v1.13.
    has_status: bool,
    /// It lists all volumes in one call.
    lists: bool,
    /// What the events of claims said last. Claims of healthy volumes are not in it.
    reported: HashMap<Key, Vec<VolumeHealthCondition>>,
}

impl Monitor {
    /// One round. A call that fails says nothing of a volume.
    async fn look(&mut self) -> Result<()> {
        let listed = if self.lists { Some(self.list().await?) } else { None };
        let claims = self.bound_claims();
        self.reported.retain(|key, _| claims.contains_key(key));
        for (key, (handle, claim)) in claims {
            let before = self.reported.get(&key).cloned();
            let is_unwell = before.is_some() || !claim.health().is_empty();
            let found = match listed.as_ref().map(|listed| listed.get(&handle).cloned()) {
                Some(Some(found)) => Ok(found),
                // This list has only what is wrong. That a volume is well again is asked for.
                Some(None) if !is_unwell || !self.has_status => continue,
                Some(None) | None => self.ask(handle).await,
            };
            let outcome = match found {
                Ok(found) => self.report(&claim, before, found).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(now) if now.is_empty() => drop(self.reported.remove(&key)),
                Ok(now) => drop(self.reported.insert(key, now)),
                Err(error) => tracing::info!(claim = %key, "the volume's health is not reported: {error}"),
            }
        }
        Ok(())
    }

    /// The claims of this driver's volumes, each with the volume's id.
    fn bound_claims(&self) -> HashMap<Key, (String, Arc<Claim>)> {
        let caches = &self.context.caches;
        let claim_of = |volume: Arc<Volume>| {
            let source = volume.source_of(&self.context.driver.name)?;
            let reference = volume.spec.claim_ref.as_ref()?;
            let is_bound = volume.is_in("Bound") && !volume.is_deleting();
            let claim = caches.claims.get(&reference.key())?;
            let is_same = is_bound && volume.is_of(claim.uid());
            is_same.then(|| (reference.key(), (source.volume_handle.to_string(), claim)))
        };
        caches.volumes.all().into_iter().filter_map(claim_of).collect()
    }

    #[allow(deprecated, reason = "drivers of spec v1.12 have VOLUME_CONDITION")]
    async fn ask(&self, volume_id: String) -> Result<Vec<VolumeHealthCondition>> {
        let calls = &self.context.calls;
        if self.has_status {
            let request = v1::ControllerGetVolumeHealthRequest { volume_id, secrets: Default::default() };
            return Ok(health(calls.call(request).await?.volume_health.unwrap_or_default()));
        }
        let answer = calls.call(v1::ControllerGetVolumeRequest { volume_id }).await?;
        Ok(condition(answer.status.and_then(|status| status.volume_condition)))
    }

    #[allow(deprecated, reason = "drivers of spec v1.12 have VOLUME_CONDITION")]
    async fn list(&self) -> Result<HashMap<String, Vec<VolumeHealthCondition>>> {
        let mut found = HashMap::new();
        if !self.has_status {
            for entry in self.context.calls.all_volumes().await? {
                let conditions = condition(entry.status.and_then(|status| status.volume_condition));
                found.extend(entry.volume.map(|volume| (volume.volume_id, conditions)));
            }
            return Ok(found);
        }
        let mut request = v1::ControllerListVolumeHealthRequest::default();
        loop {
            let page = self.context.calls.call(request.clone()).await?;
            found.extend(page.entries.into_iter().map(|entry| (entry.volume_id.clone(), health(entry))));
            if page.next_token.is_empty() {
                return Ok(found);
            }
            request.starting_token = page.next_token;
        }
    }

    /// Writes what was found into the status, and as an event. Returns what was reported.
    async fn report(
        &self,
        claim: &Claim,
        before: Option<Vec<VolumeHealthCondition>>,
        found: Vec<VolumeHealthCondition>,
    ) -> Result<Vec<VolumeHealthCondition>> {
        let context = &self.context;
        let (mut conditions, unknown): (Vec<_>, Vec<_>) = found.into_iter().partition(is_known);
        if !unknown.is_empty() {
            let note = "The CSI driver reported volume health conditions of a type unknown to this monitor: ";
            let note = format!("{note}{}", text(&unknown));
            context.publish(claim, Severity::Warning, "UnknownVolumeHealthCondition", note);
        }
        conditions.sort_by(order);
        conditions.truncate(MAX_CONDITIONS);
        let mut stored = claim.health().to_vec();
        stored.sort_by(order);
        if self.has_status && stored != conditions {
            let status = json!({ "healthConditions": conditions, "lastTransitionTime": now() });
            let status = Some(status).filter(|_| !conditions.is_empty());
            context.monitor.patch(claim, json!({ "status": { "healthStatus": status } })).await?;
        }
        let before = before.unwrap_or(stored);
        // The older monitor repeats what is wrong, in events that are counted.
        if !conditions.is_empty() && (before != conditions || !self.has_status) {
            context.publish(claim, Severity::Warning, "VolumeConditionAbnormal", text(&conditions));
        }
        if conditions.is_empty() && unknown.is_empty() && !before.is_empty() {
            let note = "The Volume returns to the healthy state";
            context.publish(claim, Severity::Normal, "VolumeConditionNormal", note);
        }
        Ok(conditions)
    }
}

fn health(health: v1::VolumeHealth) -> Vec<VolumeHealthCondition> {
    let condition = |entry: v1::volume_health::VolumeHealthEntry| {
        let status = match entry.status() {
            VolumeHealthErrorType::Degraded => "Degraded".to_owned(),
            VolumeHealthErrorType::Inaccessible => "Inaccessible".to_owned(),
            VolumeHealthErrorType::DataLoss => "DataLoss".to_owned(),
            VolumeHealthErrorType::UnknownVolumeHealthType => entry.status.to_string(),
        };
        let message = Some(entry.message).filter(|message| !message.is_empty());
        VolumeHealthCondition { status, reason: entry.reason, message }
    };
    health.health_statuses.into_iter().map(condition).collect()
}

/// The condition of v1.12 has neither kind nor reason.
#[allow(deprecated, reason = "drivers of spec v1.12 have VOLUME_CONDITION")]
fn condition(condition: Option<v1::VolumeCondition>) -> Vec<VolumeHealthCondition> {
    let abnormal = condition.filter(|condition| condition.abnormal);
    let message = abnormal.map(|condition| Some(condition.message));
    message.into_iter().map(|message| VolumeHealthCondition { message, ..Default::default() }).collect()
}

/// Whether Kubernetes has this kind. The condition of an older driver has none.
fn is_known(condition: &VolumeHealthCondition) -> bool {
    ["", "Degraded", "Inaccessible", "DataLoss"].contains(&condition.status.as_str())
}

/// Status and reason are unique in a list.
fn order(one: &VolumeHealthCondition, other: &VolumeHealthCondition) -> std::cmp::Ordering {
    (&one.status, &one.reason).cmp(&(&other.status, &other.reason))
}

fn text(conditions: &[VolumeHealthCondition]) -> String {
    let text = |condition: &VolumeHealthCondition| {
        let message = condition.message.as_deref().unwrap_or_default();
        if condition.status.is_empty() {
            return message.to_owned();
        }
        let reason = Some(&condition.reason).filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" (reason: {reason})")).unwrap_or_default();
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        format!("{}{reason}{message}", condition.status)
    };
    conditions.iter().map(text).collect::<Vec<_>>().join("; ")
}
