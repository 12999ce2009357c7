//! More complex kinds of fault that several files use.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use csi_proto::v1;

use super::*;

/// The first field of a request, if it is a string: in most requests the id of the volume or snapshot.
pub(super) fn id_of(bytes: &[u8]) -> String {
    v1::ControllerGetVolumeRequest::decode(bytes).map(|found| found.volume_id).unwrap_or_default()
}

pub(super) fn code(of: Rpc, from: Code, to: Code) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        behind.call(rpc, bytes).await.map_err(|status| {
            if rpc == of && status.code() == from { Status::new(to, status.message()) } else { status }
        })
    })
}

pub(super) fn refuses<R: RpcRequest>(code: Code, like: fn(&R) -> bool) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        if asked(rpc, &bytes).is_some_and(|request| like(&request)) {
            return Err(Status::new(code, "it is not taken in this form"));
        }
        behind.call(rpc, bytes).await
    })
}

/// Answers OK to the requests that match, and does nothing.
pub(super) fn skips<R: RpcRequest>(like: fn(&R) -> bool) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let is_it = asked(rpc, &bytes).is_some_and(|request| like(&request));
        if is_it { Ok(vec![]) } else { behind.call(rpc, bytes).await }
    })
}

/// Where the driver refuses with this code, sends it a changed request instead.
pub(super) fn instead<R: RpcRequest>(code: Code, change: fn(&mut R)) -> Fault {
    only(move |mut request: R, behind| async move {
        match behind.ask(&request).await {
            Err(status) if status.code() == code => {
                change(&mut request);
                behind.ask(&request).await
            }
            answer => answer,
        }
    })
}

/// Changes the driver's answers from the second one on.
pub(super) fn later<R: RpcRequest>(change: fn(&mut R::Answer)) -> Fault {
    let count = AtomicU32::new(0);
    answer::<R>(move |message| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            change(message);
        }
    })
}

/// The encoded fields of a message, sorted: the kit encodes the entries of a map in any order.
fn fields(mut message: &[u8]) -> Vec<&[u8]> {
    use prost::encoding::{DecodeContext, decode_key, skip_field};
    let mut fields = Vec::new();
    while !message.is_empty() {
        let start = message;
        let (tag, wire_type) = decode_key(&mut message).unwrap();
        skip_field(wire_type, tag, &mut message, DecodeContext::default()).unwrap();
        fields.push(&start[..start.len() - message.len()]);
    }
    fields.sort_unstable();
    fields
}

/// Appends a number to a name, unless the name is empty, or then too long.
pub(super) fn rename(name: &mut String, number: u32) {
    if !name.is_empty() && name.len() < 120 {
        name.push_str(&format!("~{number}"));
    }
}

/// Gives each request another name.
pub(super) fn other_names<R: RpcRequest>(name: fn(&mut R) -> &mut String) -> Fault {
    let count = AtomicU32::new(0);
    request(move |request: &mut R| rename(name(request), count.fetch_add(1, Ordering::SeqCst)))
}

/// Refuses a repeated request that succeeded before.
pub(super) fn not_again(of: Rpc, code: Code) -> Fault {
    with_state(Mutex::new(BTreeSet::new()), move |done, rpc, bytes, behind| async move {
        let request = fields(&bytes).concat();
        if rpc == of && done.lock().unwrap().contains(&request) {
            return Err(Status::new(code, "it was done before"));
        }
        let answer = behind.call(rpc, bytes).await?;
        if rpc == of {
            done.lock().unwrap().insert(request);
        }
        Ok(answer)
    })
}

/// Refuses to undo where nothing was done, or everything is already undone.
pub(super) fn undoes_once(doing: Rpc, undoing: Rpc, code: Code) -> Fault {
    with_state(Mutex::new(BTreeSet::new()), move |done, rpc, bytes, behind| async move {
        let id = id_of(&bytes);
        if rpc == undoing && !id.is_empty() && !done.lock().unwrap().contains(&id) {
            return Err(Status::new(code, "there is nothing to undo"));
        }
        let answer = behind.call(rpc, bytes).await?;
        if rpc == doing {
            done.lock().unwrap().insert(id);
        } else if rpc == undoing {
            done.lock().unwrap().remove(&id);
        }
        Ok(answer)
    })
}

/// Waits at least this long, so that other calls arrive meanwhile. On a machine that has other work they arrive
/// later: the time in which processes waited for a processor is added, up to ten times the duration.
pub(super) async fn pause(takes: Duration) {
    let shortage = || {
        let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
        let total =
            text.split_once("total=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        Duration::from_micros(total.unwrap_or_default())
    };
    let start = tokio::time::Instant::now();
    let before = shortage();
    while start.elapsed() < takes + shortage().saturating_sub(before).min(10 * takes) {
        tokio::time::sleep(takes / 4).await;
    }
}

/// Refuses a call while another call of the same RPC runs; each call takes at least this long. A call that its
/// caller abandons releases the lock.
pub(super) fn one_at_a_time(of: Rpc, code: Code, takes: Duration) -> Fault {
    one_at_a_time_if(of, |_| true, code, takes)
}

/// As [`one_at_a_time`], for the requests that match.
pub(super) fn one_at_a_time_if(of: Rpc, like: fn(&[u8]) -> bool, code: Code, takes: Duration) -> Fault {
    with_state(tokio::sync::Mutex::new(()), move |running, rpc, bytes, behind| async move {
        if rpc != of || !like(&bytes) {
            return behind.call(rpc, bytes).await;
        }
        let _running = running.try_lock().map_err(|_| Status::new(code, "another call is running"))?;
        pause(takes).await;
        behind.call(rpc, bytes).await
    })
}

/// As [`one_at_a_time`], but a call that its caller abandons keeps the lock.
pub(super) fn keeps_its_lock(of: Rpc, code: Code, takes: Duration) -> Fault {
    with_state(AtomicBool::new(false), move |running, rpc, bytes, behind| async move {
        if rpc != of {
            return behind.call(rpc, bytes).await;
        }
        if running.swap(true, Ordering::SeqCst) {
            return Err(Status::new(code, "another call is running"));
        }
        pause(takes).await;
        let answer = behind.call(rpc, bytes).await;
        running.store(false, Ordering::SeqCst);
        answer
    })
}

/// Looks up the volume first, and refuses the request if it does not exist.
pub(super) fn must_exist(of: Rpc, code: Code) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let volume_id = id_of(&bytes);
        if rpc == of && !volume_id.is_empty() {
            let found = behind.ask(&v1::ControllerGetVolumeRequest { volume_id }).await;
            found.map_err(|status| Status::new(code, status.message()))?;
        }
        behind.call(rpc, bytes).await
    })
}
