use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::VolumeNodeAffinity;
use serde::{Deserialize, Serialize};

use super::{Kind, Metadata, OfStorage, Pairs, Pool, Reference, Text, kind};
use crate::keys::{MODIFY_SECRET, PRE_RESIZE_CAPACITY, PROVISIONED_BY};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Volume {
    pub(crate) metadata: Metadata,
    pub(crate) spec: VolumeSpec,
    pub(crate) status: VolumeStatus,
}

kind!(Volume, "PersistentVolume", "", "persistentvolumes", compact);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSpec {
    pub(crate) access_modes: Arc<[Text]>,
    pub(crate) capacity: OfStorage,
    pub(crate) claim_ref: Option<Reference>,
    /// `None` for a volume of another kind than CSI.
    pub(crate) csi: Option<CsiSource>,
    pub(crate) mount_options: Arc<[Text]>,
    node_affinity: Option<Box<VolumeNodeAffinity>>,
    pub(crate) persistent_volume_reclaim_policy: Text,
    pub(crate) storage_class_name: Text,
    pub(crate) volume_mode: Option<Text>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CsiSource {
    pub(crate) driver: Text,
    pub(crate) volume_handle: Box<str>,
    pub(crate) read_only: bool,
    pub(crate) fs_type: Text,
    pub(crate) volume_attributes: Pairs,
    pub(crate) controller_publish_secret_ref: Option<Box<SecretReference>>,
    pub(crate) controller_expand_secret_ref: Option<Box<SecretReference>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SecretReference {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

impl SecretReference {
    /// The secret that these two annotations of an object name.
    pub(crate) fn noted(object: &impl Kind, [name, namespace]: [&str; 2]) -> Option<Self> {
        let text = |key| object.annotation(key).map(str::to_owned);
        Some(Self { name: text(name)?, namespace: text(namespace)? })
    }

    /// Whether a half is missing.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_empty() || self.namespace.is_empty()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeStatus {
    pub(crate) phase: Text,
}

impl Volume {
    /// Drops what says nothing, or is read right before a deletion, and shares what other volumes have too.
    fn compact(&mut self, pool: &mut Pool) {
        let spec = &mut self.spec;
        spec.node_affinity = None;
        let driver = spec.csi.as_ref().map(|csi| Arc::clone(&csi.driver)).unwrap_or_default();
        self.metadata.keep_annotations(|key, value| match key {
            // Without it, the volume is its driver's.
            PROVISIONED_BY => *value != *driver,
            key => (key == PRE_RESIZE_CAPACITY || MODIFY_SECRET.contains(&key)) && !value.is_empty(),
        });
        pool.share_list(&mut spec.access_modes);
        pool.share_list(&mut spec.mount_options);
        pool.share_some(&mut spec.capacity.storage);
        pool.share(&mut spec.persistent_volume_reclaim_policy);
        pool.share(&mut spec.storage_class_name);
        pool.share(&mut self.status.phase);
        pool.share_some(&mut spec.volume_mode);
        spec.claim_ref.iter_mut().for_each(|claim| pool.share(&mut claim.namespace));
        if let Some(csi) = &mut spec.csi {
            pool.share(&mut csi.driver);
            pool.share(&mut csi.fs_type);
            csi.volume_attributes.share(pool);
        }
    }

    /// The CSI source, if the volume is this driver's.
    pub(crate) fn source_of(&self, driver: &str) -> Option<&CsiSource> {
        self.spec.csi.as_ref().filter(|csi| *csi.driver == *driver)
    }

    /// Whether it is this volume of the driver.
    pub(crate) fn has_handle(&self, driver: &str, handle: &str) -> bool {
        self.source_of(driver).is_some_and(|csi| *csi.volume_handle == *handle)
    }

    pub(crate) fn is_in(&self, phase: &str) -> bool {
        *self.status.phase == *phase
    }

    /// Whether the volume is for the claim with this uid.
    pub(crate) fn is_of(&self, uid: &str) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|owner| *owner.uid == *uid)
    }

    /// The segments that can reach the volume, as this crate writes them. The cache does not have them.
    pub(crate) fn segments(&self) -> Vec<BTreeMap<String, String>> {
        let required = self.spec.node_affinity.iter().flat_map(|affinity| &affinity.required);
        let terms = required.flat_map(|selector| &selector.node_selector_terms);
        let mut segments = Vec::new();
        for term in terms {
            let labels = term.match_expressions.iter().flatten();
            let label =
                labels.filter_map(|one| Some((one.key.clone(), one.values.as_ref()?.first()?.clone())));
            segments.push(label.collect());
        }
        segments
    }

    pub(crate) fn capacity(&self) -> Option<u64> {
        self.spec.capacity.bytes()
    }

    pub(crate) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }
}
