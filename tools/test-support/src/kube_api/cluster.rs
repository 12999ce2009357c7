//! The controllers of a cluster that the work of CSI controllers needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::ApiServer;
use super::snapshots;
use super::state::{finalizers, resource};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// The volume controller, the protection of claims and volumes in use, and the snapshot-controller, while this value
/// lives.
///
/// They change objects directly: their requests are not in the record and need no rule. A round takes a millisecond.
///
/// Left out: a volume that no claim is named in (static provisioning by size), default classes of claims, migration,
/// events, group snapshots, pods and attachments. Deletion of a released volume is the provisioner's.
#[derive(Debug)]
pub struct Cluster(JoinHandle<()>);

impl Cluster {
    /// Starts the controllers. Claims and volumes that are created from now on have their protection finalizers.
    pub fn start(server: &ApiServer) -> Self {
        server.state().objects.protects_storage = true;
        let mut controllers = Controllers { server: server.clone(), seen: 0, claimed: BTreeMap::new() };
        let mut changed = server.changed.subscribe();
        Self(tokio::spawn(async move {
            loop {
                controllers.round();
                tokio::time::sleep(Duration::from_millis(1)).await;
                if changed.changed().await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Controllers {
    server: ApiServer,
    /// The version up to which changes were handled.
    seen: u64,
    /// The paths of the volumes that name a claim, by the path of the claim.
    claimed: BTreeMap<String, BTreeSet<String>>,
}

impl Controllers {
    fn round(&mut self) {
        let paths: BTreeSet<String> = {
            let state = self.server.state();
            let objects = &state.objects;
            let seen = std::mem::replace(&mut self.seen, objects.version);
            if seen < objects.oldest_watch.max(1) {
                objects.below("", "").map(|(path, _)| path.clone()).collect()
            } else {
                objects.changes_after(seen).map(|change| change.path.clone()).collect()
            }
        };
        for path in paths {
            match resource(&path) {
                "persistentvolumeclaims" => {
                    self.claim(&path);
                    snapshots::claim(&self.server, &path);
                }
                "persistentvolumes" => self.volume(&path),
                "storageclasses" => self.claims("persistentvolumeclaims/"),
                "pods" => {
                    let namespace = path.split('/').nth(1).unwrap_or_default();
                    self.claims(&format!("persistentvolumeclaims/{namespace}/"));
                }
                "volumesnapshots" => snapshots::snapshot(&self.server, &path),
                "volumesnapshotcontents" => snapshots::content(&self.server, &path),
                _ => {}
            }
        }
    }

    fn claims(&self, prefix: &str) {
        for claim in self.server.shared(prefix) {
            self.claim(&path_of("persistentvolumeclaims", &claim["metadata"]));
        }
    }

    fn claim(&self, path: &str) {
        let volumes = self.claimed.get(path).into_iter().flatten();
        let volumes: Vec<(&String, Value)> =
            volumes.filter_map(|volume| Some((volume, self.server.get(volume)?))).collect();
        for (volume, object) in &volumes {
            self.phase_of(volume, object);
        }
        let Some(claim) = self.server.get(path) else { return };
        if is_deleting(&claim) && !self.is_used_by_a_pod(&claim) {
            remove_finalizers(&self.server, path, &["kubernetes.io/pvc-protection"]);
        }
        if self.server.get(path).is_none() {
            return;
        }
        if claim["metadata"]["annotations"][BIND_COMPLETED].is_string() {
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            if self.server.get(&format!("persistentvolumes/{volume}")).is_none() {
                self.server.edit_status(path, |status| status["phase"] = json!("Lost"));
            }
            return;
        }
        let uid = &claim["metadata"]["uid"];
        let wanted = claim["spec"]["volumeName"].as_str();
        let found = volumes.iter().find(|(_, volume)| {
            let of = &volume["spec"]["claimRef"]["uid"];
            let is_named = wanted.is_none_or(|name| volume["metadata"]["name"] == name);
            (of.is_null() || of == uid) && is_named && volume["status"]["phase"] != "Released"
        });
        match found {
            Some((volume, object)) => self.bind(path, &claim, volume, object),
            None if wanted.is_none() && !is_deleting(&claim) => self.ask_for_volume(path, &claim),
            None => {}
        }
    }

    /// Tells the provisioner to make a volume.
    fn ask_for_volume(&self, path: &str, claim: &Value) {
        let class = claim["spec"]["storageClassName"].as_str().unwrap_or_default();
        let Some(class) = self.server.get(&format!("storageclasses/{class}")) else { return };
        let waits = class["volumeBindingMode"] == "WaitForFirstConsumer";
        let is_scheduled = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_string();
        let provisioner = class["provisioner"].as_str().unwrap_or_default();
        if (waits && !is_scheduled) || provisioner == "kubernetes.io/no-provisioner" {
            return;
        }
        PROVISIONER.iter().for_each(|key| annotate(&self.server, path, key, provisioner));
    }

    fn bind(&self, claim_path: &str, claim: &Value, volume_path: &str, volume: &Value) {
        let server = &self.server;
        let uid = &claim["metadata"]["uid"];
        if volume["spec"]["claimRef"]["uid"].is_null() {
            server.edit(volume_path, |volume| volume["spec"]["claimRef"]["uid"] = uid.clone());
        }
        server.edit_status(volume_path, |status| status["phase"] = json!("Bound"));
        if claim["spec"]["volumeName"].is_null() {
            annotate(server, claim_path, BOUND_BY_CONTROLLER, "yes");
        }
        annotate(server, claim_path, BIND_COMPLETED, "yes");
        server.edit(claim_path, |claim| claim["spec"]["volumeName"] = volume["metadata"]["name"].clone());
        server.edit_status(claim_path, |status| {
            status["phase"] = json!("Bound");
            status["accessModes"] = volume["spec"]["accessModes"].clone();
            status["capacity"] = volume["spec"]["capacity"].clone();
            let class = &volume["spec"]["volumeAttributesClassName"];
            if class.is_string() {
                status["currentVolumeAttributesClassName"] = class.clone();
            }
        });
    }

    fn volume(&mut self, path: &str) {
        let Some(volume) = self.server.get(path) else {
            let of_it: Vec<String> = self
                .claimed
                .iter()
                .filter(|(_, all)| all.contains(path))
                .map(|(claim, _)| claim.clone())
                .collect();
            for claim in of_it {
                self.claimed.entry(claim.clone()).or_default().remove(path);
                self.claim(&claim);
            }
            return;
        };
        let reference = &volume["spec"]["claimRef"];
        if reference.is_object() {
            let claim = path_of("persistentvolumeclaims", reference);
            self.claimed.entry(claim.clone()).or_default().insert(path.to_owned());
            self.claim(&claim);
        } else {
            self.phase_of(path, &volume);
        }
        if self
            .server
            .get(path)
            .is_some_and(|volume| is_deleting(&volume) && volume["status"]["phase"] != "Bound")
        {
            remove_finalizers(&self.server, path, &["kubernetes.io/pv-protection"]);
        }
    }

    /// Makes a volume available, or released if its claim is gone.
    fn phase_of(&self, path: &str, volume: &Value) {
        let reference = &volume["spec"]["claimRef"];
        let claim = self.server.get(&path_of("persistentvolumeclaims", reference));
        let is_free = reference["uid"].is_null();
        let is_gone = claim.is_none_or(|claim| claim["metadata"]["uid"] != reference["uid"]);
        let phase = match volume["status"]["phase"].as_str() {
            Some("Released" | "Failed") => return,
            _ if is_free => "Available",
            _ if is_gone => "Released",
            _ => return,
        };
        self.server.edit_status(path, |status| status["phase"] = json!(phase));
    }

    fn is_used_by_a_pod(&self, claim: &Value) -> bool {
        let namespace = claim["metadata"]["namespace"].as_str().unwrap_or_default();
        let uses = |pod: &Value| {
            let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
            let is_over = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
            let names_it =
                |volume: &Value| volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"];
            !is_over && volumes.into_iter().any(names_it)
        };
        self.server.shared(&format!("pods/{namespace}/")).iter().any(|pod| uses(pod))
    }
}

/// The path of the object that a reference or metadata names.
pub(super) fn path_of(resource: &str, named: &Value) -> String {
    let names = [&named["namespace"], &named["name"]];
    let names: Vec<&str> = names.into_iter().filter_map(Value::as_str).collect();
    format!("{resource}/{}", names.join("/"))
}

pub(super) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn annotate(server: &ApiServer, path: &str, key: &str, value: &str) {
    server.edit(path, |object| object["metadata"]["annotations"][key] = json!(value));
}

pub(super) fn add_finalizer(server: &ApiServer, path: &str, name: &str) {
    server.edit(path, |object| {
        if !finalizers(object).contains(name) {
            let mut all: Vec<String> = finalizers(object).into_iter().map(str::to_owned).collect();
            all.push(name.to_owned());
            object["metadata"]["finalizers"] = json!(all);
        }
    });
}

pub(super) fn remove_finalizers(server: &ApiServer, path: &str, names: &[&str]) {
    server.edit(path, |object| {
        let has_any = finalizers(object).iter().any(|name| names.contains(name));
        if let Some(all) = object["metadata"]["finalizers"].as_array_mut().filter(|_| has_any) {
            all.retain(|name| !names.iter().any(|removed| name == removed));
        }
    });
}
