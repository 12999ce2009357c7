//! CREATE_DELETE_VOLUME and CLONE_VOLUME, and GET_CAPACITY, which promises only what CreateVolume can create.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::controller::{Capacity, CreateRecord, GetCapacity, GetCapacityRequest};
use csi_core::mount::Filesystem;
use csi_core::types::{ContentSource, Place, TopologyRequirement};
use csi_core::{
    CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest, Error, Result, TypedRequest as _, Volume,
    VolumeCapability, VolumeId, async_trait,
};

use crate::content::{self, Fill, Held};
use crate::damage;
use crate::host::{Driver, Host};
use crate::kind::Kind;
use crate::parameters::Parameters;
use crate::quiesce::Consistency;
use crate::records::VolumeRecord;
use crate::store::new_id;

/// The fields of a request that choose the kind of a volume.
pub(super) const CLASS_FIELDS: [&str; 2] = ["parameters[kind]", "volume_capabilities"];

/// The size of a volume is a multiple of this many bytes.
pub(super) const GRANULARITY: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        self.with(move |host| match host.volumes.by_name(request.name.as_str())? {
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
            host.refuse_in_use(request.host(), id, &record)?;
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
        let fields = match (parameters.kind, &origin) {
            (None, Some(_)) => ["volume_content_source", "volume_capabilities"],
            _ => CLASS_FIELDS,
        };
        let kind = self.choose_kind(asked, &request.volume_capabilities, fields)?;
        if origin.as_ref().is_some_and(|origin| origin.kind != kind) {
            return Err(Error::invalid("parameters[kind]", "is not the kind of the source"));
        }
        // Before the copy, which can take long; the copy itself is checked again.
        let held = origin.as_ref().map_or(Ok(Held::Nothing), |origin| content::held(kind, &origin.place))?;
        check_held(request, held)?;
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
                    volume.fs_type = fs_type(request, kind, held);
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
                    self.make(id, record, bytes, origin.as_ref(), request)?;
                    room.keep();
                    return Ok(volume);
                }
            }
        }
        Err(full.unwrap_or_else(|| Error::Internal("no place to put the volume".into())))
    }

    fn make(
        &self,
        id: String,
        record: VolumeRecord,
        bytes: u64,
        origin: Option<&Origin>,
        request: &CreateVolumeRequest,
    ) -> Result<()> {
        let kind = record.kind;
        let fill = Fill::thick(record.mutable.is_thick());
        let made = self.volumes.make(id, record, |place| match origin {
            None => content::make(request.host(), kind, place, bytes, fill),
            Some(origin) => {
                let volume = origin.volume.as_ref();
                let still = volume
                    .map(|(id, record)| self.quiesce(request.host(), id.as_str(), record, Consistency::Crash))
                    .transpose()?;
                if kind == Kind::Directory {
                    content::make_limited(request.host(), place, bytes)?;
                }
                content::copy(kind, &origin.place, place)?;
                drop(still);
                check_held(request, content::held(kind, place)?)?;
                if volume.is_some_and(|(_, record)| record.mutable.is_thick()) {
                    content::unshare(kind, place)?;
                }
                content::grow(request.host(), kind, place, bytes, fill)
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

/// Refuses to mount a copy of content that can't be mounted so.
fn check_held(request: &CreateVolumeRequest, held: Held) -> Result<()> {
    match held {
        Held::Nothing => Ok(()),
        Held::Filesystem(filesystem) => request.check_source_fs_type(Some(filesystem.name())),
        Held::Other if request.volume_capabilities.iter().any(VolumeCapability::is_mount) => {
            let reason = "holds data that is no filesystem of this driver: its copy can only be a raw device";
            Err(Error::invalid("volume_content_source", reason))
        }
        Held::Other => Ok(()),
    }
}

/// The filesystem of the new volume: what its source holds, else what it is to be mounted as.
fn fs_type(request: &CreateVolumeRequest, kind: Kind, held: Held) -> Option<String> {
    let mounted = request.volume_capabilities.iter().find(|capability| capability.is_mount());
    match (held, kind) {
        (Held::Filesystem(filesystem), _) => Some(filesystem.name().to_owned()),
        (_, Kind::Directory) => None,
        _ => mounted.map(|mounted| mounted.fs_type().unwrap_or(Filesystem::Ext4.name()).to_owned()),
    }
}

/// Chooses a size in the requested range, not below the source's size and the filesystem's minimum.
fn size(request: &CreateVolumeRequest, kind: Kind, origin: Option<&Origin>) -> Result<u64> {
    let source = origin.map_or(0, |origin| origin.bytes);
    let least = kind.least(&request.volume_capabilities).max(source);
    request.capacity_range.at_least(least).choose(GIB.max(source), GRANULARITY)
}

#[async_trait]
impl GetCapacity for Driver {
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity> {
        // What CreateVolume would refuse has no capacity.
        let Ok(parameters) = request.parameters.parse::<Parameters>() else { return Ok(Capacity::default()) };
        let Ok(kind) = self.choose_kind(parameters.kind, &request.volume_capabilities, CLASS_FIELDS) else {
            return Ok(Capacity::default());
        };
        let here = request.accessible_topology.map(|place| TopologyRequirement::new([place], []));
        let mut pools = BTreeMap::new();
        let places = self.pools.places(parameters.pool.as_deref(), "");
        // A pool that has several places is counted once.
        for place in Place::candidates(&places, here.as_ref(), 0).unwrap_or_default() {
            pools.insert(&place.value.name, whole(place.available_bytes.unwrap_or(0)));
        }
        let most = pools.values().copied().max().unwrap_or(0).min(whole(self.sizes.most));
        let least = kind.least(&request.volume_capabilities);
        if most < least {
            return Ok(Capacity::default());
        }
        // Promised but unwritten space counts as free on the disk; space that other programs use does not.
        let free = self.with(|host| host.free_bytes()).await?;
        let capacity = Capacity::new(free.min(pools.values().sum())).minimum_volume_size(least);
        // A thin volume can be larger than the free space, so that is not reported as its maximum.
        Ok(if most <= free { capacity.maximum_volume_size(most) } else { capacity })
    }
}

/// The bytes that volumes can have, whose sizes are multiples of the granularity.
fn whole(bytes: u64) -> u64 {
    bytes / GRANULARITY * GRANULARITY
}
