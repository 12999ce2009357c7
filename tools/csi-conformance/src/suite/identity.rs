//! The plugin's name, version and capabilities.

use csi_proto::v1;
use csi_proto::{ControllerCapability as C, NodeCapability as N};
use tonic::Code;
use v1::plugin_capability::{service::Type as P, volume_expansion::Type as E};

use crate::context::TestContext;
use crate::failure::{Outcome, check};

crate::test::tests! { "identity", "Identity Service RPC";
    Must "The plugin has a name of at most 63 characters of the allowed ones, and a version", name_and_version, ["get-plugin-info.name", "get-plugin-info.version"], [];
    Must "Probe of a running plugin is OK", probe, ["probe.ready"], [];
    Must "Capabilities do not contradict each other", implications, ["volume-expansion.online-is-served", "volume-expansion.offline-is-served", "list-volumes.published-nodes-needs-publish", "controller-list-volume-health.needs-get"], [];
    Should "Capabilities are the same in each call", stable, ["get-plugin-capabilities.same-everywhere"], [];
    Must "The node has an id of at most 256 bytes, and a limit that is not negative", node_info, ["size-limits.node-id", "node-get-info.max-volumes", "node-get-info.topology-needs-capability"], [NodeService];
    Must "The node reports its capabilities; only UNIMPLEMENTED means that there is no node service", node_capabilities, ["node-get-capabilities.served"], [];
    Must "Volume capabilities are supported, or refused as INVALID_ARGUMENT; another error does not mean unsupported", ways_of_use, ["errors.code-of-the-condition", "fields.invalid-is-invalid-argument"], [];
    Must "Two nodes have different ids", two_nodes, ["node-get-info.id-is-unique"], [SecondNode, NodeService];
}

async fn name_and_version(ctx: &TestContext) -> Outcome {
    let info = ctx.ok(v1::GetPluginInfoRequest {}).await?;
    let name = &info.name;
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits =
        name.len() <= 63 && name.chars().all(inner) && edge(name.chars().next()) && edge(name.chars().last());
    check(fits, "at most 63 characters, alphanumeric at both ends, with dashes and dots between", || {
        format!("name {name:?}")
    })?;
    check(!info.vendor_version.is_empty(), "a vendor_version", || "an empty vendor_version".into())
}

async fn probe(ctx: &TestContext) -> Outcome {
    let answer = ctx.ok(v1::ProbeRequest {}).await?;
    check(answer.ready != Some(false), "ready, as before", || "ready=false".into())
}

async fn implications(ctx: &TestContext) -> Outcome {
    let o = &ctx.offers;
    let several = |controller: C| o.controller(controller);
    let rules = [
        (several(C::CloneVolume), several(C::CreateDeleteVolume), "CLONE_VOLUME needs CREATE_DELETE_VOLUME"),
        (
            several(C::PublishReadonly),
            several(C::PublishUnpublishVolume),
            "PUBLISH_READONLY needs PUBLISH_UNPUBLISH_VOLUME",
        ),
        (
            several(C::ListVolumesPublishedNodes),
            several(C::PublishUnpublishVolume),
            "LIST_VOLUMES_PUBLISHED_NODES needs PUBLISH_UNPUBLISH_VOLUME",
        ),
        (
            several(C::ListVolumeHealth),
            several(C::GetVolumeHealth),
            "LIST_VOLUME_HEALTH needs GET_VOLUME_HEALTH",
        ),
        (
            o.expands(E::Online),
            several(C::ExpandVolume) || o.node(N::ExpandVolume),
            "ONLINE expansion needs EXPAND_VOLUME of the controller or the node",
        ),
        (
            o.expands(E::Offline),
            several(C::ExpandVolume),
            "OFFLINE expansion needs EXPAND_VOLUME of the controller",
        ),
    ];
    for (is, needs, words) in rules {
        check(!is || needs, words, || "one of the two only".into())?;
    }
    Ok(())
}

async fn stable(ctx: &TestContext) -> Outcome {
    let mut again = crate::offers::Capabilities::default();
    again.take_plugin(ctx.ok(v1::GetPluginCapabilitiesRequest {}).await?);
    check(
        again.plugin == ctx.offers.plugin && again.expansion == ctx.offers.expansion,
        "the same answer as before",
        || format!("{again:?}"),
    )
}

async fn node_info(ctx: &TestContext) -> Outcome {
    let attaches = ctx.offers.controller(C::PublishUnpublishVolume);
    let info = match ctx.call(v1::NodeGetInfoRequest {}).await {
        // The spec requires this RPC of a plugin that attaches volumes.
        Err(refusal) if refusal.code == Code::Unimplemented && !attaches => return Ok(()),
        _ => ctx.ok(v1::NodeGetInfoRequest {}).await?,
    };
    let bytes = info.node_id.len();
    check((1..=256).contains(&bytes), "a node_id of 1 to 256 bytes", || format!("{bytes} bytes"))?;
    check(info.max_volumes_per_node >= 0, "max_volumes_per_node of 0 or more", || {
        info.max_volumes_per_node.to_string()
    })?;
    let topology = info.accessible_topology.is_some_and(|topology| !topology.segments.is_empty());
    check(
        !topology || ctx.offers.plugin(P::VolumeAccessibilityConstraints),
        "no topology without VOLUME_ACCESSIBILITY_CONSTRAINTS",
        || "a topology".into(),
    )
}

async fn two_nodes(ctx: &TestContext) -> Outcome {
    let one = &ctx.offers.node_id;
    let other = ctx.offers.second_node_id.as_ref();
    check(other != Some(one), "another node_id for the second node", || format!("{one:?} for both"))
}

/// What could not be asked is not tested. That must not look like a driver without the capability.
async fn node_capabilities(ctx: &TestContext) -> Outcome {
    if let Some(failure) = &ctx.offers.node_unclear {
        return Err(Box::new(failure.clone()));
    }
    Ok(())
}

async fn ways_of_use(ctx: &TestContext) -> Outcome {
    ctx.offers.uses_unclear.clone().map_or(Ok(()), |failure| Err(Box::new(failure)))
}
