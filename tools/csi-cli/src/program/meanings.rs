//! The meanings of capabilities, as text.

use csi_proto::Rpc;
use prost_reflect::{FieldDescriptor, Kind};

pub(crate) struct Part {
    /// The service or object that it describes.
    pub(crate) name: &'static str,
    pub(crate) rpc: Rpc,
    pub(crate) meanings: &'static [(&'static str, &'static str)],
}

impl Part {
    pub(crate) fn meaning(&self, name: &str) -> &'static str {
        self.meanings.iter().find(|row| row.0 == name).map_or("", |row| row.1)
    }
}

pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "plugin",
        rpc: Rpc::GetPluginCapabilities,
        meanings: &[
            ("CONTROLLER_SERVICE", "has a controller"),
            ("GROUP_CONTROLLER_SERVICE", "has a group controller"),
            (
                "SNAPSHOT_METADATA_SERVICE",
                "reports the blocks of a snapshot that contain data or have changed",
            ),
            ("VOLUME_ACCESSIBILITY_CONSTRAINTS", "not every node can access every volume: has topology"),
            ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "not every snapshot can be restored in every topology"),
            ("VOLUME_EXPANSION_ONLINE", "expands volumes that are in use"),
            ("VOLUME_EXPANSION_OFFLINE", "expands volumes that are not in use"),
        ],
    },
    Part {
        name: "controller",
        rpc: Rpc::ControllerGetCapabilities,
        meanings: &[
            ("CREATE_DELETE_VOLUME", "creates and deletes volumes"),
            ("CLONE_VOLUME", "clones a volume"),
            ("EXPAND_VOLUME", "expands volumes"),
            ("MODIFY_VOLUME", "changes parameters of existing volumes"),
            ("PUBLISH_UNPUBLISH_VOLUME", "attaches volumes to nodes, and detaches them"),
            ("PUBLISH_READONLY", "attaches volumes read-only on request"),
            ("SINGLE_NODE_MULTI_WRITER", "distinguishes one writer from several writers on a node"),
            ("LIST_VOLUMES", "lists volumes"),
            ("LIST_VOLUMES_PUBLISHED_NODES", "lists volumes with the nodes that they are attached to"),
            ("GET_VOLUME", "returns one volume"),
            ("GET_CAPACITY", "reports the available capacity"),
            ("CREATE_DELETE_SNAPSHOT", "creates and deletes snapshots, and restores them to new volumes"),
            ("LIST_SNAPSHOTS", "lists snapshots"),
            ("GET_SNAPSHOT", "returns one snapshot"),
            ("GET_VOLUME_HEALTH", "reports a volume's health"),
            ("LIST_VOLUME_HEALTH", "lists the unhealthy volumes"),
            ("VOLUME_CONDITION", "returns a volume's health with the volume, as in CSI 1.12"),
        ],
    },
    Part {
        name: "group",
        rpc: Rpc::GroupControllerGetCapabilities,
        meanings: &[(
            "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
            "creates, returns and deletes snapshots of several volumes at one point in time",
        )],
    },
    Part {
        name: "node",
        rpc: Rpc::NodeGetCapabilities,
        meanings: &[
            ("STAGE_UNSTAGE_VOLUME", "prepares a volume once per node, before it is published to pods"),
            ("GET_VOLUME_STATS", "reports a volume's usage"),
            ("EXPAND_VOLUME", "expands the filesystem of an expanded volume"),
            ("SINGLE_NODE_MULTI_WRITER", "distinguishes one writer from several writers on a node"),
            ("VOLUME_MOUNT_GROUP", "gives a volume's files to the requested group"),
            ("GET_VOLUME_HEALTH", "reports a volume's health as seen by this node"),
            ("GET_STORAGE_HEALTH", "reports whether this node can reach the storage"),
            ("VOLUME_CONDITION", "returns a volume's health with its usage, as in CSI 1.12"),
        ],
    },
];

/// The name of a capability. A number that is not in the descriptor is shown as a number.
pub(crate) fn name(field: &FieldDescriptor, number: i32) -> String {
    let Kind::Enum(known) = field.kind() else { return number.to_string() };
    let Some(value) = known.get_value(number) else { return format!("{number} (unknown)") };
    // ONLINE and OFFLINE alone are not clear enough.
    match field.parent_message().name() {
        "VolumeExpansion" => format!("VOLUME_EXPANSION_{}", value.name()),
        _ => value.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::rpcs::POOL;

    #[test]
    fn every_capability_of_the_descriptor_has_a_meaning_and_no_other() {
        for (part, messages) in [
            ("plugin", &["PluginCapability.Service", "PluginCapability.VolumeExpansion"][..]),
            ("controller", &["ControllerServiceCapability.RPC"]),
            ("group", &["GroupControllerServiceCapability.RPC"]),
            ("node", &["NodeServiceCapability.RPC"]),
        ] {
            let mut due = Vec::new();
            for message in messages {
                let message = POOL.get_message_by_name(&format!("csi.v1.{message}")).unwrap();
                let field = message.get_field_by_name("type").unwrap();
                let Kind::Enum(known) = field.kind() else { panic!("{field:?}") };
                let numbers = known.values().map(|value| value.number()).filter(|number| *number != 0);
                due.extend(numbers.map(|number| name(&field, number)));
                assert_eq!(name(&field, 99), "99 (unknown)");
            }
            let part = PARTS.iter().find(|row| row.name == part).unwrap();
            let mut have: Vec<_> = part.meanings.iter().map(|row| row.0.to_owned()).collect();
            due.sort();
            have.sort();
            assert_eq!(have, due, "{}", part.name);
        }
    }
}
