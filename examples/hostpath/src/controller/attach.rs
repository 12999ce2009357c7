//! PUBLISH_UNPUBLISH_VOLUME and PUBLISH_READONLY. All nodes have the data, so attaching only decides which
//! node may use it.

use csi_core::controller::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, PublishUnpublishVolume, Published,
};
use csi_core::types::{AccessMode, NodeId};
use csi_core::{Error, Result, VolumeId, async_trait};

use crate::host::{Driver, Host};
use crate::node::READONLY;
use crate::records::{AttachedAs, VolumeRecord};

#[async_trait]
impl PublishUnpublishVolume for Driver {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        self.with(move |host| {
            let id = &request.volume_id;
            let node = &request.node_id;
            let Some(record) = host.volumes.find(id.as_str())? else {
                return Err(Error::VolumeNotFound(id.clone()));
            };
            if !host.nodes.contains(node) {
                return Err(Error::NodeNotFound(node.clone()));
            }
            if !record.kind.supports(&request.volume_capability) {
                let kind = record.kind.name();
                let asked = &request.volume_capability;
                return Err(Error::Unsupported(
                    format!("volume_capability: is {asked}, but the volume is of kind {kind}").into(),
                ));
            }
            let place = host.attach_limit.reserve(node, id)?;
            let attached = host.volumes.update(id.as_str(), |record| attach(record, &request))?;
            attached.ok_or_else(|| Error::VolumeNotFound(id.clone()))?;
            place.keep();
            let mut published = Published::default();
            if request.readonly {
                published.publish_context.insert(READONLY.to_owned(), "true".to_owned());
            }
            Ok(published)
        })
        .await
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        self.with(move |host| host.detach(&request.volume_id, request.node_id.as_ref())).await
    }
}

impl Host {
    /// Detaches the volume from `node`, or from all nodes. A deleted volume is attached nowhere.
    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<()> {
        let Some(record) = self.volumes.find(id.as_str())? else { return Ok(()) };
        let leaves = |name: &str| node.is_none_or(|node| node.as_str() == name);
        let leaving: Vec<String> = record.attached.keys().filter(|name| leaves(name)).cloned().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        self.volumes.update(id.as_str(), |record| {
            record.attached.retain(|name, _| !leaves(name));
            Ok(())
        })?;
        for name in leaving {
            self.attach_limit.release(&NodeId::new(name)?, id);
        }
        Ok(())
    }
}

impl AttachedAs {
    fn of(request: &ControllerPublishVolumeRequest) -> Self {
        let mode = request.volume_capability.access_mode;
        Self {
            readonly: request.readonly,
            capability: request.volume_capability.to_string(),
            alone: !mode.is_multi_node(),
            filesystem: request.volume_capability.is_mount(),
            only_writer: mode == AccessMode::MultiNodeSingleWriter && !request.readonly,
        }
    }

    fn excludes(&self, other: &Self) -> bool {
        self.alone || other.alone || (self.only_writer && other.only_writer)
    }
}

fn attach(record: &mut VolumeRecord, request: &ControllerPublishVolumeRequest) -> Result<()> {
    let node = &request.node_id;
    let wanted = AttachedAs::of(request);
    if let Some(found) = record.attached.get(node.as_str()) {
        let is_same_use = request.volume_capability.is_recorded_as(&found.capability);
        return if is_same_use && found.readonly == wanted.readonly {
            Ok(())
        } else {
            Err(Error::Incompatible(
                format!(
                    "it is already attached to {node}, as {}{}",
                    found.capability,
                    if found.readonly { ", read-only" } else { "" }
                )
                .into(),
            ))
        };
    }
    match record.attached.iter().find(|(_, found)| found.excludes(&wanted)) {
        Some((other, _)) => Err(Error::PublishedElsewhere(NodeId::new(other)?)),
        None => {
            record.attached.insert(node.to_string(), wanted);
            Ok(())
        }
    }
}
