//! CREATE_DELETE_VOLUME and CLONE_VOLUME.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::{
    ContentSource, CreateDeleteVolume, CreateRecord, CreateVolumeRequest, DeleteVolumeRequest, Error, Place,
    Result, Volume, VolumeCapability, VolumeId, async_trait,
};

use crate::content::{self, Fill};
use crate::damage;
use crate::host::{Driver, Host};
use crate::kind::Kind;
use crate::parameters::Parameters;
use crate::quiesce::Consistency;
use crate::records::VolumeRecord;
use crate::store::new_id;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        self.with(move |host| match host.volumes.by_name(request.name.as_str()) {
            Some((id, record)) => {
                record.created.check(&request)?;
                record.volume(&id)
            }
            None => host.create(&request),
        })
        .await
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.with(move |host| {
            let id = request.volume_id.as_str();
            let Some(record) = host.volumes.find(id)? else {
                return Err(Error::VolumeNotFound(request.volume_id));
            };
            host.refuse_in_use(id, &record)?;
            host.volumes.remove(id)?;
            host.pools.release(&record.pool, record.created.capacity_bytes());
            Ok(())
        })
        .await
    }
}

/// The source that a volume is copied from.
struct Origin {
    kind: Kind,
    pool: String,
    bytes: u64,
    place: PathBuf,
    /// Set if the source is a volume, which can be in use.
    volume: Option<(VolumeId, Arc<VolumeRecord>)>,
}

impl Host {
    fn create(&self, request: &CreateVolumeRequest) -> Result<Volume> {
        let (parameters, mutable) = Parameters::of(request, &self.accepted_parameters)?;
        let origin = request.volume_content_source.as_ref().map(|source| self.origin(source)).transpose()?;
        let asked = parameters.kind.or(origin.as_ref().map(|origin| origin.kind));
        let kind = self.choose_kind(asked, &request.volume_capabilities)?;
        if origin.as_ref().is_some_and(|origin| origin.kind != kind) {
            return Err(Error::invalid("parameters[kind]", "is not the kind of the source"));
        }
        let bytes = size(request, kind, origin.as_ref())?;
        self.sizes.check(bytes)?;
        let pool = parameters.pool.as_deref();
        if pool.is_some_and(|name| self.pools.get(name).is_none()) {
            return Err(Error::invalid("parameters[pool]", "is not the name of a pool"));
        }
        let first = origin.as_ref().map_or("", |origin| &origin.pool);
        let places = self.pools.places(pool, first);
        let candidates = Place::candidates(&places, request.accessibility_requirements.as_ref(), bytes)?;
        // Another call can have taken space that was free a moment ago, so all candidates are tried.
        let mut full = None;
        for place in candidates {
            match self.pools.reserve(&place.value.name, bytes) {
                Err(error) => full = Some(error),
                Ok(room) => {
                    let id = new_id()?;
                    let mut volume = Volume::new(VolumeId::new(&id)?, bytes);
                    volume.accessible_topology.clone_from(&place.value.places);
                    let record = VolumeRecord {
                        name: request.name.as_str().to_owned(),
                        kind,
                        pool: place.value.name.clone(),
                        created: CreateRecord::new(request, &volume),
                        mutable,
                        attached: BTreeMap::new(),
                        filesystem: request.volume_capabilities.iter().all(VolumeCapability::is_mount),
                    };
                    let volume = record.volume(&id)?;
                    self.make(id, record, bytes, origin.as_ref())?;
                    room.keep();
                    return Ok(volume);
                }
            }
        }
        Err(full.unwrap_or_else(|| Error::Internal("no place to put the volume".into())))
    }

    fn make(&self, id: String, record: VolumeRecord, bytes: u64, origin: Option<&Origin>) -> Result<()> {
        let (kind, fill) = (record.kind, Fill::thick(record.mutable.is_thick()));
        let made = self.volumes.make(id, record, |place| match origin {
            None => content::make(kind, place, bytes, fill),
            Some(origin) => {
                let volume = origin.volume.as_ref();
                let still = volume
                    .map(|(id, record)| self.quiesce(id.as_str(), record, Consistency::Crash))
                    .transpose()?;
                content::copy(kind, &origin.place, place)?;
                drop(still);
                if volume.is_some_and(|(_, record)| record.mutable.is_thick()) {
                    content::unshare(kind, place)?;
                }
                content::grow(kind, place, bytes, fill)
            }
        })?;
        self.volumes.commit(made)
    }

    fn origin(&self, source: &ContentSource) -> Result<Origin> {
        let missing = || Error::SourceNotFound(source.to_string().into());
        match source {
            ContentSource::Snapshot(id) => {
                let found = self.snapshots.find(id.as_str())?;
                let record = found.ok_or_else(missing)?;
                damage::refuse_snapshot(self, id.as_str(), &record)?;
                Ok(Origin {
                    kind: record.kind,
                    pool: record.pool.clone(),
                    bytes: record.taken.size_bytes(),
                    place: self.snapshots.place(id.as_str()),
                    volume: None,
                })
            }
            ContentSource::Volume(id) => {
                let found = self.volumes.find(id.as_str())?;
                let record = found.ok_or_else(missing)?;
                damage::refuse_volume(self, id.as_str(), &record)?;
                Ok(Origin {
                    kind: record.kind,
                    pool: record.pool.clone(),
                    bytes: record.created.capacity_bytes(),
                    place: self.volumes.place(id.as_str()),
                    volume: Some((id.clone(), record)),
                })
            }
            _ => Err(missing()),
        }
    }
}

/// Chooses a size in the requested range, not below the source's size and the filesystem's minimum.
fn size(request: &CreateVolumeRequest, kind: Kind, origin: Option<&Origin>) -> Result<u64> {
    let source = origin.map_or(0, |origin| origin.bytes);
    let least = kind.least(&request.volume_capabilities).max(source);
    request.capacity_range.at_least(least).choose(GIB.max(source), MIB)
}
