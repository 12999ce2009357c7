//! A volume's life against fake drivers. There are no mounts, so the test needs no root.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use csi_core::Rpc;
use csi_proto::{ControllerCapability, NodeCapability, v1};
use prost::Message as _;
use tonic::Status;

use crate::support::*;

/// A driver with a controller only, with these capabilities.
fn controller(rpc: Rpc, bytes: &[u8], capabilities: &[ControllerCapability]) -> Result<Answers, Status> {
    match rpc {
        Rpc::GetPluginInfo => answer(&v1::GetPluginInfoResponse { name: "a.b".into(), ..Default::default() }),
        Rpc::Probe => answer(&v1::ProbeResponse::default()),
        Rpc::GetPluginCapabilities => answer(&has_a_controller()),
        Rpc::ControllerGetCapabilities => answer(&controller_offers(capabilities.iter().copied())),
        Rpc::CreateVolume => {
            let request = v1::CreateVolumeRequest::decode(bytes).unwrap();
            let volume_id = if request.volume_content_source.is_some() { "copy-1" } else { "id-1" }.into();
            answer(&v1::CreateVolumeResponse { volume: Some(v1::Volume { volume_id, ..Default::default() }) })
        }
        Rpc::ValidateVolumeCapabilities => answer(&confirmed(bytes, "")),
        Rpc::CreateSnapshot => answer(&cut(0, true)),
        Rpc::DeleteVolume | Rpc::DeleteSnapshot => answer(&v1::DeleteVolumeResponse {}),
        other => Err(Status::unimplemented(other.name())),
    }
}

fn cut(size_bytes: i64, ready_to_use: bool) -> v1::CreateSnapshotResponse {
    let snapshot_id = "snap-1".into();
    let snapshot = v1::Snapshot { snapshot_id, size_bytes, ready_to_use, ..Default::default() };
    v1::CreateSnapshotResponse { snapshot: Some(snapshot) }
}

#[test]
fn a_driver_that_makes_no_volumes_wants_one_by_its_id() {
    let fake = Fake::new(async |rpc, bytes| controller(rpc, &bytes, &[ControllerCapability::ListVolumes]));
    let shown = ended(&run(&fake.socket(), &["lifecycle"]), 1);
    for words in ["nothing on this socket creates", "--volume-id", "--controller-endpoint"] {
        assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{shown}");
    }
    assert!(fake.asked().iter().all(|(rpc, _)| *rpc != Rpc::CreateVolume));
    let shown = ok(&run(&fake.socket(), &["lifecycle", "--volume-id", "v"]));
    assert!(shown.contains("no node service on this socket") && shown.contains("success"), "{shown}");
    assert!(fake.asked().iter().all(|(rpc, _)| *rpc != Rpc::DeleteVolume));
}

#[test]
fn a_volume_that_may_be_there_is_asked_for_again_before_it_is_deleted() {
    // The volume is created, and the answer is lost.
    let lost = AtomicBool::new(true);
    let fake = Fake::new(move |rpc, bytes| {
        let is_lost = rpc == Rpc::CreateVolume && lost.swap(false, Ordering::SeqCst);
        async move {
            if is_lost {
                Err(Status::internal("lost"))
            } else {
                controller(rpc, &bytes, &[ControllerCapability::CreateDeleteVolume])
            }
        }
    });
    let shown = ended(&run(&fake.socket(), &["lifecycle", "--no-node"]), 1);
    assert!(shown.contains("deleted volume id-1") && shown.contains("nothing is left"), "{shown}");
    let asked: Vec<_> = fake.asked().into_iter().map(|(rpc, _)| rpc).collect();
    assert_eq!(asked[asked.len() - 3..], [Rpc::CreateVolume, Rpc::CreateVolume, Rpc::DeleteVolume]);
}

#[test]
fn a_driver_that_is_busy_is_asked_again_and_one_that_fails_is_told_of() {
    let busy = AtomicUsize::new(0);
    let fake = Fake::new(move |rpc, bytes| {
        let is_the_volume = || v1::DeleteVolumeRequest::decode(&*bytes).unwrap().volume_id == "id-1";
        let count = match rpc {
            Rpc::DeleteVolume if is_the_volume() => busy.fetch_add(1, Ordering::SeqCst),
            _ => usize::MAX,
        };
        async move {
            let offers =
                [ControllerCapability::CreateDeleteVolume, ControllerCapability::CreateDeleteSnapshot];
            match (rpc, count) {
                (Rpc::DeleteSnapshot, _) => Err(Status::internal("it stays")),
                (_, 0 | 1) => Err(Status::aborted("busy")),
                _ => controller(rpc, &bytes, &offers),
            }
        }
    });
    let shown = ended(&run(&fake.socket(), &["lifecycle", "--no-node", "--name", "it's"]), 1);
    assert!(shown.contains("DeleteSnapshot failed") && shown.contains("deleted volume id-1"), "{shown}");
    assert!(shown.contains("not undone: DeleteSnapshot: Internal: it stays"), "{shown}");
    assert!(shown.contains("  csi controller delete-snapshot --snapshot-id 'snap-1'"), "{shown}");
    assert!(shown.trim_end().ends_with("1 object is left"), "{shown}");
}

#[test]
fn what_is_kept_is_named_with_what_takes_it_back() {
    let offers = [ControllerCapability::CreateDeleteVolume, ControllerCapability::CreateDeleteSnapshot];
    let fake = Fake::new(move |rpc, bytes| async move { controller(rpc, &bytes, &offers) });
    let shown = ok(&run(&fake.socket(), &["lifecycle", "--no-node", "--keep"]));
    assert_eq!(
        undoing(&shown)[..2],
        [
            "csi controller delete-snapshot --snapshot-id 'snap-1'",
            "csi controller delete-volume --volume-id 'id-1'"
        ]
    );
    assert!(fake.asked().iter().all(|(rpc, _)| !matches!(rpc, Rpc::DeleteVolume | Rpc::DeleteSnapshot)));
}

#[test]
fn a_volume_is_restored_and_cloned_where_the_driver_offers_it() {
    let looks = AtomicUsize::new(0);
    let fake = Fake::new(move |rpc, bytes| {
        // The snapshot becomes ready later.
        let is_cut = rpc == Rpc::CreateSnapshot;
        let ready_to_use = is_cut && looks.fetch_add(1, Ordering::SeqCst) > 2;
        let offers = [
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CreateDeleteSnapshot,
            ControllerCapability::CloneVolume,
        ];
        async move {
            match rpc {
                Rpc::CreateSnapshot => answer(&cut(3 << 30, ready_to_use)),
                _ => controller(rpc, &bytes, &offers),
            }
        }
    });
    let shown = ok(&run(&fake.socket(), &["lifecycle", "--no-node", "--name", "v"]));
    assert!(shown.contains("CreateVolume, restored") && shown.contains("CreateVolume, cloned"), "{shown}");
    let asked = fake.asked();
    let created = asked.iter().filter(|(rpc, _)| *rpc == Rpc::CreateVolume);
    let mut created: Vec<_> =
        created.map(|(_, bytes)| v1::CreateVolumeRequest::decode(&**bytes).unwrap()).collect();
    created.dedup();
    let [_, restored, cloned] = &created[..] else { panic!("{created:#?}") };
    let size = |request: &v1::CreateVolumeRequest| request.capacity_range.unwrap().required_bytes;
    assert_eq!((&*restored.name, size(restored)), ("v-restored", 3 << 30));
    assert_eq!((&*cloned.name, size(cloned)), ("v-clone", 512 << 20));
    let mut deleted: Vec<_> = asked.iter().map(|(rpc, _)| *rpc).rev().take(4).collect();
    deleted.dedup();
    assert_eq!(deleted, [Rpc::DeleteVolume, Rpc::DeleteSnapshot], "the copies are deleted before");
}

/// A driver with topology whose volumes grow only offline (published on no node).
fn zonal(rpc: Rpc, bytes: &[u8]) -> Result<Answers, Status> {
    use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
    let offers = [ControllerCapability::CreateDeleteVolume, ControllerCapability::ExpandVolume];
    match rpc {
        Rpc::GetPluginCapabilities => {
            let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
            let offline = VolumeExpansion { r#type: volume_expansion::Type::Offline.into() };
            let types = [
                service(service::Type::ControllerService),
                service(service::Type::VolumeAccessibilityConstraints),
                Type::VolumeExpansion(offline),
            ];
            answer(&plugin_offers(types))
        }
        Rpc::NodeGetCapabilities => {
            answer(&node_offers([NodeCapability::StageUnstageVolume, NodeCapability::ExpandVolume]))
        }
        Rpc::NodeGetInfo => answer(&v1::NodeGetInfoResponse {
            node_id: "node-a".into(),
            accessible_topology: Some(here()),
            ..Default::default()
        }),
        Rpc::ControllerExpandVolume => answer(&v1::ControllerExpandVolumeResponse {
            capacity_bytes: 1 << 30,
            node_expansion_required: true,
        }),
        Rpc::NodeStageVolume
        | Rpc::NodeUnstageVolume
        | Rpc::NodePublishVolume
        | Rpc::NodeUnpublishVolume
        | Rpc::NodeExpandVolume => answer(&v1::NodeStageVolumeResponse {}),
        other => controller(other, bytes, &offers),
    }
}

fn here() -> v1::Topology {
    v1::Topology { segments: [("zone".into(), "a".into())].into() }
}

#[test]
fn a_volume_is_asked_for_where_the_node_is_and_grows_when_it_may() {
    let fake = Fake::new(async |rpc, bytes| zonal(rpc, &bytes));
    let shown = ok(&run(&fake.socket(), &["lifecycle", "--no-mount-access"]));
    let asked = fake.asked();
    let (_, created) = asked.iter().find(|(rpc, _)| *rpc == Rpc::CreateVolume).unwrap();
    let asked_for = v1::CreateVolumeRequest::decode(&**created).unwrap().accessibility_requirements;
    assert_eq!(asked_for, Some(v1::TopologyRequirement { requisite: vec![here()], preferred: vec![here()] }));
    // Each RPC is called twice.
    let mut calls: Vec<_> =
        asked.into_iter().map(|(rpc, _)| rpc).skip_while(|rpc| *rpc != Rpc::CreateVolume).collect();
    calls.dedup();
    assert_eq!(
        calls,
        [
            Rpc::CreateVolume,
            Rpc::ValidateVolumeCapabilities,
            Rpc::NodeStageVolume,
            Rpc::NodePublishVolume,
            Rpc::NodeUnpublishVolume,
            Rpc::NodeUnstageVolume,
            Rpc::ControllerExpandVolume,
            Rpc::NodeStageVolume,
            Rpc::NodePublishVolume,
            Rpc::NodeExpandVolume,
            Rpc::NodeUnpublishVolume,
            Rpc::NodeUnstageVolume,
            Rpc::DeleteVolume,
        ],
        "{shown}"
    );
    let kept = fake.lifecycle(&["--no-mount-access", "--keep"]).output().unwrap();
    assert!(stdout(&kept).contains("it can be expanded only"), "{}", text(&kept));
    let shown = ok(&kept);
    for command in undoing(&shown).iter().filter_map(|line| line.strip_prefix("rmdir ")) {
        fs::remove_dir(command.trim_matches('\'')).unwrap();
    }
    assert_eq!(fs::read_dir(fake.folder()).unwrap().count(), 1, "{shown}");
}

#[test]
fn a_volume_that_only_its_node_expands_is_expanded_there() {
    let fake = Fake::new(async |rpc, bytes| match rpc {
        Rpc::GetPluginCapabilities => answer(&has_a_controller()),
        Rpc::ControllerGetCapabilities => {
            answer(&controller_offers([ControllerCapability::CreateDeleteVolume]))
        }
        _ => zonal(rpc, &bytes),
    });
    let shown = ok(&run(&fake.socket(), &["lifecycle", "--no-mount-access"]));
    let asked = fake.asked();
    let expanded = asked.iter().find(|(rpc, _)| *rpc == Rpc::NodeExpandVolume);
    let (_, bytes) = expanded.unwrap_or_else(|| panic!("not expanded: {shown}"));
    let range = v1::NodeExpandVolumeRequest::decode(&**bytes).unwrap().capacity_range.unwrap();
    assert_eq!(range.required_bytes, 1 << 30, "twice the size at its creation");
    assert!(asked.iter().all(|(rpc, _)| *rpc != Rpc::ControllerExpandVolume), "{shown}");
}

#[test]
fn what_a_stuck_thing_rests_on_is_left_alone() {
    let fake = Fake::new(async |rpc, bytes| match rpc {
        Rpc::NodeUnstageVolume => Err(Status::internal("it is stuck")),
        _ => zonal(rpc, &bytes),
    });
    let shown = ended(&fake.lifecycle(&["--no-mount-access"]).output().unwrap(), 1);
    assert!(fake.asked().iter().all(|(rpc, _)| *rpc != Rpc::DeleteVolume), "{shown}");
    let commands = undoing(&shown);
    assert!(commands[0].starts_with("csi node unstage-volume"), "{shown}");
    assert_eq!(commands[1], "csi controller delete-volume --volume-id 'id-1'", "{shown}");
    assert!(!shown.contains("not undone: DeleteVolume"), "{shown}");
}
