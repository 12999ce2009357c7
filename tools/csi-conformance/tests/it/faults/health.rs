//! Faults in health reports.

use std::sync::atomic::{AtomicU32, Ordering};

use csi_proto::v1;

use super::*;

/// Reports a health entry only the first time it is asked for.
fn told_once() -> Fault {
    let count = AtomicU32::new(0);
    answer::<v1::ControllerGetVolumeHealthRequest>(move |a| {
        let health = a.volume_health.as_mut().unwrap();
        if !health.health_statuses.is_empty() && count.fetch_add(1, Ordering::SeqCst) > 0 {
            health.health_statuses.truncate(1);
        }
    })
}

/// Reports every volume to callers of 1.12.0 as healthy, or as abnormal.
fn condition_told(abnormal: bool) -> Fault {
    answer::<v1::ControllerGetVolumeRequest>(move |a| {
        #[allow(deprecated, reason = "callers of 1.12.0 read it")]
        let condition = a.status.as_mut().and_then(|status| status.volume_condition.as_mut());
        condition.into_iter().for_each(|one| one.abnormal = abnormal);
    })
}

/// The node reports a volume that it cannot find as healthy.
fn missing_is_well() -> Fault {
    only(|asked: v1::NodeGetVolumeHealthRequest, _| async move {
        let volume_health = Some(v1::VolumeHealth { volume_id: asked.volume_id, ..Default::default() });
        Ok(v1::NodeGetVolumeHealthResponse { volume_health })
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "what is wrong with a volume is told once", "health.entry-stays": told_once();
        "volumes that are not well are not listed", "health.unwell-is-listed":
            answer::<v1::ControllerListVolumeHealthRequest>(|a| a.entries.clear());
        "volumes that are well are listed as unwell", "health.listed":
            answer::<v1::ControllerListVolumeHealthRequest>(|a| {
                a.entries.push(v1::VolumeHealth { volume_id: "well".into(), ..Default::default() });
            });
        "callers of 1.12.0 are told that all is well", "health.condition-is-listed":
            answer::<v1::ListVolumesRequest>(|a| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    #[allow(deprecated, reason = "callers of 1.12.0 read it")]
                    status.volume_condition.iter_mut().for_each(|condition| condition.abnormal = false);
                }
            });
        "callers of 1.12.0 are told that nothing is well", "health.condition": condition_told(true);
        "callers of 1.12.0 who ask for one volume are told that all is well", "health.condition-is-told":
            condition_told(false);
        "callers of 1.12.0 are told nothing of a published volume", "health.condition-of-published":
            answer::<v1::NodeGetVolumeStatsRequest>(|a| {
                #[allow(deprecated, reason = "callers of 1.12.0 read it")]
                let condition = &mut a.volume_condition;
                *condition = None;
            });
        "a volume that is not there is well", "health.controller":
            accepted(Rpc::ControllerGetVolumeHealth, Code::NotFound);
        "a token that is not known ends the list of unwell volumes", "health.bad-token":
            accepted(Rpc::ControllerListVolumeHealth, Code::Aborted);
        "the node finds a volume well that is not there", "health.node-missing": missing_is_well();
        "the node takes a bind for a mount that was lost", "health.node":
            answer::<v1::NodeGetVolumeHealthRequest>(|a| {
                let lost = v1::volume_health::VolumeHealthEntry {
                    status: v1::VolumeHealthErrorType::Inaccessible as i32,
                    reason: "MountLost".into(),
                    message: "its device is mounted elsewhere".into(),
                };
                a.volume_health.get_or_insert_default().health_statuses.push(lost);
            });
        "what is wrong with a backend is told once", "health.storage":
            later::<v1::NodeGetStorageHealthRequest>(|a| a.backend_health.clear()), of_inline;
    }
}
