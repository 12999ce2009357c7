//! What each capability adds for its callers: attaching with limits and modes, topology and pools, mutable
//! parameters, growth, and the two forms of health. Needs root.
#![cfg(target_os = "linux")]

use std::fs;

use csi_proto::v1;
use tonic::Code;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, code, program, with_driver};

/// The spec's numbers of the access modes.
const SINGLE_WRITER: i32 = 1;
const MANY_READERS: i32 = 3;
const ONE_WRITER_OF_MANY: i32 = 4;
const MANY_WRITERS: i32 = 5;

fn key(name: &str) -> String {
    format!("hostpath.csi.example.org/{name}")
}

fn place(name: &str, value: &str) -> v1::Topology {
    v1::Topology { segments: [(key(name), value.to_owned())].into() }
}

// spec: controller-publish-volume.on-another-node, controller-publish-volume.limit
// spec: controller-publish-volume.node-missing, controller-unpublish-volume.all-nodes
// spec: delete-volume.in-use, node-get-info.max-volumes
#[test]
fn attaching_keeps_to_modes_and_limits() {
    with_driver(&["--peer=node-2", "--attach-limit=2"], async |run, mut driver| {
        let volume = async |name: &str, mode| {
            let request = v1::CreateVolumeRequest {
                volume_capabilities: vec![capability(None, mode)],
                ..wanted(name, None, MIB)
            };
            Life::new(run, request).await.unwrap()
        };
        for (name, mode, second) in [
            ("single", SINGLE_WRITER, Code::FailedPrecondition),
            ("one-writer", ONE_WRITER_OF_MANY, Code::FailedPrecondition),
            ("writers", MANY_WRITERS, Code::Ok),
            ("readers", MANY_READERS, Code::Ok),
        ] {
            let mut life = volume(name, mode).await;
            life.attach("node-1").await.unwrap();
            let elsewhere = life.attach("node-2").await;
            if let Err(refused) = &elsewhere {
                assert!(refused.message().contains("node-1"), "{refused:?}");
            }
            assert_eq!(code(elsewhere), second, "{name}");
            // In MULTI_NODE_SINGLE_WRITER, other nodes can read next to the writer.
            life.readonly = true;
            if mode == ONE_WRITER_OF_MANY {
                assert_eq!(code(life.attach("node-2").await), Code::Ok);
            }
            assert_eq!(code(life.delete().await), Code::FailedPrecondition, "{name} is attached");
            life.detach("").await.unwrap();
            life.delete().await.unwrap();
        }
        let mut lives = Vec::new();
        for at in 0..3 {
            lives.push(volume(&format!("limited-{at}"), SINGLE_WRITER).await);
        }
        assert_eq!(code(lives[0].attach("node-1").await), Code::Ok);
        assert_eq!(code(lives[1].attach("node-1").await), Code::Ok);
        // The limit counts the attached volumes also after a restart.
        driver.restart().await;
        assert_eq!(code(lives[2].attach("node-1").await), Code::ResourceExhausted);
        assert_eq!(code(lives[0].attach("node-1").await), Code::Ok, "it is there already");
        assert_eq!(code(lives[2].attach("node-2").await), Code::Ok);
        assert_eq!(code(lives[2].attach("node-3").await), Code::NotFound);
        lives[0].detach("node-1").await.unwrap();
        assert_eq!(code(lives[2].attach("node-1").await), Code::FailedPrecondition);
        let info = run.call(v1::NodeGetInfoRequest {}).await.unwrap();
        assert_eq!(info.max_volumes_per_node, 2);
    });
}

// spec: controller-publish-volume.readonly
#[test]
fn what_is_attached_to_be_read_takes_no_writes() {
    with_driver(&[], async |run, _driver| {
        let mut life = Life::new(run, wanted("volume", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = life.start().await.unwrap();
        fs::write(target.join("file"), "x").unwrap();
        life.stop().await.unwrap();

        life.readonly = true;
        life.attach("node-1").await.unwrap();
        life.stage().await.unwrap();
        life.readonly = false;
        let target = life.publish("one").await.unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
        let refused = fs::write(target.join("file"), "y").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        life.end().await;
    });
}

async fn capacity(run: &Run, parameters: &[(&str, &str)], accessible_topology: Option<v1::Topology>) -> i64 {
    let parameters = map(parameters);
    let request = v1::GetCapacityRequest { parameters, accessible_topology, ..Default::default() };
    run.call(request).await.unwrap().available_capacity
}

// spec: get-capacity.for-what-is-asked, create-volume.topology-met
// spec: create-volume.topology-preferred, create-volume.topology-unmet
#[test]
fn pools_and_places_are_chosen_and_counted() {
    let flags = ["--pool=here=64Mi", "--pool=a=128Mi,zone=a", "--pool=b=256Mi,zone=b", "--topology=zone=a"];
    with_driver(&flags, async |run, mut driver| {
        let left = async || {
            let mut left = Vec::new();
            for pool in ["here", "a", "b", "none"] {
                left.push(
                    capacity(run, &[("pool", pool), ("csi.storage.k8s.io/fstype", "xfs")], None).await >> 20,
                );
            }
            left
        };
        assert_eq!(left().await, [64, 128, 256, 0]);
        assert_eq!(capacity(run, &[], None).await as u64, 448 * MIB);
        assert_eq!(capacity(run, &[], Some(place("zone", "a"))).await as u64, 128 * MIB);
        assert_eq!(capacity(run, &[], Some(place("zone", "c"))).await, 0);
        assert_eq!(capacity(run, &[], Some(place("node", "node-1"))).await as u64, 64 * MIB);

        let placed = |name: &str, bytes: u64, zones: &[&str], preferred: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| place("zone", name)).collect();
            v1::CreateVolumeRequest {
                accessibility_requirements: Some(v1::TopologyRequirement {
                    requisite: list(zones),
                    preferred: list(preferred),
                }),
                ..wanted(name, None, bytes)
            }
        };
        let made =
            async |request: v1::CreateVolumeRequest| run.call(request).await.map(|made| made.volume.unwrap());
        let volume = made(placed("one", 64 * MIB, &["a", "b"], &["b"])).await.unwrap();
        assert_eq!(volume.accessible_topology, [place("zone", "b")], "the preferred one");
        let volume = made(placed("two", 192 * MIB, &["a", "b"], &["a"])).await.unwrap();
        assert_eq!(volume.accessible_topology, [place("zone", "b")], "the one with room");
        assert_eq!(left().await, [64, 128, 0, 0]);
        let full = made(placed("three", 64 * MIB, &["b"], &[])).await.unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
        let nowhere = made(placed("four", 64 * MIB, &["c"], &[])).await.unwrap_err();
        assert_eq!(nowhere.code(), Code::ResourceExhausted, "{nowhere:?}");
        let mut unknown = wanted("five", None, MIB);
        unknown.parameters.insert("pool".to_owned(), "none".to_owned());
        assert_eq!(made(unknown).await.unwrap_err().code(), Code::InvalidArgument);

        // The used capacity is counted again after a restart, and snapshots use capacity too.
        driver.restart().await;
        assert_eq!(left().await, [64, 128, 0, 0]);
        let mut small = wanted("six", None, 32 * MIB);
        small.parameters.insert("pool".to_owned(), "a".to_owned());
        let life = Life::new(run, small).await.unwrap();
        let snapshot = life.snapshot("cut").await.unwrap();
        assert_eq!(left().await, [64, 64, 0, 0]);
        let mut listed = run.call(v1::ListSnapshotsRequest::default()).await.unwrap();
        let found = listed.entries.remove(0).snapshot.unwrap();
        assert_eq!(
            (found.snapshot_id, found.accessible_topology),
            (snapshot.clone(), vec![place("zone", "a")])
        );
        let restored = copy(of_snapshot(&snapshot), wanted("seven", None, 32 * MIB));
        assert_eq!(
            made(restored).await.unwrap().accessible_topology,
            [place("zone", "a")],
            "beside its source"
        );
        run.call(delete_snapshot(snapshot)).await.unwrap();
        life.delete().await.unwrap();
        assert_eq!(left().await, [64, 96, 0, 0]);
    });
}

// spec: controller-modify-volume.absent-keys-stay, controller-modify-volume.invalid-changes-nothing
// spec: create-volume.mutable-parameters-win, create-volume.differs-is-already-exists
/// With the capability SINGLE_NODE_MULTI_WRITER, which the driver did not have before, the same claim has another mode.
// spec: create-volume.same-name-same-volume, controller-publish-volume.repeated-is-ok
#[test]
fn after_an_update_a_call_with_the_newer_mode_is_the_same() {
    with_driver(&[], async |run, _driver| {
        let request = wanted("volume", None, 8 * MIB);
        let mut life = Life::new(run, request.clone()).await.unwrap();
        life.attach("node-1").await.unwrap();
        for (mode, due) in [(7, Code::Ok), (6, Code::Ok), (1, Code::Ok), (5, Code::AlreadyExists)] {
            let capability = capability(None, mode);
            let again =
                v1::CreateVolumeRequest { volume_capabilities: vec![capability.clone()], ..request.clone() };
            assert_eq!(code(run.call(again).await), due, "{mode}");
            life.volume.capability = capability;
            assert_eq!(code(life.attach("node-1").await), due, "{mode}");
        }
        life.delete().await.unwrap_err();
        life.detach("node-1").await.unwrap();
        life.delete().await.unwrap();
    });
}

#[test]
fn parameters_change_for_good_and_all_or_none() {
    with_driver(&[], async |run, mut driver| {
        let request = wanted("volume", None, 8 * MIB);
        let life = Life::new(run, request.clone()).await.unwrap();
        let image = run.stored("volumes", &life.id, "image");
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap()) * 512;
        assert!(blocks() < MIB);
        let modify = async |pairs: &[(&str, &str)]| run.call(modification(&life.id, pairs)).await;
        let refused = modify(&[("provisioning", "thick"), ("iops", "7")]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(blocks() < MIB, "nothing was changed");
        modify(&[("provisioning", "thick")]).await.unwrap();
        assert!(blocks() >= 8 * MIB, "the room is taken");
        modify(&[("description", "mine")]).await.unwrap();
        driver.restart().await;
        life.expand(16 * MIB).await.unwrap();
        assert!(blocks() >= 16 * MIB, "thick it stays, over a restart and as it grows");
        // The volume's mutable parameters changed, so the first request no longer matches it, and one with
        // the new values does.
        let again = run.call(request.clone()).await.unwrap_err();
        assert_eq!(again.code(), Code::AlreadyExists, "{again:?}");
        let mutable_parameters = map(&[("provisioning", "thick"), ("description", "mine")]);
        let same = v1::CreateVolumeRequest { mutable_parameters, ..request };
        let found = run.call(same).await.unwrap().volume.unwrap();
        assert_eq!((found.volume_id, found.capacity_bytes as u64), (life.id.clone(), 16 * MIB));
    });
}

// spec: controller-expand-volume.in-use, delete-volume.in-use
#[test]
fn offline_a_volume_in_use_does_not_grow() {
    // In the second run only the directory's mounts show that it is in use, because nothing is attached
    // or staged.
    for flags in [&["--expansion=offline"][..], &["--expansion=offline", "--without=attach,stage"]] {
        with_driver(flags, async |run, _driver| {
            let mut life = Life::new(run, wanted("volume", Some(""), 320 * MIB)).await.unwrap();
            let attaches = flags.len() == 1;
            if attaches {
                life.attach("node-1").await.unwrap();
                life.stage().await.unwrap();
            }
            let target = life.publish("one").await.unwrap();
            let refused = life.expand(640 * MIB).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
            assert_eq!(life.delete().await.unwrap_err().code(), Code::FailedPrecondition);
            life.unpublish(&target).await.unwrap();
            if attaches {
                life.unstage().await.unwrap();
                life.detach("node-1").await.unwrap();
            }
            life.expand(640 * MIB).await.unwrap();
            life.delete().await.unwrap();
        });
    }
}

// spec: process.knows-its-mode
#[test]
fn controller_and_node_can_be_two_processes_and_no_two_controllers_one_directory() {
    with_driver(&["--mode=controller"], async |run, _controller| {
        let node = run.start_node("node-1", &[]).await;
        let kit = csi_conformance::Kit::new(node.endpoint()).strict().controller(run.endpoint());
        let kit = kit.staging(run.of("staging")).target(run.of("target")).fs_type("xfs").size(320 << 20);
        let report = kit.only("sequences").only("node-use").run().await.unwrap();
        println!("{}", report.summary());
        report.assert_ok();

        let mut second = program();
        second.args(["--node-id=node-1", "--endpoint"]).arg(run.of("second.sock"));
        let second = second.arg("--data").arg(run.of("data")).output().unwrap();
        let told = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(second.status.code() == Some(2) && told.contains("another process uses"), "{told}");
    });
}

/// If the controller does not see the node's mounts, it cannot freeze the filesystem. Then it refuses the
/// copy, because a workload could write during the copy.
#[test]
fn a_controller_that_does_not_see_the_mounts_copies_no_filesystem_in_use() {
    with_driver(&["--mode=controller"], async |run, _controller| {
        let node = run.start_node_apart("node-1").await;
        for (name, filesystem, size) in [("mounted", Some("xfs"), 320 * MIB), ("raw", None, MIB)] {
            let mut life = Life::new(run, wanted(name, filesystem, size)).await.unwrap();
            life.node = node.client();
            life.start().await.unwrap();
            assert!(
                !csi_mount::mounts().unwrap().iter().any(|one| one.mount_point.starts_with(life.staging()))
            );
            let clone = copy(of_volume(&life.id), wanted(&format!("clone of {name}"), filesystem, size));
            let clone = run.call(clone).await.map(drop);
            for copied in [life.snapshot(name).await.map(drop), clone] {
                match filesystem {
                    None => copied.unwrap(),
                    Some(_) => {
                        let refused = copied.unwrap_err();
                        assert_eq!(refused.code(), Code::Internal, "{refused:?}");
                        assert!(refused.message().contains("its mount is not visible"), "{refused:?}");
                    }
                }
            }
            life.unpublish(&life.target("one")).await.unwrap();
            life.unstage().await.unwrap();
            life.snapshot(&format!("{name}, not in use")).await.unwrap();
            life.detach("node-1").await.unwrap();
            life.delete().await.unwrap();
        }
    });
}
