//! The sources of volumes, and the sizes of what the driver created, by id: a copy must not be smaller than its source.

use std::collections::BTreeMap;
use std::sync::Mutex;

use csi_proto::{Rpc, v1};
use prost::Message as _;
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

/// The sizes in bytes, as the answers say them. A snapshot without a size has that of its volume.
#[derive(Debug, Default)]
pub(crate) struct KnownSizes(Mutex<BTreeMap<String, i64>>);

impl KnownSizes {
    pub(crate) fn learn(&self, rpc: Rpc, answer: &[u8]) {
        let mut all = self.0.lock().expect("no panic under it");
        let snapshots = match rpc {
            Rpc::CreateVolume => {
                let volume = v1::CreateVolumeResponse::decode(answer).unwrap_or_default().volume;
                all.extend(volume.map(|volume| (volume.volume_id, volume.capacity_bytes)));
                return;
            }
            Rpc::CreateSnapshot => {
                let answer = v1::CreateSnapshotResponse::decode(answer).unwrap_or_default();
                answer.snapshot.into_iter().collect()
            }
            Rpc::CreateVolumeGroupSnapshot => {
                let answer = v1::CreateVolumeGroupSnapshotResponse::decode(answer).unwrap_or_default();
                answer.group_snapshot.unwrap_or_default().snapshots
            }
            _ => return,
        };
        for snapshot in snapshots {
            let of_volume = all.get(&snapshot.source_volume_id).copied().unwrap_or_default();
            let bytes = if snapshot.size_bytes > 0 { snapshot.size_bytes } else { of_volume };
            all.insert(snapshot.snapshot_id, bytes);
        }
    }

    /// The size of this source; 0 if it is unknown.
    pub(crate) fn of(&self, source: &v1::VolumeContentSource) -> i64 {
        let id = match &source.r#type {
            Some(Type::Volume(volume)) => &volume.volume_id,
            Some(Type::Snapshot(snapshot)) => &snapshot.snapshot_id,
            None => return 0,
        };
        self.0.lock().expect("no panic under it").get(id).copied().unwrap_or_default()
    }
}

pub(crate) fn of_volume(id: &str) -> v1::VolumeContentSource {
    v1::VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: id.to_owned() })) }
}

pub(crate) fn of_snapshot(id: &str) -> v1::VolumeContentSource {
    v1::VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })) }
}
