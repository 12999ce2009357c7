//! One step of a content. All is in its object, so that each step can be repeated after a crash.

use std::sync::Arc;
use std::time::Duration;

use csi_kube::Severity;
use csi_proto::Rpc;
use serde_json::{Map, Value, json};

use super::{Content, Parameters, status_patch};
use crate::calls::{Outcome, outcome};
use crate::context::Context;
use crate::error::{Error, Result, ensure, invalid};
use crate::keys::RESERVED;
use crate::objects::{SecretReference, now};
use crate::queue::Next;
use crate::secrets;

/// The secrets that a class can name.
const PREFIXES: [&str; 4] =
    ["snapshotter-", "snapshotter-list-", "group-snapshotter-", "group-snapshotter-get-"];

pub(super) async fn step<C: Content>(context: Arc<Context>, content: Arc<C>) -> Result<Next> {
    if !is_own(&context, &*content) {
        return Ok(Next::Done);
    }
    let names = C::NAMES;
    if is_released(&*content) {
        delete(&context, &*content).await?;
        return Ok(Next::Done);
    }
    if content.is_ready() {
        // A crash can have left the annotation.
        let finished = mark(&context, (*content).clone(), None).await?;
        return Ok(after(&finished));
    }
    let is_new = content.spec().source.has_volumes() && content.status().is_none() && !content.is_member();
    let (reason, text) = if is_new {
        (names.creation_failed, format!("Failed to create {}", names.noun))
    } else {
        (names.check_failed, format!("Failed to check and update {} content", names.noun))
    };
    match advance(&context, (*content).clone()).await {
        Ok(content) if content.is_ready() => Ok(after(&content)),
        Ok(_) => Ok(Next::Again),
        Err(error) => {
            report(&context, &*content, reason, format!("{text}: {error}")).await;
            Err(error)
        }
    }
}

/// A content that was deleted during its creation has another step; no change says so.
fn after<C: Content>(content: &C) -> Next {
    if is_released(content) { Next::After(Duration::ZERO) } else { Next::Done }
}

/// Whether it is to be deleted now. One that somebody deletes by hand waits until its owner is deleted too.
fn is_released<C: Content>(content: &C) -> bool {
    let names = C::NAMES;
    let is_unbound = content.is_preprovisioned() && content.spec().volume_snapshot_ref.uid.is_empty();
    let is_being_created = content.annotation(names.being_created).is_some();
    let is_left = !is_being_created && content.annotation(names.being_deleted).is_some();
    content.is_deleting() && (is_unbound || is_left)
}

fn is_own<C: Content>(context: &Context, content: &C) -> bool {
    let driver = &context.driver.name;
    let spec = content.spec();
    let class = spec.volume_snapshot_class_name.as_deref();
    let class = class.and_then(|class| C::class_parameters(&context.caches, class));
    (content.is_preprovisioned() || spec.source.has_volumes())
        && spec.driver == *driver
        && class.is_none_or(|(class_driver, _)| class_driver == *driver)
}

async fn advance<C: Content>(context: &Context, content: C) -> Result<C> {
    if content.is_preprovisioned() || (content.has_group() && content.handle().is_some()) {
        let secrets = look_up_secrets(context, &content).await?;
        let found = content.look_up(context, secrets).await?;
        return write_found(context, content, found).await;
    }
    if content.is_member() {
        return Ok(content);
    }
    create(context, content).await
}

async fn create<C: Content>(context: &Context, content: C) -> Result<C> {
    // What is wrong is found before the annotation, which would keep a deleted content.
    let spec = content.spec();
    let parameters = class_parameters(context, &content)?;
    let parameters = parameters.ok_or_else(|| invalid!("it has no {}", C::NAMES.class))?;
    ensure!(!spec.volume_snapshot_ref.uid.is_empty(), "it is not bound to a {}", C::NAMES.noun);
    let is_secret = |key: &String| PREFIXES.iter().any(|prefix| secrets::keys(prefix).contains(key));
    let mut parameters = secrets::without_reserved(&parameters, is_secret)?;
    let owner = &spec.volume_snapshot_ref;
    let kind = C::NAMES.owner;
    parameters.insert(format!("{RESERVED}{kind}/name"), owner.name.to_string());
    parameters.insert(format!("{RESERVED}{kind}/namespace"), owner.namespace.to_string());
    parameters.insert(format!("{RESERVED}{kind}content/name"), content.name().to_owned());
    let secrets = own_secrets(context, &content).await?;
    let content = mark(context, content, Some("yes")).await?;
    let found = match content.create(context, parameters, secrets).await {
        Ok(found) => found,
        Err(error) => {
            let outcome = error.code().map(|code| outcome(Rpc::CreateSnapshot, code));
            if outcome.is_some_and(|outcome| outcome != Outcome::Unknown) {
                mark(context, content.clone(), None).await?;
            }
            let error = error.to_string();
            let volumes = content.spec().source.text();
            return Err(invalid!("failed to take {} of the {volumes}: {error:?}", C::NAMES.noun));
        }
    };
    let content = write_found(context, content, found).await?;
    mark(context, content, None).await
}

/// The parameters of the content's class, if it names one.
fn class_parameters<C: Content>(context: &Context, content: &C) -> Result<Option<Parameters>> {
    let Some(class) = &content.spec().volume_snapshot_class_name else { return Ok(None) };
    let found = C::class_parameters(&context.caches, class);
    let (_, parameters) = found.ok_or_else(|| invalid!("{} {class:?} not found", C::NAMES.class))?;
    Ok(Some(parameters))
}

/// The secret that the snapshot-controller noted on the content.
async fn own_secrets<C: Content>(context: &Context, content: &C) -> Result<Parameters> {
    let reference = SecretReference::noted(content, C::NAMES.secret);
    secrets::read(&context.snapshotter, reference.as_ref()).await
}

async fn look_up_secrets<C: Content>(context: &Context, content: &C) -> Result<Parameters> {
    if content.has_group() {
        return own_secrets(context, content).await;
    }
    let class = class_parameters(context, content)?.unwrap_or_default();
    // No user chooses the content's name.
    let token = format!("{}content.name", C::NAMES.owner);
    let by_content = |one: &str| (one == token).then(|| content.name().to_owned());
    let keys = secrets::keys(C::NAMES.look_up_secret);
    let reference = secrets::filled(&class, &keys, by_content, by_content)?;
    secrets::read(&context.snapshotter, reference.as_ref()).await
}

/// Writes the annotation being-created, or removes it: what the driver did is known.
async fn mark<C: Content>(context: &Context, content: C, being_created: Option<&str>) -> Result<C> {
    if content.annotation(C::NAMES.being_created) == being_created {
        return Ok(content);
    }
    let annotations = json!({ C::NAMES.being_created: being_created });
    let patch = json!({ "metadata": { "annotations": annotations } });
    context.snapshotter.patch(&content, patch).await
}

async fn write_found<C: Content>(context: &Context, content: C, found: Value) -> Result<C> {
    match status_patch(content.status(), found) {
        Some(status) => write_status(context, &content, status).await,
        None => Ok(content),
    }
}

async fn write_status<C: Content>(context: &Context, content: &C, status: Value) -> Result<C> {
    context.snapshotter.patch(content, json!({ "status": status })).await
}

/// Writes an error into the status and as an event, unless it is there.
async fn report<C: Content>(context: &Context, content: &C, reason: &str, message: String) {
    if content.status().is_some_and(|status| status["error"]["message"] == *message) {
        return;
    }
    let error = json!({ "message": message, "time": now() });
    let status = json!({ "readyToUse": false, "error": error });
    if let Err(unwritten) = write_status(context, content, status).await {
        tracing::info!("the error of a snapshot is not written: {unwritten}");
    }
    context.publish(content, Severity::Warning, reason, message);
}

async fn delete<C: Content>(context: &Context, content: &C) -> Result<()> {
    let has_handle = content.status_text(C::NAMES.handle).is_some();
    // A member is deleted with its group.
    let is_deleted = content.spec().deletion_policy == "Delete" && has_handle && !content.has_group();
    let cleared = if is_deleted { Some(delete_snapshot(context, content).await?) } else { None };
    let content = cleared.as_ref().unwrap_or(content);
    let removing = |content: &C| Ok(content.removing_finalizer(C::NAMES.finalizer));
    context.snapshotter.edit(content, removing).await.map(drop)
}

/// Deletes the snapshot, and its handle from the status.
async fn delete_snapshot<C: Content>(context: &Context, content: &C) -> Result<C> {
    let noun = C::NAMES.noun;
    let failed = |text: &str, error: Error| {
        context.publish(content, Severity::Warning, C::NAMES.deletion_failed, text);
        error
    };
    let secrets = own_secrets(context, content).await;
    let secrets = secrets.map_err(|error| failed("Failed to get snapshot credentials", error))?;
    let deleted = content.delete(context, secrets).await;
    deleted.map_err(|error| failed(&format!("Failed to delete {noun}"), error))?;
    let fields = C::NAMES.cleared.iter().map(|field| ((*field).to_owned(), Value::Null));
    let cleared = write_status(context, content, Value::Object(fields.collect::<Map<_, _>>())).await;
    cleared.map_err(|error| failed("Failed to clear content status", error))
}
