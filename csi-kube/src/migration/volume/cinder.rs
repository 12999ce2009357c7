use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CinderPersistentVolumeSource};

use super::super::InTreePlugin;

pub(super) fn source(
    volume_id: &str,
    fs_type: Option<String>,
    read_only: Option<bool>,
) -> CSIPersistentVolumeSource {
    super::csi(InTreePlugin::Cinder, volume_id.to_owned(), fs_type, read_only)
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> CinderPersistentVolumeSource {
    CinderPersistentVolumeSource {
        volume_id: csi.volume_handle,
        fs_type: csi.fs_type,
        read_only: csi.read_only,
        secret_ref: None,
    }
}
