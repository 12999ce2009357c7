use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, GCEPersistentDiskVolumeSource, PersistentVolume,
};

use super::super::{InTreePlugin, topology};
use crate::error::{Error, Result};

/// A part of a handle that the translation can't know. The driver, and `repair`, find it.
const UNSPECIFIED: &str = "UNSPECIFIED";

const ONCE: &str = "ReadWriteOnce";
const READ_MANY: &str = "ReadOnlyMany";

pub(super) fn source(volume: &mut PersistentVolume) -> Result<CSIPersistentVolumeSource> {
    let label = |key| topology::label(volume, key).filter(|zone| !zone.is_empty());
    let zones = label(topology::OLD_ZONE).or_else(|| label(topology::ZONE)).unwrap_or_default();
    let zones: Vec<String> = zones.split(topology::SEPARATOR).map(str::to_owned).collect();
    let place = match zones.as_slice() {
        [zone] if zone.is_empty() => format!("zones/{UNSPECIFIED}"),
        [zone] => format!("zones/{zone}"),
        several => format!("regions/{}", region_of(several)?),
    };
    let spec = volume.spec.get_or_insert_default();
    let csi = disk(&place, &super::take(&mut spec.gce_persistent_disk));
    spec.access_modes = spec.access_modes.take().map(access_modes);
    Ok(csi)
}

pub(super) fn inline(source: &GCEPersistentDiskVolumeSource) -> (CSIPersistentVolumeSource, &'static str) {
    let mode = if source.read_only == Some(true) { READ_MANY } else { ONCE };
    (disk(&format!("zones/{UNSPECIFIED}"), source), mode)
}

fn disk(place: &str, source: &GCEPersistentDiskVolumeSource) -> CSIPersistentVolumeSource {
    let GCEPersistentDiskVolumeSource { fs_type, partition, pd_name, read_only } = source;
    let partition =
        partition.filter(|number| *number != 0).map_or(String::new(), |number| number.to_string());
    let handle = format!("projects/{UNSPECIFIED}/{place}/disks/{pd_name}");
    CSIPersistentVolumeSource {
        volume_attributes: super::attributes([("partition", Some(partition))]),
        ..super::csi(InTreePlugin::GcePd, handle, fs_type.clone(), *read_only)
    }
}

/// The plugin accepted every mode, and attached the disk for one node. The driver and the external-attacher
/// refuse the others.
fn access_modes(modes: Vec<String>) -> Vec<String> {
    let has = |wanted: &[&str]| modes.iter().any(|mode| wanted.contains(&mode.as_str()));
    let only_reads = has(&[READ_MANY]) && !has(&[ONCE, "ReadWriteMany"]);
    vec![if only_reads { READ_MANY } else { ONCE }.to_owned()]
}

pub(super) fn in_tree(csi: CSIPersistentVolumeSource) -> Result<GCEPersistentDiskVolumeSource> {
    let partition = super::partition(&csi)?;
    Ok(GCEPersistentDiskVolumeSource {
        pd_name: parts("csi.volumeHandle", &csi.volume_handle)?[5].to_owned(),
        fs_type: csi.fs_type,
        read_only: csi.read_only,
        partition,
    })
}

/// The parts of `projects/PROJECT/zones/ZONE/disks/NAME` or of a similar path.
fn parts<'t>(field: &str, text: &'t str) -> Result<[&'t str; 6]> {
    let parts: Vec<&str> = text.split('/').collect();
    let parts = parts.first_chunk::<6>().copied();
    parts.ok_or_else(|| {
        Error::invalid(
            format!("{field}: {text}"),
            "it has to have six parts: projects/PROJECT/zones/ZONE/disks/NAME, for a node instances/NAME",
        )
    })
}

/// The region of zones such as `us-central1-b`.
pub(super) fn region_of(zones: &[String]) -> Result<String> {
    topology::one_region(zones, |zone| {
        let (region, _) = zone.rsplit_once('-')?;
        (region.split('-').count() == 2).then(|| region.to_owned())
    })
}

pub(in super::super) fn repair(handle: &str, node_id: &str) -> Result<String> {
    let [_, project, kind, place, _, disk] = parts("volume handle", handle)?;
    if project != UNSPECIFIED {
        return Ok(handle.to_owned());
    }
    let [_, project, _, zone, _, _] = parts("node id", node_id)?;
    let of_node = match kind {
        "zones" => zone.to_owned(),
        "regions" => region_of(&[zone.to_owned()])?,
        _ => {
            let reason = "its third part has to be zones or regions";
            return Err(Error::invalid(format!("volume handle: {handle}"), reason));
        }
    };
    let place = if place == UNSPECIFIED { &of_node } else { place };
    Ok(format!("projects/{project}/{kind}/{place}/disks/{disk}"))
}
