//! Volumes and storage classes of Kubernetes' former in-tree plugins, as their CSI drivers get them.
//!
//! Kubernetes translates the objects of these plugins by itself, in the scheduler, the controllers and the
//! kubelet, and so do the sidecars. A driver that takes over such a plugin never sees the object: it gets a
//! volume handle, a volume context, topology and parameters that this translation made. It has to accept all of
//! them, as they are, for as long as one such volume exists. With this module a driver's tests make them.
//!
//! ```
//! use csi_kube::migration::{InTreePlugin, to_csi};
//! # use k8s_openapi::api::core::v1::{AWSElasticBlockStoreVolumeSource, PersistentVolume, PersistentVolumeSpec};
//! # let spec = PersistentVolumeSpec {
//! #     aws_elastic_block_store: Some(AWSElasticBlockStoreVolumeSource {
//! #         volume_id: "aws://eu-central-1a/vol-1".to_owned(), ..Default::default()
//! #     }),
//! #     ..Default::default()
//! # };
//! # let volume = PersistentVolume { spec: Some(spec), ..Default::default() };
//! assert_eq!(InTreePlugin::of(&volume), Some(InTreePlugin::AwsEbs));
//! let translated = to_csi(&volume)?;
//! let csi = translated.spec.and_then(|spec| spec.csi).expect("a CSI volume");
//! assert_eq!((csi.driver.as_str(), csi.volume_handle.as_str()), ("ebs.csi.aws.com", "vol-1"));
//! # Ok::<(), csi_kube::Error>(())
//! ```
//!
//! The rules are those of `k8s.io/csi-translation-lib` v0.37.2. `tests/migration.rs` compares this module with
//! what that library made of the same objects. docs/migration.md of the repository has them as a table.

mod class;
mod plugin;
mod topology;
mod volume;

pub use plugin::InTreePlugin;
pub use volume::{inline_to_csi, to_csi, to_in_tree};
