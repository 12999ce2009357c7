//! Events of the node for what is otherwise in the driver's log only.

use std::fmt;
use std::time::Duration;

use csi_core::Plugin;
use csi_core::server::CallService;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client};
use tokio::time::timeout;
use tonic::{Code, Status};
use tower::layer::layer_fn;
use tower::{ServiceExt as _, service_fn};

use crate::events::{Events, Severity};
use crate::request::send;

/// How long a driver that ends waits for its last event.
const FAREWELL: Duration = Duration::from_secs(5);
const UNSTAGE: &str = "/csi.v1.Node/NodeUnstageVolume";

/// Writes events of a node for what keeps the driver from working there, as `kubectl describe node` shows them.
///
/// | reason | when |
/// |---|---|
/// | `CSIDriverFailed` | the plugin can't start, or ends with an error: the kubelet refused it, for example because the node id is another one than before |
/// | `CSIVolumeInUse` | NodeUnstageVolume is FAILED_PRECONDITION: the volume's device is still in use. Pods of the node whose UID the error has are named |
///
/// ```
/// # fn watch(plugin: csi_core::Plugin, client: kube::Client, node: String) -> csi_core::Plugin {
/// use csi_kube::NodeEvents;
/// NodeEvents::new(client, "block.csi.example.org", node).watch(plugin)
/// # }
/// ```
///
/// Needs the rules [`rules::NODE_EVENTS`](crate::rules::NODE_EVENTS), and `hostPID` to find the pod. Without them
/// the volume's event says how to find it on the node. [`Events`] has the limits, and what happens to an event that
/// can't be written.
#[derive(Clone)]
pub struct NodeEvents {
    events: Events,
    client: Client,
    node: String,
}

impl fmt::Debug for NodeEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeEvents").field("node", &self.node).finish_non_exhaustive()
    }
}

impl NodeEvents {
    /// Events of this driver on the node with this name. Call it in the runtime that serves the plugin.
    pub fn new(client: Client, driver: impl Into<String>, node: impl Into<String>) -> Self {
        let node = node.into();
        Self { events: Events::new(client.clone(), driver, node.clone()), client, node }
    }

    /// Adds the table's events to the plugin that serves on this node: a layer around its calls ([`Plugin::layer`]),
    /// and what it does at its end ([`Plugin::on_failure`]).
    #[must_use]
    pub fn watch(self, plugin: Plugin) -> Plugin {
        let at_end = self.clone();
        let layer = layer_fn(move |calls: CallService| {
            let events = self.clone();
            service_fn(move |request: http::Request<tonic::body::Body>| {
                let calls = calls.clone();
                let events = events.clone();
                async move {
                    let is_unstage = request.uri().path() == UNSTAGE;
                    let response = calls.oneshot(request).await?;
                    if is_unstage
                        && let Some(status) = Status::from_header_map(response.headers())
                        && status.code() == Code::FailedPrecondition
                    {
                        // The caller does not wait for the API server.
                        tokio::spawn(async move { events.volume_in_use(status.message()).await });
                    }
                    Ok(response)
                }
            })
        });
        plugin.layer(layer).on_failure(move |error| {
            let text = error.to_string();
            async move {
                at_end.warn("CSIDriverFailed", text);
                // In time or not: a driver must not depend on its events.
                let _ = timeout(FAREWELL, at_end.events.flush()).await;
            }
        })
    }

    /// Writes a warning of the node soon; `reason` and `note` are those of [`Events::publish`].
    pub fn warn(&self, reason: impl Into<String>, note: impl Into<String>) {
        // The kubelet too has the name in place of the UID, and `kubectl describe node` looks for that.
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..ObjectMeta::default()
        };
        let node = Node { metadata, ..Node::default() };
        self.events.publish(&node, Severity::Warning, reason, note);
    }

    async fn volume_in_use(&self, error: &str) {
        let pods = self.pods_in(error).await.unwrap_or_else(|failure| {
            tracing::debug!("an event does not name the pods: {failure}");
            Vec::new()
        });
        let note = match &pods[..] {
            [] => error.to_owned(),
            pods => format!("delete the pods that use the volume: {}: {error}", pods.join(", ")),
        };
        self.warn("CSIVolumeInUse", note);
    }

    /// The pods of the node whose UID the text has, as `namespace/name`.
    async fn pods_in(&self, text: &str) -> crate::Result<Vec<String>> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let found = send("list the pods of the node", pods.list(&of_node)).await?;
        let is_in =
            |pod: &ObjectMeta| pod.uid.as_ref().is_some_and(|uid| text.contains(&format!("pod {uid}")));
        let metadata = found.items.into_iter().map(|pod| pod.metadata).filter(is_in);
        let name = |pod: ObjectMeta| {
            format!("{}/{}", pod.namespace.unwrap_or_default(), pod.name.unwrap_or_default())
        };
        Ok(metadata.map(name).collect())
    }
}
