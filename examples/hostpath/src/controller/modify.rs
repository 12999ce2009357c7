//! EXPAND_VOLUME and MODIFY_VOLUME: changes of a volume that exists.

use csi_core::controller::{ControllerModifyVolume, ControllerModifyVolumeRequest};
use csi_core::{
    ControllerExpandVolume, ControllerExpandVolumeRequest, Error, Expanded, Result, TypedRequest as _,
    async_trait,
};

use super::create::GRANULARITY;
use crate::content::{self, Fill};
use crate::host::{Driver, Host};
use crate::kind::Kind;
use crate::parameters::Mutable;
use crate::{Feature, When, damage};

#[async_trait]
impl ControllerExpandVolume for Driver {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        self.with(move |host| host.expand(&request)).await
    }
}

impl Host {
    fn expand(&self, request: &ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id.as_str();
        let not_found = || Error::VolumeNotFound(request.volume_id.clone());
        let record = self.volumes.find(id)?.ok_or_else(not_found)?;
        if let Some(asked) = request.volume_capability.as_ref().filter(|asked| !record.kind.supports(asked)) {
            let kind = record.kind.name();
            return Err(Error::Unsupported(
                format!("volume_capability: is {asked}, but the volume is of kind {kind}").into(),
            ));
        }
        let now = record.created.capacity_bytes();
        let wanted = request.capacity_range.choose(now, GRANULARITY)?.max(now);
        if wanted > now {
            self.sizes.check(wanted)?;
            damage::refuse_volume(self, id, &record)?;
            if self.expansion == When::Offline {
                self.refuse_in_use(request.host(), id, &record)?;
            }
            let room = self.pools.reserve(&record.pool, wanted - now)?;
            // The content grows before the record changes: a start detects an unfinished expansion by content
            // larger than its record.
            content::grow(
                request.host(),
                record.kind,
                &self.volumes.place(id),
                wanted,
                Fill::thick(record.mutable.is_thick()),
            )?;
            let expanded = self.volumes.update(id, |record| {
                record.created.expanded(wanted);
                Ok(())
            })?;
            expanded.ok_or_else(not_found)?;
            room.keep();
        }
        if record.kind == Kind::Image && self.features.has(Feature::NodeExpand) {
            return Ok(Expanded::node_expansion_required(wanted));
        }
        if record.kind == Kind::Image {
            // The part of the node's work that the controller can do. The filesystem grows at its next stage.
            request.host().devices().loop_refresh(&record.kind.content(&self.volumes.place(id)))?;
        }
        Ok(Expanded::complete(wanted))
    }
}

#[async_trait]
impl ControllerModifyVolume for Driver {
    async fn modify_volume(&self, request: ControllerModifyVolumeRequest) -> Result<()> {
        self.with(move |host| {
            let id = request.volume_id.as_str();
            let asked = Mutable::asked(&request.mutable_parameters, &host.accepted_parameters)?;
            let modified = host.volumes.update(id, |record| {
                if asked.is_thick() {
                    damage::refuse_volume(host, id, record)?;
                    let bytes = record.created.capacity_bytes();
                    content::grow(request.host(), record.kind, &host.volumes.place(id), bytes, Fill::Thick)?;
                }
                record.mutable.take(asked);
                record.created.modified(&request.mutable_parameters);
                Ok(())
            })?;
            modified.ok_or_else(|| Error::VolumeNotFound(request.volume_id.clone()))
        })
        .await
    }
}
