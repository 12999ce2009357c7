//! The facts and the options together: each decision is a method.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::v1::plugin_capability::service::Type as PluginService;
use csi_proto::v1::plugin_capability::volume_expansion::Type as Expansion;
use csi_proto::{ControllerCapability, NodeCapability};
use serde_json::{Value, json};

use crate::driver::Driver;
use crate::error::Error;
use crate::names;
use crate::options::{Controller, Lifecycle, Options};
use crate::part::Part;

/// The label that says which pods these are.
pub(crate) const COMPONENT: &str = "app.kubernetes.io/component";

/// The checked input, from which all objects are made.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) options: &'a Options,
    pub(crate) name: String,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(driver: &'a Driver, options: &'a Options) -> Result<Self, Error> {
        names::check_driver(&driver.name)?;
        let name = options.name.clone().unwrap_or_else(|| driver.name.replace('.', "-"));
        let suffix = match options.controller {
            Controller::StatefulSet => names::STATEFUL_SET_SUFFIX,
            Controller::Deployment | Controller::NodeLocal => names::SUFFIX,
        };
        names::check_prefix("name", &name, suffix)?;
        let has_service = options.service_monitor || options.snapshot_metadata_secret.is_some();
        if has_service && name.starts_with(|first: char| first.is_ascii_digit()) {
            let reason =
                format!("{name:?} begins with a digit, and the name of a Service can't: give another one");
            return Err(Error::invalid("name", reason));
        }
        let plan = Self { driver, options, name };
        plan.check()?;
        Ok(plan)
    }

    pub(crate) fn has(&self, capability: ControllerCapability) -> bool {
        self.driver.has_controller(capability)
    }

    pub(crate) fn is_node_local(&self) -> bool {
        self.options.controller == Controller::NodeLocal
    }

    pub(crate) fn has_controller_pods(&self) -> bool {
        !self.is_node_local() && self.driver.serves(PluginService::ControllerService)
    }

    pub(crate) fn has_topology(&self) -> bool {
        self.driver.serves(PluginService::VolumeAccessibilityConstraints)
    }

    pub(crate) fn publishes_capacity(&self) -> bool {
        self.has(ControllerCapability::GetCapacity) && self.has(ControllerCapability::CreateDeleteVolume)
    }

    pub(crate) fn snapshots(&self) -> bool {
        self.has(ControllerCapability::CreateDeleteSnapshot) || self.snapshots_groups()
    }

    pub(crate) fn snapshots_groups(&self) -> bool {
        self.driver.serves(PluginService::GroupControllerService)
    }

    /// The driver's own Secrets and ConfigMaps, by kind and name.
    pub(crate) fn own_objects(&self) -> Vec<String> {
        let options = self.options;
        let of_files = options.secret_files.iter().map(|files| &files.object);
        let secrets = of_files.chain(options.secret_env.iter().map(|variable| &variable.secret));
        let secrets = secrets.map(|name| format!("Secret {name}"));
        let config = options.config_files.iter().map(|files| format!("ConfigMap {}", files.object));
        secrets.chain(config).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether a volume can grow while a pod uses it.
    pub(crate) fn expands_online(&self) -> bool {
        self.driver.expansion != Some(Expansion::Offline)
    }

    pub(crate) fn expands_on_the_node_only(&self) -> bool {
        self.driver.has_node(NodeCapability::ExpandVolume) && !self.has(ControllerCapability::ExpandVolume)
    }

    /// Whether the resizer expands volumes. It runs in one pod, so with node-local storage it can serve only
    /// a driver that expands on the node alone.
    pub(crate) fn expands(&self) -> bool {
        let by_controller = self.has(ControllerCapability::ExpandVolume) && !self.is_node_local();
        by_controller || self.expands_on_the_node_only()
    }

    pub(crate) fn modifies(&self) -> bool {
        self.has(ControllerCapability::ModifyVolume) && !self.is_node_local()
    }

    pub(crate) fn probes_by_http(&self) -> bool {
        !self.options.classic && !self.options.livenessprobe
    }

    /// Whether the pods of this part are probed. A controller that waits to lead does not serve yet.
    pub(crate) fn probes(&self, part: Part) -> bool {
        part == Part::Node || !self.options.driver_elects
    }

    pub(crate) fn pod_info(&self) -> bool {
        // With both kinds of volumes the driver can tell them apart only by the pod's information.
        self.options.pod_info || self.options.lifecycle == Lifecycle::Both
    }

    /// The name of the FUSE programs' DaemonSet, and of its namespace.
    pub(crate) fn fuse_name(&self) -> String {
        format!("{}-fuse", self.name)
    }

    pub(crate) fn plugin_dir(&self) -> String {
        format!("{}/plugins/{}", self.options.kubelet_dir, self.driver.name)
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        let controller = self.has_controller_pods().then_some(Part::Controller);
        controller.into_iter().chain([Part::Node]).collect()
    }
}

impl Part {
    pub(crate) fn name(self, plan: &Plan<'_>) -> String {
        format!("{}-{}", plan.name, self.as_str())
    }
}

/// The labels of an object; those of a part's pods also select them.
pub(crate) fn labels(plan: &Plan<'_>, part: Option<Part>) -> BTreeMap<String, String> {
    let name = ("app.kubernetes.io/name".to_owned(), plan.name.clone());
    let part = part.map(|part| (COMPONENT.to_owned(), part.as_str().to_owned()));
    std::iter::once(name).chain(part).collect()
}

pub(crate) fn metadata(plan: &Plan<'_>, name: &str, part: Part) -> Value {
    json!({ "labels": labels(plan, Some(part)), "name": name, "namespace": plan.options.namespace })
}
