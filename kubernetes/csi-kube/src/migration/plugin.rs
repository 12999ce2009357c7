//! The in-tree plugins, and the names that belong to each.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};

/// A plugin that was a part of Kubernetes, and whose volumes a CSI driver serves now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InTreePlugin {
    /// `awsElasticBlockStore`
    AwsEbs,
    /// `azureDisk`
    AzureDisk,
    /// `azureFile`
    AzureFile,
    /// `cinder`
    Cinder,
    /// `gcePersistentDisk`
    GcePd,
    /// `portworxVolume`
    Portworx,
    /// `vsphereVolume`
    Vsphere,
}

impl InTreePlugin {
    /// All plugins that Kubernetes translates.
    pub const ALL: [Self; 7] = [
        Self::AwsEbs,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Cinder,
        Self::GcePd,
        Self::Portworx,
        Self::Vsphere,
    ];

    /// The plugin's name, which is the provisioner of its storage classes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::AzureFile => "kubernetes.io/azure-file",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
            Self::Vsphere => "kubernetes.io/vsphere-volume",
        }
    }

    /// The name of the CSI driver that serves its volumes.
    #[must_use]
    pub const fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Portworx => "pxd.portworx.com",
            Self::Vsphere => "csi.vsphere.vmware.com",
        }
    }

    /// The topology key that the zone of a translated volume gets, if the driver has topology.
    #[must_use]
    pub(super) const fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::AzureDisk => Some("topology.disk.csi.azure.com/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::Vsphere => Some("topology.csi.vmware.com/zone"),
            Self::AzureFile | Self::Portworx => None,
        }
    }

    /// The topology key that the region of a translated volume gets. Only vSphere's driver has one.
    #[must_use]
    pub(super) const fn region_key(self) -> Option<&'static str> {
        match self {
            Self::Vsphere => Some("topology.csi.vmware.com/region"),
            _ => None,
        }
    }

    /// The plugin with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == name)
    }

    /// The plugin whose volumes the CSI driver with this name serves.
    #[must_use]
    pub fn from_driver(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.driver() == driver)
    }

    /// The plugin of a persistent volume that was not translated.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let of = |has: bool, plugin: Self| has.then_some(plugin);
        of(spec.aws_elastic_block_store.is_some(), Self::AwsEbs)
            .or(of(spec.azure_disk.is_some(), Self::AzureDisk))
            .or(of(spec.azure_file.is_some(), Self::AzureFile))
            .or(of(spec.cinder.is_some(), Self::Cinder))
            .or(of(spec.gce_persistent_disk.is_some(), Self::GcePd))
            .or(of(spec.portworx_volume.is_some(), Self::Portworx))
            .or(of(spec.vsphere_volume.is_some(), Self::Vsphere))
    }

    /// The plugin of a volume in a pod's specification.
    #[must_use]
    pub fn of_inline(volume: &Volume) -> Option<Self> {
        let of = |has: bool, plugin: Self| has.then_some(plugin);
        of(volume.aws_elastic_block_store.is_some(), Self::AwsEbs)
            .or(of(volume.azure_disk.is_some(), Self::AzureDisk))
            .or(of(volume.azure_file.is_some(), Self::AzureFile))
            .or(of(volume.cinder.is_some(), Self::Cinder))
            .or(of(volume.gce_persistent_disk.is_some(), Self::GcePd))
            .or(of(volume.portworx_volume.is_some(), Self::Portworx))
            .or(of(volume.vsphere_volume.is_some(), Self::Vsphere))
    }
}
