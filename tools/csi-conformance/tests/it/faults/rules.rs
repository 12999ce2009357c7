//! Faults in rules that show when a request differs from the one before, or is unusual.

use csi_proto::v1;
use v1::volume_capability::{AccessType, BlockVolume};

use super::*;

/// Answers OK for an existing name, whatever else the request asks for.
fn names_alone_count() -> Fault {
    only(|asked: v1::CreateVolumeRequest, behind| async move {
        match behind.ask(&asked).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                let volume = Some(v1::Volume {
                    volume_id: "whatever".into(),
                    content_source: asked.volume_content_source,
                    ..Default::default()
                });
                Ok(v1::CreateVolumeResponse { volume })
            }
            answer => answer,
        }
    })
}

/// Answers OK to a relative path, and does nothing.
fn takes_any_path() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let published = asked(rpc, &bytes).map(|r: v1::NodePublishVolumeRequest| r.target_path);
        let unpublished = asked(rpc, &bytes).map(|r: v1::NodeUnpublishVolumeRequest| r.target_path);
        match published.or(unpublished) {
            Some(path) if !path.starts_with('/') => Ok(vec![]),
            _ => behind.call(rpc, bytes).await,
        }
    })
}

/// Whether the capability has a multi-node mode, which the drivers here do not support.
fn is_of_many_nodes(capability: Option<&v1::VolumeCapability>) -> bool {
    (3..=5).contains(&capability.and_then(|one| one.access_mode).unwrap_or_default().mode)
}

pub(super) fn all() -> Vec<Mutant> {
    type Create = v1::CreateVolumeRequest;
    mutants! {
        "secrets are told where the driver is not available", "every-call.secrets":
            status(|rpc, bytes, status| match rpc {
                Rpc::ValidateVolumeCapabilities => {
                    Err(Status::unavailable(String::from_utf8_lossy(bytes).into_owned()))
                }
                _ => Err(status),
            });
        "names alone count", "create-volume.same-name-other-source": names_alone_count(), leaves_something;
        "names alone count, from snapshots too", "create-volume.same-name-other-snapshot":
            names_alone_count(), leaves_something;
        "a name with another use is INTERNAL", "create-volume.same-name-other-use":
            code(Rpc::CreateVolume, Code::AlreadyExists, Code::Internal);
        "the oldest mode is given up for the newer ones", "create-volume.oldest-mode-stays":
            refuses(Code::InvalidArgument, |r: &Create| {
                r.volume_capabilities.iter().any(|one| one.access_mode.unwrap_or_default().mode == 1)
            });
        "places are told without the capability", "create-volume.places-need-capability":
            answer::<v1::GetPluginCapabilitiesRequest>(|a| {
                use v1::plugin_capability::{Service, Type};
                a.capabilities.retain(|one| one.r#type != Some(Type::Service(Service { r#type: 2 })));
            });
        "a negative size is the smallest", "fields.negative":
            request(|r: &mut Create| {
                if let Some(range) = &mut r.capacity_range {
                    range.required_bytes = range.required_bytes.max(0);
                    range.limit_bytes = range.limit_bytes.max(0);
                }
            });
        "growing to less than nothing is OK", "controller-expand.below-zero":
            request(|r: &mut v1::ControllerExpandVolumeRequest| {
                r.capacity_range
                    .iter_mut()
                    .for_each(|range| range.required_bytes = range.required_bytes.max(1));
            });
        "the node grows to less than nothing", "fields.node-negative":
            skips(|r: &v1::NodeExpandVolumeRequest| {
                r.capacity_range.is_some_and(|range| range.required_bytes < 0)
            }), of_images;
        "a filesystem's name of any length is taken", "fields.controller-limits":
            request(|r: &mut Create| {
                for one in &mut r.volume_capabilities {
                    if let Some(AccessType::Mount(mount)) = &mut one.access_type
                        && mount.fs_type.len() > 128
                    {
                        mount.fs_type.clear();
                    }
                }
            });
        "as many mount flags as one likes", "fields.controller-limits":
            request(|r: &mut Create| {
                for one in &mut r.volume_capabilities {
                    if let Some(AccessType::Mount(mount)) = &mut one.access_type {
                        mount.mount_flags.truncate(2);
                    }
                }
            });
        "the node's part in growing is wanted and not offered", "controller-expand.node-part-is-offered":
            answer::<v1::NodeGetCapabilitiesRequest>(|a| {
                use v1::node_service_capability::{Rpc, Type, rpc};
                let expand = rpc::Type::ExpandVolume as i32;
                a.capabilities.retain(|one| one.r#type != Some(Type::Rpc(Rpc { r#type: expand })));
            }), of_images;
        "growing for another use is INTERNAL", "controller-expand.beyond-capabilities":
            refuses(Code::Internal, |r: &v1::ControllerExpandVolumeRequest| {
                is_of_many_nodes(r.volume_capability.as_ref())
            });
        "paths have the limit of strings", "node-publish.long-paths":
            refuses(Code::InvalidArgument, |r: &v1::NodePublishVolumeRequest| r.target_path.len() > 128);
        "a path that is not absolute is taken", "node-publish.relative-paths": takes_any_path();
        "staging in another way is INTERNAL", "node-publish.staged-otherwise":
            refuses(Code::Internal, |r: &v1::NodeStageVolumeRequest| {
                let access = r.volume_capability.as_ref().and_then(|one| one.access_type.clone());
                access == Some(AccessType::Block(BlockVolume {}))
            }), of_filesystems;
        "growing on the node for another use is INTERNAL", "node-publish.grown-otherwise":
            refuses(Code::Internal, |r: &v1::NodeExpandVolumeRequest| {
                is_of_many_nodes(r.volume_capability.as_ref())
            }), of_filesystems;
    }
}
