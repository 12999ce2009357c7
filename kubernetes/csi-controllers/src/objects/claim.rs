use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ModifyVolumeStatus, PersistentVolumeClaimCondition, TypedObjectReference, VolumeHealthCondition,
    VolumeHealthStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Kind as _, Metadata, OfStorage, Pool, Text, kind};
use crate::keys::NODE_EXPANSION_NOT_REQUIRED;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Claim {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ClaimSpec,
    pub(crate) status: ClaimStatus,
}

kind!(Claim, "PersistentVolumeClaim", "", "persistentvolumeclaims", compact);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Arc<[Text]>,
    pub(crate) resources: Resources,
    /// Empty until the claim is bound.
    pub(crate) volume_name: Box<str>,
    pub(crate) storage_class_name: Option<Text>,
    pub(crate) volume_mode: Option<Text>,
    pub(crate) volume_attributes_class_name: Option<Text>,
    pub(crate) data_source: Option<Box<TypedObjectReference>>,
    pub(crate) data_source_ref: Option<Box<TypedObjectReference>>,
    /// A claim with one takes no new volume.
    pub(crate) selector: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) requests: OfStorage,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: Text,
    pub(crate) capacity: OfStorage,
    pub(crate) conditions: Vec<PersistentVolumeClaimCondition>,
    pub(crate) allocated_resources: OfStorage,
    pub(crate) allocated_resource_statuses: OfStorage,
    pub(crate) current_volume_attributes_class_name: Option<Text>,
    pub(crate) modify_volume_status: Option<Box<ModifyVolumeStatus>>,
    pub(crate) health_status: Option<Box<VolumeHealthStatus>>,
}

/// A condition that is true, since now.
pub(crate) fn condition(kind: &str, message: &str) -> PersistentVolumeClaimCondition {
    PersistentVolumeClaimCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(Timestamp::now())),
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        ..Default::default()
    }
}

impl Claim {
    /// Drops what is of no use for a claim that has its volume, and shares what other claims have too.
    fn compact(&mut self, pool: &mut Pool) {
        let is_bound = !self.spec.volume_name.is_empty();
        self.metadata.keep_annotations(|key, _| !is_bound || key == NODE_EXPANSION_NOT_REQUIRED);
        let spec = &mut self.spec;
        let status = &mut self.status;
        pool.share_list(&mut spec.access_modes);
        pool.share(&mut status.phase);
        pool.share_some(&mut spec.resources.requests.storage);
        pool.share_some(&mut spec.storage_class_name);
        pool.share_some(&mut spec.volume_mode);
        pool.share_some(&mut spec.volume_attributes_class_name);
        pool.share_some(&mut status.capacity.storage);
        pool.share_some(&mut status.allocated_resources.storage);
        pool.share_some(&mut status.allocated_resource_statuses.storage);
        pool.share_some(&mut status.current_volume_attributes_class_name);
    }

    /// What the controller knows of the volume's health; without conditions it is well.
    pub(crate) fn health(&self) -> &[VolumeHealthCondition] {
        let status = self.status.health_status.as_ref();
        status.and_then(|status| status.health_conditions.as_deref()).unwrap_or_default()
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&PersistentVolumeClaimCondition> {
        self.status.conditions.iter().find(|one| one.type_ == kind)
    }

    /// The conditions, with the new ones in the place of older ones of their types, and without the others of these
    /// types.
    pub(crate) fn conditions_with(
        &self,
        new: &[PersistentVolumeClaimCondition],
        dropped: &[&str],
    ) -> Vec<PersistentVolumeClaimCondition> {
        let mut merged = self.status.conditions.clone();
        let is_new = |kind: &str| new.iter().any(|new| new.type_ == kind);
        merged.retain(|old| is_new(&old.type_) || !dropped.contains(&old.type_.as_str()));
        for condition in new {
            match merged.iter_mut().find(|old| old.type_ == condition.type_) {
                Some(old) => old.clone_from(condition),
                None => merged.push(condition.clone()),
            }
        }
        merged
    }

    /// The requested bytes.
    pub(crate) fn request(&self) -> Option<u64> {
        self.spec.resources.requests.bytes()
    }

    /// The class by its old annotation, which comes first, or by its field.
    pub(crate) fn class_name(&self) -> Option<&str> {
        let annotation = self.annotation("volume.beta.kubernetes.io/storage-class");
        annotation.or(self.spec.storage_class_name.as_deref()).filter(|name| !name.is_empty())
    }

    pub(crate) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// Whether somebody still wants a volume for it.
    pub(crate) fn waits_for_volume(&self) -> bool {
        self.spec.volume_name.is_empty() && !self.is_deleting()
    }

    pub(crate) fn is_bound(&self) -> bool {
        *self.status.phase == *"Bound"
    }
}
