//! VolumeSnapshotContents and VolumeGroupSnapshotContents: what the snapshot sidecar does. The cluster's
//! snapshot-controller makes them and binds them.
//!
//! The annotation being-created is written before CreateSnapshot, and removed once the driver's answer is known. A
//! content that has it is not deleted: after a crash CreateSnapshot is repeated first, since it has the handle of what
//! is to be deleted.

mod content;
mod group;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::caches::{Cached, Caches};
use crate::context::Context;
use crate::error::Result;
use crate::keys::GROUP_OF_MEMBER;
use crate::objects::{ContentSpec, GroupContent, Key, SnapshotContent};

const WORKERS: usize = 10;
/// After this time all contents are looked at again.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// The names of one kind, in texts and in objects.
struct Names {
    /// In the metrics.
    queue: &'static str,
    noun: &'static str,
    /// The object of the user, as parameters and templates call it.
    owner: &'static str,
    /// The class, as Kubernetes calls it when it is not found.
    class: &'static str,
    creation_failed: &'static str,
    check_failed: &'static str,
    deletion_failed: &'static str,
    being_created: &'static str,
    being_deleted: &'static str,
    finalizer: &'static str,
    secret: [&'static str; 2],
    /// The secret of a class for the call that looks a snapshot up.
    look_up_secret: &'static str,
    /// The field of the status with the driver's name of the snapshot.
    handle: &'static str,
    /// The fields of the status that are removed after the deletion.
    cleared: &'static [&'static str],
}

/// Parameters or secrets of a call.
type Parameters = BTreeMap<String, String>;

/// A kind of content.
trait Content: Cached {
    const NAMES: Names;

    /// The driver and the parameters of a class.
    fn class_parameters(caches: &Caches, class: &str) -> Option<(String, Parameters)>;
    fn spec(&self) -> &ContentSpec;
    fn status(&self) -> Option<&Value>;
    /// Whether it was created with a group.
    fn has_group(&self) -> bool {
        false
    }

    /// Creates the snapshot; returns its status.
    fn create(
        &self,
        context: &Context,
        parameters: Parameters,
        secrets: Parameters,
    ) -> impl Future<Output = Result<Value>> + Send;
    /// Looks the snapshot up; returns its status.
    fn look_up(&self, context: &Context, secrets: Parameters) -> impl Future<Output = Result<Value>> + Send;
    fn delete(&self, context: &Context, secrets: Parameters) -> impl Future<Output = Result<()>> + Send;

    fn status_text(&self, field: &str) -> Option<&str> {
        self.status()?[field].as_str()
    }

    /// The driver's name of the snapshot.
    fn handle(&self) -> Option<&str> {
        self.status_text(Self::NAMES.handle).or(self.spec().source.handle())
    }

    fn is_ready(&self) -> bool {
        self.status().is_some_and(|status| status["readyToUse"] == true)
    }

    /// Whether it is created and deleted with its group.
    fn is_member(&self) -> bool {
        self.annotation(GROUP_OF_MEMBER).is_some()
    }

    /// Whether somebody made the object for a snapshot that existed.
    fn is_preprovisioned(&self) -> bool {
        self.spec().source.handle().is_some()
    }
}

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    start_kind::<SnapshotContent>(context, tasks);
    if context.driver.has_group_snapshots {
        start_kind::<GroupContent>(context, tasks);
    }
}

fn start_kind<C: Content>(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let context = Arc::clone(context);
    let part = Arc::clone(&context);
    let queue = context.work_on(tasks, C::NAMES.queue, WORKERS, part, step::step::<C>, |_, _| {});
    let driver = context.driver.name.clone();
    let matters = move |before: Option<&C>, now: &C| now.spec().driver == driver && has_step(before, now);
    C::cache(&context.caches).add_changed(&queue, matters);
    tasks.spawn(async move {
        loop {
            sleep(RESYNC).await;
            for content in C::cache(&context.caches).all() {
                queue.add(Key::of(&*content));
            }
        }
    });
}

/// Own writes have no step, or failures would be repeated without a pause. That a snapshot becomes ready has one:
/// meanwhile it can have been deleted.
fn has_step<C: Content>(before: Option<&C>, now: &C) -> bool {
    let Some(before) = before else { return true };
    let annotations = |content: &C| {
        let mut annotations = content.metadata().annotations.to_map();
        annotations.remove(C::NAMES.being_created);
        annotations
    };
    (now.is_ready() && !before.is_ready())
        || before.uid() != now.uid()
        || before.is_deleting() != now.is_deleting()
        || annotations(before) != annotations(now)
        || before.spec() != now.spec()
}

/// The patch of a status that has these fields to the found one: handle, size and times stay as they were first.
/// `None` if nothing changes.
fn status_patch(before: Option<&Value>, found: Value) -> Option<Value> {
    let Some(before) = before else { return Some(found) };
    let Value::Object(found) = found else { return None };
    let mut patch = Map::new();
    for (field, value) in found {
        if field == "readyToUse" {
            if before[&field] == value {
                continue;
            }
            if value == true && before.get("error").is_some() {
                patch.insert("error".to_owned(), Value::Null);
            }
            patch.insert(field, value);
        } else if before.get(&field).is_none() {
            patch.insert(field, value);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A time of the driver in nanoseconds since 1970; without one, now.
fn nanoseconds(time: Option<&prost_types::Timestamp>) -> i64 {
    let known = time.filter(|time| (time.seconds, time.nanos) != (0, 0));
    let nanoseconds = known.map(|time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos));
    let nanoseconds = nanoseconds.unwrap_or_else(|| Timestamp::now().as_nanosecond());
    i64::try_from(nanoseconds).unwrap_or(i64::MAX)
}
