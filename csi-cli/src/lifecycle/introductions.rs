//! The first calls of an orchestrator: who a driver is, and what it can do.

use csi_proto::v1;
use tonic::Code;
use v1::controller_service_capability::{Type as ControllerType, rpc::Type as ControllerRpc};
use v1::node_service_capability::{Type as NodeType, rpc::Type as NodeRpc};
use v1::plugin_capability::{Type as PluginType, service, volume_expansion};

use super::call::{Caller, Outcome};

/// What a driver can do, as far as it matters here.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Offers {
    /// It has a controller here that can do something.
    pub has_controller: bool,
    /// It makes volumes.
    pub creates: bool,
    /// It attaches them to nodes.
    pub attaches: bool,
    /// It cuts snapshots.
    pub snapshots: bool,
    /// It has a node service here.
    pub node: bool,
    /// The node's id.
    pub node_id: String,
    /// A volume for several writers of one node may have several targets there: every service that is here says so.
    pub several_targets: bool,
    /// A volume is made ready on a node before it is published.
    pub stages: bool,
    /// It tells how full a volume is.
    pub stats: bool,
    /// The controller makes volumes larger.
    pub expands: bool,
    /// The node makes the filesystem larger then.
    pub node_expands: bool,
}

/// Asks who the driver is, whether it is well, and what it can do.
///
/// # Errors
/// When it does not say.
pub async fn meet(caller: &mut Caller<'_>) -> Outcome<Offers> {
    let controller = if identity(caller).await? { controller(caller).await } else { Ok(Vec::new()) };
    let controller = match controller {
        // The answer is the same on every socket of the driver, whether that one has the controller or not.
        Err(failure) if failure.code == Some(Code::Unimplemented) => {
            caller.report.left_out("ControllerGetCapabilities", "no controller here");
            Vec::new()
        }
        found => found?,
    };
    let (node, node_id) = match node(caller).await {
        Ok((node, id)) => (Some(node), id),
        Err(failure) if failure.code == Some(Code::Unimplemented) => {
            caller.report.left_out("NodeGetCapabilities", "no node service here");
            (None, String::new())
        }
        Err(failure) => return Err(failure),
    };
    let on_node = |rpc| node.as_ref().is_some_and(|node| node.contains(&rpc));
    Ok(Offers {
        creates: controller.contains(&ControllerRpc::CreateDeleteVolume),
        has_controller: !controller.is_empty(),
        attaches: controller.contains(&ControllerRpc::PublishUnpublishVolume),
        snapshots: controller.contains(&ControllerRpc::CreateDeleteSnapshot),
        node: node.is_some(),
        several_targets: several_targets(&controller, node.as_deref()),
        stages: on_node(NodeRpc::StageUnstageVolume),
        stats: on_node(NodeRpc::GetVolumeStats),
        expands: controller.contains(&ControllerRpc::ExpandVolume),
        node_expands: on_node(NodeRpc::ExpandVolume),
        node_id,
    })
}

/// A driver whose two services differ about it takes the mode in one of them only. One that has a single service here
/// is judged by that.
fn several_targets(controller: &[ControllerRpc], node: Option<&[NodeRpc]>) -> bool {
    let controller =
        (!controller.is_empty()).then(|| controller.contains(&ControllerRpc::SingleNodeMultiWriter));
    let node = node.map(|node| node.contains(&NodeRpc::SingleNodeMultiWriter));
    match (controller, node) {
        (Some(controller), Some(node)) => controller && node,
        (one, other) => one.or(other).unwrap_or(false),
    }
}

/// Whether it has a controller.
async fn identity(caller: &mut Caller<'_>) -> Outcome<bool> {
    caller
        .step(
            "GetPluginInfo",
            &v1::GetPluginInfoRequest {},
            async |sockets, request| sockets.identity().get_plugin_info(request).await,
            |info| Ok(format!("{} {}", info.name, info.vendor_version)),
        )
        .await?;
    caller
        .step(
            "Probe",
            &v1::ProbeRequest {},
            async |sockets, request| sockets.identity().probe(request).await,
            // Ready is what a plugin is that says nothing of it.
            |probed| match probed.ready {
                Some(false) => Err("it is not ready".to_owned()),
                _ => Ok("ready".to_owned()),
            },
        )
        .await?;
    let found = caller
        .step(
            "GetPluginCapabilities",
            &v1::GetPluginCapabilitiesRequest {},
            async |sockets, request| sockets.identity().get_plugin_capabilities(request).await,
            |found| Ok(words(found.capabilities.iter().map(|one| plugin_capability(one.r#type.as_ref())))),
        )
        .await?;
    let controller = service::Type::ControllerService;
    Ok(found.capabilities.iter().any(
        |one| matches!(one.r#type.as_ref(), Some(PluginType::Service(service)) if service.r#type() == controller),
    ))
}

async fn controller(caller: &mut Caller<'_>) -> Outcome<Vec<ControllerRpc>> {
    let rpcs = |found: &v1::ControllerGetCapabilitiesResponse| {
        let rpcs = found
            .capabilities
            .iter()
            .filter_map(|one| one.r#type.map(|ControllerType::Rpc(rpc)| rpc.r#type()));
        rpcs.collect::<Vec<_>>()
    };
    let found = caller
        .step(
            "ControllerGetCapabilities",
            &v1::ControllerGetCapabilitiesRequest {},
            async |sockets, request| sockets.controller().controller_get_capabilities(request).await,
            |found| Ok(words(rpcs(found).iter().map(ControllerRpc::as_str_name))),
        )
        .await?;
    Ok(rpcs(&found))
}

async fn node(caller: &mut Caller<'_>) -> Outcome<(Vec<NodeRpc>, String)> {
    let rpcs = |found: &v1::NodeGetCapabilitiesResponse| {
        let rpcs =
            found.capabilities.iter().filter_map(|one| one.r#type.map(|NodeType::Rpc(rpc)| rpc.r#type()));
        rpcs.collect::<Vec<_>>()
    };
    let found = caller
        .step(
            "NodeGetCapabilities",
            &v1::NodeGetCapabilitiesRequest {},
            async |sockets, request| sockets.node().node_get_capabilities(request).await,
            |found| Ok(words(rpcs(found).iter().map(NodeRpc::as_str_name))),
        )
        .await?;
    let info = caller
        .step(
            "NodeGetInfo",
            &v1::NodeGetInfoRequest {},
            async |sockets, request| sockets.node().node_get_info(request).await,
            |info| match info.node_id.as_str() {
                "" => Err("the node has no id".to_owned()),
                id => Ok(format!("node {id}")),
            },
        )
        .await?;
    Ok((rpcs(&found), info.node_id))
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

/// The spec's own names, as few letters as people need: `create delete volume`.
fn words<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| name.to_lowercase().replace('_', " ")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_targets_want_the_word_of_every_service_that_is_here() {
        let (controller, other) =
            ([ControllerRpc::SingleNodeMultiWriter], [ControllerRpc::CreateDeleteVolume]);
        let (node, without) = ([NodeRpc::SingleNodeMultiWriter], [NodeRpc::GetVolumeStats]);
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
