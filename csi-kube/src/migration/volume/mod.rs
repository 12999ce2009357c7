//! Volumes: one file for each plugin, with what is particular to it.

mod aws_ebs;
mod azure_disk;
mod azure_file;
mod cinder;
pub(super) mod gce_pd;
mod portworx;
mod vsphere;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, Volume};

use super::{InTreePlugin, topology};
use crate::{Error, Result};

/// The volume with the source of the CSI driver in place of the plugin's, and with the driver's topology.
///
/// # Errors
/// [`Error::Invalid`] when it is not a volume of an [`InTreePlugin`], or when its fields can't be translated.
pub fn to_csi(volume: &PersistentVolume) -> Result<PersistentVolume> {
    let plugin = InTreePlugin::of(volume).ok_or_else(|| {
        Error::invalid(named(volume), "it has no source of an in-tree plugin that Kubernetes translates")
    })?;
    let mut volume = volume.clone();
    let spec = volume.spec.get_or_insert_default();
    let csi = match plugin {
        InTreePlugin::AwsEbs => aws_ebs::source(&take(&mut spec.aws_elastic_block_store))?,
        InTreePlugin::AzureDisk => azure_disk::source(&take(&mut spec.azure_disk))?,
        InTreePlugin::AzureFile => azure_file::source(&mut volume)?,
        InTreePlugin::Cinder => {
            let source = take(&mut spec.cinder);
            cinder::source(&source.volume_id, source.fs_type, source.read_only)
        }
        InTreePlugin::GcePd => gce_pd::source(&mut volume)?,
        InTreePlugin::Portworx => portworx::source(&mut volume),
        InTreePlugin::Vsphere => vsphere::source(take(&mut spec.vsphere_volume)),
    };
    match topology_keys(plugin) {
        None => {}
        Some((zone, Some(region))) => topology::zone_and_region_to_csi(&mut volume, zone, region),
        Some((zone, None)) => topology::zone_to_csi(&mut volume, zone),
    }
    volume.spec.get_or_insert_default().csi = Some(csi);
    Ok(volume)
}

/// The volume with the source of the in-tree plugin in place of its CSI driver's.
///
/// # Errors
/// [`Error::Invalid`] when it is not a volume of a driver that replaces an [`InTreePlugin`], or when its fields
/// can't be translated.
pub fn to_in_tree(volume: &PersistentVolume) -> Result<PersistentVolume> {
    let driver = volume.spec.as_ref().and_then(|spec| Some(spec.csi.as_ref()?.driver.as_str()));
    let plugin = driver.and_then(InTreePlugin::from_driver).ok_or_else(|| {
        Error::invalid(named(volume), "it has no source of a CSI driver that replaces an in-tree plugin")
    })?;
    let mut volume = volume.clone();
    let csi = take(&mut volume.spec.get_or_insert_default().csi);
    let spec = volume.spec.get_or_insert_default();
    match plugin {
        InTreePlugin::AwsEbs => spec.aws_elastic_block_store = Some(aws_ebs::in_tree(csi)?),
        InTreePlugin::AzureDisk => spec.azure_disk = Some(azure_disk::in_tree(csi)?),
        InTreePlugin::AzureFile => azure_file::in_tree(&mut volume, csi)?,
        InTreePlugin::Cinder => spec.cinder = Some(cinder::in_tree(csi)),
        InTreePlugin::GcePd => spec.gce_persistent_disk = Some(gce_pd::in_tree(csi)?),
        InTreePlugin::Portworx => spec.portworx_volume = Some(portworx::in_tree(csi)),
        InTreePlugin::Vsphere => spec.vsphere_volume = Some(vsphere::in_tree(csi)),
    }
    let region_of: Option<topology::RegionOf> = match plugin {
        InTreePlugin::AwsEbs => Some(aws_ebs::region_of),
        InTreePlugin::GcePd => Some(gce_pd::region_of),
        _ => None,
    };
    match topology_keys(plugin) {
        None => {}
        Some((zone, Some(region))) => topology::zone_and_region_to_in_tree(&mut volume, zone, region),
        Some((zone, None)) => topology::zone_to_in_tree(&mut volume, zone, region_of)?,
    }
    Ok(volume)
}

/// The persistent volume that stands for a volume in the specification of a pod in this namespace.
///
/// Its name is unique for each storage object, and a part of the staging path.
///
/// # Errors
/// [`Error::Invalid`] when it is not a volume of an [`InTreePlugin`], or when its fields can't be translated.
pub fn inline_to_csi(volume: &Volume, pod_namespace: &str) -> Result<PersistentVolume> {
    let plugin = InTreePlugin::of_inline(volume).ok_or_else(|| {
        let reason = "it has no source of an in-tree plugin that Kubernetes translates";
        Error::invalid(format!("volume {}", volume.name), reason)
    })?;
    let once = "ReadWriteOnce";
    let (csi, mode) = match plugin {
        InTreePlugin::AwsEbs => (aws_ebs::source(&of(&volume.aws_elastic_block_store))?, once),
        InTreePlugin::AzureDisk => (azure_disk::source(&of(&volume.azure_disk))?, once),
        InTreePlugin::AzureFile => (azure_file::inline(volume, pod_namespace), "ReadWriteMany"),
        InTreePlugin::Cinder => {
            let source = of(&volume.cinder);
            (cinder::source(&source.volume_id, source.fs_type, source.read_only), once)
        }
        InTreePlugin::GcePd => gce_pd::inline(&of(&volume.gce_persistent_disk)),
        InTreePlugin::Portworx => portworx::inline(of(&volume.portworx_volume)),
        InTreePlugin::Vsphere => (vsphere::source(of(&volume.vsphere_volume)), once),
    };
    let name = match plugin {
        InTreePlugin::AzureDisk | InTreePlugin::AzureFile => csi.volume_handle.clone(),
        InTreePlugin::GcePd => format!("{}-{}", plugin.driver(), of(&volume.gce_persistent_disk).pd_name),
        _ => format!("{}-{}", plugin.driver(), csi.volume_handle),
    };
    let spec = PersistentVolumeSpec {
        csi: Some(csi),
        access_modes: Some(vec![mode.to_owned()]),
        volume_mode: Some("Filesystem".to_owned()),
        ..Default::default()
    };
    let mut found = PersistentVolume { spec: Some(spec), ..Default::default() };
    found.metadata.name = Some(name);
    Ok(found)
}

/// The keys of the zone, and of the region if the driver has one, for the volumes of this plugin. Kubernetes
/// translates the zones of Azure's classes only, not those of its disks.
fn topology_keys(plugin: InTreePlugin) -> Option<(&'static str, Option<&'static str>)> {
    let zone = plugin.zone_key().filter(|_| plugin != InTreePlugin::AzureDisk)?;
    Some((zone, plugin.region_key()))
}

fn named(volume: &PersistentVolume) -> String {
    format!("volume {}", volume.metadata.name.as_deref().unwrap_or_default())
}

fn take<T: Default>(source: &mut Option<T>) -> T {
    source.take().unwrap_or_default()
}

fn of<T: Clone + Default>(source: &Option<T>) -> T {
    source.clone().unwrap_or_default()
}

/// A CSI source with what all plugins have. Kubernetes leaves out what is empty or false.
fn csi(
    plugin: InTreePlugin,
    handle: String,
    fs_type: Option<String>,
    read_only: Option<bool>,
) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: plugin.driver().to_owned(),
        volume_handle: handle,
        fs_type: fs_type.filter(|text| !text.is_empty()),
        read_only: read_only.filter(|is| *is),
        ..Default::default()
    }
}

/// The number of a partition, in a volume's attributes.
fn partition(csi: &CSIPersistentVolumeSource) -> Result<Option<i32>> {
    let text = csi.volume_attributes.as_ref().and_then(|attributes| attributes.get("partition"));
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let number = text.parse::<i32>();
    let number = number.map_err(|_| {
        Error::invalid(format!("volume attribute partition: {text:?}"), "it has to be a whole number")
    })?;
    Ok(Some(number).filter(|number| *number != 0))
}

/// Attributes, if there are any.
fn attributes<const N: usize>(pairs: [(&str, Option<String>); N]) -> Option<BTreeMap<String, String>> {
    let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Some(pairs.collect::<BTreeMap<_, _>>()).filter(|attributes| !attributes.is_empty())
}
