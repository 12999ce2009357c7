//! What is refused of the facts and the options, because it contradicts itself or Kubernetes would not take it.

use csi_proto::v1::plugin_capability::service::Type as PluginService;
use csi_proto::{ControllerCapability, NodeCapability};

use crate::error::Error;
use crate::names;
use crate::options::{Controller, FUSE_MEMORY, FsGroupPolicy, FusePods, Lifecycle, SecretUse};
use crate::part::Part;
use crate::plan::Plan;
use crate::pods::SNAPSHOT_METADATA_PORT;

/// The longest path of a socket (unix(7)).
const SOCKET_PATH: usize = 107;
/// The shortest period that the API server takes.
const SHORTEST_UPDATE: u32 = 10;
/// The shortest life of a token that the API server takes, in seconds.
const SHORTEST_TOKEN: u32 = 600;

impl Plan<'_> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_names()?;
        self.check_driver()?;
        self.check_controller()?;
        self.check_only_for_the_controller()?;
        self.check_no_sidecars()?;
        self.check_settings()?;
        self.check_declared()?;
        self.check_classes()?;
        self.check_fuse()
    }

    fn check_fuse(&self) -> Result<(), Error> {
        let options = self.options;
        if options.fuse_pods.is_some() && options.classic {
            let reason = "needs csi-core's flags, by which the driver's program starts FUSE programs: leave out --classic";
            return Err(Error::invalid("fuse-pods", reason));
        }
        let of_pods = [
            ("fuse-image", options.fuse_image.is_some()),
            ("fuse-memory", options.fuse_memory != FUSE_MEMORY),
            ("fuse-priority-class", options.fuse_priority_class.is_some()),
        ];
        if options.fuse_pods.is_none()
            && let Some((name, _)) = of_pods.iter().find(|(_, is_set)| *is_set)
        {
            return Err(Error::invalid(name, "has an effect only with --fuse-pods"));
        }
        if options.fuse_pods.is_some() && options.namespace == self.fuse_name() {
            let reason = "is that of the FUSE programs, in which no pod has a privilege: give another one";
            return Err(Error::invalid("namespace", reason));
        }
        if let Some(image) = &options.fuse_image {
            names::check_image("fuse-image", image)?;
        }
        if let Some(class) = &options.fuse_priority_class {
            names::check_name("fuse-priority-class", class)?;
        }
        if options.fuse_pods == Some(FusePods::PerVolume)
            && !(self.has_controller_pods() && self.has(ControllerCapability::PublishUnpublishVolume))
        {
            let reason = "per-volume needs a controller with PUBLISH_UNPUBLISH_VOLUME, which makes the pods by \
                          csi-kube's FusePods (csi manifests sees it if the driver runs with \
                          --fuse-pods=NAMESPACE); without one use per-node";
            return Err(Error::invalid("fuse-pods", reason));
        }
        let number = options.fuse_memory.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = &options.fuse_memory[number.len()..];
        let units = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
        if units.contains(&unit) && number.parse::<f64>().is_ok_and(|number| number > 0.0) {
            return Ok(());
        }
        let reason = format!("{:?} is no quantity of Kubernetes, such as 1Gi", options.fuse_memory);
        Err(Error::invalid("fuse-memory", reason))
    }

    fn check_no_sidecars(&self) -> Result<(), Error> {
        let options = self.options;
        let reason = if !options.no_sidecars {
            return Ok(());
        } else if options.classic {
            "needs csi-core's flags: leave out --classic"
        } else if !self.has_controller_pods() {
            "needs controller pods, which know all nodes: use --controller deployment or stateful-set, or leave \
             --no-sidecars out for the sidecars in each node's pod"
        } else if options.driver_elects {
            "elects a leader among the controllers that serve: leave out --driver-elects"
        } else {
            return Ok(());
        };
        Err(Error::invalid("no-sidecars", reason))
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
        // The longer one of the two sockets that the kubelet connects to.
        let socket = format!("{}/plugins_registry/{}-reg.sock", options.kubelet_dir, self.driver.name);
        if socket.len() > SOCKET_PATH {
            let length = socket.len();
            let reason = format!(
                "the kubelet can't connect to {socket}: the path of a socket has at most {SOCKET_PATH} bytes, this one \
                 has {length}. Give the driver a shorter name"
            );
            return Err(Error::invalid("kubelet-dir", reason));
        }
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
        // The sidecars' ports follow it, the last one is 7 more.
        let has_metadata = options.snapshot_metadata_secret.is_some();
        if has_metadata && (options.port..=options.port.saturating_add(7)).contains(&SNAPSHOT_METADATA_PORT) {
            let reason =
                format!("{} to 7 more contain {SNAPSHOT_METADATA_PORT}, of snapshot-metadata", options.port);
            return Err(Error::invalid("port", reason));
        }
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
        Ok(())
    }

    fn check_only_for_the_controller(&self) -> Result<(), Error> {
        let options = self.options;
        let all = [
            ("controller-arg", options.controller_arg.is_empty()),
            ("controller-host-path", options.controller_host_path.is_empty()),
            ("controller-rule", options.controller_rule.is_empty()),
            ("controller-sees-mounts", !options.controller_sees_mounts),
            ("driver-elects", !options.driver_elects),
            ("privileged-controller", !options.privileged_controller),
            ("replicas", options.replicas == 1),
        ];
        match all.iter().find(|(_, is_unset)| !is_unset && !self.has_controller_pods()) {
            Some((field, _)) => Err(Error::invalid(
                field,
                "has no effect without controller pods (--controller node-local, or a driver without a controller): \
                 leave it out, or use the flag of the node",
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
                check_pods(field, &directory.object, &|part| directory.pods.have(part))?;
            }
        }
        for variable in &options.secret_env {
            names::check_variable("secret-env", &variable.name)?;
            names::check_name("secret-env", &variable.secret)?;
            names::check_key("secret-env", &variable.key)?;
            check_pods("secret-env", &variable.secret, &|part| variable.pods.have(part))?;
        }
        // `kubectl apply` merges the variables by their names, and loses all but one.
        for part in parts {
            let mut taken = self.own_variables(part);
            let of_secrets = options.secret_env.iter().filter(|variable| variable.pods.have(part));
            let of_secrets = of_secrets.map(|variable| ("secret-env", &*variable.name));
            let plain = options.env.iter().map(|(name, _)| ("env", &**name));
            for (field, name) in plain.chain(of_secrets) {
                if taken.contains(&name) {
                    let reason =
                        format!("{name:?} is set already in the {}'s pods: leave it out", part.as_str());
                    return Err(Error::invalid(field, reason));
                }
                taken.push(name);
            }
        }
        Ok(())
    }

    /// The variables that the driver of this part has from the manifests.
    fn own_variables(&self, part: Part) -> Vec<&str> {
        let options = self.options;
        let mut names = Vec::new();
        names.extend(options.classic.then_some("CSI_ENDPOINT"));
        names.extend((part == Part::Node || options.classic).then_some("NODE_ID"));
        names.extend((part == Part::Node).then_some("VOLUME_ROOTS"));
        names.extend((part == Part::Controller && options.no_sidecars).then_some("POD_NAME"));
        names
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
                if field == "attributes-class" && class.parameters.is_empty() {
                    let reason = "has no parameters, and Kubernetes takes none without: write NAME,KEY=VALUE";
                    return Err(Error::invalid(field, format!("{} {reason}", class.name)));
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
}
