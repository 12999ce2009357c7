//! Objects of storage as users, administrators and the kubelet create them.

use serde_json::{Map, Value, json};

use super::ApiServer;

impl ApiServer {
    /// A node with these labels on which the driver is registered. All of them are keys of the driver's topology, and
    /// `DRIVER/node` with the node's name is one more.
    pub fn create_node(&self, driver: &str, name: &str, labels: &[(&str, &str)]) {
        let mut all = Map::from_iter([(format!("{driver}/node"), json!(name))]);
        all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
        let keys: Vec<&String> = all.keys().collect();
        let registered = json!([{ "name": driver, "nodeID": name, "topologyKeys": keys }]);
        let csi_node = json!({ "metadata": { "name": name }, "spec": { "drivers": registered } });
        self.create("csinodes", csi_node);
        self.create("nodes", json!({ "metadata": { "name": name, "labels": all } }));
    }

    /// A StorageClass with these fields. Without them its volumes are made at once, and deleted with their claims.
    pub fn create_class(&self, driver: &str, name: &str, mut fields: Value) {
        fields["metadata"] = json!({ "name": name });
        fields["provisioner"] = json!(driver);
        for (field, default) in [("reclaimPolicy", "Delete"), ("volumeBindingMode", "Immediate")] {
            if fields[field].is_null() {
                fields[field] = json!(default);
            }
        }
        self.create("storageclasses", fields);
    }

    /// A claim of this size and of the class `fast`, with these fields of its spec in addition.
    pub fn create_claim(&self, namespace: &str, name: &str, size: &str, more: Value) {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "resources": { "requests": { "storage": size } },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let collection = format!("persistentvolumeclaims/{namespace}");
        self.create(&collection, json!({ "metadata": { "name": name }, "spec": spec }));
    }

    /// A VolumeAttachment, as the attach-detach controller creates it.
    pub fn create_attachment(&self, driver: &str, name: &str, volume: &str, node: &str) {
        let source = json!({ "persistentVolumeName": volume });
        let spec = json!({ "attacher": driver, "nodeName": node, "source": source });
        self.create("volumeattachments", json!({ "metadata": { "name": name }, "spec": spec }));
    }
}
