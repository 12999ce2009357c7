//! The comparison of pods and attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_core::kubernetes::FUSE_POD_KEY;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tokio::time::sleep;

use super::owner::{Owner, users};
use super::pod::Use;
use super::{Class, FusePods, NODE, annotation, has_ended};
use crate::error::Result;
use crate::request::send;

/// Between two looks at all pods and attachments.
const SWEEP: Duration = Duration::from_secs(60);

impl FusePods {
    /// Makes pods and attachments agree: a pod without an attachment is deleted, and an attachment whose pod was evicted
    /// gets another one. A VolumeAttachment exists before its pod, so a pod without one is never needed.
    ///
    /// A pod or container that has ended while its volume is attached, for example over its memory limit, becomes an
    /// event of the claim and of the pods that use it, `FusePodEnded`, with the reason and the end of its log.
    ///
    /// # Errors
    /// Those of the API.
    pub async fn sweep(&self) -> Result<()> {
        let pods = self.list().await?;
        let attachments = self.attachments().await?;
        let volumes = self.volumes().await?;
        // The volume of an attachment can be unknown: its PersistentVolume can be deleted first.
        let in_use: BTreeSet<&str> = attachments.iter().filter_map(attached_pod).collect();
        let wanted = wanted(&attachments, &volumes);
        let claims_of = |pod| Some((pod, wanted.get(&place_of(pod)?)?.claims.as_slice()));
        self.ends.report(pods.iter().filter_map(claims_of)).await;
        let mut found = BTreeSet::new();
        // What fails for one pod, fails for that one only.
        let mut done = Ok(());
        for pod in &pods {
            let name = pod.name_any();
            let is_in_use = in_use.contains(name.as_str());
            let place = place_of(pod).filter(|place| wanted.contains_key(place));
            if place.is_none() && !is_in_use {
                if pod.metadata.deletion_timestamp.is_none() {
                    tracing::info!(pod = name, "deleting the pod of a volume that is not attached");
                    done = done.and(self.delete(pod, None).await);
                }
            } else if has_ended(pod) {
                done = done.and(self.delete(pod, Some(0)).await);
            } else {
                if let Some(place) = place {
                    let joined: BTreeSet<&str> = users(pod).map(|(_, volume)| volume).collect();
                    let missing = wanted[&place].attached.users.difference(&joined).copied();
                    done = done.and(self.join(&name, place.1, missing).await);
                }
                found.insert(name);
            }
        }
        for (&(node, owner), wanted) in &wanted {
            for name in wanted.pods.iter().filter(|name| !found.contains(**name)) {
                done = done.and(self.make_again(name, node, owner, &wanted.attached).await);
            }
        }
        done
    }

    async fn make_again(&self, name: &str, node: &str, owner: Owner<'_>, attached: &Use<'_>) -> Result<()> {
        if self.node(node).await?.is_none() {
            return Ok(());
        }
        tracing::info!(node, volumes = ?attached.users, "making another pod for attached volumes");
        self.create(name, node, owner, attached).await
    }

    /// Sweeps once a minute, as long as this process runs: for the leader among several controllers.
    pub async fn run(&self) {
        loop {
            if let Err(error) = self.sweep().await {
                tracing::warn!(
                    "the pods of FUSE programs could not be compared with the attachments: {error}"
                );
            }
            sleep(SWEEP).await;
        }
    }

    /// The attachments of the driver's volumes.
    pub(super) async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let attachments = send("list volumeattachments", attachments.list(&ListParams::default())).await?;
        Ok(attachments.items.into_iter().filter(|one| one.spec.attacher == self.driver).collect())
    }

    /// The driver's volumes, by the names of their PersistentVolumes.
    pub(super) async fn volumes(&self) -> Result<BTreeMap<String, Volume>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volumes = send("list persistentvolumes", volumes.list(&ListParams::default())).await?;
        let of_driver = |volume: PersistentVolume| {
            let spec = volume.spec?;
            let source = spec.csi.filter(|source| source.driver == self.driver)?;
            let attributes = source.volume_attributes.unwrap_or_default();
            let class = self.class_of(|key| attributes.get(key).map(String::as_str));
            Some((
                volume.metadata.name?,
                Volume { handle: source.volume_handle, claim: spec.claim_ref, class },
            ))
        };
        Ok(volumes.items.into_iter().filter_map(of_driver).collect())
    }
}

/// What a PersistentVolume says about a volume.
pub(super) struct Volume {
    handle: String,
    claim: Option<ObjectReference>,
    class: Class,
}

/// A pod that is wanted: its volumes are, or are to be, attached to its node.
#[derive(Default)]
pub(super) struct Wanted<'v> {
    /// Of the volumes that are attached, and stay so.
    pub(super) attached: Use<'v>,
    /// The names that the attachments have for it. A node that was made again, or a later version of the driver, can
    /// have another one for the volumes that are attached from then on.
    pods: BTreeSet<&'v str>,
    claims: Vec<&'v ObjectReference>,
}

/// The wanted pods, by their nodes and owners.
pub(super) fn wanted<'v>(
    attachments: &'v [VolumeAttachment],
    volumes: &'v BTreeMap<String, Volume>,
) -> BTreeMap<(&'v str, Owner<'v>), Wanted<'v>> {
    let mut all = BTreeMap::<_, Wanted<'v>>::new();
    for one in attachments {
        let name = one.spec.source.persistent_volume_name.as_ref();
        let Some(volume) = name.and_then(|name| volumes.get(name)) else { continue };
        let wanted =
            all.entry((one.spec.node_name.as_str(), volume.class.owner(&volume.handle))).or_default();
        wanted.claims.extend(&volume.claim);
        let is_attached = one.status.as_ref().is_some_and(|status| status.attached);
        if is_attached && one.metadata.deletion_timestamp.is_none() {
            wanted.attached.add(&volume.handle, &volume.class);
            wanted.pods.extend(attached_pod(one));
        }
    }
    all
}

/// The pod of an attached volume, as [`FusePods::publish`] named it in the publish context.
fn attached_pod(attachment: &VolumeAttachment) -> Option<&str> {
    let context = attachment.status.as_ref()?.attachment_metadata.as_ref()?;
    context.get(FUSE_POD_KEY).map(String::as_str)
}

/// The node and the owner of a pod.
fn place_of(pod: &Pod) -> Option<(&str, Owner<'_>)> {
    annotation(pod, NODE).zip(Owner::of(pod))
}
