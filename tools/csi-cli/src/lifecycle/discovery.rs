//! The first calls of an orchestrator: the driver's name and capabilities.

use csi_proto::{ControllerCapability as ControllerRpc, NodeCapability as NodeRpc, v1};
use tonic::Code;
use v1::plugin_capability::{Type as PluginType, service, volume_expansion};

use super::driver::{Capabilities, Growth, of_controller, of_node};
use super::steps::{Outcome, Steps};

/// Asks the driver for its name, its readiness and its capabilities.
///
/// # Errors
/// When a call fails.
pub(crate) async fn discover(steps: &mut Steps<'_>) -> Outcome<Capabilities> {
    let plugin = identity(steps).await?;
    let has = |kind: service::Type| {
        plugin.iter().any(|one| matches!(one, PluginType::Service(service) if service.r#type() == kind))
    };
    let has_controller = has(service::Type::ControllerService);
    let controller = if has_controller { controller(steps).await } else { Ok(Vec::new()) };
    let controller = match controller {
        // GetPluginCapabilities is the same on all sockets of a driver, even without the controller.
        Err(failure) if failure.code == Some(Code::Unimplemented) => {
            steps.report.left_out("ControllerGetCapabilities", "no controller on this socket");
            Vec::new()
        }
        found => found?,
    };
    let (node, info) = match node(steps).await {
        Ok((node, info)) => (Some(node), info),
        Err(failure) if failure.code == Some(Code::Unimplemented) => {
            steps.report.left_out("NodeGetCapabilities", "no node service on this socket");
            (None, v1::NodeGetInfoResponse::default())
        }
        Err(failure) => return Err(failure),
    };
    let on_node = |rpc| node.as_ref().is_some_and(|node| node.contains(&rpc));
    let controller_expands = controller.contains(&ControllerRpc::ExpandVolume);
    let node_expands = on_node(NodeRpc::ExpandVolume);
    Ok(Capabilities {
        creates: controller.contains(&ControllerRpc::CreateDeleteVolume),
        has_controller: !controller.is_empty(),
        attaches: controller.contains(&ControllerRpc::PublishUnpublishVolume),
        snapshots: controller.contains(&ControllerRpc::CreateDeleteSnapshot),
        clones: controller.contains(&ControllerRpc::CloneVolume),
        node: node.is_some(),
        several_targets: several_targets(&controller, node.as_deref()),
        stages: on_node(NodeRpc::StageUnstageVolume),
        stats: on_node(NodeRpc::GetVolumeStats),
        growth: growth(&plugin, controller_expands, node_expands),
        controller_expands,
        node_expands,
        node_id: info.node_id,
        topology: info.accessible_topology.filter(|_| has(service::Type::VolumeAccessibilityConstraints)),
    })
}

/// A driver that reports neither ONLINE nor OFFLINE is assumed to expand volumes at any time. Where only the node
/// expands them, they have to be there.
fn growth(plugin: &[PluginType], controller_expands: bool, node_expands: bool) -> Growth {
    let has = |kind: volume_expansion::Type| {
        plugin.iter().any(|one| matches!(one, PluginType::VolumeExpansion(one) if one.r#type() == kind))
    };
    let is_only_offline = has(volume_expansion::Type::Offline) && !has(volume_expansion::Type::Online);
    match (controller_expands, node_expands) {
        (false, false) => Growth::Never,
        (true, _) if is_only_offline => Growth::Unused,
        _ => Growth::InUse,
    }
}

/// If the two services differ, only one of them supports the mode, and it is not used. With a single service
/// on these sockets, that one decides.
fn several_targets(controller: &[ControllerRpc], node: Option<&[NodeRpc]>) -> bool {
    let controller =
        (!controller.is_empty()).then(|| controller.contains(&ControllerRpc::SingleNodeMultiWriter));
    let node = node.map(|node| node.contains(&NodeRpc::SingleNodeMultiWriter));
    match (controller, node) {
        (Some(controller), Some(node)) => controller && node,
        (one, other) => one.or(other).unwrap_or(false),
    }
}

async fn identity(steps: &mut Steps<'_>) -> Outcome<Vec<PluginType>> {
    steps
        .make("GetPluginInfo", v1::GetPluginInfoRequest {}, |info| {
            Ok(format!("{} {}", info.name, info.vendor_version))
        })
        .await?;
    steps
        .make("Probe", v1::ProbeRequest {}, |probed| match probed.ready {
            Some(false) => Err("the plugin is not ready".to_owned()),
            // An unset `ready` means ready.
            _ => Ok("ready".to_owned()),
        })
        .await?;
    let found = steps
        .make("GetPluginCapabilities", v1::GetPluginCapabilitiesRequest {}, |found| {
            Ok(words(found.capabilities.iter().map(|one| plugin_capability(one.r#type.as_ref()))))
        })
        .await?;
    Ok(found.capabilities.into_iter().filter_map(|one| one.r#type).collect())
}

async fn controller(steps: &mut Steps<'_>) -> Outcome<Vec<ControllerRpc>> {
    let found = steps
        .make("ControllerGetCapabilities", v1::ControllerGetCapabilitiesRequest {}, |found| {
            Ok(words(of_controller(found).iter().map(ControllerRpc::as_str_name)))
        })
        .await?;
    Ok(of_controller(&found))
}

async fn node(steps: &mut Steps<'_>) -> Outcome<(Vec<NodeRpc>, v1::NodeGetInfoResponse)> {
    let found = steps
        .make("NodeGetCapabilities", v1::NodeGetCapabilitiesRequest {}, |found| {
            Ok(words(of_node(found).iter().map(NodeRpc::as_str_name)))
        })
        .await?;
    let info = steps
        .make("NodeGetInfo", v1::NodeGetInfoRequest {}, |info| match info.node_id.as_str() {
            "" => Err("the node has no id".to_owned()),
            id => Ok(format!("node {id}")),
        })
        .await?;
    Ok((of_node(&found), info))
}

fn plugin_capability(capability: Option<&PluginType>) -> &'static str {
    match capability {
        Some(PluginType::Service(one)) => {
            service::Type::try_from(one.r#type).unwrap_or_default().as_str_name()
        }
        Some(PluginType::VolumeExpansion(one)) => match one.r#type() {
            volume_expansion::Type::Online => "VOLUME_EXPANSION_ONLINE",
            volume_expansion::Type::Offline => "VOLUME_EXPANSION_OFFLINE",
            volume_expansion::Type::Unknown => "VOLUME_EXPANSION_UNKNOWN",
        },
        None => "UNKNOWN",
    }
}

/// The spec's names in short form: `create delete volume`.
fn words<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| name.to_lowercase().replace('_', " ")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_grow_when_the_driver_says_so() {
        let plugin = |kinds: &[volume_expansion::Type]| -> Vec<_> {
            let one = |kind: &volume_expansion::Type| {
                PluginType::VolumeExpansion(v1::plugin_capability::VolumeExpansion { r#type: (*kind).into() })
            };
            kinds.iter().map(one).collect()
        };
        let online = volume_expansion::Type::Online;
        let offline = volume_expansion::Type::Offline;
        assert_eq!(growth(&plugin(&[online]), false, false), Growth::Never);
        assert_eq!(growth(&plugin(&[online, offline]), true, false), Growth::InUse);
        assert_eq!(growth(&plugin(&[]), true, true), Growth::InUse);
        assert_eq!(growth(&plugin(&[offline]), true, true), Growth::Unused);
        assert_eq!(growth(&plugin(&[offline]), false, true), Growth::InUse, "only the node expands it");
    }

    #[test]
    fn several_targets_want_the_word_of_every_service_that_is_here() {
        let controller = [ControllerRpc::SingleNodeMultiWriter];
        let other = [ControllerRpc::CreateDeleteVolume];
        let node = [NodeRpc::SingleNodeMultiWriter];
        let without = [NodeRpc::GetVolumeStats];
        for (controller, node, due) in [
            (&controller[..], Some(&node[..]), true),
            (&controller, Some(&without), false),
            (&other, Some(&node), false),
            (&[], Some(&node), true),
            (&[], Some(&[]), false),
            (&controller, None, true),
            (&[], None, false),
        ] {
            assert_eq!(several_targets(controller, node), due, "{controller:?} {node:?}");
        }
    }
}
