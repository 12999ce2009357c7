//! All objects of a driver, as files or as one text.

use std::fs;
use std::path::Path;

use csi_proto::ControllerCapability;
use csi_proto::v1::plugin_capability::service::Type as PluginService;
use serde::Serialize;

use crate::driver::Driver;
use crate::error::Error;
use crate::files::{Document, MARKER, yaml};
use crate::options::Options;
use crate::plan::Plan;
use crate::sidecars::Sidecar;
use crate::{chart, objects, releases, testdriver};

/// Makes the manifests of a driver.
///
/// # Errors
/// [`Error::Invalid`] for an option that Kubernetes refuses, or that contradicts a capability of the driver or
/// another option. The error names the option.
pub fn manifests(driver: &Driver, options: &Options) -> Result<Manifests, Error> {
    let plan = Plan::new(driver, options)?;
    let text = |(name, documents): (_, Vec<Document>)| {
        let texts = documents.iter().map(Document::text).collect::<Result<Vec<_>, _>>()?;
        Ok((name, texts.join(MARKER)))
    };
    let files = objects::all(&plan).0.into_iter().map(text).collect::<Result<Vec<_>, Error>>()?;
    let base = Kustomization {
        api_version: "kustomize.config.k8s.io/v1beta1",
        kind: "Kustomization",
        resources: files.iter().map(|(name, _)| *name).collect(),
    };
    let kustomization = yaml("Kustomization", &base)?;
    Ok(Manifests {
        files,
        kustomization,
        chart: chart::files(&plan)?,
        testdriver: testdriver::file(&plan)?,
        notes: notes(&plan),
    })
}

/// The manifests of a driver: YAML, in a stable order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifests {
    /// The name of each file and its text, in the order of their application.
    files: Vec<(&'static str, String)>,
    kustomization: String,
    chart: Vec<(String, String)>,
    testdriver: String,
    notes: Vec<String>,
}

/// Marks the files that this crate writes.
const HEAD: &str = "# Made from the driver's capabilities. Change the flags, or patch it with kustomize.\n";

impl Manifests {
    /// Returns all objects as one text, for `kubectl apply -f`.
    #[must_use]
    pub fn single(&self) -> String {
        let texts: Vec<&str> = self.files.iter().map(|(_, text)| text.as_str()).collect();
        HEAD.to_owned() + &texts.join(MARKER)
    }

    /// Returns the names and texts of the files of a kustomize base, `kustomization.yaml` last.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let mut files: Vec<(&'static str, String)> =
            self.files.iter().map(|(name, text)| (*name, HEAD.to_owned() + text)).collect();
        files.push(("kustomization.yaml", HEAD.to_owned() + &self.kustomization));
        files
    }

    /// Writes the kustomize base into this directory, for `kubectl apply -k`. The directory is created if it
    /// does not exist. Files of the same names are replaced; no other file is touched.
    ///
    /// # Errors
    /// [`Error::Io`] with the path that can't be written.
    pub fn write_to(&self, directory: &Path) -> Result<(), Error> {
        fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.to_owned(), source })?;
        for (name, text) in self.files() {
            let path = directory.join(name);
            fs::write(&path, text).map_err(|source| Error::Io { path, source })?;
        }
        Ok(())
    }

    /// Writes a Helm chart into this directory, for `helm install NAME DIRECTORY`. With its default values it gives
    /// the same objects, without the Namespace: Helm needs that before. The directory is created if it does not
    /// exist. In a chart of this driver that was written before, the files are replaced, and templates
    /// that are no longer made are removed; files of others stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a directory that has files and no such chart; nothing is changed.
    /// [`Error::Io`] with the path that can't be read, written or removed.
    pub fn write_chart_to(&self, directory: &Path) -> Result<(), Error> {
        chart::write(&self.chart, directory)
    }

    /// Returns the file that describes the driver to the External Storage suite of Kubernetes' end-to-end tests
    /// (`-storage.testdriver`). The suite needs the driver in the cluster, with these manifests.
    pub fn e2e_testdriver(&self) -> &str {
        &self.testdriver
    }

    /// Returns what a reader has to know that no object says, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kustomization {
    api_version: &'static str,
    kind: &'static str,
    resources: Vec<&'static str>,
}

/// What a reader has to know that no object says.
fn notes(plan: &Plan<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.is_node_local() && plan.has(ControllerCapability::ExpandVolume) {
        notes.push(
            "volumes can't be expanded: external-resizer calls ControllerExpandVolume from one pod only, \
                    which with node-local storage is not the volume's node; offer only EXPAND_VOLUME of the node \
                    (in csi-core NodeService::expand_volume)"
                .to_owned(),
        );
    }
    if plan.is_node_local() && plan.has(ControllerCapability::ModifyVolume) {
        notes.push(
            "volumes can't be modified: external-resizer calls ControllerModifyVolume from one pod only, \
                    which with node-local storage is not the volume's node"
                .to_owned(),
        );
    }
    if plan.is_node_local() && plan.snapshots() {
        notes.push(
            "snapshot-controller, which belongs to the cluster, needs --enable-distributed-snapshotting"
                .to_owned(),
        );
    }
    if plan.snapshots() {
        notes.push(
            "the cluster needs the CRDs and the snapshot-controller of external-snapshotter".to_owned(),
        );
    }
    if plan.driver.serves(PluginService::SnapshotMetadataService) {
        notes.push(match (&plan.options.snapshot_metadata_secret, &plan.options.snapshot_metadata_ca) {
            (Some(_), Some(_)) => "the cluster needs the CRD of external-snapshot-metadata 1.0 or newer".to_owned(),
            (Some(_), None) => "the SnapshotMetadataService object is not made: it contains the CA of the certificate, --snapshot-metadata-ca".to_owned(),
            (None, _) => "the sidecar snapshot-metadata is left out: it needs a certificate, --snapshot-metadata-secret".to_owned(),
        });
    }
    if plan.options.cross_namespace_data_sources {
        notes.push(
            "the API server and the controller manager need the feature gate CrossNamespaceVolumeDataSource, and the \
             cluster the CRD ReferenceGrant of the Gateway API"
                .to_owned(),
        );
    }
    if plan.sidecars().contains(&Sidecar::HealthMonitor) {
        notes.push("external-health-monitor-controller 0.19 needs Kubernetes 1.37 with the feature gate CSIVolumeHealth".to_owned());
    }
    notes.extend(releases::notes(plan.options));
    if plan.options.devices && !plan.options.host_pid {
        notes.push(
            "without --host-pid the driver can't name the pod that keeps a volume's device in use: a pod that mounts \
             the kubelet's directory without mountPropagation keeps a copy of each staged mount"
                .to_owned(),
        );
    }
    if plan.options.fuse_pods.is_some() && !plan.options.requires_republish {
        notes.push(
            "a FUSE program that has ended with its pod starts again at the next publish of its volume: with \
             --requires-republish the kubelet publishes every 90 s"
                .to_owned(),
        );
    }
    let objects = plan.own_objects();
    if !objects.is_empty() {
        notes.push(format!(
            "the driver's pods start when these exist in the namespace {}: {}",
            plan.options.namespace,
            objects.join(", ")
        ));
    }
    if plan.options.replicas > 1 && !plan.options.no_sidecars {
        notes.push("each sidecar elects its own leader, so several controller pods can serve calls at the same time: \
                    the driver must bear that".to_owned());
    }
    notes
}
