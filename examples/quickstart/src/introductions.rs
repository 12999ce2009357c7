//! The first calls of an orchestrator: who a driver is, and what it can do.

use csi_proto::v1;
use v1::controller_service_capability::{Type as ControllerType, rpc::Type as ControllerRpc};
use v1::node_service_capability::{Type as NodeType, rpc::Type as NodeRpc};
use v1::plugin_capability::{Type as PluginType, service, volume_expansion};

use crate::call::{Caller, Outcome};

/// What a driver can do, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offers {
    /// A volume is made ready on a node before it is published.
    pub(crate) stages: bool,
    /// It tells how full a volume is.
    pub(crate) stats: bool,
    /// The controller makes volumes larger.
    pub(crate) expands: bool,
    /// The node makes the filesystem larger then.
    pub(crate) node_expands: bool,
}

/// Asks who the driver is, whether it is well, and what it can do.
pub(crate) async fn meet(caller: &mut Caller<'_>) -> Outcome<Offers> {
    identity(caller).await?;
    let controller = controller(caller).await?;
    let node = node(caller).await?;
    Ok(Offers {
        stages: node.contains(&NodeRpc::StageUnstageVolume),
        stats: node.contains(&NodeRpc::GetVolumeStats),
        expands: controller.contains(&ControllerRpc::ExpandVolume),
        node_expands: node.contains(&NodeRpc::ExpandVolume),
    })
}

async fn identity(caller: &mut Caller<'_>) -> Outcome<()> {
    caller
        .step(
            "GetPluginInfo",
            &v1::GetPluginInfoRequest {},
            async |client, request| client.identity().get_plugin_info(request).await,
            |info| Ok(format!("{} {}", info.name, info.vendor_version)),
        )
        .await?;
    caller
        .step(
            "Probe",
            &v1::ProbeRequest {},
            async |client, request| client.identity().probe(request).await,
            // Ready is what a plugin is that says nothing of it.
            |probed| match probed.ready {
                Some(false) => Err("it is not ready".to_owned()),
                _ => Ok("ready".to_owned()),
            },
        )
        .await?;
    caller
        .step(
            "GetPluginCapabilities",
            &v1::GetPluginCapabilitiesRequest {},
            async |client, request| client.identity().get_plugin_capabilities(request).await,
            |found| Ok(words(found.capabilities.iter().map(|one| plugin_capability(one.r#type.as_ref())))),
        )
        .await?;
    Ok(())
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
            async |client, request| client.controller().controller_get_capabilities(request).await,
            |found| Ok(words(rpcs(found).iter().map(ControllerRpc::as_str_name))),
        )
        .await?;
    Ok(rpcs(&found))
}

async fn node(caller: &mut Caller<'_>) -> Outcome<Vec<NodeRpc>> {
    let rpcs = |found: &v1::NodeGetCapabilitiesResponse| {
        let rpcs =
            found.capabilities.iter().filter_map(|one| one.r#type.map(|NodeType::Rpc(rpc)| rpc.r#type()));
        rpcs.collect::<Vec<_>>()
    };
    let found = caller
        .step(
            "NodeGetCapabilities",
            &v1::NodeGetCapabilitiesRequest {},
            async |client, request| client.node().node_get_capabilities(request).await,
            |found| Ok(words(rpcs(found).iter().map(NodeRpc::as_str_name))),
        )
        .await?;
    caller
        .step(
            "NodeGetInfo",
            &v1::NodeGetInfoRequest {},
            async |client, request| client.node().node_get_info(request).await,
            |info| match info.node_id.as_str() {
                "" => Err("the node has no id".to_owned()),
                id => Ok(format!("node {id}")),
            },
        )
        .await?;
    Ok(rpcs(&found))
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
