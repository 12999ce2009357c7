//! The sidecars: their versions, when each one runs, and its flags.
//!
//! The flags are those of the README and `main.go` of each sidecar at the version in [`Sidecar::image`].

use csi_proto::ControllerCapability;

use crate::options::Controller;
use crate::plan::Plan;

/// By default 5 requests a second, and 10 at once: that is slower than nearly all drivers.
pub(crate) const API_RATE: [&str; 2] = ["--kube-api-qps=20", "--kube-api-burst=100"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sidecar {
    Provisioner,
    Attacher,
    Resizer,
    Snapshotter,
    SnapshotMetadata,
    /// For GET_VOLUME_HEALTH, of spec v1.13.
    HealthMonitor,
    /// The same program at an older version, for VOLUME_CONDITION, of spec v1.12.
    ConditionMonitor,
    Registrar,
    LivenessProbe,
}

impl Sidecar {
    pub(crate) const ALL: [Self; 7] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::Snapshotter,
        Self::SnapshotMetadata,
        Self::HealthMonitor,
        Self::ConditionMonitor,
    ];

    /// The image and its version; the container has the image's name. All are built with Kubernetes 1.37
    /// unless the comment says otherwise.
    pub(crate) fn image(self) -> (&'static str, &'static str) {
        match self {
            Self::Provisioner => ("csi-provisioner", "v6.4.0"),
            Self::Attacher => ("csi-attacher", "v4.13.0"),
            Self::Resizer => ("csi-resizer", "v2.3.0"),
            Self::Snapshotter => ("csi-snapshotter", "v8.7.0"),
            // With Kubernetes 1.36.
            Self::SnapshotMetadata => ("csi-snapshot-metadata", "v1.1.0"),
            Self::HealthMonitor => ("csi-external-health-monitor-controller", "v0.19.0"),
            // The last one that calls ListVolumes and ControllerGetVolume.
            Self::ConditionMonitor => ("csi-external-health-monitor-controller", "v0.18.0"),
            Self::Registrar => ("csi-node-driver-registrar", "v2.18.0"),
            Self::LivenessProbe => ("livenessprobe", "v2.20.0"),
        }
    }

    /// The name of its project, for the table of rules.
    #[cfg(test)]
    pub(crate) fn project(self) -> &'static str {
        match self {
            Self::Provisioner => "external-provisioner",
            Self::Attacher => "external-attacher",
            Self::Resizer => "external-resizer",
            Self::Snapshotter => "external-snapshotter",
            Self::SnapshotMetadata => "external-snapshot-metadata",
            Self::HealthMonitor | Self::ConditionMonitor => "external-health-monitor",
            Self::Registrar => "node-driver-registrar",
            Self::LivenessProbe => "livenessprobe",
        }
    }

    #[allow(deprecated, reason = "callers of spec v1.12 read VOLUME_CONDITION")]
    pub(crate) fn serves(self, plan: &Plan<'_>) -> bool {
        let has = |capability| plan.has(capability);
        let monitors = has(ControllerCapability::GetVolumeHealth);
        match self {
            Self::Provisioner => has(ControllerCapability::CreateDeleteVolume),
            Self::Attacher => has(ControllerCapability::PublishUnpublishVolume),
            Self::Resizer => plan.expands() || plan.modifies(),
            Self::Snapshotter => plan.snapshots(),
            Self::SnapshotMetadata => plan.options.snapshot_metadata_secret.is_some(),
            // In one pod of a DaemonSet it would see the volumes of one node.
            Self::HealthMonitor => monitors && !plan.is_node_local(),
            Self::ConditionMonitor => {
                let finds = has(ControllerCapability::ListVolumes) || has(ControllerCapability::GetVolume);
                has(ControllerCapability::VolumeCondition) && finds && !monitors && !plan.is_node_local()
            }
            Self::Registrar | Self::LivenessProbe => false,
        }
    }

    pub(crate) fn can_elect(self) -> bool {
        !matches!(self, Self::SnapshotMetadata | Self::Registrar | Self::LivenessProbe)
    }

    /// The port of its metrics, counted from the driver's.
    pub(crate) fn port(self, plan: &Plan<'_>) -> u16 {
        plan.options.port
            + match self {
                Self::LivenessProbe => 0,
                Self::Registrar => 1,
                Self::Provisioner => 2,
                Self::Attacher => 3,
                Self::Resizer => 4,
                Self::Snapshotter => 5,
                Self::HealthMonitor | Self::ConditionMonitor => 6,
                Self::SnapshotMetadata => 7,
            }
    }

    /// Its flags, without those that all sidecars have: the socket, the HTTP endpoint and leader election.
    pub(crate) fn flags(self, plan: &Plan<'_>) -> Vec<String> {
        let mut flags = Vec::new();
        let mut when = |is_set: bool, flag: &str| {
            if is_set {
                flags.push(flag.to_owned());
            }
        };
        let default_fstype = plan.options.default_fstype.as_ref();
        let default_fstype = default_fstype.map(|fstype| format!("--default-fstype={fstype}"));
        match self {
            Self::Provisioner => {
                when(true, "--extra-create-metadata");
                when(plan.has(ControllerCapability::PublishReadonly), "--controller-publish-readonly");
                let cross_namespace = plan.options.cross_namespace_data_sources;
                when(cross_namespace, "--feature-gates=CrossNamespaceVolumeDataSource=true");
                // Without it the sidecar looks for leftovers on all VolumeSnapshots of the cluster.
                when(!plan.snapshots(), "--snapshot-orphan-sweep-interval=0");
                if plan.is_node_local() {
                    when(true, "--node-deployment");
                    when(true, "--strict-topology");
                    when(true, "--immediate-topology=false");
                    // A node can claim such a volume only if it knows that it has room for it.
                    when(!plan.publishes_capacity(), "--node-deployment-immediate-binding=false");
                }
                if plan.publishes_capacity() {
                    when(true, "--enable-capacity");
                    // The owner of the objects: pod, ReplicaSet, Deployment; or pod, StatefulSet or DaemonSet.
                    let is_deployment = plan.options.controller == Controller::Deployment;
                    when(is_deployment, "--capacity-ownerref-level=2");
                    when(!is_deployment, "--capacity-ownerref-level=1");
                }
                flags.extend(default_fstype);
            }
            Self::Attacher => flags.extend(default_fstype),
            // Else it watches all pods of the cluster, for drivers that can't expand a volume in use.
            Self::Resizer => when(plan.expands_online(), "--handle-volume-inuse-error=false"),
            Self::Snapshotter => {
                when(true, "--extra-create-metadata");
                when(!plan.snapshots_groups(), "--feature-gates=CSIVolumeGroupSnapshot=false");
                when(plan.is_node_local(), "--node-deployment");
            }
            Self::SnapshotMetadata => {
                when(true, "--tls-cert=/certificates/tls.crt");
                when(true, "--tls-key=/certificates/tls.key");
            }
            Self::HealthMonitor | Self::ConditionMonitor => {}
            Self::Registrar => {
                let socket = format!("{}/csi.sock", plan.plugin_dir());
                flags.push(format!("--kubelet-registration-path={socket}"));
            }
            Self::LivenessProbe => {}
        }
        if matches!(self, Self::Provisioner | Self::Attacher | Self::Resizer | Self::Snapshotter) {
            flags.extend(API_RATE.map(str::to_owned));
        }
        flags
    }

    /// The variables that it reads, with the field of the pod.
    pub(crate) fn variables(self, plan: &Plan<'_>) -> Vec<(&'static str, &'static str)> {
        let mut variables = Vec::new();
        if self == Self::Provisioner && plan.publishes_capacity() {
            variables.extend([("NAMESPACE", "metadata.namespace"), ("POD_NAME", "metadata.name")]);
        }
        if plan.is_node_local() && matches!(self, Self::Provisioner | Self::Snapshotter) {
            variables.push(("NODE_NAME", "spec.nodeName"));
        }
        variables
    }
}

impl Plan<'_> {
    pub(crate) fn elects_leader(&self, sidecar: Sidecar) -> bool {
        match self.options.controller {
            Controller::Deployment => sidecar.can_elect() && !self.options.driver_elects,
            Controller::StatefulSet => false,
            // Of all the node's pods one marks the claims for the kubelet.
            Controller::NodeLocal => sidecar == Sidecar::Resizer,
        }
    }

    pub(crate) fn elects(&self) -> bool {
        self.sidecars().into_iter().any(|sidecar| self.elects_leader(sidecar))
    }

    /// The sidecars with containers of their own.
    pub(crate) fn sidecars(&self) -> Vec<Sidecar> {
        let serves = |sidecar: &Sidecar| sidecar.serves(self);
        let is_apart = |sidecar: &Sidecar| !self.is_built_in(*sidecar);
        Sidecar::ALL.into_iter().filter(serves).filter(is_apart).collect()
    }

    /// The sidecars whose work the driver does itself.
    pub(crate) fn built_in(&self) -> Vec<Sidecar> {
        let serves = |sidecar: &Sidecar| sidecar.serves(self);
        let is_built_in = |sidecar: &Sidecar| self.is_built_in(*sidecar);
        Sidecar::ALL.into_iter().filter(serves).filter(is_built_in).collect()
    }

    /// Backup programs call snapshot-metadata over the network, with TLS.
    fn is_built_in(&self, sidecar: Sidecar) -> bool {
        self.options.no_sidecars && sidecar != Sidecar::SnapshotMetadata
    }
}
