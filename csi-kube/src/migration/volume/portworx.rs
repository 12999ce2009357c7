use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PortworxVolumeSource, SecretReference,
};

use super::super::InTreePlugin;

const SECRET_NAME: &str = "openstorage.io/auth-secret-name";
const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

pub(super) fn source(volume: &mut PersistentVolume) -> CSIPersistentVolumeSource {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).cloned();
    let secret = annotation(SECRET_NAME).zip(annotation(SECRET_NAMESPACE));
    let secret =
        secret.map(|(name, namespace)| SecretReference { name: Some(name), namespace: Some(namespace) });
    CSIPersistentVolumeSource {
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..disk(super::take(&mut volume.spec.get_or_insert_default().portworx_volume))
    }
}

/// The source, and the access mode. The mode alone says that it is read-only.
pub(super) fn inline(source: PortworxVolumeSource) -> (CSIPersistentVolumeSource, &'static str) {
    let mode = if source.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
    (disk(source), mode)
}

fn disk(source: PortworxVolumeSource) -> CSIPersistentVolumeSource {
    super::csi(InTreePlugin::Portworx, source.volume_id, source.fs_type, None)
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> PortworxVolumeSource {
    PortworxVolumeSource { volume_id: csi.volume_handle, fs_type: csi.fs_type, read_only: csi.read_only }
}
