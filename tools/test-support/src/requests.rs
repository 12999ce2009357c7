//! Parts of requests.

use std::collections::BTreeMap;

use csi_core::proto::v1;
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

/// Returns the pairs as parameters, secrets or a context.
pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns a snapshot as the source of a new volume.
pub fn of_snapshot(snapshot_id: &str) -> Option<v1::VolumeContentSource> {
    let source = SnapshotSource { snapshot_id: snapshot_id.to_owned() };
    Some(v1::VolumeContentSource { r#type: Some(Type::Snapshot(source)) })
}

/// Returns a volume as the source of a new volume.
pub fn of_volume(volume_id: &str) -> Option<v1::VolumeContentSource> {
    let source = VolumeSource { volume_id: volume_id.to_owned() };
    Some(v1::VolumeContentSource { r#type: Some(Type::Volume(source)) })
}
