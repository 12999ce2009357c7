//! A plugin that contradicts itself is refused before it serves, and the message says how to fix it. A
//! plugin reports the same capabilities in every mode.

use std::sync::Arc;

use csi_core::mount::flow::shared::SharedSource;
use csi_core::types::{AccessMode, Topology};
use csi_core::{prelude::*, *};
use csi_proto::v1;
use tonic::Code;

use crate::common::{Served, refused};
use crate::driver::{TestDriver, whole_controller, whole_node, whole_plugin};

fn plugin() -> Plugin {
    Plugin::new("test.csi.example.org", "1").volume_accessibility_constraints()
}

fn driver() -> Arc<TestDriver> {
    Arc::default()
}

fn controller() -> ControllerService<TestDriver> {
    ControllerService::new(driver())
}

fn node() -> NodeService<TestDriver> {
    NodeService::new(driver())
}

struct Share;

#[async_trait]
impl SharedFilesystems for Share {
    async fn source(&self, _: &Attachment) -> Result<SharedSource> {
        unreachable!("the plugin does not start")
    }
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
    // Supports the newer access modes, and not the one that older callers send.
    let supports =
        |capability: &VolumeCapability| capability.access_mode == AccessMode::SingleNodeSingleWriter;
    let new_modes_only = Arc::new(TestDriver { supports, ..TestDriver::default() });
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
        (plugin().group_controller(driver()), "no volume can be made from one", "create_delete_volume()"),
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
            plugin().controller(ControllerService::new(new_modes_only).single_node_multi_writer()),
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
        (
            plugin().node(SharedNode::service(Arc::new(Share)).without(NodeCapability::StageUnstageVolume)),
            "STAGE_UNSTAGE_VOLUME is withdrawn",
            "unstaged_service()",
        ),
        (plugin().own_directory("data"), "the driver's directory data is not an absolute path", "give one"),
        (
            plugin().node(node()).own_directory("/var/lib"),
            "the driver's directory /var/lib contains the volumes' paths",
            "that only the driver uses",
        ),
        (
            plugin().volume_roots(["/var/lib/kubelet", "k"]),
            "the volume root k is not an absolute path",
            "give one",
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
        whole_plugin(&driver()),
        plugin().node(node().expand_volume()).volume_expansion(Expansion::Online),
        plugin().controller(controller().expand_volume(Expansion::Offline)),
        plugin().controller(controller().create_delete_volume()).group_controller(driver()),
        plugin().snapshot_metadata(driver()).mode(Mode::Controller),
        plugin().controller(controller().single_node_multi_writer()),
        plugin().node(node().get_volume_stats().get_volume_health()).serve_volume_condition(),
        plugin().controller(controller().get_volume().get_volume_health()).serve_volume_condition(),
    ];
    for plugin in fine {
        assert_eq!(refusal(plugin).await, None);
    }
}

/// A node with this id, at this topology.
fn at(id: &'static str, topology: Topology) -> NodeService<TestDriver> {
    let driver = driver();
    driver.node_get_info.answers(move |()| Ok(NodeInfo::new(id)?.at(topology.clone())));
    NodeService::new(driver)
}

// spec: topology.keys, topology.values, topology.one-prefix, size-limits.node-id, process.fails-fast
#[tokio::test]
async fn what_kubernetes_can_not_carry_is_refused_at_the_start_with_the_rule() {
    let long: &str = "x".repeat(300).leak();
    let at_zone = |key: &str| plugin().node(at("n", Topology::new(key, "z")));
    for value in ["node one", "rack/7", "fe80::1", "", "-n", "ö", &long[..64]] {
        let topology = Topology::new("a.example.org/node", value);
        let refused = refusal(plugin().node(at("n", topology.clone())))
            .await
            .unwrap_or_else(|| panic!("{value:?} starts"));
        assert!(refused.contains("is not 1 to 63 of") && refused.contains("this node"), "{refused}");
        let pools = plugin().controller(controller());
        let pools = pools.accessible_topologies([topology]).mode(Mode::Controller);
        let refused = refusal(pools).await.unwrap_or_else(|| panic!("{value:?} starts"));
        assert!(refused.contains("is not 1 to 63 of"), "{refused}");
    }
    for key in ["rack/7/x", "a b", "Example.org/zone", "/zone", "zone-"] {
        let refused = refusal(at_zone(key)).await.unwrap_or_else(|| panic!("{key:?} starts"));
        assert!(refused.contains("key") && refused.contains("1 to 63 of"), "{refused}");
    }
    let other = Topology::new("b.example.org/zone", "z");
    let refused = refusal(at_zone("a.example.org/zone").accessible_topologies([other])).await.unwrap();
    assert!(refused.contains("all must have one"), "{refused}");
    let refused = refusal(plugin().node(at(long, Topology::new("zone", "z")))).await.unwrap();
    assert!(refused.contains("node_id: is 300 bytes, the limit is 256"), "{refused}");
    let undeclared = Plugin::new("test.csi.example.org", "1").node(at("n", Topology::new("zone", "z")));
    let refused = refusal(undeclared).await.unwrap();
    assert!(refused.contains("VOLUME_ACCESSIBILITY_CONSTRAINTS is not offered"), "{refused}");

    // Without a topology Kubernetes carries any id, and where only the controller runs the node is not asked.
    assert_eq!(refusal(plugin().node(node())).await, None);
    let controller = at_zone("a b").controller(controller()).mode(Mode::Controller);
    assert_eq!(refusal(controller).await, None);
}

// spec: get-plugin-capabilities.same-everywhere
#[tokio::test]
async fn the_whole_plugin_s_capabilities_are_reported_in_every_mode() {
    let mut told = Vec::new();
    for mode in [Mode::All, Mode::Controller, Mode::Node] {
        let served = Served::start(whole_plugin(&driver()).mode(mode)).await;
        told.push(served.call(v1::GetPluginCapabilitiesRequest {}).await.unwrap());
    }
    assert_eq!(told[0].capabilities.len(), 6, "five services and the expansion: {:?}", told[0]);
    assert!(told.iter().all(|other| *other == told[0]));
}

// spec: services.capabilities-are-served
#[tokio::test]
async fn a_capability_that_is_taken_back_is_neither_reported_nor_served() {
    let controller = whole_controller(&driver())
        .without(ControllerCapability::ListVolumeHealth)
        .without(ControllerCapability::GetVolumeHealth);
    let node = whole_node(&driver())
        .without(NodeCapability::GetStorageHealth)
        .without(NodeCapability::GetVolumeHealth);
    let served = Served::start(plugin().controller(controller).node(node)).await;
    let capabilities = served.call(v1::ControllerGetCapabilitiesRequest {}).await.unwrap();
    assert!(!format!("{capabilities:?}").contains("VolumeHealth"), "{capabilities:?}");
    let capabilities = served.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    assert!(!format!("{capabilities:?}").contains("Health"), "{capabilities:?}");
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: "v".into(), ..Default::default() };
    refused(served.call(request).await, Code::Unimplemented);
    refused(served.call(v1::NodeGetStorageHealthRequest::default()).await, Code::Unimplemented);
}
