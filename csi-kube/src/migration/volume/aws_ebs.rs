use k8s_openapi::api::core::v1::{AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource};

use super::super::{InTreePlugin, topology};
use crate::{Error, Result};

pub(super) fn source(source: &AWSElasticBlockStoreVolumeSource) -> Result<CSIPersistentVolumeSource> {
    let AWSElasticBlockStoreVolumeSource { fs_type, partition, read_only, volume_id } = source;
    let partition = partition.unwrap_or_default().to_string();
    Ok(CSIPersistentVolumeSource {
        volume_attributes: super::attributes([("partition", Some(partition))]),
        ..super::csi(InTreePlugin::AwsEbs, handle(volume_id)?, fs_type.clone(), *read_only)
    })
}

/// The disk's id in `aws://ZONE/ID`, `aws:///ID` or `ID`.
fn handle(volume_id: &str) -> Result<String> {
    let Some(rest) = volume_id.strip_prefix("aws://") else { return Ok(volume_id.to_owned()) };
    let id = rest.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
    if id.starts_with("vol-") && !id.contains('/') {
        return Ok(id.to_owned());
    }
    Err(Error::invalid(
        format!("awsElasticBlockStore.volumeID: {volume_id}"),
        "it has to be vol-…, or aws://ZONE/vol-…",
    ))
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> Result<AWSElasticBlockStoreVolumeSource> {
    let partition = super::partition(&csi)?;
    Ok(AWSElasticBlockStoreVolumeSource {
        volume_id: csi.volume_handle,
        fs_type: csi.fs_type,
        read_only: csi.read_only,
        partition,
    })
}

/// `us-west-2a` is in `us-west-2`, and so is the local zone `us-west-2-lax-1a`.
pub(super) fn region_of(zones: &[String]) -> Result<String> {
    topology::one_region(zones, |zone| {
        let parts: Vec<&str> = zone.split('-').collect();
        let last = parts.last()?;
        match parts.len() {
            3 | 4 if last.len() == 2 && last.is_ascii() => Some(zone[..zone.len() - 1].to_owned()),
            5 | 7 => Some(parts[..3].join("-")),
            _ => None,
        }
    })
}
