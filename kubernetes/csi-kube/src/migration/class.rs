//! Storage classes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{TopologySelectorLabelRequirement, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;

use super::plugin::InTreePlugin;
use super::topology;
use crate::error::{Error, Result};

const FS_TYPE: &str = "csi.storage.k8s.io/fstype";

enum Parameter {
    Kept,
    Named(&'static str),
    /// Several parameters with the same value.
    Each(Vec<String>),
    /// Its value is kept, and another parameter is added.
    With(&'static str, &'static str),
    Zones(Vec<String>),
    LeftOut,
}

/// The parameters of vSphere's class, and their names for the driver. No other ones are passed on.
const VSPHERE: [(&str, &str); 9] = [
    ("storagepolicyname", "storagepolicyname"),
    ("datastore", "datastore-migrationparam"),
    ("diskformat", "diskformat-migrationparam"),
    ("hostfailurestotolerate", "hostfailurestotolerate-migrationparam"),
    ("forceprovisioning", "forceprovisioning-migrationparam"),
    ("cachereservation", "cachereservation-migrationparam"),
    ("diskstripes", "diskstripes-migrationparam"),
    ("objectspacereservation", "objectspacereservation-migrationparam"),
    ("iopslimit", "iopslimit-migrationparam"),
];

/// The secrets of Portworx' driver, for which its class has one name and one namespace.
const PORTWORX_SECRETS: [&str; 6] =
    ["provisioner", "controller-publish", "node-publish", "node-stage", "controller-expand", "node-expand"];

/// What the parameter with this name, in lower case, becomes.
fn parameter(plugin: InTreePlugin, name: &str, value: &str) -> Parameter {
    use InTreePlugin::{AwsEbs, AzureDisk, AzureFile, Cinder, GcePd, Portworx, Vsphere};
    match (plugin, name) {
        (AwsEbs | Cinder | GcePd | Vsphere, "fstype") => Parameter::Named(FS_TYPE),
        (AwsEbs | AzureDisk | GcePd, "zone") => Parameter::Zones(vec![value.to_owned()]),
        (AwsEbs | AzureDisk | GcePd, "zones") => {
            Parameter::Zones(value.split(',').map(str::to_owned).collect())
        }
        // As the plugin did: the IOPS of a small volume are raised to the least that AWS accepts.
        (AwsEbs, "iopspergb") => Parameter::With("allowautoiopspergbincrease", "true"),
        (Portworx, "openstorage.io/auth-secret-name") => Parameter::Each(portworx_secrets("name")),
        (Portworx, "openstorage.io/auth-secret-namespace") => Parameter::Each(portworx_secrets("namespace")),
        (Vsphere, name) => match VSPHERE.into_iter().find(|(from, _)| *from == name) {
            Some((_, to)) => Parameter::Named(to),
            None => Parameter::LeftOut,
        },
        (AwsEbs | AzureDisk | AzureFile | Cinder | GcePd | Portworx, _) => Parameter::Kept,
    }
}

fn portworx_secrets(part: &str) -> Vec<String> {
    PORTWORX_SECRETS.into_iter().map(|secret| format!("csi.storage.k8s.io/{secret}-secret-{part}")).collect()
}

impl InTreePlugin {
    /// The class with the parameters and topologies that the CSI driver gets for a class of this plugin.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the class has both zones among its parameters and allowed
    /// topologies.
    pub fn storage_class(self, class: &StorageClass) -> Result<StorageClass> {
        translate(self, class)
    }
}

fn translate(plugin: InTreePlugin, class: &StorageClass) -> Result<StorageClass> {
    let mut class = class.clone();
    let mut zones = None;
    let mut parameters = BTreeMap::new();
    for (name, value) in class.parameters.take().unwrap_or_default() {
        match parameter(plugin, &name.to_lowercase(), &value) {
            Parameter::Kept => drop(parameters.insert(name, value)),
            Parameter::Named(to) => drop(parameters.insert(to.to_owned(), value)),
            Parameter::Each(all) => parameters.extend(all.into_iter().map(|to| (to, value.clone()))),
            Parameter::With(other, its) => {
                parameters.extend([(name, value), (other.to_owned(), its.to_owned())]);
            }
            Parameter::Zones(found) => zones = Some(found),
            Parameter::LeftOut => {}
        }
    }
    if plugin == InTreePlugin::Vsphere {
        // The driver then names its volumes by their path, as the plugin did.
        parameters.insert("csimigration".to_owned(), "true".to_owned());
    }
    if plugin == InTreePlugin::Portworx {
        plugin.driver().clone_into(&mut class.provisioner);
    }
    class.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
    class.allowed_topologies = allowed_topologies(plugin, class.allowed_topologies, zones)?;
    Ok(class)
}

fn allowed_topologies(
    plugin: InTreePlugin,
    allowed: Option<Vec<TopologySelectorTerm>>,
    zones: Option<Vec<String>>,
) -> Result<Option<Vec<TopologySelectorTerm>>> {
    let Some(key) = plugin.zone_key() else { return Ok(allowed) };
    let allowed = allowed.filter(|terms| !terms.is_empty());
    let mut terms = match (allowed, zones) {
        (Some(_), Some(_)) => {
            let reason = "zones among the parameters and allowedTopologies exclude each other; remove one";
            return Err(Error::invalid("storage class: allowedTopologies", reason));
        }
        (Some(terms), None) => topology::allowed(&terms, key),
        (None, Some(values)) => {
            let requirement = TopologySelectorLabelRequirement { key: key.to_owned(), values };
            vec![TopologySelectorTerm { match_label_expressions: Some(vec![requirement]) }]
        }
        (None, None) => return Ok(None),
    };
    if plugin == InTreePlugin::AzureDisk {
        without_failure_domains(&mut terms, key);
    }
    Ok(Some(terms))
}

/// In a region without zones the plugin used numbers of failure domains. The driver's zone is empty there.
fn without_failure_domains(terms: &mut [TopologySelectorTerm], key: &str) {
    for requirement in terms.iter_mut().flat_map(|term| term.match_label_expressions.iter_mut().flatten()) {
        for value in requirement.values.iter_mut().filter(|_| requirement.key == key) {
            if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
                value.clear();
            }
        }
    }
}
