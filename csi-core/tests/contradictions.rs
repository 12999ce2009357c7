//! A plugin that contradicts itself is refused before it serves, and the message says how to fix it. A
//! plugin reports the same capabilities in every mode.

mod common;
mod whole;

use std::sync::Arc;

use common::Served;
use csi_core::*;
use csi_proto::v1;
use whole::Whole;

fn plugin() -> Plugin {
    Plugin::new("whole.csi.example.org", "1")
}

fn controller() -> ControllerService<Whole> {
    ControllerService::new(Arc::new(Whole))
}

fn node() -> NodeService<Whole> {
    NodeService::new(Arc::new(Whole))
}

/// The error with which the plugin refuses to start.
async fn refusal(plugin: Plugin) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("unix://{}/csi.sock", directory.path().display()).parse().unwrap();
    match plugin.serve_until(&endpoint, async {}).await {
        Ok(()) => None,
        Err(error) => {
            assert!(error.is_start_up(), "{error}");
            assert!(!endpoint.path().exists(), "nothing was served");
            Some(error.to_string())
        }
    }
}

// spec: access-modes.oldest-stays, process.fails-fast, volume-expansion.online-is-served
// spec: volume-expansion.offline-is-served, list-volumes.published-nodes-needs-publish
// spec: create-volume.from-snapshot, controller-list-volume-health.needs-get
#[tokio::test]
async fn each_contradiction_is_refused_with_how_to_fix_it() {
    let cases: Vec<(Plugin, &str, &str)> = vec![
        (
            plugin().controller(controller().clone_volume()),
            "CLONE_VOLUME is offered without CREATE_DELETE_VOLUME",
            "create_delete_volume()",
        ),
        (
            plugin().controller(controller().create_delete_snapshot()),
            "CREATE_DELETE_SNAPSHOT is offered without CREATE_DELETE_VOLUME",
            "create_delete_volume()",
        ),
        (
            plugin().controller(
                controller()
                    .publish_unpublish_volume()
                    .publish_readonly()
                    .without(ControllerCapability::PublishUnpublishVolume),
            ),
            "PUBLISH_READONLY is offered without PUBLISH_UNPUBLISH_VOLUME",
            "publish_unpublish_volume()",
        ),
        (
            plugin().controller(controller().list_volumes().list_volumes_published_nodes()),
            "LIST_VOLUMES_PUBLISHED_NODES is offered without PUBLISH_UNPUBLISH_VOLUME",
            "publish_unpublish_volume()",
        ),
        (
            plugin().controller(controller().publish_unpublish_volume().list_volumes_published_nodes()),
            "LIST_VOLUMES_PUBLISHED_NODES is offered without LIST_VOLUMES",
            "list_volumes()",
        ),
        (
            plugin()
                .controller(controller().list_volume_health().without(ControllerCapability::GetVolumeHealth)),
            "LIST_VOLUME_HEALTH is offered without GET_VOLUME_HEALTH",
            "get_volume_health()",
        ),
        (
            plugin().node(node()).volume_expansion(Expansion::Online),
            "ONLINE volume expansion is declared without EXPAND_VOLUME",
            "expand_volume() on the controller or the node",
        ),
        (
            plugin().node(node().expand_volume()).volume_expansion(Expansion::Offline),
            "OFFLINE volume expansion is declared without EXPAND_VOLUME of the controller",
            "expand_volume() on the controller",
        ),
        (
            plugin()
                .controller(controller().expand_volume(Expansion::Online))
                .volume_expansion(Expansion::Offline),
            "volume expansion is Offline by the plugin and Online by the controller",
            "leave it to the controller's",
        ),
        (
            plugin().controller(controller()).snapshot_accessibility_constraints(),
            "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is declared, but nothing cuts snapshots",
            "create_delete_snapshot()",
        ),
        (
            plugin().group_controller(Arc::new(Whole)),
            "no volume can be made from one",
            "create_delete_volume()",
        ),
        (
            plugin()
                .controller(controller().get_volume_health())
                .node(node().get_volume_stats())
                .serve_volume_condition(),
            "nothing tells volumes' health where older callers look",
            "get_volume_health() beside list_volumes()",
        ),
        (
            plugin().controller(controller().single_node_multi_writer()).node(node()),
            "declared by the controller and not by the node",
            "single_node_multi_writer() on both services",
        ),
        (
            plugin().controller(controller()).node(node().single_node_multi_writer()),
            "declared by the node and not by the controller",
            "single_node_multi_writer() on both services",
        ),
        (
            plugin().controller(ControllerService::new(Arc::new(NewModesOnly)).single_node_multi_writer()),
            "but not SINGLE_NODE_WRITER",
            "accept it as well",
        ),
        (
            plugin().node(node()).mode(Mode::Controller),
            "the plugin has no controller service",
            "choose another mode",
        ),
        (
            plugin().controller(controller()).mode(Mode::Node),
            "the plugin has no node service",
            "choose another mode",
        ),
    ];
    let count = cases.len();
    for (plugin, what, hint) in cases {
        let refusal = refusal(plugin).await.unwrap_or_else(|| panic!("it starts: {what}"));
        assert!(refusal.contains(what), "{what:?} is due, not {refusal}");
        assert!(refusal.contains(hint), "{hint:?} is in {refusal}");
    }
    println!("{count} contradictions are refused");
}

#[tokio::test]
async fn what_does_not_contradict_itself_starts() {
    let fine = [
        plugin(),
        whole::plugin(),
        plugin().node(node().expand_volume()).volume_expansion(Expansion::Online),
        plugin().controller(controller().expand_volume(Expansion::Offline)),
        plugin().controller(controller().create_delete_volume()).group_controller(Arc::new(Whole)),
        plugin().snapshot_metadata(Arc::new(Whole)).mode(Mode::Controller),
        plugin().controller(controller().single_node_multi_writer()),
        plugin().node(node().get_volume_stats().get_volume_health()).serve_volume_condition(),
        plugin().controller(controller().get_volume().get_volume_health()).serve_volume_condition(),
    ];
    for plugin in fine {
        assert_eq!(refusal(plugin).await, None);
    }
}

/// Supports the newer access modes, and not the one that older callers send.
struct NewModesOnly;

#[async_trait]
impl Controller for NewModesOnly {
    async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> {
        Ok(None)
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.access_mode == AccessMode::SingleNodeSingleWriter
    }
}

// spec: get-plugin-capabilities.same-everywhere
#[tokio::test]
async fn the_whole_plugin_s_capabilities_are_reported_in_every_mode() {
    let mut told = Vec::new();
    for mode in [Mode::All, Mode::Controller, Mode::Node] {
        let served = Served::start(whole::plugin().mode(mode)).await;
        let answer = served.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await;
        told.push(answer.unwrap().into_inner());
    }
    assert_eq!(told[0].capabilities.len(), 6, "five services and the expansion: {:?}", told[0]);
    assert!(told.iter().all(|other| *other == told[0]));
}

// spec: services.capabilities-are-served
#[tokio::test]
async fn a_capability_that_is_taken_back_is_neither_reported_nor_served() {
    let controller = whole::controller()
        .without(ControllerCapability::ListVolumeHealth)
        .without(ControllerCapability::GetVolumeHealth);
    let node =
        whole::node().without(NodeCapability::GetStorageHealth).without(NodeCapability::GetVolumeHealth);
    let served = Served::start(plugin().controller(controller).node(node)).await;
    let capabilities = served
        .controller()
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(!format!("{capabilities:?}").contains("VolumeHealth"), "{capabilities:?}");
    let node =
        served.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    assert!(!format!("{node:?}").contains("Health"), "{node:?}");
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: "v".into(), ..Default::default() };
    let status = served.controller().controller_get_volume_health(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    let request = v1::NodeGetStorageHealthRequest::default();
    let status = served.node().node_get_storage_health(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}
