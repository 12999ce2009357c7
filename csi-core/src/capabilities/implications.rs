//! Dependencies between capabilities. Contradictions are refused before anything is served, each with its
//! fix.

use csi_proto::v1;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

use super::Parts;
use crate::controller::ControllerTable;
use crate::node::NodeTable;
use crate::offer::{
    ControllerCapability as Controller, Expansion, NodeCapability as Node, Offer, PluginService,
};
use crate::types::VolumeCapability;

/// # Errors
/// The first contradiction, and how to fix it.
pub(super) fn check(offer: &Offer, parts: &Parts<'_>) -> Result<(), String> {
    controller(offer)?;
    expansion(offer, parts)?;
    plugin(offer, parts)?;
    single_node_multi_writer(offer, parts)?;
    parts.controller.map_or(Ok(()), oldest_mode)
}

/// Capabilities of the controller that require another.
const CONTROLLER_NEEDS: [(Controller, Controller, &str); 6] = [
    (Controller::CloneVolume, Controller::CreateDeleteVolume, "create_delete_volume()"),
    (Controller::CreateDeleteSnapshot, Controller::CreateDeleteVolume, "create_delete_volume()"),
    (Controller::PublishReadonly, Controller::PublishUnpublishVolume, "publish_unpublish_volume()"),
    (Controller::ListVolumesPublishedNodes, Controller::PublishUnpublishVolume, "publish_unpublish_volume()"),
    (Controller::ListVolumesPublishedNodes, Controller::ListVolumes, "list_volumes()"),
    (Controller::ListVolumeHealth, Controller::GetVolumeHealth, "get_volume_health()"),
];

// spec: list-volumes.published-nodes-needs-publish
// spec: create-volume.from-snapshot, controller-list-volume-health.needs-get
fn controller(offer: &Offer) -> Result<(), String> {
    for (one, other, method) in CONTROLLER_NEEDS {
        if offer.has_controller(one) && !offer.has_controller(other) {
            let one = one.as_str_name();
            let other = other.as_str_name();
            return Err(format!(
                "{one} is offered without {other}: call {method} on the controller too, or leave out {one}"
            ));
        }
    }
    Ok(())
}

// spec: volume-expansion.online-is-served, volume-expansion.offline-is-served
fn expansion(offer: &Offer, parts: &Parts<'_>) -> Result<(), String> {
    let by_controller = parts.controller.and_then(|table| table.expansion);
    if let (Some(one), Some(other)) = (by_controller, parts.declared.expansion)
        && one != other
    {
        return Err(format!(
            "volume expansion is {other:?} by the plugin and {one:?} by the controller: leave it to the controller's \
             expand_volume() alone"
        ));
    }
    let controller = offer.has_controller(Controller::ExpandVolume);
    let node = offer.has_node(Node::ExpandVolume);
    match offer.expansion {
        Some(Expansion::Online) if !controller && !node => Err(
            "ONLINE volume expansion is declared without EXPAND_VOLUME: call expand_volume() on the controller or \
             the node, or leave out volume_expansion()"
                .to_owned(),
        ),
        Some(Expansion::Offline) if !controller => Err(
            "OFFLINE volume expansion is declared without EXPAND_VOLUME of the controller: call expand_volume() on \
             the controller, or leave out volume_expansion()"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

// spec: create-volume.from-snapshot
fn plugin(offer: &Offer, parts: &Parts<'_>) -> Result<(), String> {
    let cuts = offer.has_controller(Controller::CreateDeleteSnapshot) || parts.group_controller;
    if offer.has_service(PluginService::SnapshotAccessibilityConstraints) && !cuts {
        return Err("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is declared, but nothing cuts snapshots: call \
             create_delete_snapshot() on the controller, or leave out snapshot_accessibility_constraints()"
            .to_owned());
    }
    if parts.group_controller && !offer.has_controller(Controller::CreateDeleteVolume) {
        return Err("the group controller cuts snapshots, but no volume can be made from one: call \
             create_delete_volume() on a controller, or leave out group_controller()"
            .to_owned());
    }
    if parts.node.is_some_and(|node| node.needs_staging && node.stage_unstage_volume.is_none()) {
        return Err("STAGE_UNSTAGE_VOLUME is withdrawn from a ready-made node plugin that stages its volumes: do not \
             withdraw it, or use unstaged_service() of the plugins that have one"
            .to_owned());
    }
    let tells = parts.controller.is_some_and(ControllerTable::reports_condition)
        || parts.node.is_some_and(NodeTable::reports_condition);
    if parts.declared.volume_condition && !tells {
        return Err("serve_volume_condition() is called, but nothing tells volumes' health where older callers look: \
             call get_volume_health() beside list_volumes() or get_volume() on the controller, or beside \
             get_volume_stats() on the node"
            .to_owned());
    }
    Ok(())
}

fn single_node_multi_writer(offer: &Offer, parts: &Parts<'_>) -> Result<(), String> {
    let controller = offer.has_controller(Controller::SingleNodeMultiWriter);
    let node = offer.has_node(Node::SingleNodeMultiWriter);
    if parts.controller.is_none() || parts.node.is_none() || controller == node {
        return Ok(());
    }
    let (has, lacks) = if controller { ("controller", "node") } else { ("node", "controller") };
    Err(format!(
        "SINGLE_NODE_MULTI_WRITER is declared by the {has} and not by the {lacks}: call single_node_multi_writer() on \
         both services, or on neither"
    ))
}

/// A driver that supports one of the two newer modes must support SINGLE_NODE_WRITER, which older callers
/// send instead.
// spec: access-modes.oldest-stays
fn oldest_mode(table: &ControllerTable) -> Result<(), String> {
    if !table.offered.contains(&Controller::SingleNodeMultiWriter) {
        return Ok(());
    }
    let kinds = [
        ("block", AccessType::Block(BlockVolume {})),
        ("mounted", AccessType::Mount(MountVolume::default())),
    ];
    for (kind, access_type) in kinds {
        let supports = |mode: Mode| {
            let access_mode = Some(AccessMode { mode: mode as i32 });
            let wire = v1::VolumeCapability { access_mode, access_type: Some(access_type.clone()) };
            VolumeCapability::read("", &wire).is_ok_and(|capability| table.controller.supports(&capability))
        };
        let newer = supports(Mode::SingleNodeSingleWriter) || supports(Mode::SingleNodeMultiWriter);
        if newer && !supports(Mode::SingleNodeWriter) {
            return Err(format!(
                "Controller::supports accepts SINGLE_NODE_SINGLE_WRITER or SINGLE_NODE_MULTI_WRITER for {kind} volumes, \
                 but not SINGLE_NODE_WRITER, which callers without SINGLE_NODE_MULTI_WRITER send: accept it as well"
            ));
        }
    }
    Ok(())
}
