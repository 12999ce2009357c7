//! Faults that show at something next to what the call is about: another target, another node, another answer, or a
//! limit that few callers send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use csi_proto::v1;
use v1::volume_capability::access_mode::Mode;

use super::*;

/// Makes what is asked for with a limit larger than that.
fn ignores_the_limit(range: &mut Option<v1::CapacityRange>) {
    if let Some(range) =
        range.as_mut().filter(|range| (1..=range.limit_bytes).contains(&range.required_bytes))
    {
        *range = v1::CapacityRange { required_bytes: 2 * range.limit_bytes, limit_bytes: 0 };
    }
}

/// Allocates a volume before it looks for the source, and leaves it when there is none.
fn leaves_an_empty_volume() -> Fault {
    only(|asked: v1::CreateVolumeRequest, behind| async move {
        let answer = behind.ask(&asked).await;
        if answer.as_ref().is_err_and(|status| status.code() == Code::NotFound) {
            behind.ask(&v1::CreateVolumeRequest { volume_content_source: None, ..asked }).await?;
        }
        answer
    })
}

/// Reports the first size of each volume for ever.
fn lists_first_sizes() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), |sizes, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        let old = |volume: &mut v1::Volume| {
            let mut sizes = sizes.lock().unwrap();
            volume.capacity_bytes = *sizes.entry(volume.volume_id.clone()).or_insert(volume.capacity_bytes);
        };
        Ok(match rpc {
            Rpc::CreateVolume => {
                changed(&answer, |a: &mut v1::CreateVolumeResponse| a.volume.iter_mut().for_each(old))
            }
            Rpc::ListVolumes => changed(&answer, |a: &mut v1::ListVolumesResponse| {
                a.entries.iter_mut().flat_map(|one| &mut one.volume).for_each(old);
            }),
            Rpc::ControllerGetVolume => {
                changed(&answer, |a: &mut v1::ControllerGetVolumeResponse| a.volume.iter_mut().for_each(old))
            }
            _ => answer,
        })
    })
}

type Targets = Mutex<BTreeMap<String, BTreeSet<String>>>;

/// Unpublishes a volume from all its targets.
fn unpublishes_all() -> Fault {
    with_state(Targets::default(), |targets, rpc, bytes, behind| async move {
        let all = (rpc == Rpc::NodeUnpublishVolume)
            .then(|| targets.lock().unwrap().remove(&id_of(&bytes)).unwrap_or_default());
        for target_path in all.into_iter().flatten() {
            behind.ask(&v1::NodeUnpublishVolumeRequest { volume_id: id_of(&bytes), target_path }).await?;
        }
        let answer = behind.call(rpc, bytes.clone()).await?;
        if let Some(publish) = asked::<v1::NodePublishVolumeRequest>(rpc, &bytes) {
            targets.lock().unwrap().entry(publish.volume_id).or_default().insert(publish.target_path);
        }
        Ok(answer)
    })
}

/// Makes all targets of a volume read-only with the first one that is: it remounts the filesystem.
fn remounts_all_read_only() -> Fault {
    with_state(Targets::default(), |targets, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await?;
        if let Some(publish) = asked::<v1::NodePublishVolumeRequest>(rpc, &bytes) {
            let mut targets = targets.lock().unwrap();
            let all = targets.entry(publish.volume_id).or_default();
            for target in all.iter().filter(|_| publish.readonly) {
                let remount = ["-o", "remount,bind,ro", target];
                let status = std::process::Command::new("mount").args(remount).status();
                assert!(status.unwrap().success());
            }
            all.insert(publish.target_path);
        }
        if rpc == Rpc::NodeUnpublishVolume {
            targets.lock().unwrap().remove(&id_of(&bytes));
        }
        Ok(answer)
    })
}

fn as_writer(capability: &mut Option<v1::VolumeCapability>) {
    if let Some(mode) = capability.as_mut().and_then(|one| one.access_mode.as_mut())
        && mode.mode() == Mode::SingleNodeReaderOnly
    {
        mode.set_mode(Mode::SingleNodeWriter);
    }
}

/// Whether the target exists and is no mount.
fn is_left(target: &str) -> bool {
    let target = std::path::Path::new(target);
    target.exists() && !csi_mount::mounts().unwrap().iter().any(|mount| mount.mount_point == target)
}

/// Forgets a deleted volume and keeps its data, which the next volume of the name gets.
fn deletes_nothing() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), |kept, rpc, bytes, behind| async move {
        if let Some(delete) = asked::<v1::DeleteVolumeRequest>(rpc, &bytes) {
            let get = v1::ControllerGetVolumeRequest { volume_id: delete.volume_id };
            let found = behind.ask(&get).await;
            let is_idle =
                found.is_ok_and(|answer| answer.status.unwrap_or_default().published_node_ids.is_empty());
            if is_idle && kept.lock().unwrap().insert(get.volume_id) {
                return Ok(vec![]);
            }
        }
        if let Some(create) = asked::<v1::CreateVolumeRequest>(rpc, &bytes) {
            kept.lock().unwrap().remove(&create.name);
        }
        behind.call(rpc, bytes).await
    })
}

/// Treats a volume that is only read as one that is written.
fn readers_write() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let bytes = match rpc {
            Rpc::NodeStageVolume => changed(&bytes, |r: &mut v1::NodeStageVolumeRequest| {
                as_writer(&mut r.volume_capability);
            }),
            Rpc::NodePublishVolume => changed(&bytes, |r: &mut v1::NodePublishVolumeRequest| {
                as_writer(&mut r.volume_capability);
            }),
            _ => bytes,
        };
        behind.call(rpc, bytes).await
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "a volume is larger than the limit", "create-volume.within-the-limit":
            request(|r: &mut v1::CreateVolumeRequest| ignores_the_limit(&mut r.capacity_range));
        "an expansion goes past the limit", "controller-expand.within-the-limit":
            request(|r: &mut v1::ControllerExpandVolumeRequest| ignores_the_limit(&mut r.capacity_range));
        "a snapshot is larger than what is restored from it", "create-volume.smaller-restore":
            answer::<v1::CreateSnapshotRequest>(|a| {
                a.snapshot.iter_mut().for_each(|one| one.size_bytes = one.size_bytes * 2 + 1);
            });
        "a volume that could not be copied is left empty", "create-volume.refusal-leaves-nothing":
            leaves_an_empty_volume(), leaves_something;
        "the list knows no places", "create-volume.place-stays":
            answer::<v1::ListVolumesRequest>(|a| {
                a.entries.iter_mut().flat_map(|one| &mut one.volume).for_each(|one| one.accessible_topology.clear());
            });
        "the sizes in the list are those of the first day", "controller-expand.told": lists_first_sizes();
        "detaching from one node detaches from all", "controller-publish.other-node-stays":
            request(|r: &mut v1::ControllerUnpublishVolumeRequest| {
                if !r.volume_id.is_empty() {
                    r.node_id.clear();
                }
            });
        "unpublishing one target unpublishes all", "node-publish.other-target-stays": unpublishes_all();
        "a read-only target makes all read-only", "node-publish.read-only-beside": remounts_all_read_only(), of_filesystems;
        "a size is required", "create-volume.without-size":
            refuses(Code::InvalidArgument, |r: &v1::CreateVolumeRequest| r.capacity_range.is_none());
        "a target that was left is refused", "node-publish.left-before-mount":
            refuses(Code::Internal, |r: &v1::NodePublishVolumeRequest| is_left(&r.target_path));
        "a target that was left is not unmounted", "node-publish.left-after-unmount":
            refuses(Code::Internal, |r: &v1::NodeUnpublishVolumeRequest| is_left(&r.target_path));
        "a deleted volume comes back", "contents.new-is-empty": deletes_nothing(), leaves_something;
        "a deleted device comes back", "contents.new-device-is-empty": deletes_nothing(), of_images, leaves_something;
        "a volume that is only read takes writes", "node-publish.reader-mode": readers_write(), of_filesystems;
    }
}
