//! Volumes, by plugin. What is particular to Azure and to GCE has files of its own.

mod azure_disk;
mod azure_file;
pub(super) mod gce_pd;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, CinderPersistentVolumeSource,
    PersistentVolume, PersistentVolumeSpec, PortworxVolumeSource, SecretReference, Volume,
    VsphereVirtualDiskVolumeSource,
};

use super::plugin::InTreePlugin;
use super::topology;
use crate::error::{Error, Result};

const PORTWORX_SECRET_NAME: &str = "openstorage.io/auth-secret-name";
const PORTWORX_SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
/// The path that the driver returned when it created the volume for a class of the plugin.
const VSPHERE_PATH: &str = "initialvolumefilepath";

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
        InTreePlugin::AwsEbs => aws_ebs(&take(&mut spec.aws_elastic_block_store))?,
        InTreePlugin::AzureDisk => azure_disk::source(&take(&mut spec.azure_disk))?,
        InTreePlugin::AzureFile => azure_file::source(&mut volume)?,
        InTreePlugin::Cinder => {
            let source = take(&mut spec.cinder);
            csi(plugin, source.volume_id, source.fs_type, source.read_only)
        }
        InTreePlugin::GcePd => gce_pd::source(&mut volume)?,
        InTreePlugin::Portworx => portworx(&mut volume),
        InTreePlugin::Vsphere => vsphere(take(&mut spec.vsphere_volume)),
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
        InTreePlugin::AwsEbs => spec.aws_elastic_block_store = Some(aws_ebs_in_tree(csi)?),
        InTreePlugin::AzureDisk => spec.azure_disk = Some(azure_disk::in_tree(csi)?),
        InTreePlugin::AzureFile => azure_file::in_tree(&mut volume, csi)?,
        InTreePlugin::Cinder => spec.cinder = Some(cinder_in_tree(csi)),
        InTreePlugin::GcePd => spec.gce_persistent_disk = Some(gce_pd::in_tree(csi)?),
        InTreePlugin::Portworx => spec.portworx_volume = Some(portworx_in_tree(csi)),
        InTreePlugin::Vsphere => spec.vsphere_volume = Some(vsphere_in_tree(csi)),
    }
    let region_of: Option<topology::RegionOf> = match plugin {
        InTreePlugin::AwsEbs => Some(aws_region_of),
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
        InTreePlugin::AwsEbs => (aws_ebs(&of(&volume.aws_elastic_block_store))?, once),
        InTreePlugin::AzureDisk => (azure_disk::source(&of(&volume.azure_disk))?, once),
        InTreePlugin::AzureFile => (azure_file::inline(volume, pod_namespace), "ReadWriteMany"),
        InTreePlugin::Cinder => {
            let source = of(&volume.cinder);
            (csi(plugin, source.volume_id, source.fs_type, source.read_only), once)
        }
        InTreePlugin::GcePd => gce_pd::inline(&of(&volume.gce_persistent_disk)),
        InTreePlugin::Portworx => portworx_inline(of(&volume.portworx_volume)),
        InTreePlugin::Vsphere => (vsphere(of(&volume.vsphere_volume)), once),
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

fn attributes<const N: usize>(pairs: [(&str, Option<String>); N]) -> Option<BTreeMap<String, String>> {
    let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Some(pairs.collect::<BTreeMap<_, _>>()).filter(|attributes| !attributes.is_empty())
}

fn aws_ebs(source: &AWSElasticBlockStoreVolumeSource) -> Result<CSIPersistentVolumeSource> {
    let AWSElasticBlockStoreVolumeSource { fs_type, partition, read_only, volume_id } = source;
    let number = partition.unwrap_or_default().to_string();
    Ok(CSIPersistentVolumeSource {
        volume_attributes: attributes([("partition", Some(number))]),
        ..csi(InTreePlugin::AwsEbs, aws_handle(volume_id)?, fs_type.clone(), *read_only)
    })
}

/// The disk's id in `aws://ZONE/ID`, `aws:///ID` or `ID`.
fn aws_handle(volume_id: &str) -> Result<String> {
    let Some(rest) = volume_id.strip_prefix("aws://") else { return Ok(volume_id.to_owned()) };
    let id = rest.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
    if id.starts_with("vol-") && !id.contains('/') {
        return Ok(id.to_owned());
    }
    Err(Error::invalid(
        format!("awsElasticBlockStore.volumeID: {volume_id}"),
        "it has to be vol-…, or aws://ZONE/vol-…",
    ))
}

fn aws_ebs_in_tree(csi: CSIPersistentVolumeSource) -> Result<AWSElasticBlockStoreVolumeSource> {
    Ok(AWSElasticBlockStoreVolumeSource {
        partition: partition(&csi)?,
        volume_id: csi.volume_handle,
        fs_type: csi.fs_type,
        read_only: csi.read_only,
    })
}

/// `us-west-2a` is in `us-west-2`, and so is the local zone `us-west-2-lax-1a`.
fn aws_region_of(zones: &[String]) -> Result<String> {
    topology::one_region(zones, |zone| {
        let parts: Vec<&str> = zone.split('-').collect();
        let last = parts.last()?;
        match parts.len() {
            3 | 4 if last.len() == 2 && last.is_ascii() => Some(zone[..zone.len() - 1].to_owned()),
            5 | 7 => Some(parts[..3].join("-")),
            _ => None,
        }
    })
}

fn cinder_in_tree(csi: CSIPersistentVolumeSource) -> CinderPersistentVolumeSource {
    CinderPersistentVolumeSource {
        volume_id: csi.volume_handle,
        fs_type: csi.fs_type,
        read_only: csi.read_only,
        secret_ref: None,
    }
}

fn portworx(volume: &mut PersistentVolume) -> CSIPersistentVolumeSource {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).cloned();
    let secret = annotation(PORTWORX_SECRET_NAME).zip(annotation(PORTWORX_SECRET_NAMESPACE));
    let secret =
        secret.map(|(name, namespace)| SecretReference { name: Some(name), namespace: Some(namespace) });
    CSIPersistentVolumeSource {
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..portworx_disk(take(&mut volume.spec.get_or_insert_default().portworx_volume))
    }
}

/// The source, and the access mode. The mode alone says that it is read-only.
fn portworx_inline(source: PortworxVolumeSource) -> (CSIPersistentVolumeSource, &'static str) {
    let mode = if source.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
    (portworx_disk(source), mode)
}

fn portworx_disk(source: PortworxVolumeSource) -> CSIPersistentVolumeSource {
    csi(InTreePlugin::Portworx, source.volume_id, source.fs_type, None)
}

fn portworx_in_tree(csi: CSIPersistentVolumeSource) -> PortworxVolumeSource {
    PortworxVolumeSource { volume_id: csi.volume_handle, fs_type: csi.fs_type, read_only: csi.read_only }
}

fn vsphere(source: VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = source.storage_policy_name.filter(|policy| !policy.is_empty());
    CSIPersistentVolumeSource {
        volume_attributes: attributes([("storagepolicyname", policy)]),
        ..csi(InTreePlugin::Vsphere, source.volume_path, source.fs_type, None)
    }
}

fn vsphere_in_tree(csi: CSIPersistentVolumeSource) -> VsphereVirtualDiskVolumeSource {
    let path = csi.volume_attributes.and_then(|mut attributes| attributes.remove(VSPHERE_PATH));
    VsphereVirtualDiskVolumeSource {
        fs_type: csi.fs_type,
        volume_path: path.unwrap_or_default(),
        ..Default::default()
    }
}

impl InTreePlugin {
    /// The volume handle under which the driver knows a volume, when the translation could not know all of it:
    /// the handle of a GCE disk gets its project and zone from the node's id. Every other handle stays.
    ///
    /// The external-attacher compares such handles with those that the driver lists.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the handle or the node's id does not have the parts of a
    /// GCE resource's path.
    pub fn repair_volume_handle(self, handle: &str, node_id: &str) -> Result<String> {
        match self {
            Self::GcePd => gce_pd::repair(handle, node_id),
            _ => Ok(handle.to_owned()),
        }
    }
}
