//! What a node's labels say about it: its topology, and how many volumes it can have.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_core::NodeInfo;
use csi_core::types::Topology;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use crate::error::{Error, Result};
use crate::request::{Pauses, send};

/// The label that the cloud's controller or an operator sets to the node's region.
const REGION: &str = "topology.kubernetes.io/region";
/// The label with the node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The label with the type of the node's machine.
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Reads a node's topology and volume limit from its labels.
///
/// The topology has the driver's own keys: `<driver>/zone` has the value of `topology.kubernetes.io/zone`.
/// Keys of its own let the driver add a segment later, and two drivers disagree about zones.
///
/// ```
/// use csi_core::{NodeInfo, Result};
/// use csi_kube::NodeLabels;
/// # struct Driver { labels: NodeLabels, client: kube::Client, node: String }
/// # impl Driver {
/// # fn new(client: kube::Client, node: String) -> Self {
/// // In the driver's constructor:
/// let labels = NodeLabels::new("block.csi.example.org").region().zone();
/// # Self { labels, client, node }
/// # }
///
/// // In its implementation of `Node`:
/// async fn info(&self) -> Result<NodeInfo> {
///     let labels = self.labels.read(&self.client, &self.node).await?;
///     labels.node_info()
/// }
/// # }
/// ```
///
/// Needs the rules [`rules::NODE_LABELS`](crate::rules::NODE_LABELS), and
/// `Plugin::volume_accessibility_constraints` if it has segments.
#[derive(Debug, Clone)]
pub struct NodeLabels {
    driver: String,
    segments: Vec<Segment>,
    limits: Option<Limits>,
    wait: Duration,
}

#[derive(Debug, Clone)]
struct Segment {
    label: String,
    name: String,
    is_required: bool,
}

#[derive(Debug, Clone)]
enum Limits {
    Label(String),
    /// The limits of the instance types, by the beginning of their names.
    InstanceTypes(Vec<(String, u64)>),
}

impl NodeLabels {
    /// Reads no label yet. The driver's name is the prefix of the topology keys.
    pub fn new(driver: impl Into<String>) -> Self {
        Self { driver: driver.into(), segments: Vec::new(), limits: None, wait: Duration::ZERO }
    }

    /// Adds the segment `<driver>/region` with the value of the label `topology.kubernetes.io/region`.
    #[must_use]
    pub fn region(self) -> Self {
        self.segment(REGION, "region")
    }

    /// Adds the segment `<driver>/zone` with the value of the label `topology.kubernetes.io/zone`.
    #[must_use]
    pub fn zone(self) -> Self {
        self.segment(ZONE, "zone")
    }

    /// Adds the segment `<driver>/<name>` with the value of this label. A node without the label is an error.
    #[must_use]
    pub fn segment(self, label: impl Into<String>, name: impl Into<String>) -> Self {
        self.add(label.into(), name.into(), true)
    }

    /// Adds the segment `<driver>/<name>` for nodes that have this label.
    #[must_use]
    pub fn optional_segment(self, label: impl Into<String>, name: impl Into<String>) -> Self {
        self.add(label.into(), name.into(), false)
    }

    fn add(mut self, label: String, name: String, is_required: bool) -> Self {
        self.segments.push(Segment { label, name, is_required });
        self
    }

    /// Reads the volume limit from this label, whose value is a number. A node without the label has no limit.
    #[must_use]
    pub fn limit_label(mut self, label: impl Into<String>) -> Self {
        self.limits = Some(Limits::Label(label.into()));
        self
    }

    /// Takes the volume limit from the label `node.kubernetes.io/instance-type`. Each row has the beginning of a
    /// type's name and its limit; the row with the longest matching beginning counts. A type without a row has no limit.
    ///
    /// ```
    /// # use csi_kube::NodeLabels;
    /// let labels = NodeLabels::new("block.csi.example.org").limits_by_instance_type([
    ///     ("", 20), // every type that has no other row
    ///     ("m5.", 27),
    ///     ("m5.large", 25),
    /// ]);
    /// ```
    #[must_use]
    pub fn limits_by_instance_type<T: Into<String>>(
        mut self,
        rows: impl IntoIterator<Item = (T, u64)>,
    ) -> Self {
        let rows = rows.into_iter().map(|(beginning, limit)| (beginning.into(), limit));
        self.limits = Some(Limits::InstanceTypes(rows.collect()));
        self
    }

    /// Waits this long for a node or label that does not exist yet, and for an API server that does not
    /// answer. Without this, both are an error at once.
    ///
    /// A cloud's controller labels a node some seconds after it has joined the cluster. The kubelet waits two
    /// minutes for NodeGetInfo, so wait at most one.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Reads the node with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the node does not exist, [`Error::Invalid`] if a label is missing or has no
    /// usable value, after the time of [`wait`](Self::wait); [`Error::Api`] and [`Error::TimedOut`].
    pub async fn read(&self, client: &Client, node: &str) -> Result<NodeFacts> {
        let nodes: Api<Node> = Api::all(client.clone());
        let mut pauses = Pauses::within(self.wait);
        loop {
            let error = match self.read_once(&nodes, node).await {
                Ok(facts) => return Ok(facts),
                Err(error) => error,
            };
            if !error.is_transient() && !matches!(error, Error::NotFound { .. } | Error::Invalid { .. }) {
                return Err(error);
            }
            tracing::debug!("{error}");
            pauses.after(error).await?;
        }
    }

    async fn read_once(&self, nodes: &Api<Node>, name: &str) -> Result<NodeFacts> {
        let node = send(&format!("read node {name}"), nodes.get_opt(name)).await?;
        let node = node.ok_or_else(|| Error::NotFound { object: format!("node {name}") })?;
        let labels = node.metadata.labels.unwrap_or_default();
        Ok(NodeFacts {
            name: name.to_owned(),
            provider_id: node.spec.and_then(|spec| spec.provider_id),
            topology: self.topology(name, &labels)?,
            max_volumes: self.limit(name, &labels)?,
        })
    }

    fn topology(&self, node: &str, labels: &BTreeMap<String, String>) -> Result<Option<Topology>> {
        let mut topology: Option<Topology> = None;
        for Segment { label, name, is_required } in &self.segments {
            let key = format!("{}/{name}", self.driver);
            match labels.get(label).filter(|value| !value.is_empty()) {
                Some(value) => {
                    topology = Some(match topology {
                        Some(others) => others.and(key, value),
                        None => Topology::new(key, value),
                    });
                }
                None if !is_required => {}
                None => {
                    let field = format!("node {node}: label {label}");
                    let fix = "is missing: the cloud's controller sets it, or kubectl label node";
                    return Err(Error::invalid(field, fix));
                }
            }
        }
        Ok(topology)
    }

    fn limit(&self, node: &str, labels: &BTreeMap<String, String>) -> Result<Option<u64>> {
        let (label, rows) = match &self.limits {
            None => return Ok(None),
            Some(Limits::Label(label)) => (label.as_str(), None),
            Some(Limits::InstanceTypes(rows)) => (INSTANCE_TYPE, Some(rows)),
        };
        let Some(value) = labels.get(label) else { return Ok(None) };
        match rows {
            Some(rows) => {
                let matching = rows.iter().filter(|(beginning, _)| value.starts_with(beginning.as_str()));
                Ok(matching.max_by_key(|(beginning, _)| beginning.len()).map(|(_, limit)| *limit))
            }
            // 0 on the wire is "no limit", which a label of 0 does not mean.
            None => value.parse().ok().filter(|limit| *limit > 0).map(Some).ok_or_else(|| {
                let field = format!("node {node}: label {label}");
                Error::invalid(field, format!("is {value:?}, not a number of volumes above 0"))
            }),
        }
    }
}

/// What the labels of a node say.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The cloud's id of the machine, if a cloud's controller has set it: `aws:///zone-a/i-0123`.
    pub provider_id: Option<String>,
    /// The node's topology, with the driver's keys; `None` without segments.
    pub topology: Option<Topology>,
    /// How many volumes the node can have; `None` if no label says it.
    pub max_volumes: Option<u64>,
}

impl NodeFacts {
    /// Returns the answer to NodeGetInfo, with the node's name as its id.
    ///
    /// # Errors
    /// As [`NodeInfo::new`]: a name longer than 256 bytes, which Kubernetes does not allow.
    pub fn node_info(self) -> csi_core::Result<NodeInfo> {
        let name = self.name.clone();
        self.node_info_with_id(name)
    }

    /// Returns the answer to NodeGetInfo with another id, for example a part of
    /// [`provider_id`](Self::provider_id).
    ///
    /// # Errors
    /// As [`NodeInfo::new`]: an empty id, or one longer than 256 bytes.
    pub fn node_info_with_id(self, node_id: impl Into<String>) -> csi_core::Result<NodeInfo> {
        let mut info = NodeInfo::new(node_id)?;
        info.accessible_topology = self.topology;
        info.max_volumes_per_node = self.max_volumes;
        Ok(info)
    }
}
