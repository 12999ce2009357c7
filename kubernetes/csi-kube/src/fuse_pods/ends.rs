//! Why a pod, or the container in it, has ended: an event of its volumes' claims, and of the pods that use them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ObjectReference, PersistentVolumeClaim, Pod, PodStatus, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt as _};

use super::{NODE, annotation};
use crate::error::Result;
use crate::events::{Events, Severity};
use crate::request::send;

const REASON: &str = "FusePodEnded";
/// How many of the last characters of a log an event has: a note has 1024 bytes, and is cut at its end.
const LOG: usize = 600;
/// The API server deletes an event after an hour. A controller that starts does not repeat older ones.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// The ends that this controller has reported. Clones report each end once.
#[derive(Clone)]
pub(super) struct Ends {
    client: Client,
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
    pub(super) fn new(client: Client, events: Events) -> Self {
        Self { client, events, reported: Arc::default() }
    }

    /// Reports what has ended among all pods of attached volumes, each with its volumes' claims.
    pub(super) async fn report<'a>(&self, pods: impl Iterator<Item = (&'a Pod, &'a [&'a ObjectReference])>) {
        for (pod, claims, note) in self.news(pods) {
            let node = annotation(pod, NODE).unwrap_or_default();
            for claim in claims {
                let metadata = ObjectMeta {
                    name: claim.name.clone(),
                    namespace: claim.namespace.clone(),
                    uid: claim.uid.clone(),
                    ..ObjectMeta::default()
                };
                let object = PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() };
                self.events.publish(&object, Severity::Warning, REASON, note.clone());
                match self.users(node, claim).await {
                    Ok(users) => users
                        .iter()
                        .for_each(|user| self.events.publish(user, Severity::Warning, REASON, note.clone())),
                    Err(error) => tracing::debug!("an event of the pods is lost: {error}"),
                }
            }
        }
    }

    /// The ends that were not reported yet.
    fn news<'a>(
        &self,
        pods: impl Iterator<Item = (&'a Pod, &'a [&'a ObjectReference])>,
    ) -> Vec<(&'a Pod, &'a [&'a ObjectReference], String)> {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = BTreeMap::new();
        let mut news = Vec::new();
        for (pod, claims) in pods {
            let Some(end) = end_of(pod) else { continue };
            let uid = pod.uid().unwrap_or_default();
            if reported.get(&uid) != Some(&end) {
                news.push((pod, claims, end.note.clone()));
            }
            found.insert(uid, end);
        }
        *reported = found;
        news
    }

    /// The pods of the node that use the claim.
    async fn users(&self, node: &str, claim: &ObjectReference) -> Result<Vec<Pod>> {
        let pods: Api<Pod> =
            Api::namespaced(self.client.clone(), claim.namespace.as_deref().unwrap_or_default());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut found = send("list the pods of a claim", pods.list(&of_node)).await?.items;
        found.retain(|pod| {
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.map(|volume| claim_of(pod, volume)).any(|name| name.is_some() && name == claim.name)
        });
        Ok(found)
    }
}

/// The name of a volume's claim: one that exists, or the pod's own (a generic ephemeral volume).
fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
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
