//! Events of this node in Kubernetes: `--node-events`.

use csi_core::{Mode, Plugin, deploy};
use csi_kube::{Client, NodeEvents, rules};

use crate::Args;
use crate::node::LeftVolume;

/// What the flag needs in the node's pods.
pub(crate) fn declare(options: &mut deploy::Options) {
    options.node_arg.push("--node-events".to_owned());
    options.node_rule.extend(rules::NODE_EVENTS.iter().map(Into::into));
    // A pod that keeps a copy of a mount is found through its processes.
    options.host_pid = true;
}

/// Writes an event for each volume that the start found, and adds those of the calls to the plugin.
///
/// # Errors
/// With the flag, when there is no service account or kubeconfig, or no node id.
pub(crate) async fn watch(plugin: Plugin, left: &[LeftVolume], args: &Args) -> Result<Plugin, String> {
    let driver = &args.driver;
    if !args.node_events || driver.serves_nothing() || driver.mode == Mode::Controller {
        return Ok(plugin);
    }
    let client = Client::try_default().await.map_err(|error| {
        format!("--node-events needs Kubernetes' API, through a service account or a kubeconfig: {error}")
    })?;
    let node = driver.node_info().map_err(|error| error.to_string())?.node_id;
    let events = NodeEvents::new(client, &args.driver_name, node.as_str());
    for volume in left {
        events.warn("CSIVolumeLeft", volume.to_string());
    }
    Ok(events.watch(plugin))
}
