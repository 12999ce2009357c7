//! EXPAND_VOLUME.

use csi_core::mount::Machine as _;
use csi_core::{
    ControllerExpandVolume, ControllerExpandVolumeRequest, Error, Expanded, Result, async_trait, machine,
};

use crate::content::{self, Fill};
use crate::host::{Driver, Host};
use crate::kind::Kind;
use crate::{Feature, When, damage};

const MIB: u64 = 1 << 20;

#[async_trait]
impl ControllerExpandVolume for Driver {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        self.with(move |host| host.expand(&request)).await
    }
}

impl Host {
    fn expand(&self, request: &ControllerExpandVolumeRequest) -> Result<Expanded> {
        let (id, not_found) =
            (request.volume_id.as_str(), || Error::VolumeNotFound(request.volume_id.clone()));
        let record = self.volumes.find(id)?.ok_or_else(not_found)?;
        if let Some(asked) = request.volume_capability.as_ref().filter(|asked| !record.kind.supports(asked)) {
            let kind = record.kind.name();
            return Err(Error::Unsupported(
                format!("volume_capability: is {asked}, but the volume is of kind {kind}").into(),
            ));
        }
        let now = record.created.capacity_bytes();
        let wanted = request.capacity_range.choose(now, MIB)?.max(now);
        if wanted > now {
            self.sizes.check(wanted)?;
            damage::refuse_volume(self, id, &record)?;
            if self.expansion == When::Offline {
                self.refuse_in_use(id, &record)?;
            }
            let room = self.pools.reserve(&record.pool, wanted - now)?;
            // The image grows before the record changes: a start detects an unfinished expansion by an image
            // larger than its record.
            content::grow(
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
            machine().devices().loop_refresh(&record.kind.content(&self.volumes.place(id)))?;
        }
        Ok(Expanded::complete(wanted))
    }
}
