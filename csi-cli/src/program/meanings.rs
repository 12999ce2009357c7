//! The meanings of capabilities, as text.

use csi_proto::Rpc;
use prost_reflect::{FieldDescriptor, Kind};

/// One kind of capability.
pub(crate) struct Part {
    /// The service or object that it describes.
    pub(crate) name: &'static str,
    /// The RPC that lists the capabilities.
    pub(crate) rpc: Rpc,
    pub(crate) is_of_controller: bool,
    /// The names of the capabilities, and their meanings.
    pub(crate) meanings: &'static [(&'static str, &'static str)],
}

impl Part {
    pub(crate) fn meaning(&self, name: &str) -> &'static str {
        self.meanings.iter().find(|row| row.0 == name).map_or("", |row| row.1)
    }
}

/// The kinds, in the order of the output.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "plugin",
        rpc: Rpc::GetPluginCapabilities,
        is_of_controller: false,
        meanings: &[
            ("CONTROLLER_SERVICE", "it has a controller"),
            ("GROUP_CONTROLLER_SERVICE", "it has a group controller"),
            ("SNAPSHOT_METADATA_SERVICE", "it tells which blocks of a snapshot hold data, or changed"),
            ("VOLUME_ACCESSIBILITY_CONSTRAINTS", "not every node reaches every volume: topology counts"),
            ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "not every snapshot can be restored everywhere"),
            ("VOLUME_EXPANSION_ONLINE", "volumes grow while they are in use"),
            ("VOLUME_EXPANSION_OFFLINE", "volumes grow while nobody uses them"),
        ],
    },
    Part {
        name: "controller",
        rpc: Rpc::ControllerGetCapabilities,
        is_of_controller: true,
        meanings: &[
            ("CREATE_DELETE_VOLUME", "makes and deletes volumes"),
            ("CLONE_VOLUME", "makes a volume as a copy of another"),
            ("EXPAND_VOLUME", "makes volumes larger"),
            ("MODIFY_VOLUME", "changes parameters of volumes that are there"),
            ("PUBLISH_UNPUBLISH_VOLUME", "attaches volumes to nodes, and detaches them"),
            ("PUBLISH_READONLY", "attaches them for reading only, when asked to"),
            ("SINGLE_NODE_MULTI_WRITER", "knows one writer and several writers on a node apart"),
            ("LIST_VOLUMES", "lists volumes"),
            ("LIST_VOLUMES_PUBLISHED_NODES", "says of each listed volume where it is attached"),
            ("GET_VOLUME", "tells of one volume"),
            ("GET_CAPACITY", "tells how much room there is"),
            ("CREATE_DELETE_SNAPSHOT", "cuts and deletes snapshots, and makes volumes of them"),
            ("LIST_SNAPSHOTS", "lists snapshots"),
            ("GET_SNAPSHOT", "tells of one snapshot"),
            ("GET_VOLUME_HEALTH", "tells a volume's health"),
            ("LIST_VOLUME_HEALTH", "lists the volumes that are not well"),
            ("VOLUME_CONDITION", "tells with a volume whether it is well, as callers of 1.12.0 want it"),
        ],
    },
    Part {
        name: "group",
        rpc: Rpc::GroupControllerGetCapabilities,
        is_of_controller: true,
        meanings: &[(
            "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
            "cuts snapshots of several volumes at one moment, tells of them, deletes them",
        )],
    },
    Part {
        name: "node",
        rpc: Rpc::NodeGetCapabilities,
        is_of_controller: false,
        meanings: &[
            ("STAGE_UNSTAGE_VOLUME", "makes a volume ready once on a node, before pods get it"),
            ("GET_VOLUME_STATS", "tells how full a volume is"),
            ("EXPAND_VOLUME", "grows what lies on a volume that became larger"),
            ("SINGLE_NODE_MULTI_WRITER", "knows one writer and several writers on a node apart"),
            ("VOLUME_MOUNT_GROUP", "gives a volume's files to the group that is asked for"),
            ("GET_VOLUME_HEALTH", "tells a volume's health, as this node sees it"),
            ("GET_STORAGE_HEALTH", "tells whether this node reaches the storage"),
            (
                "VOLUME_CONDITION",
                "tells with the stats whether a volume is well, as callers of 1.12.0 want it",
            ),
        ],
    },
];

/// The name of a capability. A number that is not in the descriptor is shown as a number.
pub(crate) fn name(field: &FieldDescriptor, number: i32) -> String {
    let Kind::Enum(known) = field.kind() else { return number.to_string() };
    let Some(value) = known.get_value(number) else { return format!("{number} (not known here)") };
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
                assert_eq!(name(&field, 99), "99 (not known here)");
            }
            let part = PARTS.iter().find(|row| row.name == part).unwrap();
            let mut have: Vec<_> = part.meanings.iter().map(|row| row.0.to_owned()).collect();
            due.sort();
            have.sort();
            assert_eq!(have, due, "{}", part.name);
        }
    }
}
