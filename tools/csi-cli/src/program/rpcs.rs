//! The RPCs as subcommands: their groups, descriptions and examples.

use std::sync::LazyLock;

use csi_proto::{Rpc, Service};
use prost_reflect::{DescriptorPool, MethodDescriptor};

/// The description of each RPC, and the arguments of its example.
const HELP: &[(Rpc, &str, &str)] = &[
    (Rpc::GetPluginInfo, "The plugin's name and version", ""),
    (Rpc::GetPluginCapabilities, "The services of the plugin", ""),
    (Rpc::Probe, "Whether the plugin is ready", ""),
    (
        Rpc::CreateVolume,
        "Create a volume, or return the existing one",
        "--name pvc-1 --capability rwo,mount,ext4 --size 1Gi",
    ),
    (Rpc::DeleteVolume, "Delete a volume", "--volume-id pvc-1"),
    (
        Rpc::ControllerPublishVolume,
        "Attach a volume to a node",
        "--volume-id pvc-1 --node-id node-a --capability rwo,mount,ext4",
    ),
    (Rpc::ControllerUnpublishVolume, "Detach a volume from a node", "--volume-id pvc-1 --node-id node-a"),
    (
        Rpc::ValidateVolumeCapabilities,
        "Whether a volume supports these capabilities",
        "--volume-id pvc-1 --capability rwo,mount,ext4",
    ),
    (Rpc::ListVolumes, "List volumes, a page at a time", "--max-entries 100"),
    (Rpc::ControllerListVolumeHealth, "The health of unhealthy volumes", "--max-entries 100"),
    (Rpc::ControllerGetVolumeHealth, "The health of one volume", "--volume-id pvc-1"),
    (Rpc::GetCapacity, "The available capacity", "--parameters pool=fast"),
    (Rpc::ControllerGetCapabilities, "The capabilities of the controller", ""),
    (Rpc::CreateSnapshot, "Create a snapshot of a volume", "--source-volume-id pvc-1 --name snap-1"),
    (Rpc::DeleteSnapshot, "Delete a snapshot", "--snapshot-id snap-1"),
    (Rpc::ListSnapshots, "List snapshots, a page at a time", "--source-volume-id pvc-1"),
    (Rpc::GetSnapshot, "One snapshot", "--snapshot-id snap-1"),
    (Rpc::ControllerExpandVolume, "Expand a volume", "--volume-id pvc-1 --size 2Gi"),
    (Rpc::ControllerGetVolume, "One volume, and where it is attached", "--volume-id pvc-1"),
    (
        Rpc::ControllerModifyVolume,
        "Change a volume's mutable parameters",
        "--volume-id pvc-1 --mutable-parameters iops=500",
    ),
    (Rpc::GroupControllerGetCapabilities, "The capabilities of the group controller", ""),
    (
        Rpc::CreateVolumeGroupSnapshot,
        "Create snapshots of several volumes at one point in time",
        "--name group-1 --source-volume-ids pvc-1 --source-volume-ids pvc-2",
    ),
    (
        Rpc::DeleteVolumeGroupSnapshot,
        "Delete a group of snapshots",
        "--group-snapshot-id group-1 --snapshot-ids snap-1",
    ),
    (
        Rpc::GetVolumeGroupSnapshot,
        "One group of snapshots",
        "--group-snapshot-id group-1 --snapshot-ids snap-1",
    ),
    (
        Rpc::GetMetadataAllocated,
        "The blocks of a snapshot that contain data, printed as they arrive",
        "--snapshot-id snap-1",
    ),
    (
        Rpc::GetMetadataDelta,
        "The blocks that differ between two snapshots, printed as they arrive",
        "--base-snapshot-id snap-1 --target-snapshot-id snap-2",
    ),
    (
        Rpc::NodeStageVolume,
        "Stage a volume on the node",
        "--volume-id pvc-1 --staging-target-path /mnt/staging --capability rwo,mount,ext4",
    ),
    (Rpc::NodeUnstageVolume, "Undo stage-volume", "--volume-id pvc-1 --staging-target-path /mnt/staging"),
    (
        Rpc::NodePublishVolume,
        "Publish a volume at a target path",
        "--volume-id pvc-1 --staging-target-path /mnt/staging --target-path /mnt/pod --capability \
         rwo,mount,ext4",
    ),
    (Rpc::NodeUnpublishVolume, "Undo publish-volume", "--volume-id pvc-1 --target-path /mnt/pod"),
    (Rpc::NodeGetVolumeStats, "The usage of a volume", "--volume-id pvc-1 --volume-path /mnt/pod"),
    (Rpc::NodeGetVolumeHealth, "The health of a volume on the node", "--volume-id pvc-1"),
    (Rpc::NodeGetStorageHealth, "Whether the node can reach its storage", ""),
    (
        Rpc::NodeExpandVolume,
        "Expand a volume's filesystem",
        "--volume-id pvc-1 --volume-path /mnt/pod --size 2Gi",
    ),
    (Rpc::NodeGetCapabilities, "The capabilities of the node", ""),
    (Rpc::NodeGetInfo, "The node's id, limit and topology", ""),
];

pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("csi-proto's descriptor decodes")
});

pub(crate) const GROUPS: [(Service, &str, &str); 5] = [
    (Service::Identity, "identity", "The plugin's name, services and readiness"),
    (Service::Controller, "controller", "Volumes and snapshots of the storage system"),
    (Service::Node, "node", "Volumes on a node: stage, publish, expand"),
    (Service::GroupController, "group", "Snapshots of several volumes at one point in time"),
    (
        Service::SnapshotMetadata,
        "snapshot-metadata",
        "The blocks of a snapshot that contain data or have changed",
    ),
];

pub(crate) fn of(service: Service) -> impl Iterator<Item = Rpc> {
    Rpc::ALL.iter().copied().filter(move |rpc| rpc.service() == service)
}

/// The subcommand of an RPC: its name without the words that name its service.
pub(crate) fn subcommand(rpc: Rpc) -> String {
    let name = rpc.name();
    let short = match rpc.service() {
        Service::Controller => name.strip_prefix("Controller").unwrap_or(name).to_owned(),
        Service::Node => name.strip_prefix("Node").unwrap_or(name).to_owned(),
        Service::GroupController => {
            name.strip_prefix("GroupController").unwrap_or(name).replace("VolumeGroup", "Group")
        }
        Service::SnapshotMetadata => name.strip_prefix("GetMetadata").unwrap_or(name).to_owned(),
        _ => name.to_owned(),
    };
    let mut words = String::new();
    for letter in short.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('-');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

pub(crate) fn named(group: &str, name: &str) -> Option<Rpc> {
    let (service, ..) = GROUPS.into_iter().find(|row| row.1 == group)?;
    of(service).find(|rpc| subcommand(*rpc) == name)
}

pub(crate) fn help(rpc: Rpc) -> (&'static str, &'static str) {
    HELP.iter().find(|row| row.0 == rpc).map_or(("", ""), |row| (row.1, row.2))
}

pub(crate) fn method(rpc: Rpc) -> MethodDescriptor {
    let service = POOL.get_service_by_name(&format!("csi.v1.{}", rpc.service()));
    let service = service.expect("the descriptor has every service");
    service.methods().find(|method| method.name() == rpc.name()).expect("the descriptor has every RPC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rpc_has_its_own_place_and_its_help() {
        let places: BTreeSet<_> =
            Rpc::ALL.iter().map(|rpc| (rpc.service().to_string(), subcommand(*rpc))).collect();
        assert_eq!(places.len(), 36);
        for rpc in Rpc::ALL {
            assert!(!help(*rpc).0.is_empty(), "{rpc}");
            assert_eq!(method(*rpc).name(), rpc.name());
        }
        assert_eq!(subcommand(Rpc::CreateVolumeGroupSnapshot), "create-group-snapshot");
        assert_eq!(subcommand(Rpc::GetMetadataAllocated), "allocated");
        assert_eq!(subcommand(Rpc::NodeStageVolume), "stage-volume");
    }
}
