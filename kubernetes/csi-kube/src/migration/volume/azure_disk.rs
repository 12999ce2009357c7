use k8s_openapi::api::core::v1::{AzureDiskVolumeSource, CSIPersistentVolumeSource};

use super::super::InTreePlugin;
use crate::error::{Error, Result};

/// The only kind of disk that the driver serves.
const MANAGED: &str = "Managed";

pub(super) fn source(source: &AzureDiskVolumeSource) -> Result<CSIPersistentVolumeSource> {
    if let Some(kind) = source.kind.as_deref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(Error::invalid(
            format!("azureDisk.kind: {kind}"),
            "the CSI driver serves managed disks only; convert the disk to a managed one",
        ));
    }
    let caching = source.caching_mode.clone().filter(|mode| !mode.is_empty());
    Ok(CSIPersistentVolumeSource {
        volume_attributes: super::attributes([
            ("kind", Some(MANAGED.to_owned())),
            ("cachingmode", caching),
            ("fstype", source.fs_type.clone()),
        ]),
        ..super::csi(
            InTreePlugin::AzureDisk,
            source.disk_uri.clone(),
            source.fs_type.clone(),
            source.read_only,
        )
    })
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> Result<AzureDiskVolumeSource> {
    let attribute = |wanted: &str| {
        let mut all = csi.volume_attributes.iter().flatten();
        let found = all.find(|(key, value)| key.eq_ignore_ascii_case(wanted) && !value.is_empty());
        found.map(|(_, value)| value.clone())
    };
    Ok(AzureDiskVolumeSource {
        disk_name: name(&csi.volume_handle)?,
        caching_mode: attribute("cachingmode"),
        fs_type: attribute("fstype").or(csi.fs_type).or(Some(String::new())),
        kind: Some(MANAGED.to_owned()),
        read_only: csi.read_only.or(Some(false)),
        disk_uri: csi.volume_handle,
    })
}

/// The last part of `…/subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/disks/NAME`, or of the
/// `http` address of a disk in a storage account.
fn name(uri: &str) -> Result<String> {
    let is_managed = !uri.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("http"));
    let parts: &[&str] = if is_managed {
        &["/subscriptions/", "/resourceGroups/", "/providers/Microsoft.Compute/disks/"]
    } else {
        &["://", "/vhds/"]
    };
    let mut rest = Some(uri);
    for part in parts {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
    }
    let name = rest.filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| {
        let reason = "it has to be the resource id of a disk: \
             /subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/disks/NAME";
        Error::invalid(format!("csi.volumeHandle: {uri}"), reason)
    })
}
