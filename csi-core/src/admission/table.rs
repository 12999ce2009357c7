//! The table of the running operations' claims.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::in_flight::InFlight;
use super::key::{Claim, Key, distinct};
use crate::{Error, Result, Rpc};

/// Parts of the table, each with its own lock. Calls about different things seldom use the same lock.
const SHARDS: usize = 64;
/// A shard with a capacity below this is never shrunk.
const SMALL: usize = 16;

/// A running operation: its RPC, for the message to refused callers, and data that only its own RPC can
/// read, for callers that join it.
pub(crate) struct Operation {
    rpc: Rpc,
    flight: Box<dyn Any + Send + Sync>,
}

enum Holder {
    Alone(Arc<Operation>),
    Shared { count: usize, last: Arc<Operation> },
}

impl Holder {
    /// The operation that blocks this claim, if any.
    fn blocks(&self, claim: &Claim) -> Option<&Operation> {
        match self {
            Self::Alone(operation) => Some(operation),
            Self::Shared { last, .. } => claim.exclusive.then_some(last),
        }
    }
}

type Shard = HashMap<Key, Holder>;

/// The running operations.
///
/// A call locks the shards of its few keys in ascending order, so that no two calls deadlock, checks them,
/// and unlocks them. Nothing is awaited under a lock, and no lock is taken by every call.
pub(crate) struct Admission {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    in_flight: InFlight,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            in_flight: InFlight::default(),
        }
    }
}

/// The decision about a request.
pub(crate) enum Admitted<J> {
    /// Run: no operation blocks the request.
    Run(Permit),
    /// Wait for the running operation: it is the same request.
    Join(J),
}

impl Admission {
    /// Claims all of `claims`, or none. `flight` is kept while the operation runs, and is passed to the
    /// `join` of requests that the operation blocks. If such a request is the same, `join` returns what it
    /// needs to wait for the operation.
    ///
    /// At least one claim must be exclusive, because a repeated request is found only there.
    pub(crate) fn admit<J>(
        self: &Arc<Self>,
        rpc: Rpc,
        claims: Vec<Claim>,
        flight: Box<dyn Any + Send + Sync>,
        join: impl Fn(&(dyn Any + Send + Sync)) -> Option<J>,
    ) -> Result<Admitted<J>> {
        debug_assert!(claims.iter().any(|claim| claim.exclusive), "{rpc} claims nothing alone");
        let claims: Vec<Held> = distinct(claims)
            .into_iter()
            .map(|claim| Held { shard: self.shard_of(&claim.key), claim })
            .collect();
        let mut shards = self.lock(&claims);
        for Held { shard, claim } in &claims {
            let holder = shards.part(*shard).get(&claim.key);
            let Some(running) = holder.and_then(|holder| holder.blocks(claim)) else { continue };
            if let Some(joined) = join(&*running.flight) {
                return Ok(Admitted::Join(joined));
            }
            return Err(Error::Pending(
                format!("{}: {} is running on it; try again when it is done", claim.key, running.rpc,).into(),
            ));
        }
        let operation = Arc::new(Operation { rpc, flight });
        for Held { shard, claim } in &claims {
            hold(shards.part(*shard), claim, &operation);
        }
        drop(shards);
        self.in_flight.enter();
        Ok(Admitted::Run(Permit { admission: Arc::clone(self), claims }))
    }

    /// Completes when nothing is claimed.
    pub(crate) async fn idle(&self) {
        self.in_flight.none().await;
    }

    fn shard_of(&self, key: &Key) -> usize {
        // The remainder is less than SHARDS, so the cast loses nothing.
        (self.hasher.hash_one(key) % SHARDS as u64) as usize
    }

    fn lock(&self, claims: &[Held]) -> Locked<'_> {
        let mut indices: Vec<usize> = claims.iter().map(|held| held.shard).collect();
        indices.sort_unstable();
        indices.dedup();
        Locked(indices.into_iter().map(|index| (index, self.shard(index))).collect())
    }

    /// Each statement leaves the table consistent, so a panic elsewhere does not damage it and the poison
    /// is ignored.
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn held_keys(&self) -> usize {
        (0..SHARDS).map(|index| self.shard(index).len()).sum()
    }

    /// The capacity of the table, in entries.
    #[cfg(test)]
    fn room(&self) -> usize {
        (0..SHARDS).map(|index| self.shard(index).capacity()).sum()
    }
}

/// The locked shards of a request's claims.
struct Locked<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Locked<'_> {
    fn part(&mut self, index: usize) -> &mut Shard {
        let at = self.0.partition_point(|(locked, _)| *locked < index);
        &mut self.0[at].1
    }
}

fn hold(shard: &mut Shard, claim: &Claim, operation: &Arc<Operation>) {
    let last = Arc::clone(operation);
    if claim.exclusive {
        shard.insert(claim.key.clone(), Holder::Alone(last));
    } else if let Some(Holder::Shared { count, last: before }) = shard.get_mut(&claim.key) {
        *count += 1;
        *before = last;
    } else {
        shard.insert(claim.key.clone(), Holder::Shared { count: 1, last });
    }
}

fn release(shard: &mut Shard, claim: &Claim) {
    match shard.get_mut(&claim.key) {
        Some(Holder::Shared { count, .. }) if *count > 1 => *count -= 1,
        _ => drop(shard.remove(&claim.key)),
    }
    // Give memory back after a burst of work.
    if shard.capacity() > SMALL && shard.len() * 4 < shard.capacity() {
        shard.shrink_to(shard.len() * 2);
    }
}

struct Held {
    shard: usize,
    claim: Claim,
}

/// Permission to run. Dropping it, at the end or in a panic, releases the claims.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    claims: Vec<Held>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        for Held { shard, claim } in &self.claims {
            release(&mut self.admission.shard(*shard), claim);
        }
        self.admission.in_flight.leave();
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
    fn sharers_run_together_and_exclude_whoever_wants_it_alone() {
        let admission = Arc::new(Admission::default());
        let first = admit(&admission, Rpc::NodePublishVolume, publish("one"), 1).unwrap();
        let second = admit(&admission, Rpc::NodePublishVolume, publish("two"), 2).unwrap();
        let alone = || admit(&admission, Rpc::NodeUnstageVolume, vec![Claim::alone(key("v"))], 3);
        assert!(matches!(alone(), Err(Error::Pending(_))));
        drop(first);
        assert!(matches!(alone(), Err(Error::Pending(_))), "one sharer is left");
        drop(second);
        let third = alone().unwrap();
        let publish = admit(&admission, Rpc::NodePublishVolume, publish("one"), 1);
        assert!(matches!(publish, Err(Error::Pending(_))));
        drop(third);
        assert_eq!(admission.held_keys(), 0);
    }

    #[test]
    fn a_refused_claim_leaves_nothing_claimed() {
        let admission = Arc::new(Admission::default());
        let held = admit(&admission, Rpc::NodeStageVolume, vec![Claim::alone(key("b"))], 1).unwrap();
        let both = vec![Claim::alone(key("a")), Claim::alone(key("b"))];
        assert!(admit(&admission, Rpc::NodeUnstageVolume, both, 2).is_err());
        assert_eq!(admission.held_keys(), 1);
        drop(held);
        assert_eq!(admission.held_keys(), 0);
    }

    #[test]
    fn the_same_request_joins_and_another_does_not() {
        let admission = Arc::new(Admission::default());
        let _held = admit(&admission, Rpc::NodeStageVolume, vec![Claim::alone(key("v"))], 7).unwrap();
        let again = |rpc, id| admit(&admission, rpc, vec![Claim::alone(key("v"))], id);
        assert!(matches!(again(Rpc::NodeStageVolume, 7), Ok(Admitted::Join(()))));
        assert!(matches!(again(Rpc::NodeStageVolume, 8), Err(Error::Pending(_))));
        assert!(matches!(again(Rpc::NodeUnstageVolume, 7), Err(Error::Pending(_))));
    }

    #[test]
    fn a_key_claimed_twice_is_held_once_in_the_stronger_way() {
        let admission = Arc::new(Admission::default());
        for claims in [
            vec![Claim::shared(key("v")), Claim::alone(key("v"))],
            vec![Claim::alone(key("v")), Claim::shared(key("v"))],
        ] {
            let held = admit(&admission, Rpc::NodeStageVolume, claims, 1).unwrap();
            assert!(admit(&admission, Rpc::NodePublishVolume, publish("t"), 2).is_err());
            drop(held);
            assert_eq!(admission.held_keys(), 0);
        }
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

    /// A call that took a global lock, or the lock of another shard, would deadlock here.
    #[test]
    fn a_call_takes_the_locks_of_its_own_keys_only() {
        let admission = Arc::new(Admission::default());
        let keys: Vec<Key> = (0..1000).map(|id| key(&id.to_string())).collect();
        let busy = admission.shard_of(&keys[0]);
        let others = keys.into_iter().filter(|key| admission.shard_of(key) != busy).collect::<Vec<_>>();
        assert!(others.len() > 900);
        let _locked = admission.shard(busy);
        let (done, told) = std::sync::mpsc::channel();
        let table = Arc::clone(&admission);
        std::thread::spawn(move || {
            for key in others {
                let permit = admit(&table, Rpc::NodeStageVolume, vec![Claim::alone(key)], 1);
                drop(permit.unwrap());
            }
            done.send(()).unwrap();
        });
        told.recv_timeout(std::time::Duration::from_secs(10)).expect("nobody waits for the busy shard");
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

    fn poll_once(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> std::task::Poll<()> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
