//! The file that describes a driver to the External Storage suite of Kubernetes' end-to-end tests.
//!
//! The names are those of `test/e2e/storage/external` and `test/e2e/storage/framework` of Kubernetes.

use csi_proto::{ControllerCapability, NodeCapability};
use serde_json::{Value, json};

use crate::error::Error;
use crate::files::yaml;
use crate::options::{Class, FsGroupPolicy, Lifecycle};
use crate::plan::Plan;

const HEAD: &str = "\
# For Kubernetes' External Storage suite: e2e.test -storage.testdriver=FILE
# Made from the driver's capabilities. None of them says whether these are true, so add what is: the capabilities RWX,
# capReadOnlyMany, volumeLimits, and topology with DriverInfo.TopologyKeys; the sizes of volumes (SupportedSizeRange).
";

pub(crate) fn file(plan: &Plan<'_>) -> Result<String, Error> {
    let options = plan.options;
    let creates = plan.has(ControllerCapability::CreateDeleteVolume);
    let snapshots = plan.has(ControllerCapability::CreateDeleteSnapshot);
    let expands = plan.has(ControllerCapability::ExpandVolume) && plan.expands();
    let mount_group = plan.driver.has_node(NodeCapability::VolumeMountGroup);
    let fs_group = match options.fs_group_policy {
        Some(FsGroupPolicy::File) => true,
        Some(FsGroupPolicy::None) => false,
        // The kubelet applies the group only to a volume whose class names a filesystem.
        _ => mount_group || options.default_fstype.is_some(),
    };
    let mut file = json!({
        "ShortName": plan.name,
        "DriverInfo": {
            "Name": plan.driver.name,
            "Capabilities": {
                "block": options.devices,
                "capacity": plan.publishes_capacity(),
                "controllerExpansion": expands,
                "exec": true,
                "fsGroup": fs_group,
                "groupSnapshot": plan.snapshots_groups(),
                "multiplePVsSameID": true,
                "multipods": true,
                "nodeExpansion": plan.driver.has_node(NodeCapability::ExpandVolume),
                "offlineExpansion": expands,
                "onlineExpansion": expands && plan.expands_online(),
                "persistence": options.lifecycle != Lifecycle::Ephemeral,
                "pvcDataSource": plan.has(ControllerCapability::CloneVolume),
                "readWriteOncePod": plan.has(ControllerCapability::SingleNodeMultiWriter),
                "seLinuxMount": options.selinux_mount,
                "singleNodeVolume": plan.is_node_local(),
                "snapshotDataSource": snapshots,
                "volumeMountGroup": mount_group,
            },
        },
    });
    for (field, is_offered, classes) in [
        ("StorageClass", creates, &options.storage_class),
        ("SnapshotClass", snapshots, &options.snapshot_class),
        ("GroupSnapshotClass", plan.snapshots_groups(), &options.group_snapshot_class),
    ] {
        if is_offered {
            file[field] = class(classes);
        }
    }
    // Without parameters a change of the class changes nothing.
    if !options.attributes_class.is_empty() {
        file["VolumeAttributesClass"] = class(&options.attributes_class);
    }
    if options.lifecycle != Lifecycle::Persistent {
        file["InlineVolumes"] = json!([{ "Attributes": {}, "ReadOnly": false, "Shared": false }]);
    }
    Ok(HEAD.to_owned() + &yaml("test driver", &file)?)
}

/// The first class of the manifests, or one without parameters.
fn class(classes: &[Class]) -> Value {
    match classes.first() {
        Some(class) => json!({ "FromExistingClassName": class.name }),
        None => json!({ "FromName": true }),
    }
}
