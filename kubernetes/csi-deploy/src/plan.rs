//! The facts and the options together: what contradicts itself is refused, and each decision is a method.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::v1::plugin_capability::service::Type as PluginService;
use csi_proto::v1::plugin_capability::volume_expansion::Type as Expansion;
use csi_proto::{ControllerCapability, NodeCapability};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::driver::Driver;
use crate::error::Error;
use crate::names;
use crate::options::Options;
use crate::options::{Controller, FsGroupPolicy, FusePods, Lifecycle, SecretUse};
use crate::part::Part;
use crate::settings::SecretVariable;

/// The shortest period that the API server takes.
const SHORTEST_UPDATE: u32 = 10;
/// The shortest life of a token that the API server takes, in seconds.
const SHORTEST_TOKEN: u32 = 600;

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
        names::check_prefix("name", &name)?;
        let plan = Self { driver, options, name };
        plan.check_names()?;
        plan.check_driver()?;
        plan.check_controller()?;
        plan.check_settings()?;
        plan.check_declared()?;
        plan.check_classes()?;
        plan.check_fuse()?;
        Ok(plan)
    }

    fn check_fuse(&self) -> Result<(), Error> {
        let options = self.options;
        if options.fuse_pods.is_some() && options.classic {
            let reason = "needs csi-core's flags, by which the driver's program starts FUSE programs: leave out --classic";
            return Err(Error::invalid("fuse-pods", reason));
        }
        if let Some(image) = &options.fuse_image {
            names::check_image("fuse-image", image)?;
            if options.fuse_pods != Some(FusePods::PerNode) {
                let reason = "has an effect only with --fuse-pods per-node; with per-volume the driver chooses the image";
                return Err(Error::invalid("fuse-image", reason));
            }
        }
        if options.fuse_pods == Some(FusePods::PerVolume)
            && !(self.has_controller_pods() && self.has(ControllerCapability::PublishUnpublishVolume))
        {
            let reason = "per-volume needs a controller with PUBLISH_UNPUBLISH_VOLUME, which makes the pods: use per-node";
            return Err(Error::invalid("fuse-pods", reason));
        }
        let is_quantity = options.fuse_memory.starts_with(|first: char| first.is_ascii_digit())
            && options.fuse_memory.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '.');
        if is_quantity {
            return Ok(());
        }
        let reason = format!("{:?} is no quantity of Kubernetes, such as 1Gi", options.fuse_memory);
        Err(Error::invalid("fuse-memory", reason))
    }

    fn check_names(&self) -> Result<(), Error> {
        let options = self.options;
        names::check_label("namespace", &options.namespace)?;
        for (field, image) in [("image", &options.image), ("sidecar-registry", &options.sidecar_registry)] {
            names::check_image(field, image)?;
        }
        let secrets = options.image_pull_secret.iter().map(|name| ("image-pull-secret", name));
        let tls = options.snapshot_metadata_secret.iter().map(|name| ("snapshot-metadata-secret", name));
        secrets.chain(tls).try_for_each(|(field, name)| names::check_name(field, name))?;
        options
            .metrics_from
            .iter()
            .try_for_each(|namespace| names::check_label("metrics-from", namespace))?;
        names::check_path("kubelet-dir", &options.kubelet_dir)?;
        for part in [Part::Controller, Part::Node] {
            let mut mounted = options.own_paths(part);
            for (field, path) in options.given_paths(part) {
                names::check_path(field, path)?;
                if mounted.contains(&path) {
                    return Err(Error::invalid(field, format!("{path:?} is mounted already: leave it out")));
                }
                mounted.push(path);
            }
        }
        // The sidecars' ports follow it.
        match options.port {
            1..=0xfff0 => Ok(()),
            port => Err(Error::invalid("port", format!("{port} is not between 1 and {}", 0xfff0))),
        }
    }

    fn check_driver(&self) -> Result<(), Error> {
        match &self.driver.node {
            Some(_) => Ok(()),
            None => Err(Error::invalid("driver", "has no Node service, so no volume reaches a pod")),
        }
    }

    fn check_controller(&self) -> Result<(), Error> {
        let options = self.options;
        if options.replicas == 0 {
            return Err(Error::invalid(
                "replicas",
                "is 0: a driver without controller pods creates no volume",
            ));
        }
        if options.replicas > 1 && options.controller != Controller::Deployment {
            return Err(Error::invalid(
                "replicas",
                format!(
                    "is {} with --controller {}: only a deployment elects a leader",
                    options.replicas,
                    options.controller.as_str()
                ),
            ));
        }
        if let Some(directory) = options.controller_host_path.first()
            && options.replicas > 1
            && !options.driver_elects
        {
            return Err(Error::invalid(
                "replicas",
                format!(
                    "is {} with --controller-host-path {directory}: on one node the second process finds the \
                     directory taken and ends again and again, on another node it has another directory. Use one \
                     replica, or --driver-elects if the nodes share the directory and the driver elects a leader",
                    options.replicas
                ),
            ));
        }
        if options.driver_elects && options.controller != Controller::Deployment {
            return Err(Error::invalid(
                "driver-elects",
                format!("has no effect with --controller {}: leave it out", options.controller.as_str()),
            ));
        }
        if !self.is_node_local() {
            return Ok(());
        }
        if !self.driver.serves(PluginService::VolumeAccessibilityConstraints) {
            return Err(Error::invalid(
                "controller",
                "node-local needs VOLUME_ACCESSIBILITY_CONSTRAINTS: without a topology the provisioner can't know \
                 on which node a volume belongs. Declare it in the driver, or use deployment",
            ));
        }
        if self.has(ControllerCapability::PublishUnpublishVolume) {
            return Err(Error::invalid(
                "controller",
                "node-local and PUBLISH_UNPUBLISH_VOLUME contradict: the attacher serves all nodes from one pod. \
                 Use deployment, or leave attaching out of the driver",
            ));
        }
        let only_for_the_controller = [
            ("controller-arg", options.controller_arg.is_empty()),
            ("controller-host-path", options.controller_host_path.is_empty()),
            ("controller-rule", options.controller_rule.is_empty()),
            ("controller-sees-mounts", !options.controller_sees_mounts),
            ("privileged-controller", !options.privileged_controller),
        ];
        match only_for_the_controller.iter().find(|(_, is_unset)| !is_unset) {
            Some((field, _)) => Err(Error::invalid(
                field,
                "has no effect with --controller node-local, which has no controller pods: use the flag of the node",
            )),
            None => Ok(()),
        }
    }

    /// Checks the driver's own Secrets and ConfigMaps.
    fn check_settings(&self) -> Result<(), Error> {
        let options = self.options;
        let parts = self.parts();
        let check_pods = |field, object: &str, is_in: &dyn Fn(Part) -> bool| {
            if parts.iter().any(|part| is_in(*part)) {
                return Ok(());
            }
            Err(Error::invalid(
                field,
                format!(
                    "{object} reaches no pod, because the driver has no controller pods: write @node at its end"
                ),
            ))
        };
        for (field, directories) in
            [("secret-files", &options.secret_files), ("config-files", &options.config_files)]
        {
            for directory in directories {
                names::check_name(field, &directory.object)?;
                check_pods(field, &directory.object, &|part| directory.is_in(part))?;
            }
        }
        for (index, variable) in options.secret_env.iter().enumerate() {
            names::check_variable("secret-env", &variable.name)?;
            names::check_name("secret-env", &variable.secret)?;
            names::check_key("secret-env", &variable.key)?;
            check_pods("secret-env", &variable.secret, &|part| variable.is_in(part))?;
            let is_same = |other: &SecretVariable| {
                other.name == variable.name
                    && parts.iter().any(|part| other.is_in(*part) && variable.is_in(*part))
            };
            let is_plain = options.env.iter().any(|(name, _)| *name == variable.name);
            if is_plain || options.secret_env[..index].iter().any(is_same) {
                return Err(Error::invalid("secret-env", format!("{} is given twice", variable.name)));
            }
        }
        Ok(())
    }

    fn check_declared(&self) -> Result<(), Error> {
        let options = self.options;
        if let Some(period) = options.node_allocatable_update_period
            && period < SHORTEST_UPDATE
        {
            return Err(Error::invalid(
                "node-allocatable-update-period",
                format!("is {period}, Kubernetes takes {SHORTEST_UPDATE} and more"),
            ));
        }
        for (index, token) in options.token.iter().enumerate() {
            if token.seconds.is_some_and(|seconds| seconds < SHORTEST_TOKEN) {
                return Err(Error::invalid(
                    "token",
                    format!("{:?} is valid for less than {SHORTEST_TOKEN} s", token.audience),
                ));
            }
            if options.token[..index].iter().any(|other| other.audience == token.audience) {
                return Err(Error::invalid(
                    "token",
                    format!("the audience {:?} is given twice", token.audience),
                ));
            }
        }
        if options.service_account_token_in_secrets && options.token.is_empty() {
            return Err(Error::invalid(
                "service-account-token-in-secrets",
                "has no token to pass: give --token too, or leave it out",
            ));
        }
        let groups_are_its_own = self.driver.has_node(NodeCapability::VolumeMountGroup);
        if groups_are_its_own && options.fs_group_policy == Some(FsGroupPolicy::None) {
            return Err(Error::invalid(
                "fs-group-policy",
                "None contradicts VOLUME_MOUNT_GROUP, by which the driver gives a volume to the pod's group",
            ));
        }
        if options.lifecycle == Lifecycle::Ephemeral && self.has(ControllerCapability::CreateDeleteVolume) {
            return Err(Error::invalid(
                "lifecycle",
                "ephemeral contradicts CREATE_DELETE_VOLUME, by which the driver creates persistent volumes: use both",
            ));
        }
        if options.service_monitor && options.metrics_from.is_empty() {
            return Err(Error::invalid(
                "service-monitor",
                "is of no use while Prometheus reaches no pod: give its namespace, --metrics-from",
            ));
        }
        if options.service_monitor && !self.probes_by_http() && self.sidecars().is_empty() {
            return Err(Error::invalid(
                "service-monitor",
                "the pods have no metrics: the driver has no HTTP endpoint",
            ));
        }
        if options.prometheus_rule && !(options.service_monitor && self.probes_by_http()) {
            return Err(Error::invalid(
                "prometheus-rule",
                "needs --service-monitor, and a driver with metrics: neither --classic nor --livenessprobe",
            ));
        }
        if options.classic && options.livenessprobe {
            return Err(Error::invalid("livenessprobe", "is part of --classic: leave one of them out"));
        }
        Ok(())
    }

    fn check_classes(&self) -> Result<(), Error> {
        let options = self.options;
        let creates = self.has(ControllerCapability::CreateDeleteVolume);
        let classes = [
            ("storage-class", &options.storage_class, creates, "CREATE_DELETE_VOLUME"),
            (
                "attributes-class",
                &options.attributes_class,
                self.has(ControllerCapability::ModifyVolume),
                "MODIFY_VOLUME",
            ),
            (
                "snapshot-class",
                &options.snapshot_class,
                self.has(ControllerCapability::CreateDeleteSnapshot),
                "CREATE_DELETE_SNAPSHOT",
            ),
            (
                "group-snapshot-class",
                &options.group_snapshot_class,
                self.snapshots_groups(),
                "GROUP_CONTROLLER_SERVICE",
            ),
        ];
        for (field, classes, is_offered, capability) in classes {
            for (index, class) in classes.iter().enumerate() {
                names::check_name(field, &class.name)?;
                if !is_offered {
                    return Err(Error::invalid(
                        field,
                        format!("{}: the driver has no {capability}", class.name),
                    ));
                }
                if classes[..index].iter().any(|other| other.name == class.name) {
                    return Err(Error::invalid(field, format!("{} is given twice", class.name)));
                }
            }
        }
        for (index, secret) in options.secret.iter().enumerate() {
            let used_for = secret.used_for;
            // A reference can have the claim's name, which the sidecar fills in: ${pvc.namespace}.
            if !secret.namespace.contains("${") {
                names::check_label("secret", &secret.namespace)?;
            }
            if !secret.name.contains("${") {
                names::check_name("secret", &secret.name)?;
            }
            if options.secret[..index].iter().any(|other| other.used_for == used_for) {
                return Err(Error::invalid("secret", format!("{} is given twice", used_for.as_str())));
            }
            let is_used = match used_for {
                SecretUse::Snapshotter => !options.snapshot_class.is_empty(),
                SecretUse::GroupSnapshotter => !options.group_snapshot_class.is_empty(),
                _ => !options.storage_class.is_empty(),
            };
            if !is_used {
                return Err(Error::invalid(
                    "secret",
                    format!("{}: no class is given that refers to it", used_for.as_str()),
                ));
            }
        }
        if options.snapshot_metadata_secret.is_some()
            && !self.driver.serves(PluginService::SnapshotMetadataService)
        {
            return Err(Error::invalid(
                "snapshot-metadata-secret",
                "the driver has no SNAPSHOT_METADATA_SERVICE",
            ));
        }
        if let Some(ca) = &options.snapshot_metadata_ca {
            if options.snapshot_metadata_secret.is_none() {
                return Err(Error::invalid(
                    "snapshot-metadata-ca",
                    "is of no use without the certificate: give --snapshot-metadata-secret too",
                ));
            }
            // Without the text: it can be a key, given in place of the CA. The object is readable by many.
            if !ca.contains("-----BEGIN CERTIFICATE-----") || ca.contains("PRIVATE KEY") {
                return Err(Error::invalid(
                    "snapshot-metadata-ca",
                    "has no certificate in PEM, or has a private key: give the file with the CA's certificate alone",
                ));
            }
        }
        let has_sources = self.snapshots() || self.has(ControllerCapability::CloneVolume);
        if options.cross_namespace_data_sources && !has_sources {
            return Err(Error::invalid(
                "cross-namespace-data-sources",
                "the driver has neither CREATE_DELETE_SNAPSHOT nor CLONE_VOLUME",
            ));
        }
        if options.default_fstype.as_deref() == Some("") {
            return Err(Error::invalid("default-fstype", "is empty: leave it out, or give ext4, xfs, …"));
        }
        Ok(())
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
    let part = part.map(|part| ("app.kubernetes.io/component".to_owned(), part.as_str().to_owned()));
    std::iter::once(name).chain(part).collect()
}

pub(crate) fn metadata(plan: &Plan<'_>, name: String, part: Part) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(plan.options.namespace.clone()),
        labels: Some(labels(plan, Some(part))),
        ..ObjectMeta::default()
    }
}
