//! The requests of a volume's life.

use std::path::Path;

use super::VolumeUse;
use crate::{Rpc, v1};

impl VolumeUse {
    /// Asks whether the volume can be used as here.
    pub fn validate_volume_capabilities(&self) -> v1::ValidateVolumeCapabilitiesRequest {
        v1::ValidateVolumeCapabilitiesRequest {
            volume_id: self.volume_id.clone(),
            volume_context: self.volume_context.clone(),
            volume_capabilities: vec![self.capability.clone()],
            ..Default::default()
        }
    }

    /// Attaches the volume to its node.
    pub fn controller_publish_volume(&self) -> v1::ControllerPublishVolumeRequest {
        v1::ControllerPublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            node_id: self.node_id.clone().unwrap_or_default(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            secrets: self.secrets.of(Rpc::ControllerPublishVolume),
            ..Default::default()
        }
    }

    /// Undoes [`controller_publish_volume`](Self::controller_publish_volume).
    pub fn controller_unpublish_volume(&self) -> v1::ControllerUnpublishVolumeRequest {
        (&self.controller_publish_volume()).into()
    }

    /// Stages the volume.
    pub fn node_stage_volume(&self) -> v1::NodeStageVolumeRequest {
        v1::NodeStageVolumeRequest {
            volume_id: self.volume_id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging_text(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            secrets: self.secrets.of(Rpc::NodeStageVolume),
        }
    }

    /// Undoes [`node_stage_volume`](Self::node_stage_volume).
    pub fn node_unstage_volume(&self) -> v1::NodeUnstageVolumeRequest {
        (&self.node_stage_volume()).into()
    }

    /// Publishes the volume for writing at a target.
    pub fn node_publish_volume(&self, target: &Path) -> v1::NodePublishVolumeRequest {
        v1::NodePublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging_text(),
            target_path: text(target),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.volume_context.clone(),
            secrets: self.secrets.of(Rpc::NodePublishVolume),
            ..Default::default()
        }
    }

    /// Undoes [`node_publish_volume`](Self::node_publish_volume).
    pub fn node_unpublish_volume(&self, target: &Path) -> v1::NodeUnpublishVolumeRequest {
        v1::NodeUnpublishVolumeRequest { volume_id: self.volume_id.clone(), target_path: text(target) }
    }

    /// Asks for the usage of the volume at a target or staging path.
    pub fn node_get_volume_stats(&self, path: &Path) -> v1::NodeGetVolumeStatsRequest {
        v1::NodeGetVolumeStatsRequest {
            volume_id: self.volume_id.clone(),
            volume_path: text(path),
            staging_target_path: self.staging_text(),
        }
    }

    /// Expands the volume to at least this number of bytes, as the resizer does.
    pub fn controller_expand_volume(&self, required_bytes: i64) -> v1::ControllerExpandVolumeRequest {
        v1::ControllerExpandVolumeRequest {
            volume_id: self.volume_id.clone(),
            capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        }
    }

    /// Expands the volume on the node to at least this number of bytes, as the kubelet does.
    pub fn node_expand_volume(&self, path: &Path, required_bytes: i64) -> v1::NodeExpandVolumeRequest {
        v1::NodeExpandVolumeRequest {
            volume_id: self.volume_id.clone(),
            volume_path: text(path),
            capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
            staging_target_path: self.staging_text(),
            volume_capability: Some(self.capability.clone()),
            secrets: self.secrets.of(Rpc::NodeExpandVolume),
        }
    }

    /// Takes a snapshot of the volume.
    pub fn create_snapshot(&self, name: impl Into<String>) -> v1::CreateSnapshotRequest {
        v1::CreateSnapshotRequest {
            source_volume_id: self.volume_id.clone(),
            name: name.into(),
            ..Default::default()
        }
    }

    /// Deletes the volume.
    pub fn delete_volume(&self) -> v1::DeleteVolumeRequest {
        v1::DeleteVolumeRequest { volume_id: self.volume_id.clone(), ..Default::default() }
    }

    fn staging_text(&self) -> String {
        self.staging_path.as_deref().map(text).unwrap_or_default()
    }
}

/// The path as text for requests. Paths of volumes are UTF-8, as the spec requires.
fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_undoes_a_call_names_the_same_thing() {
        let volume = VolumeUse::new("v", v1::VolumeCapability::default()).attached_to("n").staged_at("/s");
        let detach = volume.controller_unpublish_volume();
        assert_eq!((&*detach.volume_id, &*detach.node_id), ("v", "n"));
        let unstage = volume.node_unstage_volume();
        assert_eq!((&*unstage.volume_id, &*unstage.staging_target_path), ("v", "/s"));
        let unpublish = v1::NodeUnpublishVolumeRequest::from(&volume.node_publish_volume(Path::new("/t")));
        assert_eq!(unpublish, volume.node_unpublish_volume(Path::new("/t")));
        assert_eq!((&*unpublish.volume_id, &*unpublish.target_path), ("v", "/t"));
    }
}
