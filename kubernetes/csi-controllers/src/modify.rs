//! Changes volumes to the VolumeAttributesClass that their claim names: the other half of external-resizer's work.
//!
//! The claim's status says what was begun (`InProgress`, with its target) before the driver is called. While the outcome
//! of a call is unknown, this target is finished before another one is begun; after a start it is unknown for every
//! claim in progress.

use std::sync::Arc;
use std::time::Duration;

use csi_core::internal::code_name;
use csi_kube::Severity;
use csi_proto::{Rpc, v1};
use k8s_openapi::api::core::v1::PersistentVolumeClaimCondition;
use serde_json::json;
use tokio::task::JoinSet;

use crate::cache::Change;
use crate::calls::{Outcome, outcome};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::keys::MODIFY_SECRET;
use crate::memory::{Failure, Memory};
use crate::objects::{AttributesClass, Claim, Key, Kind as _, SecretReference, Volume, condition};
use crate::provision::names;
use crate::queue::Next;
use crate::secrets;

const WORKERS: usize = 10;

/// How often a class that does not exist is looked for, apart from its creation.
const MISSING_PAUSE: Duration = Duration::from_secs(600);

const MODIFYING: &str = "ModifyingVolume";
const MODIFY_ERROR: &str = "ModifyVolumeError";
const SET: [&str; 2] = [MODIFYING, MODIFY_ERROR];

const PENDING: &str = "Pending";
const IN_PROGRESS: &str = "InProgress";
const INFEASIBLE: &str = "Infeasible";

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let modifier = Modifier { context: Arc::clone(context), failures: Memory::default() };
    let forget = |modifier: &Modifier, key: &Key| _ = modifier.failures.remove(key);
    let name = format!("{}-pvc-modify", context.driver.name);
    let queue = context.work_on(tasks, &name, WORKERS, Arc::new(modifier), step, forget);
    context.caches.claims.add_changed(&queue, is_of_interest);
    let claims = context.caches.claims.clone();
    context.caches.attributes_classes.on_change(move |change| {
        let Change::Set { now, .. } = change else { return };
        let name = Some(now.name());
        let waits = |claim: &&Arc<Claim>| claim.spec.volume_attributes_class_name.as_deref() == name;
        for claim in claims.all().iter().filter(waits) {
            queue.add(Key::of(&**claim));
        }
    });
}

struct Modifier {
    context: Arc<Context>,
    failures: Memory<Key, Failure>,
}

/// Whether a change of the claim is not this part's own report, which would lead to a try without a pause.
fn is_of_interest(before: Option<&Claim>, now: &Claim) -> bool {
    let Some(before) = before else {
        let wanted = &now.spec.volume_attributes_class_name;
        return now.status.modify_volume_status.is_some()
            || *wanted != now.status.current_volume_attributes_class_name;
    };
    before.spec.volume_attributes_class_name != now.spec.volume_attributes_class_name
        || before.spec.volume_name != now.spec.volume_name
        || before.status.phase != now.status.phase
        || (before.status.modify_volume_status.is_some() && now.status.modify_volume_status.is_none())
}

async fn step(modifier: Arc<Modifier>, claim: Arc<Claim>) -> Result<Next> {
    let context = &modifier.context;
    let volume = if claim.is_bound() { context.volume_of(&claim)? } else { None };
    let Some(volume) = volume else { return Ok(Next::Done) };
    let status = claim.status.modify_volume_status.as_deref();
    let spec = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
    let is_tried =
        status.is_some_and(|status| status.target_volume_attributes_class_name.as_deref() == Some(spec));
    let failure = modifier.failures.get(&Key::of(&*claim));
    if let Some(pause) = failure.and_then(|failure| failure.pause()).filter(|_| is_tried) {
        return Ok(Next::After(pause));
    }
    let failed_finally = failure.is_some_and(|failure| failure.is_final());
    match status.filter(|status| status.status == IN_PROGRESS) {
        None if status.is_none() && spec == current => Ok(Next::Done),
        // The user has set the class back.
        None if spec.is_empty() => modifier.cancel(&claim).await,
        Some(begun) if !failed_finally || spec.is_empty() => {
            let target = begun.target_volume_attributes_class_name.as_deref().unwrap_or_default();
            let Some(class) = modifier.class(&claim, target) else { return Ok(Next::Again) };
            modifier.run(&claim, &volume, &class).await
        }
        _ => modifier.begin(&claim, &volume, spec).await,
    }
}

impl Modifier {
    fn class(&self, claim: &Claim, name: &str) -> Option<Arc<AttributesClass>> {
        let class = self.context.caches.attributes_classes.named(name);
        let text = match class {
            None => format!("VAC {name:?} does not exist."),
            Some(class) if class.driver_name == self.context.driver.name => return Some(class),
            Some(class) => format!("VAC {name:?} is for the driver {}.", class.driver_name),
        };
        self.context.publish(claim, Severity::Warning, "VolumeModifyFailed", text);
        None
    }

    async fn cancel(&self, claim: &Claim) -> Result<Next> {
        if claim.condition(MODIFYING).is_some() {
            self.context.publish(claim, Severity::Normal, "VolumeModifyCanceled", "Cancelled modify.");
            let change = |claim: &Claim| json!({ "status": { "conditions": claim.conditions_with(&[], &[MODIFYING]) } });
            self.context.resizer.write(claim, change).await?;
        }
        Ok(Next::Done)
    }

    async fn begin(&self, claim: &Claim, volume: &Volume, target: &str) -> Result<Next> {
        let resizer = &self.context.resizer;
        let Some(class) = self.class(claim, target) else {
            let pending = json!({ "status": { "modifyVolumeStatus": { "status": PENDING } } });
            resizer.patch_version(claim, pending).await?;
            return Ok(Next::After(MISSING_PAUSE));
        };
        let text = format!("Modifying volume to {target:?} is in progress.");
        let modifying = in_place(claim, condition(MODIFYING, &text));
        let in_progress = json!({ "status": {
            "modifyVolumeStatus": { "status": IN_PROGRESS, "targetVolumeAttributesClassName": target },
            "conditions": claim.conditions_with(&[modifying], &[]),
        } });
        let claim = resizer.patch_version(claim, in_progress).await?;
        let text = format!("external resizer is modifying volume {} with vac {target}", claim.name());
        self.context.publish(&claim, Severity::Normal, "VolumeModify", text);
        self.run(&claim, volume, &class).await
    }

    async fn run(&self, claim: &Claim, volume: &Volume, class: &AttributesClass) -> Result<Next> {
        let name = class.name();
        if let Err(error) = self.call(claim, volume, class).await {
            return self.failed(claim, name, error).await;
        }
        self.failures.remove(&Key::of(claim));
        let resizer = &self.context.resizer;
        // Before the claim, which is what is looked at to see whether all is done.
        resizer.patch(volume, json!({ "spec": { "volumeAttributesClassName": name } })).await?;
        let completed = |claim: &Claim| {
            json!({ "status": {
                "modifyVolumeStatus": null,
                "currentVolumeAttributesClassName": name,
                "conditions": claim.conditions_with(&[], &SET),
            } })
        };
        let claim = resizer.write(claim, completed).await?;
        let claim_name = claim.name();
        let text = format!("external resizer modified volume {claim_name} with vac {name} successfully");
        self.context.publish(&claim, Severity::Normal, "VolumeModifySuccessful", text);
        Ok(Next::Done)
    }

    async fn call(&self, claim: &Claim, volume: &Volume, class: &AttributesClass) -> Result<()> {
        let context = &self.context;
        let Some(csi) = volume.source_of(&context.driver.name) else { return Ok(()) };
        let own = SecretReference::noted(volume, MODIFY_SECRET).filter(|own| !own.is_empty());
        let secret = own.as_ref().or(csi.controller_expand_secret_ref.as_deref());
        let mut parameters = class.parameters.clone();
        parameters.extend(names(claim, volume.name()));
        let request = v1::ControllerModifyVolumeRequest {
            volume_id: csi.volume_handle.to_string(),
            secrets: secrets::read(&context.resizer, secret).await?,
            mutable_parameters: parameters,
        };
        context.calls.call(request).await?;
        Ok(())
    }

    async fn failed(&self, claim: &Claim, target: &str, error: Error) -> Result<Next> {
        // Before the call, nothing has changed.
        let Error::Call(status) = &error else { return Err(error) };
        let outcome = outcome(Rpc::ControllerModifyVolume, status.code());
        self.failures.set(Key::of(claim), Failure::new(outcome, Some(status.code())));
        let state = if outcome == Outcome::Infeasible { INFEASIBLE } else { IN_PROGRESS };
        let (text, still) = match outcome {
            Outcome::Unknown => (
                format!("Modifying volume to {target:?} is still in progress."),
                format!(". Still modifying to VAC {target}"),
            ),
            _ => (format!("Modifying volume to {target:?} failed. Waiting for retry."), String::new()),
        };
        let mut refusal = condition(MODIFY_ERROR, status.message());
        refusal.reason = Some(code_name(status.code()).to_owned());
        let report = |claim: &Claim| {
            let new = [condition(MODIFYING, &text), refusal.clone()].map(|new| in_place(claim, new));
            json!({ "status": {
                "modifyVolumeStatus": { "status": state },
                "conditions": claim.conditions_with(&new, &[]),
            } })
        };
        self.context.resizer.write(claim, report).await?;
        self.context.publish(claim, Severity::Warning, "VolumeModifyFailed", format!("{error}{still}"));
        Ok(Next::Again)
    }
}

/// The condition, probed now; its transition is the older one's if only its text differs.
fn in_place(claim: &Claim, mut new: PersistentVolumeClaimCondition) -> PersistentVolumeClaimCondition {
    new.last_probe_time.clone_from(&new.last_transition_time);
    let is_same =
        |before: &&PersistentVolumeClaimCondition| before.reason == new.reason && before.status == new.status;
    if let Some(before) = claim.condition(&new.type_).filter(is_same) {
        new.last_transition_time.clone_from(&before.last_transition_time);
    }
    new
}
