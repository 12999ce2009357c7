//! Checks whether a repeated CreateVolume asks for the volume that exists.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::controller::CreateVolumeRequest;
use crate::error::{Error, Result};
use crate::types::place::usable_from;
use crate::types::{ContentSource, Parameters, Topology, Volume, VolumeCapability, VolumeId};

/// What a volume was created with. A driver stores it next to the volume (it serialises with serde) and
/// compares it with a repeated CreateVolume.
///
/// It contains no secrets, and no mount flags, because these can contain secrets.
///
/// ```
/// # use csi_core::controller::CreateRecord;
/// # use csi_core::{Result, prelude::*};
/// # struct Stored { volume: Volume, record: CreateRecord }
/// # fn create(request: &CreateVolumeRequest, found: Option<Stored>) -> Result<Volume> {
/// if let Some(stored) = found {
///     stored.record.check(request)?; // ALREADY_EXISTS, naming the field, when it differs
///     return Ok(stored.volume);
/// }
/// let volume = Volume::new(VolumeId::from_name(&request.name)?, request.capacity_range.choose(1 << 30, 1 << 20)?);
/// let record = CreateRecord::new(request, &volume);
/// assert_eq!(record.volume(volume.volume_id.clone()).capacity_bytes, volume.capacity_bytes);
/// # drop(record);
/// # Ok(volume) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateRecord {
    capacity_bytes: u64,
    /// Access type and mode, for example `mount (xfs), SINGLE_NODE_WRITER`.
    capabilities: BTreeSet<String>,
    /// Mutable parameters have replaced the others with the same key.
    parameters: BTreeMap<String, String>,
    source: Option<ContentSource>,
    accessible_topology: Vec<Topology>,
    #[serde(default)]
    fs_type: Option<String>,
}

impl CreateRecord {
    /// Creates the record of this volume, which was created for this request. Its filesystem is
    /// [`Volume::fs_type`], else the first that the request names.
    pub fn new(request: &CreateVolumeRequest, volume: &Volume) -> Self {
        let mut record = Self::requested(request, volume.capacity_bytes);
        record.created(volume);
        record
    }

    /// Creates the record of a volume that does not exist yet, with the size that the driver chose. A driver writes it
    /// before it asks its backend, and again with the id of the backend's operation. The repeated call after a restart
    /// then waits for this operation, and no second volume is made. docs/backends.md has the steps.
    ///
    /// ```
    /// # use csi_core::controller::CreateRecord;
    /// # use csi_core::records::Records;
    /// # use csi_core::{Result, prelude::*};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Stored {
    ///     created: CreateRecord,
    ///     /// The backend's operation, once it has begun.
    ///     operation: Option<String>,
    /// }
    ///
    /// # fn begin(request: &CreateVolumeRequest, records: &Records<Stored>, id: &VolumeId) -> Result<()> {
    /// let size = request.capacity_range.choose(10 << 30, 1 << 30)?;
    /// let stored = Stored { created: CreateRecord::requested(request, size), operation: None };
    /// records.put(id, &stored)?;
    /// # Ok(()) }
    /// ```
    pub fn requested(request: &CreateVolumeRequest, capacity_bytes: u64) -> Self {
        let fs_type = request.volume_capabilities.iter().find_map(VolumeCapability::fs_type);
        Self {
            capacity_bytes,
            capabilities: capabilities(request),
            parameters: parameters(request),
            source: request.volume_content_source.clone(),
            accessible_topology: Vec::new(),
            fs_type: fs_type.map(str::to_owned),
        }
    }

    /// Records the volume that was created for the request: its size, its topology and, if it says so, its filesystem.
    pub fn created(&mut self, volume: &Volume) {
        self.capacity_bytes = volume.capacity_bytes;
        self.accessible_topology.clone_from(&volume.accessible_topology);
        if volume.fs_type.is_some() {
            self.fs_type.clone_from(&volume.fs_type);
        }
    }

    /// Rebuilds the volume from this record, for the answers to later calls: its size, its source, its
    /// topology, its filesystem. The driver adds the context.
    pub fn volume(&self, volume_id: VolumeId) -> Volume {
        let mut volume = Volume::new(volume_id, self.capacity_bytes);
        volume.content_source.clone_from(&self.source);
        volume.accessible_topology.clone_from(&self.accessible_topology);
        volume.fs_type.clone_from(&self.fs_type);
        volume
    }

    /// The filesystem that the volume has, or gets at its first stage, if it is known.
    pub fn fs_type(&self) -> Option<&str> {
        self.fs_type.as_deref()
    }

    /// The size of the volume in bytes, as created or last expanded.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Records that the volume has grown to this size.
    pub fn expanded(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    /// Records changed parameters of the volume.
    pub fn modified(&mut self, mutable_parameters: &Parameters) {
        self.parameters.extend(owned(mutable_parameters.iter()));
    }

    /// Checks that the request asks for the existing volume: a size in range, the same capabilities
    /// ([`VolumeCapability::is_recorded_as`]), the
    /// same parameters after the mutable ones take precedence, the same source, and a topology from which
    /// the volume is usable.
    ///
    /// # Errors
    /// [`Error::Incompatible`] (ALREADY_EXISTS) naming the field that differs.
    pub fn check(&self, request: &CreateVolumeRequest) -> Result<()> {
        let size = self.capacity_bytes;
        if size != 0 && !request.capacity_range.contains(size) {
            return Err(differs("capacity_range", &format!("it has {size} bytes")));
        }
        let asked = &request.volume_capabilities;
        let is_recorded = |one: &VolumeCapability| self.capabilities.iter().any(|it| one.is_recorded_as(it));
        let is_asked = |it: &String| asked.iter().any(|one| one.is_recorded_as(it));
        if !asked.iter().all(is_recorded) || !self.capabilities.iter().all(is_asked) {
            let mine: Vec<&str> = self.capabilities.iter().map(String::as_str).collect();
            return Err(differs("volume_capabilities", &format!("it was made for {}", mine.join("; "))));
        }
        self.check_parameters(request)?;
        if request.volume_content_source != self.source {
            return Err(differs("volume_content_source", "it was made from another source, or from none"));
        }
        let Some(required) = &request.accessibility_requirements else { return Ok(()) };
        let places = &self.accessible_topology;
        let usable = |wanted| places.iter().any(|place| usable_from(place, wanted));
        if places.is_empty() || required.requisite.is_empty() || required.requisite.iter().any(usable) {
            return Ok(());
        }
        Err(differs("accessibility_requirements", "it is usable from none of these"))
    }

    fn check_parameters(&self, request: &CreateVolumeRequest) -> Result<()> {
        let asked = parameters(request);
        let keys: BTreeSet<&String> = asked.keys().chain(self.parameters.keys()).collect();
        match keys.into_iter().find(|key| asked.get(*key) != self.parameters.get(*key)) {
            Some(key) => {
                let map = if request.mutable_parameters.get(key).is_some() {
                    "mutable_parameters"
                } else {
                    "parameters"
                };
                Err(differs(&format!("{map}[{key}]"), "it has another value, or none"))
            }
            None => Ok(()),
        }
    }
}

fn differs(field: &str, how: &str) -> Error {
    Error::Incompatible(format!("{field}: a volume of this name exists and differs: {how}").into())
}

fn owned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

// spec: create-volume.mutable-parameters-win
fn parameters(request: &CreateVolumeRequest) -> BTreeMap<String, String> {
    owned(request.parameters.iter().chain(request.mutable_parameters.iter()))
}

fn capabilities(request: &CreateVolumeRequest) -> BTreeSet<String> {
    request.volume_capabilities.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use csi_proto::v1;

    use super::*;
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};

    fn wire() -> v1::CreateVolumeRequest {
        let mount =
            MountVolume { fs_type: "xfs".into(), mount_flags: vec!["canary".into()], ..Default::default() };
        let capability = |mode| v1::VolumeCapability {
            access_mode: Some(AccessMode { mode }),
            access_type: Some(AccessType::Mount(mount.clone())),
        };
        v1::CreateVolumeRequest {
            name: "n".into(),
            capacity_range: Some(v1::CapacityRange { required_bytes: 10, limit_bytes: 20 }),
            volume_capabilities: vec![capability(1), capability(5)],
            parameters: [("pool", "p"), ("iops", "1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            mutable_parameters: [("iops".to_owned(), "2".to_owned())].into(),
            secrets: [("key".to_owned(), "canary".to_owned())].into(),
            accessibility_requirements: Some(v1::TopologyRequirement {
                requisite: vec![Topology::new("zone", "z1").into(), Topology::new("zone", "z2").into()],
                preferred: vec![],
            }),
            ..Default::default()
        }
    }

    fn record() -> CreateRecord {
        let volume =
            Volume::new(VolumeId::new("v").unwrap(), 16).accessible_from(Topology::new("zone", "z1"));
        CreateRecord::new(&wire().try_into().unwrap(), &volume)
    }

    fn check(change: impl FnOnce(&mut v1::CreateVolumeRequest)) -> Result<()> {
        let mut wire = wire();
        change(&mut wire);
        record().check(&wire.try_into().unwrap())
    }

    // spec: create-volume.same-name-same-volume, create-volume.mutable-parameters-win
    #[test]
    fn the_same_and_what_comes_to_the_same_is_compatible() {
        check(|_| {}).unwrap();
        check(|wire| wire.capacity_range = None).unwrap();
        check(|wire| wire.volume_capabilities.reverse()).unwrap();
        // The driver or a sidecar was updated meanwhile.
        for mode in [6, 7] {
            let updated = |wire: &mut v1::CreateVolumeRequest| {
                wire.volume_capabilities[0].access_mode = Some(AccessMode { mode });
            };
            check(updated).unwrap();
            let mut wire = wire();
            updated(&mut wire);
            let volume = Volume::new(VolumeId::new("v").unwrap(), 16);
            let record = CreateRecord::new(&wire.try_into().unwrap(), &volume);
            record.check(&self::wire().try_into().unwrap()).unwrap();
        }
        check(|wire| drop(wire.parameters.insert("iops".into(), "9".into()))).unwrap();
        check(|wire| wire.secrets.clear()).unwrap();
        check(|wire| wire.accessibility_requirements = None).unwrap();
        let claim = ("csi.storage.k8s.io/pvc/name".to_owned(), "claim".to_owned());
        check(|wire| wire.parameters.extend([claim])).unwrap();
        check(|wire| {
            wire.mutable_parameters.clear();
            wire.parameters.insert("iops".into(), "2".into());
        })
        .unwrap();
    }

    // spec: create-volume.differs-is-already-exists
    #[test]
    fn what_differs_is_named() {
        type Change = fn(&mut v1::CreateVolumeRequest);
        let cases: [(&str, Change); 9] = [
            ("capacity_range:", |wire| wire.capacity_range.as_mut().unwrap().required_bytes = 17),
            ("capacity_range:", |wire| {
                wire.capacity_range = Some(v1::CapacityRange { required_bytes: 0, limit_bytes: 15 });
            }),
            ("volume_capabilities:", |wire| drop(wire.volume_capabilities.pop())),
            ("volume_capabilities:", |wire| {
                wire.volume_capabilities[0].access_type = Some(AccessType::Mount(MountVolume::default()));
            }),
            ("parameters[pool]:", |wire| drop(wire.parameters.insert("pool".into(), "q".into()))),
            ("parameters[pool]:", |wire| drop(wire.parameters.remove("pool"))),
            ("mutable_parameters[iops]:", |wire| {
                drop(wire.mutable_parameters.insert("iops".into(), "3".into()));
            }),
            ("volume_content_source:", |wire| {
                use v1::volume_content_source::{Type, VolumeSource};
                let source = Type::Volume(VolumeSource { volume_id: "other".into() });
                wire.volume_content_source = Some(v1::VolumeContentSource { r#type: Some(source) });
            }),
            ("accessibility_requirements:", |wire| {
                let places = &mut wire.accessibility_requirements.as_mut().unwrap().requisite;
                *places = vec![Topology::new("zone", "z2").into()];
            }),
        ];
        for (field, change) in cases {
            let error = check(change).expect_err(field);
            assert!(
                matches!(&error, Error::Incompatible(text) if text.as_str().starts_with(field)),
                "{field}: {error}"
            );
        }
    }

    #[test]
    fn the_volume_comes_back_as_it_was_made() {
        use v1::volume_content_source::{SnapshotSource, Type};
        let mut wire = wire();
        let source = Type::Snapshot(SnapshotSource { snapshot_id: "s".into() });
        wire.volume_content_source = Some(v1::VolumeContentSource { r#type: Some(source) });
        let request: CreateVolumeRequest = wire.try_into().unwrap();
        let id = VolumeId::new("v").unwrap();
        let mut made =
            Volume::new(id.clone(), 16).accessible_from(Topology::new("zone", "z1").and("rack", "r"));
        made.content_source.clone_from(&request.volume_content_source);
        made.fs_type = Some("xfs".to_owned());
        let mut record = CreateRecord::new(&request, &made);
        assert_eq!(record.volume(id.clone()), made);
        record.expanded(18);
        assert_eq!((record.capacity_bytes(), record.volume(id).capacity_bytes), (18, 18));
    }

    #[test]
    fn it_follows_the_volume_and_is_kept_as_json_without_secrets() {
        let mut record = record();
        record.expanded(18);
        let changed = Parameters::read("", &[("iops".to_owned(), "3".to_owned())].into()).unwrap();
        record.modified(&changed);
        let json = serde_json::to_string(&record).unwrap();
        assert!(!json.contains("canary"), "{json}");
        assert_eq!(serde_json::from_str::<CreateRecord>(&json).unwrap(), record);
        let mut again = wire();
        again.capacity_range.as_mut().unwrap().required_bytes = 18;
        assert!(record.check(&again.clone().try_into().unwrap()).is_err());
        again.mutable_parameters.insert("iops".into(), "3".into());
        record.check(&again.try_into().unwrap()).unwrap();
    }
}
