//! The taint that keeps pods away from a node until the driver is registered there.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::error::{Error, Result};
use crate::request::{Pauses, send};

/// How long the taint can come later than the registration: node managers and autoscalers add it to nodes that have joined.
const LATE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(10);

/// Removes the start-up taint of a node once the driver is registered there.
///
/// A node that joins the cluster with the taint `<driver>/agent-not-ready:NoExecute` gets no pods that need
/// the driver before it is ready. This removes the taint once the driver is registered, and only then. Other taints
/// stay as they are.
///
/// The node's CSINode object lists the drivers that the kubelet has registered, and keeps an entry over a reboot. So
/// the entry alone says nothing about this boot: [`run_after`](Self::run_after) also waits until the kubelet has
/// registered the driver of this process.
///
/// ```
/// # fn start(client: kube::Client, node: String, plugin: csi_core::Plugin) {
/// use csi_kube::StartupTaint;
/// let taint = StartupTaint::new("block.csi.example.org");
/// tokio::spawn(taint.run_after(plugin.registered(), client, node));
/// # }
/// ```
///
/// Needs the rules [`rules::STARTUP_TAINT`](crate::rules::STARTUP_TAINT). The node's pod of the driver must
/// tolerate the taint.
#[derive(Debug, Clone)]
pub struct StartupTaint {
    driver: String,
    keys: Vec<String>,
}

impl StartupTaint {
    /// Removes the taint `<driver>/agent-not-ready`, with any value and effect.
    pub fn new(driver: impl Into<String>) -> Self {
        let driver = driver.into();
        Self { keys: vec![format!("{driver}/agent-not-ready")], driver }
    }

    /// Removes taints with this key too.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Waits for `registered`, which is [`csi_core::Plugin::registered`], and then does the same as
    /// [`run`](Self::run).
    pub async fn run_after(
        self,
        registered: impl Future<Output = ()>,
        client: Client,
        node: impl Into<String>,
    ) {
        registered.await;
        self.run(client, node).await;
    }

    /// Waits until the CSINode object lists the driver and the kubelet runs since this boot, and removes the taint. It
    /// ends two minutes later: a taint that comes in this time is removed too.
    ///
    /// For a driver whose registrar is a container of its own. After a reboot the entry can be older than the registration
    /// for the seconds between the start of the kubelet and that of the registrar.
    ///
    /// It repeats every failure without an end, at most every ten seconds: without it the node gets no pods. A failure
    /// that a repetition alone cannot cure is logged as a warning.
    pub async fn run(self, client: Client, node: impl Into<String>) {
        let node = node.into();
        let mut pauses = Pauses::endless();
        let mut logged = String::new();
        let mut until = None;
        loop {
            let error = match self.try_remove(&client, &node).await {
                Ok(removed) => {
                    for taint in removed {
                        tracing::info!(node, taint, "removed the start-up taint: the driver is registered");
                    }
                    if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + LATE) {
                        return;
                    }
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => error,
            };
            let text = error.to_string();
            // The driver registers some seconds after its start, so that is not worth a warning.
            if !error.is_transient() && !matches!(error, Error::NotFound { .. }) && text != logged {
                tracing::warn!(node, "the start-up taint stays: {text}");
                logged = text;
            }
            if pauses.after(error).await.is_err() {
                return;
            }
        }
    }

    /// Removes the taint now, and returns the removed taints, for example
    /// `block.csi.example.org/agent-not-ready:NoExecute`; none if the node does not have it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the node or its CSINode object does not exist, or does not list the driver yet;
    /// [`Error::Api`] and [`Error::TimedOut`]. A conflict with another client is an [`Error::Api`] that
    /// [is transient](Error::is_transient). Nothing is changed then.
    pub async fn try_remove(&self, client: &Client, node: &str) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(client.clone());
        let found = send(&format!("read node {node}"), nodes.get_opt(node)).await?;
        let found = found.ok_or_else(|| Error::NotFound { object: format!("node {node}") })?;
        self.check_registered(client, &found, node).await?;
        let taints = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let (removed, kept): (Vec<Taint>, Vec<Taint>) =
            taints.into_iter().partition(|taint| self.keys.contains(&taint.key));
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        // With the version that was read: if another client has changed the node since, this is a conflict.
        let patch = json!({
            "metadata": { "resourceVersion": found.metadata.resource_version },
            "spec": { "taints": if kept.is_empty() { None } else { Some(kept) } },
        });
        let action = format!("remove the start-up taint of node {node}");
        send(&action, nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch))).await?;
        Ok(removed.into_iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect())
    }

    /// # Errors
    /// [`Error::NotFound`] unless the kubelet has registered the driver for this very node, and runs since this boot.
    async fn check_registered(&self, client: &Client, node: &Node, name: &str) -> Result<()> {
        // A kubelet that has not started since the reboot has registered nothing since either.
        let reported = node.status.as_ref().and_then(|status| Some(&*status.node_info.as_ref()?.boot_id));
        let this_boot = boot_id();
        if let (Some(reported), Some(this_boot)) = (reported, &this_boot)
            && !reported.is_empty()
            && reported != this_boot
        {
            let object = format!("a report of node {name} since this boot");
            return Err(Error::NotFound { object });
        }
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        let csi_node = send(&format!("read csinode {name}"), csi_nodes.get_opt(name)).await?;
        let csi_node = csi_node.ok_or_else(|| Error::NotFound { object: format!("csinode {name}") })?;
        // When a node is deleted and joins again with the same name, its old CSINode stays for a while.
        let mut owners = csi_node.metadata.owner_references.iter().flatten();
        let is_stale = owners.any(|owner| {
            owner.kind == "Node" && node.metadata.uid.as_ref().is_some_and(|uid| *uid != owner.uid)
        });
        let is_listed = csi_node.spec.drivers.iter().any(|driver| driver.name == self.driver);
        if is_listed && !is_stale {
            Ok(())
        } else {
            Err(Error::NotFound { object: format!("driver {} in csinode {name}", self.driver) })
        }
    }
}

/// The id of this boot, which the kubelet reads from the same file. A container has the one of its machine.
fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}
