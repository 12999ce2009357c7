//! The taint that keeps pods away from a node until the driver is registered there.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::request::{Pauses, send};
use crate::{Error, Result};

/// Removes the start-up taint of a node once the driver is registered there.
///
/// A node that joins the cluster with the taint `<driver>/agent-not-ready:NoExecute` gets no pods that need
/// the driver before it is ready. This removes the taint once the node's CSINode object lists the driver, and
/// only then. Other taints stay as they are.
///
/// ```
/// # fn start(client: kube::Client, node: String) {
/// use csi_kube::StartupTaint;
/// tokio::spawn(StartupTaint::new("block.csi.example.org").run(client, node));
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

    /// Waits until the driver is registered, removes the taint, and ends. It repeats every failure without an
    /// end, at most every ten seconds: without it the node gets no pods. A failure that a repetition alone
    /// cannot cure is logged as a warning.
    pub async fn run(self, client: Client, node: impl Into<String>) {
        let node = node.into();
        let mut pauses = Pauses::endless();
        let mut logged = String::new();
        loop {
            let error = match self.try_remove(&client, &node).await {
                Ok(removed) => {
                    for taint in removed {
                        tracing::info!(node, taint, "removed the start-up taint: the driver is registered");
                    }
                    return;
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
    /// [`Error::NotFound`] unless the kubelet has registered the driver for this very node.
    async fn check_registered(&self, client: &Client, node: &Node, name: &str) -> Result<()> {
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        let csi_node = send(&format!("read csinode {name}"), csi_nodes.get_opt(name)).await?;
        let csi_node = csi_node.ok_or_else(|| Error::NotFound { object: format!("csinode {name}") })?;
        // When a node is deleted and joins again with the same name, its old CSINode stays for a while.
        let mut owners = csi_node.metadata.owner_references.iter().flatten();
        let is_stale = owners.any(|owner| {
            owner.kind == "Node" && node.metadata.uid.as_ref().is_some_and(|uid| *uid != owner.uid)
        });
        let is_listed = csi_node.spec.drivers.iter().any(|driver| driver.name == self.driver);
        match is_listed && !is_stale {
            true => Ok(()),
            false => Err(Error::NotFound { object: format!("driver {} in csinode {name}", self.driver) }),
        }
    }
}
