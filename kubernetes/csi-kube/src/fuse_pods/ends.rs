//! Why a pod, or the container in it, has ended: an event of its volumes' claims.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ObjectReference, PersistentVolumeClaim, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use crate::events::{Events, Severity};

const REASON: &str = "FusePodEnded";
/// How many of the last characters of a log an event has: a note has 1024 bytes, and is cut at its end.
const LOG: usize = 600;
/// The API server deletes an event after an hour. A controller that starts does not repeat older ones.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// The ends that this controller has reported. Clones report each end once.
#[derive(Clone)]
pub(super) struct Ends {
    events: Events,
    /// By the UID of the pod.
    reported: Arc<Mutex<BTreeMap<String, End>>>,
}

#[derive(Clone, PartialEq, Eq)]
struct End {
    note: String,
    /// A container can end twice for the same reason.
    finished: Option<Time>,
}

impl Ends {
    pub(super) fn new(events: Events) -> Self {
        Self { events, reported: Arc::default() }
    }

    /// Reports what has ended among all pods of attached volumes, each with its volumes' claims.
    pub(super) fn report<'a>(&self, pods: impl Iterator<Item = (&'a Pod, &'a [&'a ObjectReference])>) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = BTreeMap::new();
        for (pod, claims) in pods {
            let Some(end) = end_of(pod) else { continue };
            let uid = pod.uid().unwrap_or_default();
            let is_new = reported.get(&uid) != Some(&end);
            for claim in claims.iter().filter(|_| is_new) {
                let metadata = ObjectMeta {
                    name: claim.name.clone(),
                    namespace: claim.namespace.clone(),
                    uid: claim.uid.clone(),
                    ..ObjectMeta::default()
                };
                let claim = PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() };
                self.events.publish(&claim, Severity::Warning, REASON, end.note.clone());
            }
            found.insert(uid, end);
        }
        *reported = found;
    }
}

/// The end of the pod, or the last end of its container. A pod that is being deleted ends as it is supposed to.
fn end_of(pod: &Pod) -> Option<End> {
    let status = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none())?;
    let container = status.container_statuses.iter().flatten().next();
    let states = container.map(|container| [&container.state, &container.last_state]);
    let terminated = states.into_iter().flatten().flatten().find_map(|state| state.terminated.as_ref());
    let finished = terminated.and_then(|terminated| terminated.finished_at.clone());
    if finished.as_ref().is_some_and(|finished| Timestamp::now().duration_since(finished.0) > RECENT) {
        return None;
    }
    let of_container = terminated.map(|terminated| container_end(pod, terminated));
    let place = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let what = if super::has_ended(pod) {
        let reasons: Vec<String> = pod_reason(status).into_iter().chain(of_container).collect();
        format!("the pod {place} has failed: {}. Another pod is made", reasons.join("; "))
    } else {
        format!("the container of the pod {place} has ended: {}. It is started again", of_container?)
    };
    let log = terminated.and_then(|one| one.message.as_deref()).map(log_end).unwrap_or_default();
    let note = format!(
        "{what}. It has the FUSE program of the volume: if that can't continue the mount, users get errors until the \
         volume is published again{log}"
    );
    Some(End { note, finished })
}

/// `Evicted: The node was low on resource: memory.`
fn pod_reason(status: &PodStatus) -> Option<String> {
    let reason = status.reason.as_ref()?;
    Some(match &status.message {
        Some(message) => format!("{reason}: {}", message.trim_end_matches(['.', ' '])),
        None => reason.clone(),
    })
}

/// `OOMKilled, exit code 137, memory limit 1Gi`
fn container_end(pod: &Pod, terminated: &ContainerStateTerminated) -> String {
    let reason = terminated.reason.as_deref().unwrap_or("Error");
    let text = format!("{reason}, exit code {}", terminated.exit_code);
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let resources = container.and_then(|container| container.resources.as_ref());
    match resources.and_then(|resources| resources.limits.as_ref()?.get("memory")) {
        Some(limit) if reason == "OOMKilled" => format!("{text}, memory limit {}", limit.0),
        _ => text,
    }
}

/// The last lines of a log, as one line. The mounter has hidden the secrets in them.
fn log_end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = lines.join(" | ");
    let more = text.chars().count().saturating_sub(LOG);
    let end: String = text.chars().skip(more).collect();
    if end.is_empty() { end } else { format!(". The end of its log: {end}") }
}
