//! Events of Kubernetes objects, as `kubectl describe` shows them.
//!
//! - `mod.rs`: the queue, and the task that writes
//! - `limits.rs`: what is written, counted on an earlier event, summarised or dropped
//! - `wire.rs`: the objects that are written

mod limits;
mod wire;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::error::Result;
use crate::request::send;
use limits::{Limits, Verdict};

/// How many events wait to be written. More are dropped.
const QUEUE: usize = 256;

/// Writes events of claims, volumes and pods, without delaying the caller.
///
/// ```
/// # fn report(client: kube::Client, claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim) {
/// use csi_kube::{Events, Severity};
/// let events = Events::new(client, "block.csi.example.org", "controller-0");
/// events.publish(claim, Severity::Warning, "PoolFull", "the pool fast has no 10 GiB left");
/// # }
/// ```
///
/// What a driver reports too often is limited, by the rules and numbers of client-go:
///
/// - The same event again is counted on the first one.
/// - More than ten different texts for one object and reason within ten minutes become one event, counted,
///   with the first of the further texts.
/// - One object gets 25 writes, and then one every five minutes. What is above that is dropped.
///
/// An event that can't be written is logged at DEBUG and forgotten: events are for people, and a driver must not
/// depend on them. Texts are visible to everybody who can read events in the namespace: no secrets.
///
/// Needs the rules [`rules::EVENTS`](crate::rules::EVENTS).
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Message>,
    _writer: Arc<AbortOnDropHandle<()>>,
}

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Information.
    Normal,
    /// Something might need a person.
    Warning,
}

#[derive(Debug, Clone)]
struct Report {
    regarding: ObjectReference,
    severity: Severity,
    reason: String,
    note: String,
}

enum Message {
    Report(Box<Report>),
    Flush(oneshot::Sender<()>),
}

impl Events {
    /// Starts the writer. `driver` and `instance` (the pod or the node) are shown as the events' source.
    pub fn new(client: Client, driver: impl Into<String>, instance: impl Into<String>) -> Self {
        let (queue, mut messages) = mpsc::channel(QUEUE);
        let mut writer =
            Writer { client, driver: driver.into(), instance: instance.into(), limits: Limits::default() };
        let task = tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                match message {
                    Message::Report(report) => writer.write(&report).await,
                    Message::Flush(done) => drop(done.send(())),
                }
            }
        });
        Self { queue, _writer: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// Writes an event of this object soon. `reason` is one word in UpperCamelCase (`PoolFull`) of at most
    /// 128 bytes; `note` is for people, and cut after 1024 bytes.
    pub fn publish(
        &self,
        object: &impl Resource<DynamicType = ()>,
        severity: Severity,
        reason: impl Into<String>,
        note: impl Into<String>,
    ) {
        let reason = reason.into();
        let note = note.into();
        let report = Report { regarding: object.object_ref(&()), severity, reason, note };
        if self.queue.try_send(Message::Report(Box::new(report))).is_err() {
            tracing::debug!("an event is dropped: too many wait to be written");
        }
    }

    /// Waits until everything published before is written or dropped: before the process ends.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.queue.send(Message::Flush(done)).await.is_ok() {
            let _ = written.await;
        }
    }
}

struct Writer {
    client: Client,
    driver: String,
    instance: String,
    limits: Limits,
}

impl Writer {
    async fn write(&mut self, report: &Report) {
        let now = Instant::now();
        let (key, result) = match self.limits.judge(report, now) {
            Verdict::Drop => {
                tracing::debug!(reason = report.reason, "an event is dropped: its object has too many");
                return;
            }
            Verdict::Count { key, event, count } => {
                let counted = self.count(report, &event, count).await;
                match counted {
                    // The API server deletes events after an hour.
                    Err(ref error) if error.is_missing() => (key, self.create(report, false).await),
                    counted => (key, counted.map(|()| event)),
                }
            }
            Verdict::Create { key, is_summary } => (key, self.create(report, is_summary).await),
        };
        match result {
            Ok(event) => self.limits.written(key, event, now),
            Err(error) => tracing::debug!("an event is lost: {error}"),
        }
    }

    fn api(&self, report: &Report) -> Api<Event> {
        Api::namespaced(self.client.clone(), wire::namespace(&report.regarding))
    }

    async fn create(&self, report: &Report, is_summary: bool) -> Result<String> {
        let event = wire::event(report, &self.driver, &self.instance, is_summary);
        let params = PostParams::default();
        send("create event", self.api(report).create(&params, &event)).await?;
        Ok(event.metadata.name.unwrap_or_default())
    }

    async fn count(&self, report: &Report, event: &str, count: i32) -> Result<()> {
        let patch = Patch::Merge(wire::series(count));
        let params = PatchParams::default();
        send("count event", self.api(report).patch(event, &params, &patch)).await.map(drop)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}
