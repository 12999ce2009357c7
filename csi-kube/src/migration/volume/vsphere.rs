use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, VsphereVirtualDiskVolumeSource};

use super::super::InTreePlugin;

/// The path that the driver returned when it created the volume for a class of the plugin.
const PATH: &str = "initialvolumefilepath";

pub(super) fn source(source: VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = source.storage_policy_name.filter(|policy| !policy.is_empty());
    CSIPersistentVolumeSource {
        volume_attributes: super::attributes([("storagepolicyname", policy)]),
        ..super::csi(InTreePlugin::Vsphere, source.volume_path, source.fs_type, None)
    }
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> VsphereVirtualDiskVolumeSource {
    let path = csi.volume_attributes.and_then(|mut attributes| attributes.remove(PATH));
    VsphereVirtualDiskVolumeSource {
        fs_type: csi.fs_type,
        volume_path: path.unwrap_or_default(),
        ..Default::default()
    }
}
