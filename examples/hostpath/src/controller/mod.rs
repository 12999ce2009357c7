//! The controller's capabilities, one per file.

mod attach;
mod create;
mod list;
mod modify;
mod snapshots;

use csi_core::{Controller, Error, Result, Volume, VolumeCapability, VolumeId, async_trait};

pub(crate) use snapshots::{Cut, SnapshotParameters};

use crate::Feature;
use crate::host::{Driver, Host};
use crate::kind::Kind;

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.volumes.find(id.as_str())?.map(|record| record.volume(id.as_str())).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        self.kinds().any(|kind| kind.supports(capability))
    }

    fn volume_supports(&self, volume: &Volume, capability: &VolumeCapability) -> bool {
        self.volumes.get(volume.volume_id.as_str()).is_some_and(|record| record.kind.supports(capability))
    }
}

impl Host {
    /// The kinds of volumes that can be created, the default kind first.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let all = [self.default_kind, self.default_kind.other()];
        // A device needs a staging path.
        all.into_iter().filter(|kind| *kind == Kind::Directory || self.features.has(Feature::Stage))
    }

    /// Chooses the kind of a volume: the requested kind, or else the first one that supports all `uses`. An
    /// error names the request's field: that of the kind, or that of the uses.
    pub(crate) fn choose_kind(
        &self,
        asked: Option<Kind>,
        uses: &[VolumeCapability],
        [kind_field, uses_field]: [&str; 2],
    ) -> Result<Kind> {
        let serves = |kind: &Kind| uses.iter().all(|one| kind.supports(one));
        match asked {
            Some(kind) if self.kinds().any(|one| one == kind) && serves(&kind) => Ok(kind),
            Some(kind) => {
                let reason =
                    format!("is {}, which does not support one of the requested capabilities", kind.name());
                Err(Error::invalid(kind_field, reason))
            }
            None => self.kinds().find(serves).ok_or_else(|| {
                Error::Unsupported(format!("{uses_field}: no kind of volume supports this use").into())
            }),
        }
    }
}
