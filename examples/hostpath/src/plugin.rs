//! Which traits are registered. The plugin advertises exactly what is registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_core::identity::Readiness;
use csi_core::mount::{Filesystem, NodeNeed};
use csi_core::{
    ControllerCapability, ControllerService, Expansion, Identity, NodeCapability, NodeService, Plugin,
    Result, async_trait, deploy,
};

use crate::args::When;
use crate::features::Features;
use crate::host::Driver;
use crate::node::{HostNode, LeftVolume};
use crate::{Args, Feature};

/// Builds the whole plugin, and opens its data directory.
///
/// # Errors
/// When the data directory can't be opened; the message says why.
pub fn plugin(args: &Args) -> Result<Plugin> {
    Ok(open(args)?.0)
}

/// The plugin, and what its start found.
pub(crate) fn open(args: &Args) -> Result<(Plugin, Vec<LeftVolume>)> {
    let driver = Driver::open(args)?;
    let features = driver.features.clone();
    let has = |feature| features.has(feature);
    let shared = Arc::new(driver.clone());
    let topologies = driver.pools.topologies();
    let node = HostNode::new(driver.clone())?;
    let left = node.left_volumes().to_vec();
    #[cfg(feature = "controllers")]
    let node_events = args.node_events;
    let mut plugin = Plugin::new(&args.driver_name, &args.vendor_version)
        .own_directory(&driver.data)
        .declare(move |options| {
            // It freezes mounted filesystems for a copy, and attaches loop devices.
            let has_own_pods = options.controller != deploy::Controller::NodeLocal;
            options.controller_sees_mounts |= has_own_pods;
            options.privileged_controller |= has_own_pods;
            #[cfg(feature = "controllers")]
            if node_events {
                crate::node_events::declare(options);
            }
        })
        .identity(Arc::clone(&shared))
        .controller(controller(driver, &features, args.expansion))
        .node(node_service(node, &features));
    if has(Feature::GroupSnapshots) {
        plugin = plugin.group_controller(Arc::clone(&shared));
    }
    if has(Feature::SnapshotMetadata) {
        plugin = plugin.snapshot_metadata(shared);
    }
    if has(Feature::Topology) {
        plugin = plugin.volume_accessibility_constraints().accessible_topologies(topologies);
    }
    if has(Feature::SnapshotTopology) {
        plugin = plugin.snapshot_accessibility_constraints();
    }
    if features.tell_condition() {
        plugin = plugin.serve_volume_condition();
    }
    Ok((plugin, left))
}

/// The features of a service, and how each is registered.
type Registered<S, const N: usize> = [(Feature, fn(S) -> S); N];

type Controller = ControllerService<Driver>;

fn controller(driver: Driver, features: &Features, expansion: When) -> Controller {
    let expand = match expansion {
        When::Online => |service: Controller| service.expand_volume(Expansion::Online),
        When::Offline => |service: Controller| service.expand_volume(Expansion::Offline),
    };
    let registered: Registered<Controller, 16> = [
        (Feature::CreateDelete, Controller::create_delete_volume),
        (Feature::Clone, Controller::clone_volume),
        (Feature::Attach, Controller::publish_unpublish_volume),
        (Feature::AttachReadonly, Controller::publish_readonly),
        (Feature::List, Controller::list_volumes),
        (Feature::PublishedNodes, Controller::list_volumes_published_nodes),
        (Feature::Get, Controller::get_volume),
        (Feature::Capacity, Controller::get_capacity),
        (Feature::Modify, Controller::modify_volume),
        (Feature::Expand, expand),
        (Feature::Snapshots, Controller::create_delete_snapshot),
        (Feature::ListSnapshots, Controller::list_snapshots),
        (Feature::GetSnapshot, Controller::get_snapshot),
        (Feature::MultiWriter, Controller::single_node_multi_writer),
        (Feature::Health, Controller::get_volume_health),
        (Feature::ListHealth, Controller::list_volume_health),
    ];
    let service = registered
        .into_iter()
        .filter(|(feature, _)| features.has(*feature))
        .fold(Controller::new(Arc::new(driver)), |service, (_, register)| register(service));
    if features.has(Feature::Condition) { service } else { service.without(CONDITION.0) }
}

/// The capabilities of controller and node that `--without condition` takes away.
#[allow(deprecated, reason = "callers of spec v1.12.0 read them")]
const CONDITION: (ControllerCapability, NodeCapability) =
    (ControllerCapability::VolumeCondition, NodeCapability::VolumeCondition);

type Node = NodeService<HostNode>;

fn node_service(node: HostNode, features: &Features) -> Node {
    let registered: Registered<Node, 7> = [
        (Feature::Stage, Node::stage_unstage_volume),
        (Feature::Stats, Node::get_volume_stats),
        (Feature::NodeExpand, Node::expand_volume),
        (Feature::NodeHealth, Node::get_volume_health),
        (Feature::StorageHealth, Node::get_storage_health),
        (Feature::MountGroup, Node::volume_mount_group),
        (Feature::MultiWriter, Node::single_node_multi_writer),
    ];
    let filesystems = Filesystem::ALL.map(NodeNeed::Filesystem);
    let needs: Vec<_> = std::iter::once(NodeNeed::BlockDevices).chain(filesystems).collect();
    let service = Node::new(Arc::new(node)).self_check(&needs);
    let chosen = registered.into_iter().filter(|(feature, _)| features.has(*feature));
    let service = chosen.fold(service, |service, (_, register)| register(service));
    if features.has(Feature::Condition) { service } else { service.without(CONDITION.1) }
}

#[async_trait]
impl Identity for Driver {
    async fn probe(&self) -> Result<Readiness> {
        self.watch.check().map(|()| Readiness::Ready)
    }

    fn manifest(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("data".to_owned(), self.data.display().to_string())])
    }
}
