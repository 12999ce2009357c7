//! Faults in the size of volumes, and in the reported usage.

use std::collections::BTreeMap;
use std::sync::Mutex;

use csi_proto::v1;
use v1::volume_usage::Unit;

use super::*;

fn usage(change: impl Fn(&mut v1::VolumeUsage) + Send + Sync + 'static) -> Fault {
    answer::<v1::NodeGetVolumeStatsRequest>(move |a| in_bytes(a).for_each(&change))
}

fn in_bytes(answer: &mut v1::NodeGetVolumeStatsResponse) -> impl Iterator<Item = &mut v1::VolumeUsage> {
    answer.usage.iter_mut().filter(|usage| usage.unit() == Unit::Bytes)
}

/// Reports the highest usage of each volume, and never less.
fn usage_never_falls() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |highest, rpc, bytes, behind| async move {
        let Some(asked) = asked::<v1::NodeGetVolumeStatsRequest>(rpc, &bytes) else {
            return behind.call(rpc, bytes).await;
        };
        let mut answer = behind.ask(&asked).await?;
        for one in in_bytes(&mut answer) {
            let mut highest = highest.lock().unwrap();
            let known: &mut v1::VolumeUsage = highest.entry(asked.volume_id.clone()).or_insert(*one);
            if one.used > known.used {
                *known = *one;
            }
            *one = *known;
        }
        Ok(answer.encode_to_vec())
    })
}

/// Reports the first total of each volume for ever.
fn total_stays() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |first, rpc, bytes, behind| async move {
        let Some(asked) = asked::<v1::NodeGetVolumeStatsRequest>(rpc, &bytes) else {
            return behind.call(rpc, bytes).await;
        };
        let mut answer = behind.ask(&asked).await?;
        for one in in_bytes(&mut answer) {
            one.total = *first.lock().unwrap().entry(asked.volume_id.clone()).or_insert(one.total);
        }
        Ok(answer.encode_to_vec())
    })
}

fn scaled(range: &mut Option<v1::CapacityRange>, by: (i64, i64)) {
    range.iter_mut().for_each(|range| range.required_bytes = range.required_bytes * by.0 / by.1);
}

/// Creates the volumes that match with another size, and answers with the requested one.
fn created_as(like: fn(&v1::CreateVolumeRequest) -> bool, times: i64, part: i64) -> Fault {
    only(move |mut asked: v1::CreateVolumeRequest, behind| async move {
        let by = if like(&asked) { (times, part) } else { (1, 1) };
        scaled(&mut asked.capacity_range, by);
        let mut answer = behind.ask(&asked).await?;
        let volume = answer.volume.iter_mut();
        volume.for_each(|volume| volume.capacity_bytes = volume.capacity_bytes * by.1 / by.0);
        Ok(answer)
    })
}

fn is_copy(request: &v1::CreateVolumeRequest) -> bool {
    request.volume_content_source.is_some()
}

/// Creates an empty volume of half the size instead of a copy.
fn half_a_copy() -> Fault {
    only(|mut asked: v1::CreateVolumeRequest, behind| async move {
        let source = asked.volume_content_source.take();
        if source.is_some() {
            scaled(&mut asked.capacity_range, (1, 2));
        }
        let mut answer = behind.ask(&asked).await?;
        if let Some(volume) = answer.volume.as_mut().filter(|_| source.is_some()) {
            volume.content_source = source;
            volume.capacity_bytes *= 2;
        }
        Ok(answer)
    })
}

/// Expands a volume once. A second expansion is answered as if it had taken place.
fn expands_once() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |sizes, rpc, bytes, behind| async move {
        let Some(asked) = asked::<v1::ControllerExpandVolumeRequest>(rpc, &bytes) else {
            return behind.call(rpc, bytes).await;
        };
        let capacity_bytes = asked.capacity_range.unwrap_or_default().required_bytes;
        let first = *sizes.lock().unwrap().entry(asked.volume_id).or_insert(capacity_bytes);
        if first == capacity_bytes {
            return behind.call(rpc, bytes).await;
        }
        let answer = v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true };
        Ok(answer.encode_to_vec())
    })
}

/// Lifts the limit of a volume when it is expanded.
fn expands_too_far() -> Fault {
    only(|mut asked: v1::ControllerExpandVolumeRequest, behind| async move {
        scaled(&mut asked.capacity_range, (3, 1));
        let mut answer = behind.ask(&asked).await?;
        answer.capacity_bytes /= 3;
        Ok(answer)
    })
}

/// Reports each expansion as done, and keeps the old limit.
fn expands_nothing() -> Fault {
    only(|asked: v1::ControllerExpandVolumeRequest, _| async move {
        let capacity_bytes = asked.capacity_range.unwrap_or_default().required_bytes;
        Ok(v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false })
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "0 bytes are used, whatever is written", "usage.written":
            usage(|usage| (usage.used, usage.available) = (0, usage.total)), of_filesystems;
        "0 bytes are used in a directory, whatever is written", "usage.written":
            usage(|usage| (usage.used, usage.available) = (0, usage.total));
        "the usage never falls", "usage.freed": usage_never_falls(), of_filesystems;
        "the used bytes are left out", "usage.reported": usage(|usage| usage.used = 0), of_filesystems;
        "the usage has the total of the first day", "node-use.grows": total_stays(), of_filesystems;
        "a second expansion does nothing", "node-use.grows": expands_once(), of_filesystems;
        "a second expansion of a device does nothing", "node-use.device-grows": expands_once(), of_images;
        "a filesystem is a third of its volume", "sizes.created": created_as(|_| true, 1, 3), of_filesystems;
        "a raw device is half of its volume", "sizes.device-created": created_as(|_| true, 1, 2), of_images;
        "a copy is half of its source", "sizes.copies": half_a_copy(), of_filesystems;
        "a raw copy is half of its source", "sizes.device-copies": half_a_copy(), of_images;
        "no size is enforced", "sizes.enforced": created_as(|_| true, 4, 1), of_filesystems;
        "the limit stays when a volume is expanded", "sizes.enforced-after-expansion":
            expands_nothing(), of_filesystems;
        "the limit is lifted when a volume is expanded", "sizes.enforced-after-expansion":
            expands_too_far(), of_filesystems;
        "the size of copies is not enforced", "sizes.copies-enforced":
            created_as(is_copy, 4, 1), of_filesystems;
    }
}
