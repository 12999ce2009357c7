//! The table of the running operations' claims.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_proto::Rpc;
use tokio::sync::Notify;

use super::key::{Claim, Key, distinct};
use crate::count::{Count, Counted};
use crate::error::{Error, Result};

/// A table with a capacity below this is never shrunk.
const SMALL: usize = 16;

/// A running operation: its name, for the message to refused callers, and data that only its own RPC can
/// read, for callers that join it.
pub(crate) struct Operation {
    name: &'static str,
    request: Box<dyn Any + Send + Sync>,
}

enum Holder {
    Alone(Arc<Operation>),
    /// All are changes, or none is.
    Shared {
        count: usize,
        last: Arc<Operation>,
        changes: bool,
    },
}

impl Holder {
    /// The operation that blocks this claim, if any.
    fn blocks(&self, claim: &Claim) -> Option<&Operation> {
        match self {
            Self::Alone(operation) => Some(operation),
            Self::Shared { last, changes, .. } => {
                let together = if claim.exclusive { claim.change && *changes } else { !*changes };
                (!together).then_some(last)
            }
        }
    }
}

type Holders = HashMap<Key, Holder>;

/// The running operations.
///
/// One lock for all: it is held for about a microsecond, and a plugin gets some hundred calls a second.
/// Nothing is awaited under it.
#[derive(Default)]
pub(crate) struct Admission {
    holders: Mutex<Holders>,
    /// Wakes those who wait for a claim, whenever claims are released.
    released: Notify,
    running: Count,
}

/// The decision about a request.
pub(crate) enum Admitted<J> {
    /// Run: no operation blocks the request.
    Run(Permit),
    /// Wait for the running operation: it is the same request.
    Join(J),
}

impl Admission {
    /// Claims all of `claims`, or none. `request` is kept while the operation runs, and is passed to the
    /// `join` of requests that the operation blocks. If such a request is the same, `join` returns what it
    /// needs to wait for the operation.
    ///
    /// At least one claim must be exclusive, because a repeated request is found only there.
    pub(crate) fn admit<J>(
        self: &Arc<Self>,
        rpc: Rpc,
        claims: Vec<Claim>,
        request: Box<dyn Any + Send + Sync>,
        join: impl Fn(&(dyn Any + Send + Sync)) -> Option<J>,
    ) -> Result<Admitted<J>> {
        debug_assert!(claims.iter().any(|claim| claim.exclusive), "{rpc} claims nothing alone");
        self.claim(rpc.name(), claims, request, join)
    }

    /// Claims for work of the driver's own. Waits until no operation blocks it.
    pub(crate) async fn wait_for(self: &Arc<Self>, claims: Vec<Claim>) -> Permit {
        loop {
            let released = self.released.notified();
            let mut released = std::pin::pin!(released);
            // From here on no release is missed.
            released.as_mut().enable();
            let admitted = self.claim("work of the driver", claims.clone(), Box::new(()), |_| None::<()>);
            if let Ok(Admitted::Run(permit)) = admitted {
                return permit;
            }
            released.await;
        }
    }

    fn claim<J>(
        self: &Arc<Self>,
        name: &'static str,
        claims: Vec<Claim>,
        request: Box<dyn Any + Send + Sync>,
        join: impl Fn(&(dyn Any + Send + Sync)) -> Option<J>,
    ) -> Result<Admitted<J>> {
        let claims = distinct(claims);
        let mut holders = self.holders();
        for claim in &claims {
            let Some(running) = holders.get(&claim.key).and_then(|holder| holder.blocks(claim)) else {
                continue;
            };
            if let Some(joined) = join(&*running.request) {
                return Ok(Admitted::Join(joined));
            }
            return Err(Error::Pending(
                format!("{}: {} is running on it; try again when it is done", claim.key, running.name).into(),
            ));
        }
        let operation = Arc::new(Operation { name, request });
        for claim in &claims {
            hold(&mut holders, claim, &operation);
        }
        drop(holders);
        Ok(Admitted::Run(Permit { admission: Arc::clone(self), claims, _running: self.running.begin() }))
    }

    /// Completes when nothing is claimed.
    pub(crate) async fn idle(&self) {
        self.running.zero().await;
    }

    /// Each statement leaves the table consistent, so a panic elsewhere does not damage it and the poison
    /// is ignored.
    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn held_keys(&self) -> usize {
        self.holders().len()
    }

    /// The capacity of the table, in entries.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.holders().capacity()
    }
}

fn hold(holders: &mut Holders, claim: &Claim, operation: &Arc<Operation>) {
    let last = Arc::clone(operation);
    if claim.exclusive && !claim.change {
        holders.insert(claim.key.clone(), Holder::Alone(last));
    } else if let Some(Holder::Shared { count, last: before, .. }) = holders.get_mut(&claim.key) {
        *count += 1;
        *before = last;
    } else {
        holders.insert(claim.key.clone(), Holder::Shared { count: 1, last, changes: claim.change });
    }
}

fn release(holders: &mut Holders, claim: &Claim) {
    match holders.get_mut(&claim.key) {
        Some(Holder::Shared { count, .. }) if *count > 1 => *count -= 1,
        _ => drop(holders.remove(&claim.key)),
    }
    // Give memory back after a burst of work.
    if holders.capacity() > SMALL && holders.len() * 4 < holders.capacity() {
        holders.shrink_to(holders.len() * 2);
    }
}

/// Permission to run. Dropping it, at the end or in a panic, releases the claims.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    claims: Vec<Claim>,
    /// Counts as running until it is dropped, after the claims are released.
    _running: Counted,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut holders = self.admission.holders();
        for claim in &self.claims {
            release(&mut holders, claim);
        }
        drop(holders);
        self.admission.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits an operation that counts as the same as another if the numbers are equal.
    fn admit(admission: &Arc<Admission>, rpc: Rpc, claims: Vec<Claim>, id: u32) -> Result<Admitted<()>> {
        let same =
            |running: &(dyn Any + Send + Sync)| (running.downcast_ref() == Some(&(rpc, id))).then_some(());
        admission.admit(rpc, claims, Box::new((rpc, id)), same)
    }

    fn key(id: &str) -> Key {
        Key::NodeVolume(id.to_owned())
    }

    fn publish(target: &str) -> Vec<Claim> {
        vec![Claim::shared(key("v")), Claim::alone(Key::path(target.as_ref()))]
    }

    #[test]
    fn changes_run_together_and_exclude_sharers_and_whoever_wants_it_alone() {
        let admission = Arc::new(Admission::default());
        let change = |rpc| vec![Claim::change(key("v")), Claim::alone(Key::Change("v".to_owned(), rpc))];
        let expand = admit(&admission, Rpc::ControllerExpandVolume, change(Rpc::ControllerExpandVolume), 1);
        let modify = admit(&admission, Rpc::ControllerModifyVolume, change(Rpc::ControllerModifyVolume), 2);
        assert!(expand.is_ok() && modify.is_ok());
        let again = admit(&admission, Rpc::ControllerExpandVolume, change(Rpc::ControllerExpandVolume), 3);
        assert!(matches!(again, Err(Error::Pending(_))), "another size");
        for claim in [Claim::shared(key("v")), Claim::alone(key("v"))] {
            let other = vec![claim, Claim::alone(key("other"))];
            assert!(matches!(admit(&admission, Rpc::NodePublishVolume, other, 4), Err(Error::Pending(_))));
        }
        drop((expand, modify));
        let sharer = admit(&admission, Rpc::NodePublishVolume, publish("one"), 5).unwrap();
        let expand = admit(&admission, Rpc::ControllerExpandVolume, change(Rpc::ControllerExpandVolume), 6);
        assert!(matches!(expand, Err(Error::Pending(_))));
        drop(sharer);
        assert_eq!(admission.held_keys(), 0);
    }

    #[test]
    fn a_million_ids_leave_no_room_behind() {
        let admission = Arc::new(Admission::default());
        let mut burst = Vec::new();
        for id in 0..1_000_000_u32 {
            let claims = vec![Claim::alone(key(&id.to_string()))];
            burst.push(admit(&admission, Rpc::NodeStageVolume, claims, id).unwrap());
            if burst.len() == 10_000 {
                burst.clear();
            }
        }
        let bytes = admission.room() * size_of::<(Key, Holder)>();
        assert_eq!(admission.held_keys(), 0);
        assert!(bytes < 256 << 10, "the empty table keeps {bytes} bytes");
    }

    #[tokio::test]
    async fn idle_is_when_the_last_permit_is_gone() {
        let admission = Arc::new(Admission::default());
        admission.idle().await;
        let held = admit(&admission, Rpc::NodeStageVolume, vec![Claim::alone(key("v"))], 1).unwrap();
        let mut idle = std::pin::pin!(admission.idle());
        assert!(poll_once(idle.as_mut()).is_pending());
        drop(held);
        assert!(poll_once(idle.as_mut()).is_ready());
    }

    fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> std::task::Poll<T> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
